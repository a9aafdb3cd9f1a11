"""A model server of one's own: started for a run, waited for, and stopped with it, whatever ends the run."""

from vlmbatch.serve.server import Serve, free_port, is_healthy, serving

__all__ = ["Serve", "free_port", "is_healthy", "serving"]

"""A real SLURM on this machine, for tests."""

"""The Python door: a run folder as an object, its asynchronous twin, and an engine that makes folders behind calls.

Nothing here prints, reads the environment or keeps global state: keys and variables come in as arguments. The command
line is written on :class:`~vlmbatch.api.run.Run`.
"""

"""A run on a SLURM cluster, through submitit: an array of parts, what follows it, and what happens inside a task.

The run folder on a shared file system is all that tasks share. Each task sends its part of the manifest (position
modulo the number of parts), appends to a results file of its own, and may be killed at any time: what it had written
counts, and whoever sends the part again goes on behind it. After the array one small job looks which parts are still
open, queues those again as often as it may, and then collects. What is queued while an earlier submission of the run
is still at work waits for it: no row is sent twice, even where a file system has no locks.
"""

from vlmbatch.slurm.array import submit
from vlmbatch.slurm.options import SlurmOptions, Submission, Submitted

__all__ = ["SlurmOptions", "Submission", "Submitted", "submit"]

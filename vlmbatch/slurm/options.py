"""What is asked of a cluster, what travels to it, and what was queued."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vlmbatch.stages.run import RunOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """What is asked of the cluster; what is not set is left to it.

    Attributes:
        tasks: Parts of the run, which is tasks of the array.
        partition: Partition.
        account: Account.
        time: Limit of each task, as sbatch takes it (``90``, ``05:59:59``, ``1-12:00:00``); None = an hour.
        gpus: GPUs of each node.
        cpus_per_task: Processors of each task.
        nodes: Nodes of each task.
        ntasks_per_node: Processes on each node; the first one sends, the others are the server's affair.
        job_name: Name.
        sbatch: Further options of sbatch by their long names, such as ``{"qos": "long", "requeue": True}``; True = an
            option that takes no value.
        environ: Variables to be set in each task.
        max_retries: How often parts that are still open are queued again.
        merge: Whether the run is collected at the end.
    """

    tasks: int
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    gpus: int | None = None
    cpus_per_task: int | None = None
    nodes: int = 1
    ntasks_per_node: int = 1
    job_name: str = "vlmbatch"
    sbatch: Mapping[str, str | bool] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    max_retries: int = 0
    merge: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What travels to the cluster: names and settings, never a key.

    Attributes:
        run: The run folder, absolute.
        slurm: What is asked of the cluster.
        send: How each part is sent.
        key_env: The variable that holds the key there, None = the provider's conventional one.
        key_file: The file that holds it, None = none.
    """

    run: str
    slurm: SlurmOptions
    send: RunOptions
    key_env: str | None = None
    key_file: str | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """What was queued.

    Attributes:
        array: Id of the array, None where every part is done.
        parts: The parts that are in it.
        follow_up: Id of the job behind it, None where there is none.
        folder: Where scripts and logs are.
        behind: Jobs of this run that had not ended and are waited for.
        merges: Whether the run is collected at the end.
        retries: How often parts that are still open then are queued again.
    """

    array: str | None
    parts: tuple[int, ...]
    follow_up: str | None
    folder: str
    behind: tuple[str, ...] = ()
    merges: bool = False
    retries: int = 0

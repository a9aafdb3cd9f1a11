"""Staged run-directory toolkit for bulk vision-language-model requests.

A run is a folder. From Python it is an object::

    from vlmbatch import BuildOptions, CollectOptions, Run, RunOptions

    run = Run.build(BuildOptions(sources=["images/"], out="runs/r001", model="M", prompt="What is this?"))
    run.send(RunOptions(base_urls=("http://127.0.0.1:8000/v1",)))
    run.collect(CollectOptions(write="runs/r001/merged.jsonl"))

The map of the house, in the order in which one image travels (a room imports only from floors above it on this page):

====================  ===============================================================================================
floor                 rooms
====================  ===============================================================================================
ground                ``errors``, ``records`` (the shapes of all files), ``jsonl`` (how bytes are written)
matter                ``inputs`` (rows and files become items), ``images``, ``tokens``, ``classify`` (nine statuses),
                      ``retry``, ``pace``, ``prices``, ``progress``, ``keys``, ``stop``, ``descriptors``
tongues, folder       ``providers`` (one wire format each), ``rundir`` (the folder: made, opened, checked)
the jobs' book        ``journal`` (which batch jobs the run has, and what became of each)
making and moving     ``freeze`` (items become frozen lines), ``transport`` (bytes go out), ``attempts`` (results are
                      read back)
channels              ``realtime``, ``batch``, ``rehearsal`` (a provider of our own), ``resume`` (what is still to be
                      sent), ``serve`` (a model server of one's own)
stages                ``stages``: ``build``, ``estimate``, ``run``, ``collect`` as functions that return and never print
doors                 ``console``, ``slurm`` (a run as an array), ``api`` (this page's names), ``cli``,
                      ``inference_runner``
====================  ===============================================================================================

Names of this package are loaded when they are first used: ``import vlmbatch`` alone costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, without typing: until this module is loaded, Ctrl-C is a traceback
if TYPE_CHECKING:
    from typing import Any

    from vlmbatch.api.aio import AsyncRun
    from vlmbatch.api.engine import Engine
    from vlmbatch.api.hearing import Judged
    from vlmbatch.api.results import BatchResult, FailureDetail, InferenceErrorType, InferenceResult
    from vlmbatch.api.run import Run
    from vlmbatch.batch.base import BatchOptions
    from vlmbatch.errors import (
        CheckFailed,
        InputError,
        IntegrityError,
        Interrupted,
        Problem,
        RefusedError,
        SchemaVersionError,
        VlmbatchError,
    )
    from vlmbatch.images import ImagePolicy
    from vlmbatch.prices import Prices
    from vlmbatch.progress import ProgressFileReporter
    from vlmbatch.records import Event, Record, Status
    from vlmbatch.retry import Policy
    from vlmbatch.serve import Serve
    from vlmbatch.slurm import SlurmOptions
    from vlmbatch.stages.archive import BagOptions
    from vlmbatch.stages.building.plan import BuildOptions
    from vlmbatch.stages.collecting.options import CollectOptions
    from vlmbatch.stages.estimating.options import EstimateOptions
    from vlmbatch.stages.report import ReportOptions
    from vlmbatch.stages.running.task import RunOptions, RunResult
    from vlmbatch.stop import Stop

__version__ = "0.1.0"

_ROOMS = {
    "api.aio": ("AsyncRun",),
    "api.engine": ("Engine",),
    "api.hearing": ("Judged",),
    "api.results": ("BatchResult", "FailureDetail", "InferenceErrorType", "InferenceResult"),
    "api.run": ("Run",),
    "batch.base": ("BatchOptions",),
    "errors": (
        "CheckFailed",
        "InputError",
        "IntegrityError",
        "Interrupted",
        "Problem",
        "RefusedError",
        "SchemaVersionError",
        "VlmbatchError",
    ),
    "images": ("ImagePolicy",),
    "prices": ("Prices",),
    "progress": ("ProgressFileReporter",),
    "records": ("Event", "Record", "Status"),
    "retry": ("Policy",),
    "serve": ("Serve",),
    "slurm": ("SlurmOptions",),
    "stages.archive": ("BagOptions",),
    "stages.collecting.options": ("CollectOptions",),
    "stages.estimating.options": ("EstimateOptions",),
    "stages.building.plan": ("BuildOptions",),
    "stages.report": ("ReportOptions",),
    "stages.running.task": ("RunOptions", "RunResult"),
    "stop": ("Stop",),
}
_ROOM_OF = {name: f"{__name__}.{room}" for room, names in _ROOMS.items() for name in names}

__all__ = [
    "AsyncRun",
    "BagOptions",
    "BatchOptions",
    "BatchResult",
    "BuildOptions",
    "CheckFailed",
    "CollectOptions",
    "Engine",
    "EstimateOptions",
    "Event",
    "FailureDetail",
    "ImagePolicy",
    "InferenceErrorType",
    "InferenceResult",
    "InputError",
    "IntegrityError",
    "Interrupted",
    "Judged",
    "Policy",
    "Prices",
    "Problem",
    "ProgressFileReporter",
    "Record",
    "RefusedError",
    "ReportOptions",
    "Run",
    "RunOptions",
    "RunResult",
    "SchemaVersionError",
    "Serve",
    "SlurmOptions",
    "Status",
    "Stop",
    "VlmbatchError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its room when it is first used."""
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_ROOM_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

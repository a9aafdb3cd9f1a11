"""run: send the frozen bytes, and keep every answer.

The order is the promise: take the lock, check the folder, see what is settled already, and only then send. Which
channel sends is one line of a table; what each channel needs to know is in the options.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from vlmbatch import jsonl, providers, replacing, resume
from vlmbatch.errors import InputError
from vlmbatch.records import Event, Status
from vlmbatch.rundir import REHEARSAL_PREFIX, LineReader, belongs_to_run
from vlmbatch.stages.running.task import RunOptions, RunResult, Task, look_up
from vlmbatch.stop import Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vlmbatch.realtime.writer import OnWritten
    from vlmbatch.rundir import RunDir

__all__ = ["RunOptions", "RunResult", "run"]

DEFAULT_OUT = "run.jsonl"
_REALTIME = "realtime"


def run(
    run_dir: RunDir,
    options: RunOptions,
    *,
    key: str | None,
    on_event: Callable[[Event], None] | None = None,
    stop: Stop | None = None,
    on_written: OnWritten | None = None,
) -> RunResult:
    """Send what has to be sent.

    Args:
        run_dir: The run.
        options: What is asked.
        key: The API key, None where none is needed; it goes into the headers and nowhere else.
        on_event: Told of progress, warnings and notes, from the calling thread.
        stop: Asked when the user wants to stop.
        on_written: Told of attempts of this command once the results file has them, as its lines, from a thread of its
            own (the realtime channel alone; it must not raise).

    Raises:
        InputError: Wrong options, or another run works on the same part.
        IntegrityError: The folder is not what build wrote; nothing was sent.
        RefusedError: The provider refuses the whole run; what was answered before is saved.
    """
    check(run_dir, options)
    provider = providers.get(run_dir.info["provider"], run_dir.info["request"]["url"])
    name = results_name(options)
    with _locked(run_dir, options):
        _verify(run_dir, options, on_event)
        _tell_expiry(run_dir, on_event)
        task = look_up(run_dir, provider, options, stop=stop or Stop(), on_event=on_event, on_written=on_written)
        if options.pending is not None:
            return _write_pending(task, options.pending)
        return _CHANNELS[options.channel](task, name, key)


def _send_realtime(task: Task, name: str | None, key: str | None) -> RunResult:
    from vlmbatch.stages.running.sending import send

    return send(task, name, key)


def _send_batches(task: Task, _name: str | None, key: str | None) -> RunResult:
    from vlmbatch.stages.running.batching import send

    return send(task, key, task.options.batch)


_CHANNELS: dict[str, Callable[[Task, str | None, str | None], RunResult]] = {
    _REALTIME: _send_realtime,
    "batch": _send_batches,
}
"""How rows are sent, by ``--channel``: given the task, the results file's name, and the key."""


def check(run_dir: RunDir, options: RunOptions) -> None:
    """Refuse what no look at the results or the network is needed for: whoever queues a run asks it before.

    Raises:
        InputError: Options make no sense (all are told at once), or the rows would be sent where their images are not.
    """
    _check_options(options)
    _check_carrier(run_dir, options)


def _check_options(options: RunOptions) -> None:
    policy = options.policy
    rates = (options.rpm, options.tpm)
    limits = [rate for rate in rates if rate is not None] + [options.rate_limit_delay_s]
    rules = {
        "--rpm, --tpm and --rate-limit-delay must be finite numbers": not all(map(math.isfinite, limits)),
        "--timeout and --max-wait must be numbers": math.isnan(policy.timeout_s + policy.max_wait_s),
        "--max-tokens-total must be positive": options.max_tokens_total is not None and options.max_tokens_total < 1,
        "--retry-times must not be negative": options.retry_times < 0,
        f"--channel takes {' or '.join(_CHANNELS)}": options.channel not in _CHANNELS,
        "--concurrency must be positive": options.concurrency < 1,
        "--limit must be positive": options.limit is not None and options.limit < 1,
        "--timeout, --max-tries and --max-wait must be positive": min(
            policy.timeout_s, policy.max_tries, policy.max_wait_s
        )
        <= 0,
        "--rpm and --tpm must be positive": any(rate is not None and rate <= 0 for rate in rates),
        "--rate-limit-delay must not be negative": options.rate_limit_delay_s < 0,
        "--shard-id must be at least 0 and less than --num-shards": not 0 <= options.shard_id < options.num_shards,
        "--verify takes full or lines": options.verify not in {"full", "lines"},
        "--serve goes without --base-url, --rehearsal and --channel batch": (
            options.serve is not None and (bool(options.base_urls) or options.rehearsal or options.channel != _REALTIME)
        ),
        "--rehearsal goes without --base-url: its stand-in answers on this machine": (
            options.rehearsal and bool(options.base_urls)
        ),
        "--faults goes with --rehearsal": options.faults is not None and not options.rehearsal,
        "--retry-status names no status": not options.retry_status <= set(Status),
        "--retry-status missing: such rows are sent anyway": Status.MISSING in options.retry_status,
        "--retry-status and --no-resume exclude each other": bool(options.retry_status) and not options.resume,
    }
    wrong = [sentence for sentence, holds in rules.items() if holds]
    if wrong:
        raise InputError("; ".join(wrong), hint="vlmbatch run --help lists the options")


def results_name(options: RunOptions) -> str | None:
    """Return the name of the results file that the options ask for, None = a new rehearsal's.

    Raises:
        InputError: It is not a name that run may write to.
    """
    name = options.out
    if name is None:
        if options.rehearsal:
            return None
        return DEFAULT_OUT if options.num_shards == 1 else f"task-{options.shard_id:04d}.jsonl"
    if os.path.basename(name) != name or not name.endswith(".jsonl") or name.startswith("."):
        raise InputError(f"--out {name}: run writes to results/NAME.jsonl alone", hint="--out results/smoke.jsonl, say")
    if name.startswith(REHEARSAL_PREFIX) != options.rehearsal:
        word = "start with" if options.rehearsal else "not start with"
        raise InputError(
            f"--out {name}: the name must {word} {REHEARSAL_PREFIX!r}", hint="rehearsals are kept apart by their name"
        )
    if name.startswith("batch-"):
        raise InputError(f"--out {name}: names in batch-… belong to provider files", hint="choose another name")
    return name


@contextlib.contextmanager
def _locked(run_dir: RunDir, options: RunOptions) -> Iterator[None]:
    """Hold the lock of the part: the whole run and any part of it refuse each other, parts of one dealing do not."""
    with contextlib.ExitStack() as stack:
        if options.is_look:
            pass  # nothing is written, so it need not wait for whoever works on the run
        elif options.rehearsal:
            stack.enter_context(run_dir.lock("rehearsal"))
        elif options.num_shards == 1:
            stack.enter_context(run_dir.lock())
        else:
            stack.enter_context(run_dir.lock(shared=True))
            dealing = f"{options.num_shards}" + ("" if options.limit is None else f"-limit-{options.limit}")
            stack.enter_context(run_dir.lock(f"{options.shard_id}-of-{dealing}"))
            run_dir.refuse_other_dealings(dealing)
        yield


def _check_carrier(run_dir: RunDir, options: RunOptions) -> None:
    """See to runs whose bodies name files in a provider's store: they can go there alone."""
    carrier = run_dir.info.get("carrier") or {}
    if "endpoint" not in carrier:
        return
    home = urlsplit(carrier["endpoint"]).netloc
    away = [url for url in options.base_urls if urlsplit(url).netloc != home]
    if options.rehearsal or options.serve is not None or away:
        raise InputError(
            f"this run's images lie in the file store of {home}; they cannot be seen from anywhere else",
            hint="send it there; to rehearse, build once more without --carrier",
        )


def _tell_expiry(run_dir: RunDir, on_event: Callable[[Event], None] | None) -> None:
    """Warn of files in a provider's store that are not kept for ever."""
    carrier = run_dir.info.get("carrier") or {}
    if "endpoint" not in carrier:
        return
    from vlmbatch.batch.carrier import expiry_warning

    warning = expiry_warning(carrier, datetime.now(UTC))
    if warning and on_event:
        on_event(Event("warning", "run", warning))


def _verify(run_dir: RunDir, options: RunOptions, on_event: Callable[[Event], None] | None) -> None:
    """Check the folder, while the network's modules load beside it (hashing leaves them the time)."""
    loading = threading.Thread(target=import_module, args=("vlmbatch.transport",), daemon=True)
    if options.pending is None:
        loading.start()
    run_dir.verify(on_event=on_event, depth="full" if options.verify == "full" and not options.is_look else "quick")


def _write_pending(task: Task, path: str) -> RunResult:
    """Copy the frozen lines that are still to be sent into one file, byte for byte."""
    selection = task.selection
    if belongs_to_run(path):
        raise InputError(
            f"--pending {path}: that place in the run folder has its own use", hint="name a file elsewhere"
        )
    if os.path.exists(path) and not os.path.isfile(path):  # root would take the device from everybody
        raise InputError(f"--pending {path}: not a regular file", hint="name a file")
    replacing.check(f"--pending {path}", path, replacing.LINES)
    try:
        with LineReader(task.run) as lines, jsonl.atomic_writer(os.path.realpath(path)) as file:
            file.writelines(lines.line(entry) + b"\n" for entry in resume.entries(task.run, selection.wanted))
    except OSError as error:
        raise InputError(f"--pending {path}: cannot be written ({error.strerror or error})") from None
    return task.result(pending=path)

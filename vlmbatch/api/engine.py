"""The inference-engine shape: rows in, answers out, joined by id; behind every call stands a run folder.

An engine keeps its folders where it is told to: in one that the options name, in a folder of folders, or in a
temporary one that lives as long as the engine. The same rows with the same settings are the same run: what is answered
there is not asked again.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import weakref
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from vlmbatch import jsonl, keys, providers
from vlmbatch.api.run import Run
from vlmbatch.errors import CheckFailed, InputError, Problem
from vlmbatch.progress import ProgressFileReporter
from vlmbatch.records import ErrorType, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from vlmbatch.api.run import OnEvent
    from vlmbatch.records import Record
    from vlmbatch.stages.building.plan import BuildOptions
    from vlmbatch.stages.running.task import RunOptions

__all__ = [
    "BatchResult",
    "Engine",
    "FailureDetail",
    "InferenceErrorType",
    "InferenceResult",
    "ProgressFileReporter",
]

InferenceErrorType = ErrorType
"""Where a failure comes from; a str Enum."""

_BY_STATUS: Final = {
    Status.INVALID_JSON: ErrorType.PARSE_ERROR,
    Status.TRUNCATED: ErrorType.CONFIG,
    Status.EMPTY_AT_CAP: ErrorType.CONFIG,
    Status.EMPTY: ErrorType.ENGINE_FAILURE,
    Status.REFUSAL: ErrorType.ENGINE_FAILURE,
    Status.MISSING: ErrorType.RUNTIME,
}
"""Whose fault a row without a usable answer is, where no error was recorded: a limit that is too low is a setting's."""

_NAME_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class FailureDetail:
    """Why one row failed.

    Attributes:
        error_message: For people.
        status_code: HTTP status of the last try, None where no HTTP answer came or none is to blame.
        is_retryable: Whether the same row, sent again as it is, could succeed.
        error_type: Where the failure comes from.
    """

    error_message: str
    status_code: int | None = None
    is_retryable: bool = True
    error_type: InferenceErrorType = InferenceErrorType.UNKNOWN


@dataclass(frozen=True, slots=True)
class InferenceResult:
    """What became of some rows.

    Attributes:
        successful: Index and record of each row with a usable answer, ascending.
        failures: Why the others failed, by index.
    """

    successful: list[tuple[int, Record]]
    failures: dict[int, FailureDetail] = field(default_factory=dict)

    @property
    def failed_indices(self) -> list[int]:
        """Indices of the rows that failed, ascending."""
        return sorted(self.failures)

    @property
    def error_messages(self) -> dict[int, str]:
        """Why each of them failed, in words."""
        return {index: self.failures[index].error_message for index in self.failed_indices}

    @property
    def has_failures(self) -> bool:
        """Whether any row failed."""
        return bool(self.failures)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a provider's batch job came to, for the rows that were in it.

    Attributes:
        successful: Index and record of each row with a usable answer, ascending.
        failed_indices: Indices of the rows that failed, ascending.
        error_messages: Why, in words, by index.
    """

    successful: list[tuple[int, Record]]
    failed_indices: list[int]
    error_messages: dict[int, str]

    @property
    def has_failures(self) -> bool:
        """Whether any row failed."""
        return bool(self.failed_indices)


class Engine:
    """Answers rows with a model; use as a context manager where the folders are temporary.

    Args:
        options: What is asked of whom, as for :meth:`Run.build`, without sources. ``out`` names the run folder for rows
            that are always the same; empty = see ``runs``.
        send: How rows are sent, as for :meth:`Run.send`.
        runs: A folder in which each set of rows gets a run folder of its own, named by its contents; None (and no
            ``options.out``) = temporary ones.
        key: The API key itself.
        environ: Where the key is looked up by name instead.
        key_env: The variable's name, None = the provider's conventional one.
        on_event: Called with progress.

    Attributes:
        run: The run folder of the last call, None before the first.
    """

    def __init__(
        self,
        options: BuildOptions,
        send: RunOptions | None = None,
        *,
        runs: str | os.PathLike[str] | None = None,
        key: str | None = None,
        environ: Mapping[str, str] | None = None,
        key_env: str | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        from vlmbatch.stages.run import RunOptions

        _check(options, has_runs=runs is not None)
        self._options = options
        self._send = send or RunOptions()
        self._runs = None if runs is None else os.fspath(runs)
        self._key, self._environ, self._key_env = key, environ, key_env
        self._on_event = on_event
        self._provider = providers.get(options.provider or providers.DEFAULT, options.url)
        self._scratch: weakref.finalize[[str, bool], Engine] | None = None
        self._temporary = ""
        self.run: Run | None = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the temporary run folders, if there are any."""
        if self._scratch is not None:
            self._scratch()

    # --- rows ---------------------------------------------------------------------------------------------------

    def infer(self, rows: Sequence[Mapping[str, Any]]) -> list[Record]:
        """Answer all rows, in their order.

        Args:
            rows: JSON objects with the fields that the options name.

        Raises:
            CheckFailed: A row failed; each one is named, with its index, in ``problems``. What was answered is kept.
            InputError: Wrong options, or two rows have one id.
            RefusedError: The provider refuses the whole run.
        """
        result = self.infer_partial(rows)
        if result.has_failures:
            problems = [
                Problem(detail.error_type.value, detail.error_message, f"row {index}")
                for index, detail in sorted(result.failures.items())
            ]
            raise CheckFailed(
                f"{len(problems):,} of {len(rows):,} rows failed",
                hint="infer_partial returns the others; the same call again asks only for what is missing",
                problems=problems,
            )
        return [record for _, record in result.successful]

    def infer_partial(
        self, rows: Sequence[Mapping[str, Any]], progress_path: str | os.PathLike[str] | None = None
    ) -> InferenceResult:
        """Answer what can be answered.

        Args:
            rows: JSON objects with the fields that the options name.
            progress_path: A file that tells other programs how far it is.

        Raises:
            InputError: Wrong options, or two rows have one id.
            RefusedError: The provider refuses the whole run.
        """
        if not rows:
            return InferenceResult([])
        try:
            run = self._run_of(rows)
        except InputError as error:
            return InferenceResult([], _all_bad(error, len(rows)))
        path = self._send.progress_path if progress_path is None else os.fspath(progress_path)
        run.send(
            replace(self._send, progress_path=path),
            key=self._key,
            environ=self._environ,
            key_env=self._key_env,
            on_event=self._on_event,
        )
        return _sorted_out(run, run.records(rehearsal=self._send.rehearsal))

    def get_batch_results_partial(self, batch_id: str, rows: Sequence[Mapping[str, Any]]) -> BatchResult:
        """Return what a provider's batch job came to, as far as its results are in the run folder.

        Jobs are made and fetched by the batch channel (``RunOptions(channel="batch")``); nothing is sent here.

        Args:
            batch_id: The provider's id of the job.
            rows: The rows of the run that the job belongs to.

        Raises:
            InputError: The run of these rows knows no such job, or its results are not there yet.
        """
        from vlmbatch.journal import Journal

        run = self._run_of(rows)
        job = next((one for one in Journal(run.folder).jobs.values() if one.batch_id == batch_id), None)
        if job is None:
            raise InputError(f"{batch_id}: no job of this run", hint="check the id; the rows must be the job's own")
        if not job.is_over:
            raise InputError(f"{batch_id}: {job.state or 'not ended'}", hint="RunOptions(channel='batch') waits for it")
        held = set(job.positions())
        wanted = {entry.custom_id for entry in run.manifest() if entry.position in held}
        files = [run.folder.file(ref["file"]) for ref in job.files]
        result = _sorted_out(run, run.records(files) if files else (), wanted)
        return BatchResult(result.successful, result.failed_indices, result.error_messages)

    def _run_of(self, rows: Sequence[Mapping[str, Any]]) -> Run:
        """Return the run folder of some rows: an earlier one where it holds just these, else a new one.

        Raises:
            InputError: Rows cannot be built, or the folder that the options name holds other ones.
        """
        parent = self._parent()
        draft = tempfile.mkdtemp(prefix=".vlmbatch-", dir=parent)
        try:
            run = Run.build(self._build_options(rows, os.path.join(draft, "run")), on_event=self._on_event)
            target = self._options.out or os.path.join(parent, run.info["manifest"]["sha256"][:_NAME_DIGITS])
            if not os.path.lexists(target):
                os.rename(run.path, target)
            self.run = Run.open(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        for part in ("manifest", "rejected", "answer"):
            if run.info[part] != self.run.info[part]:
                raise InputError(
                    f"{target}: holds a run of other rows or settings",
                    hint="name another folder, or give a folder of runs (runs=...) instead of one run's",
                )
        return self.run

    def _parent(self) -> str:
        """Return the folder in which run folders are made."""
        if self._options.out:
            parent = os.path.dirname(os.path.abspath(self._options.out))
        elif self._runs is not None:
            parent = self._runs
        else:
            if self._scratch is None or not self._scratch.alive:
                self._temporary = tempfile.mkdtemp(prefix="vlmbatch-")
                self._scratch = weakref.finalize(self, shutil.rmtree, self._temporary, True)
            parent = self._temporary
        os.makedirs(parent, exist_ok=True)
        return parent

    def _build_options(self, rows: Sequence[Mapping[str, Any]], out: str) -> BuildOptions:
        table = io.BytesIO(b"".join(jsonl.dumps(dict(row)) + b"\n" for row in rows))
        return replace(self._options, sources=("-",), stdin=table, out=out, skip_bad=True)

    # --- the model ----------------------------------------------------------------------------------------------

    def get_supported_params(self) -> set[str]:
        """Return the names of the generation parameters that the options may set for this provider."""
        named = {"json_answer": "response_format"}
        return {named.get(name, name) for name in self._provider.supported_params()}

    def list_models(self, chat_only: bool = True) -> list[str]:
        """Return the engine's own model, or with ``chat_only=False`` all that the endpoint lists.

        Raises:
            InputError: The endpoint lists none, or cannot be reached.
        """
        if chat_only:
            return [self._options.model or ""]
        from vlmbatch.api.models import list_models

        key = self._key or keys.key_for_run(
            self._provider, self._send.base_urls, self._environ or {}, name=self._key_env, tell=lambda _: None
        )
        return list_models(self._provider, self._send.base_urls, key)

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **tokenizer_kwargs: Any) -> str:
        """Return a conversation as the text that a local model would read.

        Args:
            conversation: Messages with ``role`` and ``content``.
            **tokenizer_kwargs: For the tokenizer's own ``apply_chat_template``.

        Raises:
            InputError: transformers is not installed, or the model is not on this machine.
        """
        from vlmbatch.api.models import apply_chat_template

        return apply_chat_template(self._options.model or "", conversation, tokenizer_kwargs)


def _check(options: BuildOptions, *, has_runs: bool) -> None:
    rules = {
        "an engine's rows come with each call: options.sources must be empty": bool(options.sources),
        "an engine takes no pipeline file, which names its own datasets": options.config is not None,
        "options.model is missing": not options.model,
        "options.out names one run folder and runs a folder of them: give one": bool(options.out) and has_runs,
    }
    problems = [Problem("usage", message) for message, is_broken in rules.items() if is_broken]
    if problems:
        raise InputError(f"{len(problems)} option(s) are wrong", hint="see Engine", problems=problems)


# --- records → results ---------------------------------------------------------------------------------------


def _sorted_out(run: Run, records: Iterable[Record], wanted: set[str] | None = None) -> InferenceResult:
    """Sort records into answers and failures, by the index of the row that each one's id stands for.

    Args:
        run: The run; its table has one row a line.
        records: Its records.
        wanted: Ids to look at, None = all, and the inputs that became no request too.
    """
    indices = {entry.custom_id: (entry.source_line or 0) - 1 for entry in run.manifest()}
    successful: list[tuple[int, Record]] = []
    failures: dict[int, FailureDetail] = {}
    for record in records:
        index = indices[record["custom_id"]]
        if wanted is not None and record["custom_id"] not in wanted:
            continue
        if record["status"] == Status.OK:
            successful.append((index, record))
        else:
            failures[index] = _failure(record)
    for rejection in run.rejected() if wanted is None else ():
        reason = rejection["reason"]
        failures[(rejection["source_line"] or 0) - 1] = _unusable(reason["code"], reason["message"])
    return InferenceResult(sorted(successful, key=lambda pair: pair[0]), dict(sorted(failures.items())))


def _failure(record: Record) -> FailureDetail:
    status, error, reason = Status(record["status"]), record["error"], record["reason"]
    message = f"{status}: {reason}" if reason else status.value
    if error is None:
        return FailureDetail(message, None, status is Status.MISSING, _BY_STATUS.get(status, ErrorType.UNKNOWN))
    known = error["type"] in set(ErrorType)
    kind = ErrorType(error["type"]) if known else ErrorType.UNKNOWN
    return FailureDetail(message, error["status_code"], error["is_retryable"], kind)


def _unusable(code: str, message: str) -> FailureDetail:
    return FailureDetail(f"{code}: {message}", None, False, ErrorType.CONFIG)


def _all_bad(error: InputError, rows: int) -> dict[int, FailureDetail]:
    """Return every row's failure where no row could be used; raise again what is about something else."""
    found = {one.line - 1: _unusable(one.code, one.message) for one in error.problems if one.line is not None}
    if set(found) != set(range(rows)) or any(one.code == "duplicate_id" for one in error.problems):
        raise error
    return found

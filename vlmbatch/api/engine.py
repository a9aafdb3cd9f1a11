"""The inference-engine shape: rows in, answers out, joined by id; behind every call stands a run folder.

An engine keeps its folders where it is told to: in one that the options name, in a folder of folders, or in a
temporary one that lives as long as the engine. The same rows with the same settings are the same run: what is answered
there is not asked again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from vlmbatch import jsonl, keys, providers
from vlmbatch.api.options import check_lists
from vlmbatch.api.results import BatchResult, InferenceResult, all_failed, by_index, row_problem, sorted_out
from vlmbatch.api.run import Run
from vlmbatch.api.scratch import Scratch
from vlmbatch.errors import CheckFailed, InputError, Problem
from vlmbatch.inputs.memory import check_rows
from vlmbatch.rundir.newfolder import NewFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from vlmbatch.api.run import OnEvent
    from vlmbatch.records import Record
    from vlmbatch.stages.building.plan import BuildOptions
    from vlmbatch.stages.running.task import RunOptions

_NAME_DIGITS: Final = 12
_BUILD_PATHS: Final = ("out", "image_base_path", "prompt_file", "system_file", "json_schema", "extra_body")
_SEND_PATHS: Final = ("ids", "pending", "faults", "progress_path")
"""Options that are paths: they mean what they meant when the engine was made, wherever the program goes."""


class Engine:
    """Answers rows with a model; use as a context manager where the folders are temporary.

    Several threads may call it at once, with rows of their own. Relative paths start where the program was when the
    engine was made.

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

        send = send or RunOptions()
        _check(options, has_runs=runs is not None)
        check_lists(options)
        check_lists(send)
        self._options = replace(options, **{"image_base_path": os.getcwd(), **_settled(options, _BUILD_PATHS)})
        self._send = replace(send, **_settled(send, _SEND_PATHS))
        self._runs = None if runs is None else os.path.abspath(os.fspath(runs))
        self._key, self._environ, self._key_env = key, environ, key_env
        self._on_event = on_event
        self._provider = providers.get(options.provider or providers.DEFAULT, options.url)
        self._scratch: Scratch | None = None
        self._lock = threading.Lock()
        self.run: Run | None = None

    def __repr__(self) -> str:
        return f"Engine(model={self._options.model!r}, provider={self._provider.name!r})"

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the temporary run folders, if there are any."""
        with self._lock:
            if self._scratch is not None:
                self._scratch.remove()
            self._scratch = None

    # --- rows ---------------------------------------------------------------------------------------------------

    def infer(self, rows: Iterable[Mapping[str, Any]]) -> list[Record]:
        """Answer all rows, in their order.

        Args:
            rows: As for :meth:`infer_partial`.

        Raises:
            CheckFailed: A row failed; each one is named, with its index, in ``problems``. What was answered is kept.
            InputError: Wrong options, or two rows have one id.
            RefusedError: The provider refuses the whole run.
        """
        rows = _counted(rows)
        result = self.infer_partial(rows)
        if result.has_failures:
            problems = [
                row_problem(index, detail.error_type.value, detail.error_message)
                for index, detail in sorted(result.failures.items())
            ]
            raise CheckFailed(
                f"{len(problems):,} of {len(rows):,} rows failed",
                hint="infer_partial returns the others; the same call again asks only for what is missing",
                problems=problems,
            )
        return [record for _, record in result.successful]

    def infer_partial(
        self, rows: Iterable[Mapping[str, Any]], progress_path: str | os.PathLike[str] | None = None
    ) -> InferenceResult:
        """Answer what can be answered.

        Args:
            rows: Objects with the fields that the options name. An image field may hold a path, bytes, a picture of
                Pillow's, an array of 8-bit pixels, or a list of such.
            progress_path: A file that tells other programs how far it is.

        Raises:
            InputError: Wrong options, or two rows have one id.
            RefusedError: The provider refuses the whole run.
        """
        rows = _counted(rows)
        if len(rows) == 0:
            return InferenceResult([])
        try:
            run = self._run_of(rows)
        except InputError as error:
            return InferenceResult([], all_failed(error, len(rows)))
        path = self._send.progress_path if progress_path is None else os.fspath(progress_path)
        run.send(
            replace(self._send, progress_path=path),
            key=self._key,
            environ=self._environ,
            key_env=self._key_env,
            on_event=self._on_event,
        )
        return sorted_out(run, run.records(rehearsal=self._send.rehearsal))

    def get_batch_results_partial(self, batch_id: str, rows: Iterable[Mapping[str, Any]]) -> BatchResult:
        """Return what a provider's batch job came to, as far as its results are in the run folder.

        Jobs are made and fetched by the batch channel (``RunOptions(channel="batch")``); nothing is sent here.

        Args:
            batch_id: The provider's id of the job.
            rows: The rows of the run that the job belongs to.

        Raises:
            InputError: The run of these rows knows no such job, or its results are not there yet.
        """
        from vlmbatch.journal import Journal

        try:
            run = self._run_of(rows)
        except InputError as error:
            raise by_index(error) from None
        job = next((one for one in Journal(run.folder).jobs.values() if one.batch_id == batch_id), None)
        if job is None:
            raise InputError(f"{batch_id}: no job of this run", hint="check the id; the rows must be the job's own")
        if not job.is_over:
            raise InputError(f"{batch_id}: {job.state or 'not ended'}", hint="RunOptions(channel='batch') waits for it")
        held = set(job.positions())
        wanted = {entry.custom_id for entry in run.manifest() if entry.position in held}
        files = [run.folder.file(ref["file"]) for ref in job.files]
        result = sorted_out(run, run.records(files) if files else (), wanted)
        return BatchResult(result.successful, result.failed_indices, result.error_messages)

    def _run_of(self, rows: Iterable[Mapping[str, Any]]) -> Run:
        """Return the run folder of some rows: an earlier one where it holds just these, else a new one.

        Raises:
            InputError: Rows cannot be built, or the folder that the options name holds other ones.
        """
        parent, scratch = self._parent()
        with NewFolder(os.path.join(parent, "run")) as draft:  # around the run, whose name is known once it is built
            options = replace(self._options, rows=rows, out=os.path.join(draft.path, "run"), skip_bad=True)
            built = Run.build(options, on_event=self._on_event)
            target = self._options.out or os.path.join(parent, jsonl.sha256(_mark(built))[:_NAME_DIGITS])
            _put_in_place(built.path, target)
        run = Run.open(target)
        run.warnings, run.keeper = built.warnings, scratch
        if _mark(run) != _mark(built):
            raise InputError(
                f"{target}: holds a run of other rows or settings",
                hint="name another folder, or give a folder of runs (runs=...) instead of one run's",
            )
        self.run = run
        return run

    def _parent(self) -> tuple[str, Scratch | None]:
        """Return the folder in which run folders are made, and what keeps it where it is temporary."""
        if not self._options.out and self._runs is None:
            with self._lock:
                if self._scratch is None or not os.path.isdir(self._scratch.path):  # somebody cleans up temporary files
                    self._scratch = Scratch()
                return self._scratch.path, self._scratch
        return os.path.dirname(self._options.out) if self._runs is None else self._runs, None

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

        key = keys.key_for_run(
            self._provider,
            self._send.base_urls,
            self._environ or {},
            given=self._key,
            name=self._key_env,
            tell=lambda _: None,
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
        "an engine's rows come with each call: options.sources and options.rows must be empty": bool(options.sources)
        or options.rows is not None,
        "an engine takes no pipeline file, which names its own datasets": options.config is not None,
        "options.model is missing": not options.model,
        "options.out names one run folder and runs a folder of them: give one": bool(options.out) and has_runs,
        "an engine's images stand in the requests: leave options.carrier away, or upload them once with Run.build and "
        "send that run": options.carrier != "inline",
    }
    problems = [Problem("usage", message) for message, is_broken in rules.items() if is_broken]
    if problems:
        raise InputError(f"{len(problems)} option(s) are wrong", hint="see Engine", problems=problems)


def _settled(options: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the paths among some options' fields as they are wherever the program goes."""
    return {name: os.path.abspath(path) for name in names if (path := getattr(options, name))}


def _counted(rows: Iterable[Mapping[str, Any]]) -> Collection[Mapping[str, Any]]:
    """Return rows whose number is known.

    Raises:
        InputError: They are no rows.
    """
    check_rows(rows)
    return rows if isinstance(rows, Collection) else list(rows)


def _mark(run: Run) -> bytes:
    """Return what tells a run from those of other rows and settings."""
    return jsonl.dumps_canonical([run.info["manifest"], run.info["rejected"], run.info["answer"]])


def _put_in_place(built: str, target: str) -> None:
    """Give a new folder its name, unless there is one already: another thread may be making the same."""
    if not os.path.lexists(target):
        try:
            os.rename(built, target)
        except OSError:
            if not os.path.lexists(target):
                raise

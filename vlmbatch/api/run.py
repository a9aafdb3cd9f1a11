"""A run folder as an object: what the four commands do, and iterators over what they leave."""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, TypedDict, cast

from vlmbatch import attempts, jsonl, keys, providers, rundir
from vlmbatch.attempts import Journal, Reader
from vlmbatch.errors import IntegrityError
from vlmbatch.records import Event
from vlmbatch.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from vlmbatch.attempts import Outcome
    from vlmbatch.providers.base import Provider
    from vlmbatch.records import Asked, Entry, Reading, Record, RunInfo, Verdict
    from vlmbatch.slurm import SlurmOptions, Submitted
    from vlmbatch.stages.building.plan import BuildOptions
    from vlmbatch.stages.collect import CollectResult
    from vlmbatch.stages.collecting.options import CollectOptions
    from vlmbatch.stages.estimating.options import EstimateOptions, EstimateResult
    from vlmbatch.stages.running.task import RunOptions, RunResult
    from vlmbatch.stop import Stop

    OnEvent = Callable[[Event], None]
    OnAttempt = Callable[["Judged"], object]


class Judged(NamedTuple):
    """One attempt: as the results file has it, as the provider's adapter reads it, and what became of the request."""

    outcome: Outcome
    reading: Reading
    verdict: Verdict


class RejectionReason(TypedDict):
    """Why an input could not become a request."""

    code: str
    message: str


class Rejection(TypedDict):
    """One line of rejected.jsonl. ``source_line`` is the 1-based row of a table, None for files."""

    schema: str
    index: int
    source_line: int | None
    path: str | None
    reason: RejectionReason


class Run:
    """A run folder.

    Make one with :meth:`build`, open one with :meth:`open`.

    Attributes:
        folder: The folder, opened for reading.
        warnings: What build had to say; empty for a run that was opened.
        left_out: Files that build's folder scan left out, by reason; empty likewise.
    """

    def __init__(self, folder: RunDir) -> None:
        self.folder = folder
        self.warnings: tuple[str, ...] = ()
        self.left_out: Mapping[str, int] = {}

    def __repr__(self) -> str:
        return f"Run({self.path!r})"

    @classmethod
    def build(
        cls,
        options: BuildOptions,
        *,
        key: str | None = None,
        environ: Mapping[str, str] | None = None,
        key_env: str | None = None,
        key_file: str | None = None,
        on_event: OnEvent | None = None,
    ) -> Run:
        """Freeze every request into a new run folder.

        Args:
            options: What is asked of whom, about what, and where the folder goes.
            key: The API key itself; it is needed only where images are uploaded first (``carrier``).
            environ: Where the key is looked up by name instead (``os.environ``, say).
            key_env: The variable's name, None = the provider's conventional one, for its own address alone.
            key_file: A file whose first line is the key, instead.
            on_event: Called with progress, from the calling thread; what it raises ends the building.

        Raises:
            InputError: Wrong options or bad inputs (all of them listed), or no key; no folder is left behind.
            RefusedError: The provider's file store did not take an image; no folder is left behind.
        """
        from vlmbatch.stages.build import build
        from vlmbatch.stages.building.plan import provider_name

        if key is None and options.carrier != "inline":
            key = keys.key_for_run(
                providers.get(provider_name(options), options.url),
                [options.base_url] if options.base_url else [],
                environ or {},
                name=key_env,
                file=key_file,
                tell=lambda text: on_event(Event("warning", "build", text)) if on_event else None,
            )
        result = build(options, key=key, on_event=on_event)
        run = cls(result.run)
        run.warnings, run.left_out = result.warnings, result.left_out
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Run:
        """Open a run folder.

        Raises:
            InputError: There is no run folder, or it was written by a newer major version.
            IntegrityError: run.json is damaged.
        """
        return cls(RunDir.open(path))

    @property
    def path(self) -> str:
        """The folder's path."""
        return self.folder.path

    @property
    def info(self) -> RunInfo:
        """run.json."""
        return self.folder.info

    @property
    def fingerprint(self) -> str:
        """SHA-256 that names the run's frozen contents, equal on any machine."""
        return self.folder.fingerprint

    def __len__(self) -> int:
        return self.folder.requests

    # --- what the commands do -----------------------------------------------------------------------------------

    def estimate(
        self, options: EstimateOptions | None = None, *, now: str | None = None, on_event: OnEvent | None = None
    ) -> EstimateResult:
        """Tell what the run will use and cost; the figures are appended to estimates.jsonl.

        Args:
            options: Scheme, sample, prices.
            now: RFC 3339 time of the estimate, None = this moment.
            on_event: Called with progress, from the calling thread.

        Raises:
            InputError: Wrong options or unreadable files.
            IntegrityError: The folder or the sample is not what it should be.
        """
        from vlmbatch.stages.estimate import estimate
        from vlmbatch.stages.estimating.options import EstimateOptions

        now = now or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return estimate(self.folder, options or EstimateOptions(), now=now, on_event=on_event)

    def send(
        self,
        options: RunOptions | None = None,
        *,
        key: str | None = None,
        environ: Mapping[str, str] | None = None,
        key_env: str | None = None,
        key_file: str | None = None,
        on_event: OnEvent | None = None,
        on_attempt: OnAttempt | None = None,
        stop: Stop | None = None,
    ) -> RunResult:
        """Send what has no answer yet, and keep every answer.

        Rows that end without an answer are no exception here: ``result.problem()`` returns what the command line would
        end with, None where every row was answered.

        Args:
            options: Where to send, which rows, how fast, how much money.
            key: The API key itself.
            environ: Where the key is looked up by name instead (``os.environ``, say); nothing else is taken from it.
            key_env: The variable's name, None = the provider's conventional one, for its own address alone.
            key_file: A file whose first line is the key, instead.
            on_event: Called with progress, warnings and notes, from the thread that sends.
            on_attempt: Called with each attempt once the disk has it, one at a time, from a thread of its own (realtime
                channel alone; its ``outcome.line`` is 0). What it raises stops the sending and is raised again here.
            stop: Asked from elsewhere, it ends the sending in good order.

        Raises:
            InputError: Wrong options, no key, or another process works on the same part.
            IntegrityError: The folder is not what build wrote; nothing was sent.
            RefusedError: The provider refuses the whole run; what was answered before is saved.
        """
        from vlmbatch.stages.run import RunOptions, run
        from vlmbatch.stop import Stop

        options, stop = options or RunOptions(), stop or Stop()
        if key is None and not options.rehearsal and options.pending is None:
            key = keys.key_for_run(
                self.provider,
                options.base_urls,
                environ or {},
                name=key_env,
                file=key_file,
                is_served=options.serve is not None,
                tell=_teller(on_event),
            )
        listener = None if on_attempt is None else _Listener(self, on_attempt, stop)
        result = run(self.folder, options, key=key, on_event=on_event, stop=stop, on_written=listener)
        if listener is not None and listener.error is not None:
            raise listener.error
        return result

    def submit(
        self,
        slurm: SlurmOptions,
        options: RunOptions | None = None,
        *,
        key_env: str | None = None,
        key_file: str | None = None,
    ) -> Submitted:
        """Queue the run on a SLURM cluster, as an array of parts.

        Args:
            slurm: What is asked of the cluster.
            options: How each part is sent.
            key_env: The variable that holds the key there.
            key_file: The file that holds it there.

        Raises:
            InputError: Options make no sense on a cluster, submitit is not installed, or SLURM refuses the job.
            IntegrityError: The folder is not what build wrote.
        """
        from vlmbatch.slurm import Job, submit
        from vlmbatch.stages.run import RunOptions

        return submit(Job(run=self.path, slurm=slurm, send=options or RunOptions(), key_env=key_env, key_file=key_file))

    def collect(
        self,
        options: CollectOptions | None = None,
        results: Sequence[str] = (),
        *,
        on_event: OnEvent | None = None,
    ) -> CollectResult:
        """Join results into exactly one record for each request.

        Checks that do not hold are no exception here: they stand in ``result.checks``.

        Args:
            options: What to write, check and compare; None = nothing is written.
            results: Results files; empty = all of results/ but the rehearsals.
            on_event: Called with progress, from the calling thread.

        Raises:
            InputError: A file or condition is not what it should be; nothing was written.
            IntegrityError: Frozen bytes differ, or results of another run were mixed in; nothing was written.
        """
        from vlmbatch.stages.collect import collect

        return collect(self.folder, results, options, on_event=on_event)

    def verify(self, *, on_event: OnEvent | None = None) -> None:
        """Check the hash of every frozen file.

        Raises:
            IntegrityError: Something differs; every difference is listed.
        """
        self.folder.verify(on_event=on_event)

    # --- what they leave ----------------------------------------------------------------------------------------

    def manifest(self) -> Iterator[Entry]:
        """Yield the requests in input order.

        Raises:
            IntegrityError: A line is damaged.
        """
        return self.folder.iter_entries()

    def rejected(self) -> Iterator[Rejection]:
        """Yield the inputs that could not become requests, with their reasons."""
        ref = self.info.get("rejected")
        for line in jsonl.iter_lines(self.folder.file(ref["file"])) if ref else ():
            yield cast("Rejection", jsonl.loads(line.data))

    def attempts(self, *, rehearsal: bool = False) -> Iterator[Judged]:
        """Yield every attempt on record, files in the order in which they were begun.

        Args:
            rehearsal: Whether the rehearsals are meant, and they alone.

        Raises:
            IntegrityError: A line is of another run.
            SchemaVersionError: A newer vlmbatch wrote a line in a shape that this one cannot read.
        """
        judge = _Judge(self)
        journal = Journal.load(self.folder)
        for path in attempts.order_files(self.folder.results(rehearsal=rehearsal), journal):
            for outcome in Reader(path, self.folder, judge.provider, journal):
                if outcome.rehearsal == rehearsal:
                    yield judge(outcome)

    def records(self, results: Sequence[str] = (), *, rehearsal: bool = False) -> Iterator[Record]:
        """Yield exactly one record for each request, in manifest order, from the results as they are now.

        Args:
            results: Results files; empty = all of results/ but the rehearsals.
            rehearsal: Whether the rehearsals are meant, and they alone.

        Raises:
            InputError: A results file is not there.
            IntegrityError: Frozen bytes differ, or results of another run were mixed in.
        """
        from vlmbatch.stages.collecting.options import CollectOptions

        with tempfile.TemporaryDirectory(prefix="vlmbatch-") as folder:
            path = os.path.join(folder, rundir.MERGED)
            self.collect(CollectOptions(write=path, rehearsal=rehearsal), results)
            for line in jsonl.iter_lines(path):
                yield cast("Record", jsonl.loads(line.data))

    # --- helps --------------------------------------------------------------------------------------------------

    @property
    def provider(self) -> Provider:
        """The adapter of the run's provider."""
        return providers.get(self.info["provider"], self.info["request"]["url"])


class _Judge:
    """Judges outcomes of one run, by what each of its outputs asked for."""

    def __init__(self, run: Run) -> None:
        self.provider = run.provider
        self._index = run.folder.index()
        outputs = run.info["request"].get("outputs") or {}
        self._asked: dict[str, Asked] = {
            name: attempts.asked(run.folder, self.provider, name) for name in ("", *outputs)
        }
        self._output = [entry.output for entry in run.manifest()] if outputs else []

    def __call__(self, outcome: Outcome) -> Judged:
        """Judge one.

        Raises:
            IntegrityError: It is of another run.
        """
        position = self._index.position(outcome.custom_id)
        if position < 0:
            raise IntegrityError(
                f"{outcome.file}:{outcome.line}: {outcome.custom_id!r} is not an id of this run",
                hint="results of another run were mixed in: move that file out of results/",
            )
        asked = self._asked[self._output[position] if self._output else ""]
        return Judged(outcome, *attempts.judge(outcome, self.provider, asked))


class _Listener:
    """Hands written lines to a callback, in the writer's thread; what that raises is kept, and stops the sending."""

    def __init__(self, run: Run, on_attempt: OnAttempt, stop: Stop) -> None:
        self._judge = _Judge(run)
        self._reader = Reader(run.folder.file(rundir.RESULTS), run.folder, self._judge.provider)
        self._on_attempt = on_attempt
        self._stop = stop
        self.error: Exception | None = None

    def __call__(self, lines: Sequence[bytes]) -> None:
        if self.error is not None:
            return
        try:
            for line in lines:
                outcome = self._reader.read(jsonl.loads(line), 0, 0, len(line))
                if outcome is not None:
                    self._on_attempt(self._judge(outcome))
        except Exception as error:  # noqa: BLE001  (the caller's own; it is raised again by send)
            self.error = error
            self._stop.ask()


def _teller(on_event: OnEvent | None) -> Callable[[str], None]:
    """Return what tells a sentence as a note."""

    def tell(sentence: str) -> None:
        if on_event is not None:
            on_event(Event("note", "run", sentence))

    return tell

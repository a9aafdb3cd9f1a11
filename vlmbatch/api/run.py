"""A run folder as an object: what the four commands do, and iterators over what they leave."""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from vlmbatch import attempts, jsonl, keys, providers, rundir
from vlmbatch.api.hearing import Hearing, Judge, teller
from vlmbatch.api.options import check_lists
from vlmbatch.attempts import Origins, Reader
from vlmbatch.errors import InputError
from vlmbatch.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from vlmbatch.api.hearing import Judged, Rejection
    from vlmbatch.providers.base import Provider
    from vlmbatch.records import Entry, Event, Record, RunInfo
    from vlmbatch.slurm import SlurmOptions, Submitted
    from vlmbatch.stages.archive import BagOptions, BagResult, RedactResult, SealResult
    from vlmbatch.stages.building.plan import BuildOptions
    from vlmbatch.stages.collect import CollectResult
    from vlmbatch.stages.collecting.options import CollectOptions
    from vlmbatch.stages.estimating.options import EstimateOptions, EstimateResult
    from vlmbatch.stages.report import ReportOptions
    from vlmbatch.stages.running.task import RunOptions, RunResult
    from vlmbatch.stop import Stop

    OnEvent = Callable[[Event], None]
    OnAttempt = Callable[[Judged], object]


class Run:
    """A run folder; :meth:`build` makes one, :meth:`open` opens one.

    Attributes:
        folder: The folder, opened for reading.
        warnings: What build had to say; empty for a run that was opened.
        left_out: Files that build's folder scan left out, by reason; empty likewise.
        uploads: Images that build ``uploaded``, and those ``reused`` from an earlier one; empty where they are inline.
        keeper: What keeps a temporary folder for as long as this object lives; None = nothing.
    """

    def __init__(self, folder: RunDir) -> None:
        self.folder = folder
        self.keeper: object = None
        self.warnings: tuple[str, ...] = ()
        self.left_out: Mapping[str, int] = {}
        self.uploads: Mapping[str, int] = {}

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

        check_lists(options)
        if options.carrier != "inline":
            key = keys.key_for_run(
                providers.get(provider_name(options), options.url),
                [options.base_url] if options.base_url else [],
                environ or {},
                given=key,
                name=key_env,
                file=key_file,
                tell=teller("warning", "build", on_event),
            )
        result = build(options, key=key, on_event=on_event)
        run = cls(result.run)
        run.warnings, run.left_out, run.uploads = result.warnings, result.left_out, result.uploads
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

    @property
    def provider(self) -> Provider:
        """The adapter of the run's provider."""
        return providers.get(self.info["provider"], self.info["request"]["url"])

    def __len__(self) -> int:
        return self.folder.requests

    def verify(self, *, on_event: OnEvent | None = None) -> None:
        """Check the hash of every frozen file.

        Raises:
            IntegrityError: Something differs; every difference is listed.
        """
        self.folder.verify(on_event=on_event)

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

        check_lists(options)
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
            key: The API key itself; blank = none.
            environ: Where the key is looked up by name instead (``os.environ``, say); nothing else is taken from it.
            key_env: The variable's name, None = the provider's conventional one, for its own address alone.
            key_file: A file whose first line is the key, instead.
            on_event: Called with progress, warnings and notes, from the thread that sends.
            on_attempt: Called with each attempt once the disk has it, one at a time, from a thread of its own (realtime
                channel alone; its ``outcome.line`` is 0). What either raises stops the sending in good order, and is
                raised again here.
            stop: Asked from elsewhere, it ends the sending in good order. Ctrl-C does so too, and then comes as
                KeyboardInterrupt.

        Raises:
            InputError: Wrong options, no key, or another process works on the same part.
            IntegrityError: The folder is not what build wrote; nothing was sent.
            RefusedError: The provider refuses the whole run; what was answered before is saved.
        """
        from vlmbatch.stages.run import RunOptions, run
        from vlmbatch.stop import Stop

        options, stop = options or RunOptions(), stop or Stop()
        check_lists(options)
        hearing = Hearing(stop)
        on_event = None if on_event is None else hearing.of(on_event)
        if not options.rehearsal and options.pending is None:
            key = keys.key_for_run(
                self.provider,
                options.base_urls,
                environ or {},
                given=key,
                name=key_env,
                file=key_file,
                is_served=options.serve is not None,
                tell=teller("note", "run", on_event),
            )
        on_written = None if on_attempt is None else hearing.of_attempts(self.folder, on_attempt)
        try:
            return run(self.folder, options, key=key, on_event=on_event, stop=stop, on_written=on_written)
        finally:
            hearing.raise_again()

    def submit(
        self,
        slurm: SlurmOptions,
        options: RunOptions | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        key_env: str | None = None,
        key_file: str | None = None,
    ) -> Submitted:
        """Queue the run on a SLURM cluster, as an array of parts.

        Args:
            slurm: What is asked of the cluster.
            options: How each part is sent.
            environ: The environment in which sbatch is called, and which it hands on to the tasks with the key in it;
                None = this process's, as every program inherits it. Nothing in this process is changed.
            key_env: The variable that holds the key there.
            key_file: The file that holds it there.

        Raises:
            InputError: Options make no sense on a cluster, submitit is not installed, or SLURM refuses the job.
            IntegrityError: The folder is not what build wrote.
        """
        from vlmbatch.slurm import Submission, submit
        from vlmbatch.stages.run import RunOptions

        check_lists(options)
        send = options or RunOptions()
        submission = Submission(run=self.path, slurm=slurm, send=send, key_env=key_env, key_file=key_file)
        return submit(submission, os.environ if environ is None else environ)

    def collect(
        self, options: CollectOptions | None = None, results: Sequence[str] = (), *, on_event: OnEvent | None = None
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

        check_lists(options, results=results)
        return collect(self.folder, results, options, on_event=on_event)

    def report(
        self, collected: CollectResult, options: ReportOptions | None = None, *, on_event: OnEvent | None = None
    ) -> str:
        """Write a page that shows the figures, the checks and every record with its picture; return its path.

        Args:
            collected: What :meth:`collect` came to; it must have written the records.
            options: Where the page goes, what is drawn for reviewers, how large it may be.
            on_event: Called with progress.

        Raises:
            InputError: No records were written.
            IntegrityError: The records are not those of this run, or frozen bytes differ.
        """
        from vlmbatch.stages.report import write_report

        records = collected.written.get("--write")
        if records is None:
            raise InputError(
                "a report shows the records, and none were written", hint="collect(CollectOptions(write=…))"
            )
        return write_report(self.folder, records=records, summary=collected.summary, options=options, on_event=on_event)

    def seal(self, *, on_event: OnEvent | None = None) -> SealResult:
        """Hash every file of the folder into SEALED.sha256, and lay the script beside it that checks them.

        Whether records and numbers are those that the results make is asked by ``collect(CollectOptions(seal=True))``.

        Raises:
            InputError: The folder holds links, or is a redacted copy; or somebody is working on it.
            IntegrityError: Frozen files differ from what build wrote, or the folder contradicts itself.
        """
        from vlmbatch.stages.archive import seal

        return seal(self.folder, on_event=on_event)

    def bag(self, target: str, options: BagOptions | None = None, *, on_event: OnEvent | None = None) -> BagResult:
        """Pack the folder into a new BagIt bag with an RO-Crate's description.

        Args:
            target: The bag; it must not exist.
            options: What the bag says of itself.
            on_event: Called with progress.

        Raises:
            InputError: The target exists, or the folder holds links; or somebody is working on it.
            IntegrityError: A file is not what it was when it was frozen or sealed; no bag is left.
        """
        from vlmbatch.stages.archive import bag

        return bag(self.folder, target, options, on_event=on_event)

    def redact(
        self,
        target: str,
        leave_out: Collection[str],
        *,
        keep_fields: Collection[str] = (),
        on_event: OnEvent | None = None,
    ) -> RedactResult:
        """Copy the folder without what must not leave the house.

        Args:
            target: The copy; it must not exist.
            leave_out: Any of ``images``, ``paths`` and ``prompts``.
            keep_fields: Fields of the rows that may stay.
            on_event: Called with progress.

        Raises:
            InputError: Nothing or something unknown is to go, or the target exists.
            IntegrityError: A frozen file is not what build wrote; no copy is left.
        """
        from vlmbatch.stages.archive import redact

        check_lists(leave_out=leave_out, keep_fields=keep_fields)
        return redact(self.folder, target, leave_out, keep_fields=keep_fields, on_event=on_event)

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
        judge = Judge(self.folder)
        origins = Origins.load(self.folder)
        for path in attempts.order_files(self.folder.results(rehearsal=rehearsal), origins):
            for outcome in Reader(path, self.folder, judge.provider, origins.job(path)):
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
                yield cast("Record", jsonl.loads_exact(line.data))

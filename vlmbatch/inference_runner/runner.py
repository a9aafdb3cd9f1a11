"""One call of the door: what is answered is left alone, what was begun goes on, the rest becomes a new run folder."""

from __future__ import annotations

import os
import re
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from vlmbatch import BuildOptions, InputError, Problem, Run, RunOptions, Stop, keys, providers
from vlmbatch.console import Watch, duration, out, safe
from vlmbatch.errors import Exit
from vlmbatch.inference_runner.rows import Output, key_of, read_rows
from vlmbatch.records import MODEL_ANSWERS
from vlmbatch.serve import is_healthy
from vlmbatch.stages.collecting.export import row_answer
from vlmbatch.stop import on_signals

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from vlmbatch import Judged, Record
    from vlmbatch.console import Console
    from vlmbatch.inference_runner.rows import Key, Row

PROVIDERS: Final = {"vllm_local": "vllm", "openai": "openai", "gemini": "gemini"}
"""The script's names of providers, and ours."""

_LOCAL: Final = "vllm_local"
_LOCAL_URL: Final = "http://localhost:8000"
_FIELD: Final = re.compile(r"\{(\w+)\}")


@dataclass(slots=True)
class _Tally:
    """What the summary tells of this call."""

    started_s: float = field(default_factory=time.monotonic)
    success: int = 0
    errors: int = 0

    def count(self, *, is_error: bool) -> None:
        """Count one row that ended."""
        self.errors += is_error
        self.success += not is_error


class Runner:
    """One call of the door."""

    def __init__(self, args: argparse.Namespace, console: Console) -> None:
        self._args = args
        self._console = console
        self._id_fields = [name.strip() for name in args.id_fields.split(",") if name.strip()]
        _check(args, self._id_fields)
        self._rows = read_rows(args.input, self._id_fields)
        self._endpoints = [url for text in args.endpoints for url in text.split(",") if url]
        if args.provider == _LOCAL:
            self._endpoints = self._endpoints or [_LOCAL_URL]
        self._tally = _Tally()
        self._key = self._read_key()

    def _read_key(self) -> str | None:
        """Return the key: by the name that was given, else by the provider's conventional one.

        Raises:
            InputError: It is not set.
        """
        args = self._args
        conventional = providers.get(PROVIDERS[args.provider]).default_key_envs()[:1]
        names = (args.api_key_env,) if args.api_key_env else conventional
        return keys.read_key(os.environ, names, is_required=bool(names), tell=self._console.note)

    def run(self) -> int:
        """Ask what is still to be asked, and tell the summary."""
        _check_servers(self._endpoints if self._args.provider == _LOCAL else [])
        self._output = Output(self._args.output, self._id_fields, resume=not self._args.no_resume)
        todo = {key: row for key, row in self._rows.items() if key not in self._output.answered}
        left = len(self._rows) - len(todo)
        try:
            if not self._args.no_resume:
                for run in self._earlier_runs():
                    self._go_on(run, todo)
            if todo:
                self._start(todo)
        finally:
            self._output.close()
            self._tell(left)
        return Exit.CHECK_FAILED if self._tally.errors else Exit.DONE

    # --- run folders ------------------------------------------------------------------------------------------

    def _folder(self, number: int) -> str:
        return f"{self._args.output}.run" + (f".{number}" if number > 1 else "")

    def _earlier_runs(self) -> Iterator[Run]:
        number = 1
        while os.path.lexists(self._folder(number)):
            yield Run.open(self._folder(number))
            number += 1

    def _free_folder(self) -> str:
        number = 1
        while os.path.lexists(self._folder(number)):
            number += 1
        return self._folder(number)

    def _go_on(self, run: Run, todo: dict[Key, Row]) -> None:
        """Take from an earlier run what it has, and send what it still has to; what it holds leaves ``todo``."""
        held = [record for record in run.records() if self._row_of(record["row"], todo) is not None]
        if not held or not self._is_same_request(run, held[0], todo):
            return
        ids, rows = [], {}
        for record in held:
            row = todo.pop(self._row_of(record["row"], todo).key)  # type: ignore[union-attr]  # just looked at
            error = record["error"]
            if record["status"] in MODEL_ANSWERS or (error is not None and not error["is_retryable"]):
                self._put(row, record)
            else:
                ids.append(record["custom_id"])
                rows[record["custom_id"]] = row
        if ids:
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
                file.write("\n".join(ids))
                file.flush()
                self._send(run, rows, ids=file.name)

    def _row_of(self, fields: Mapping[str, Any], todo: Mapping[Key, Row]) -> Row | None:
        """Return the row of the input that is just this one, None where there is none or it has changed."""
        key = key_of(fields, self._id_fields)
        row = None if key is None else todo.get(key)
        return row if row is not None and row.fields == fields else None

    def _is_same_request(self, run: Run, record: Record, todo: Mapping[Key, Row]) -> bool:
        """Tell whether a run asks what would be asked now: one of its rows is frozen anew and the bytes compared."""
        row = self._row_of(record["row"], todo)
        with tempfile.TemporaryDirectory(prefix="vlmbatch-") as folder:
            try:
                probe = Run.build(self._build_options([row] if row else [], os.path.join(folder, "run")))
            except InputError:
                return False
            (now,) = (entry.inner_sha256 for entry in probe.manifest())
        then = next(entry.inner_sha256 for entry in run.manifest() if entry.custom_id == record["custom_id"])
        return now == then and run.info["provider"] == probe.info["provider"]

    def _start(self, todo: Mapping[Key, Row]) -> None:
        """Freeze what no earlier run holds, and send it; a row that cannot be asked gets its error at once."""
        rows = list(todo.values())
        try:
            with on_signals(Stop()), Watch(self._console, "building") as watch:
                run = Run.build(self._build_options(rows, self._free_folder()), on_event=watch.on_event)
        except InputError as error:
            told = {line: one.message for one in error.problems for line in one.lines}
            if told.keys() != set(range(1, len(rows) + 1)):
                raise
            for line, message in sorted(told.items()):
                self._refuse(rows[line - 1], message)
            return
        for sentence in run.warnings:
            self._console.warning(sentence)
        for rejection in run.rejected():
            self._refuse(rows[(rejection["source_line"] or 0) - 1], rejection["reason"]["message"])
        self._send(run, {one.custom_id: rows[(one.source_line or 0) - 1] for one in run.manifest()})

    def _build_options(self, rows: Sequence[Row], target: str) -> BuildOptions:
        args = self._args
        return BuildOptions(
            rows=[row.fields for row in rows],
            out=target,
            model=args.model_id,
            provider=PROVIDERS[args.provider],
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            reasoning_effort=args.reasoning_effort,
            thinking_budget=args.thinking_budget,
            image_field=(args.image_field,),
            image_base_path=self._base(),
            question_field=args.question_field,
            prompt_template=_as_jinja(args.prompt_template),
            id_fields=tuple(self._id_fields),
            allow_outside=True,
            skip_bad=True,
        )

    def _base(self) -> str | None:
        """Return where relative image paths start: here, as in a script, unless the first one stands by the input."""
        beside = os.path.dirname(os.path.abspath(self._args.input))
        named = (row.fields.get(self._args.image_field) for row in self._rows.values())
        first = next((path for path in named if isinstance(path, str) and not os.path.isabs(path)), None)
        is_beside = first is not None and not os.path.exists(first) and os.path.exists(os.path.join(beside, first))
        return beside if is_beside else None

    # --- sending ----------------------------------------------------------------------------------------------

    def _send(self, run: Run, rows: Mapping[str, Row], *, ids: str | None = None) -> None:
        """Send a run, or some rows of it, and append each answer as it comes."""

        def on_attempt(judged: Judged) -> None:
            outcome, reading, verdict = judged
            if outcome.is_final and (row := rows.get(outcome.custom_id)) is not None:
                known = {"status": verdict.status, "reason": verdict.reason, "text": reading.text}
                self._put(row, {**known, "json": verdict.json, "authoritative": None})

        stop = Stop()
        with on_signals(stop), Watch(self._console, "sending") as watch:
            result = run.send(
                RunOptions(
                    base_urls=tuple(self._endpoints),
                    concurrency=self._concurrency(),
                    rate_limit_delay_s=self._args.rate_limit_delay,
                    ids=ids,
                ),
                key=self._key,
                on_event=watch.on_event,
                on_attempt=on_attempt,
                stop=stop,
            )
        if result.is_interrupted:
            raise KeyboardInterrupt
        if result.stopped:
            self._console.warning(f"stopped: {result.stopped}; the same command goes on")

    def _concurrency(self) -> int:
        """Return the open requests per endpoint: what is asked is per server of one's own, but in all for an API."""
        share = 1 if self._args.provider == _LOCAL else max(1, len(self._endpoints))
        return max(1, int(self._args.n_concurrent) // share)

    # --- telling ----------------------------------------------------------------------------------------------

    def _put(self, row: Row, record: Mapping[str, Any]) -> None:
        answer = row_answer({**record, "model": self._args.model_id})
        self._output.put(row, answer)
        self._tally.count(is_error=answer["error"] is not None)

    def _refuse(self, row: Row, why: str) -> None:
        none = {"model": self._args.model_id, "raw_response": None, "parsed_answer": None}
        self._output.put(row, {**none, "error": why})
        self._tally.count(is_error=True)

    def _tell(self, left: int) -> None:
        tally = self._tally
        elapsed_s = time.monotonic() - tally.started_s
        ended = tally.success + tally.errors
        out(f"output: {safe(self._args.output)} (run folder {safe(self._folder(1))})")
        out(f"total: {len(self._rows):,} rows, {left:,} answered before, {ended:,} processed now")
        rate = f" ({tally.success / ended:.1%})" if ended else ""
        out(f"success: {tally.success:,}{rate}")
        out(f"errors: {tally.errors:,}")
        out(f"throughput: {ended / elapsed_s if elapsed_s else 0.0:.2f} rows/s over {duration(elapsed_s)}")


def _check(args: argparse.Namespace, id_fields: Sequence[str]) -> None:
    """Refuse what cannot work, before anything is read.

    Raises:
        InputError: Options are wrong; all are listed.
    """
    out = args.output
    is_there = os.path.exists(out)
    rules = {
        "--n-concurrent must be positive": args.n_concurrent < 1,
        "--id-fields names no field": not id_fields,
        "--output is the input, which is never written to": is_there
        and os.path.exists(args.input)
        and os.path.samefile(args.input, out),
        "--output is no plain file": is_there and not os.path.isfile(out),
    }
    problems = [Problem("usage", message) for message, holds in rules.items() if holds]
    if problems:
        raise InputError(f"{len(problems)} option(s) are wrong", hint="nothing was read or sent", problems=problems)


def _as_jinja(template: str | None) -> str | None:
    """Return a template as Jinja2: ``{field}`` alone, as scripts have it, is taken for ``{{ field }}``."""
    if template is None or "{{" in template or "{%" in template:
        return template
    return _FIELD.sub(r"{{ \1 }}", template)


def _check_servers(urls: Sequence[str]) -> None:
    """Refuse to begin where a server of one's own does not answer.

    Raises:
        InputError: At least one does not; all are listed.
    """
    problems = []
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme == "http" and not is_healthy(parts.hostname or "", parts.port or 80):
            problems.append(Problem("server", "does not answer", url))
    if problems:
        raise InputError(
            f"{len(problems)} of {len(urls)} server(s) are not healthy",
            hint="start them, or name others with --endpoints; nothing was sent",
            problems=problems,
        )

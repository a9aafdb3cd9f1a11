"""What may be written over: earlier outputs of the same kind, and nothing else of the user's."""

from __future__ import annotations

import io
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.stages.result_runs import attempt, completion, make_run, write_results
from vlmbatch import replacing
from vlmbatch.errors import InputError
from vlmbatch.progress import ProgressFileReporter
from vlmbatch.stages.collect import CollectOptions, collect
from vlmbatch.stages.report import write_report
from vlmbatch.stages.run import RunOptions
from vlmbatch.stages.run import run as send

if TYPE_CHECKING:
    from pathlib import Path

    from vlmbatch.rundir import RunDir

OUTPUTS = ("write", "rows", "csv", "parquet", "retry_ids", "cap_ids")
KINDS = {
    "write": replacing.RECORDS,
    "rows": replacing.ROWS,
    "csv": replacing.CSV,
    "parquet": replacing.PARQUET,
    "retry_ids": replacing.IDS,
}


def _table() -> bytes:
    """Return a Parquet table of the user's own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.table({"custom_id": ["a"], "question": ["What?"]}), out)
    return out.getvalue()


FOREIGN = {
    "picture": b"\x89PNG\r\n\x1a\n" + bytes(2000),
    "text": b"What is in the picture?\nAnswer in one word.\n",
    "shell": b"export PATH=$HOME/bin:$PATH\n",
    "words": b"cat\ndog\n",
    "rows": b'{"image": "a.png", "question": "What?", "model": "m"}\n',
    "csv": b"custom_id,image_path\r\n1,a.png\r\n",
    "page": b"<!doctype html><title>My page</title>",
    "json": b'{"total": "many"}',
    "blank": b"\n",
}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return a run of two rows, one of which was answered."""
    run = make_run(tmp_path / "run", [b'{"n":1}', b'{"n":2,"s":"x,y"}'])
    write_results(run, "run.jsonl", [attempt(run, 0, completion("a cat"))])
    return run


def _write_all(run: RunDir, folder: Path) -> dict[str, str]:
    """Let every output be written; return where each one stands, by kind."""
    paths = {kind: str(folder / name) for name, kind in KINDS.items()}
    collect(run, (), CollectOptions(**{name: paths[kind] for name, kind in KINDS.items()}))  # type: ignore[arg-type]
    paths[replacing.SUMMARY] = str(folder / "write.summary.json")
    return paths | _written_by_others(run, folder)


def _written_by_others(run: RunDir, folder: Path) -> dict[str, str]:
    merged = run.file("merged.jsonl")
    told = collect(run, (), CollectOptions(write=merged))
    page = write_report(run, records=merged, summary=told.summary)
    state, lines = str(folder / "state.json"), str(folder / "lines.jsonl")
    ProgressFileReporter(state, 2).start()
    send(run, RunOptions(pending=lines), key=None)
    return {replacing.PAGE: page, replacing.STATE: state, replacing.LINES: lines}


def _fields(kind: str) -> set[str]:
    return {"model", "raw_response", "parsed_answer", "error"} if kind == replacing.ROWS else set()


def test_every_output_may_be_replaced_by_its_own_kind_alone(run: RunDir, tmp_path: Path) -> None:
    """Each output is known again, by its content, and by no other kind's test."""
    paths = _write_all(run, tmp_path)
    paths[replacing.RECORDS], paths[replacing.SUMMARY] = run.file("merged.jsonl"), run.file("summary.json")
    for kind, path in paths.items():
        taken = {other for other in paths if replacing.why_not(path, other, _fields(other)) is None}
        assert taken == {kind}


@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini"])
def test_pending_lines_of_any_wire_format_are_known_again(provider: str, tmp_path: Path) -> None:
    """The same command again replaces its own file."""
    run = make_run(tmp_path / "run", 2, provider=provider)
    path = tmp_path / "pending.jsonl"
    for _ in range(2):
        assert send(run, RunOptions(pending=str(path)), key=None).pending == str(path)
    assert len(path.read_bytes().splitlines()) == 2


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("option", OUTPUTS)
def test_collect_writes_over_no_file_of_the_users(option: str, what: str, run: RunDir, tmp_path: Path) -> None:
    """Whatever flag names a file of the user's: nothing is written, and the file stays."""
    target = tmp_path / "mine"
    target.write_bytes(FOREIGN[what])
    other = tmp_path / ("rows.jsonl" if option != "rows" else "merged.jsonl")
    more = {"rows": str(other)} if option != "rows" else {"write": str(other)}
    with pytest.raises(InputError) as caught:
        collect(run, (), CollectOptions(**{option: str(target), **more}))  # type: ignore[arg-type]
    assert "not something vlmbatch wrote" in str(caught.value.problems)
    assert target.read_bytes() == FOREIGN[what]
    assert not other.exists()


def test_parquet_table_of_the_users_is_not_replaced(run: RunDir, tmp_path: Path) -> None:
    """Its magic bytes are those of ours; its columns are not."""
    target = tmp_path / "table.parquet"
    target.write_bytes(_table())
    with pytest.raises(InputError):
        collect(run, (), CollectOptions(parquet=str(target)))


def test_summary_beside_the_records_replaces_no_file_of_the_users(run: RunDir, tmp_path: Path) -> None:
    """The place of the summary follows from that of the records, and is looked at likewise."""
    (tmp_path / "out.summary.json").write_bytes(b'{"mine": 1}')
    with pytest.raises(InputError, match="cannot be written"):
        collect(run, (), CollectOptions(write=str(tmp_path / "out.jsonl")))
    assert not (tmp_path / "out.jsonl").exists()


def test_empty_file_is_free(run: RunDir, tmp_path: Path) -> None:
    """A file that mktemp made may be written."""
    for option in OUTPUTS:
        (tmp_path / option).touch()
    collect(run, (), CollectOptions(**{option: str(tmp_path / option) for option in OUTPUTS}))  # type: ignore[arg-type]
    assert (tmp_path / "csv").stat().st_size


def test_report_replaces_no_page_of_the_users(run: RunDir, tmp_path: Path) -> None:
    """Not even at the report's own place."""
    told = collect(run, (), CollectOptions(write=run.file("merged.jsonl")))
    page = tmp_path / "run" / "report.html"
    page.write_bytes(FOREIGN["page"])
    with pytest.raises(InputError, match="not something vlmbatch wrote"):
        write_report(run, records=run.file("merged.jsonl"), summary=told.summary)
    assert page.read_bytes() == FOREIGN["page"]


def test_pending_replaces_no_file_of_the_users(run: RunDir, tmp_path: Path) -> None:
    """The prompt stays a prompt."""
    target = tmp_path / "prompt.txt"
    target.write_bytes(FOREIGN["text"])
    with pytest.raises(InputError, match=r"--pending .*not something vlmbatch wrote"):
        send(run, RunOptions(pending=str(target)), key=None)
    assert target.read_bytes() == FOREIGN["text"]


def test_progress_replaces_no_file_of_the_users_and_stops_nothing(tmp_path: Path) -> None:
    """It tells why nothing is written there; an earlier progress file of anybody's making is replaced."""
    picture, earlier = tmp_path / "flower.jpg", tmp_path / "p.json"
    picture.write_bytes(FOREIGN["picture"])
    earlier.write_bytes(b'{"total": 3, "completed": 1, "failed": 0}')
    for path in (picture, earlier):
        reporter = ProgressFileReporter(path, 5)
        reporter.start()
        reporter.finalize()
        assert bool(reporter.problem) is (path == picture)
    assert picture.read_bytes() == FOREIGN["picture"]
    assert json.loads(earlier.read_bytes())["total"] == 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_file_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    """Nobody can tell what it is."""
    target = tmp_path / "secret"
    target.write_bytes(b"x")
    target.chmod(0)
    assert "cannot be read" in str(replacing.why_not(str(target), replacing.RECORDS))


def test_ids_by_the_thousand_are_known_again(tmp_path: Path) -> None:
    """More than is looked at."""
    target: Any = tmp_path / "ids.txt"
    target.write_bytes(b"".join(b"photos-0f3a9c-%06d-deadbeef\n" % n for n in range(20_000)))
    assert replacing.why_not(str(target), replacing.IDS) is None

"""Which rows are left: samples, parts, ids, and what results/ has settled."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults import completion
from tests.sendable import make_run, row_id
from vlmbatch import jsonl, providers, resume
from vlmbatch.errors import InputError, IntegrityError
from vlmbatch.records import ATTEMPT_SCHEMA, Status
from vlmbatch.resume import Mark, Selection, Standing

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir

OPENAI = providers.get("openai")
SHARDS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def attempt(run: RunDir, row: int, **fields: Any) -> bytes:
    """Return one line of results/ for a row, an answer unless told otherwise."""
    entry = list(run.iter_entries())[row]
    value = {
        "schema": ATTEMPT_SCHEMA,
        "custom_id": entry.custom_id,
        "line_sha256": entry.line_sha256,
        "channel": "realtime",
        "endpoint": "http://h/v1",
        "started_at": "2026-05-01T00:00:00Z",
        "latency_s": 0.1,
        "tries": [],
        "status_code": 200,
        "request_id": None,
        "error": None,
        "response": completion(row),
        "answered": True,
        **fields,
    }
    return jsonl.dumps({key: each for key, each in value.items() if each is not ...}) + b"\n"


def failed(run: RunDir, row: int, status: int | None, *, is_retryable: bool, **fields: Any) -> bytes:
    """Return one line of results/ for a row that got no answer."""
    error = {"type": "api_status", "message": "invented", "status_code": status, "is_retryable": is_retryable}
    body = {"error": {"message": "invented", "code": None}}
    return attempt(run, row, status_code=status, error=error, response=body, answered=..., **fields)


def refused(run: RunDir, row: int, **fields: Any) -> bytes:
    """Return one line of results/ for a row that the model declined."""
    return attempt(run, row, response=completion(row, text="", refusal="I decline."), **fields)


def marks(run: RunDir, *lines: bytes) -> list[int]:
    """Write a results file and return how each row stands, by the cheap way; the thorough way has to agree."""
    Path(run.file("results/a.jsonl")).write_bytes(b"".join(lines))
    index = run.index()
    cheap = resume.read_standing(run, OPENAI, index)
    assert cheap.marks == resume.judge_standing(run, OPENAI, index).marks
    return list(cheap.marks)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return a run of five rows."""
    return make_run(tmp_path / "run", 5)


# --- samples -------------------------------------------------------------------------------------------------


@given(SHARDS, st.integers(1, 500))
def test_sample_touches_every_shard_it_can(shards: list[int], limit: int) -> None:
    """As many rows as asked for, ascending, in as many shards as there can be, the same every time."""
    total = sum(shards)
    taken = list(resume.sample(shards, limit))
    assert len(taken) == min(limit, total)
    assert taken == sorted(set(taken))
    assert all(0 <= position < total for position in taken)
    bounds = [sum(shards[:number]) for number in range(len(shards) + 1)]
    touched = sum(any(low <= one < high for one in taken) for low, high in itertools.pairwise(bounds))
    assert touched == min(limit, len(shards))
    assert taken == list(resume.sample(shards, limit))


@given(st.integers(10, 2000), st.integers(1, 50))
def test_sample_of_one_shard_is_spread_evenly(total: int, limit: int) -> None:
    """Neighbours in the sample lie equally far apart."""
    taken = list(resume.sample([total], limit))
    gaps = {after - before for before, after in itertools.pairwise(taken)}
    assert len(gaps) <= 2
    assert max(gaps, default=0) - min(gaps, default=0) <= 1


@given(SHARDS, st.integers(1, 200), st.integers(1, 7))
def test_parts_share_the_sample_out(shards: list[int], limit: int, parts: int) -> None:
    """Each row of the sample belongs to exactly one part, and none has two rows more than another."""

    class Run:
        requests = sum(shards)
        info = {"shards": [{"requests": count} for count in shards]}  # noqa: RUF012

    made: Any = Run()
    whole = list(resume.positions(made, limit=limit))
    dealt = [list(resume.positions(made, limit=limit, num_shards=parts, shard_id=part)) for part in range(parts)]
    assert sorted(position for part in dealt for position in part) == whole
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


# --- what is settled -----------------------------------------------------------------------------------------


def test_answers_and_final_errors_settle_a_row(run: RunDir) -> None:
    """An answer, a refusal and a final error are left alone; what may pass is not."""
    found = marks(
        run,
        attempt(run, 0),
        refused(run, 1),
        failed(run, 2, 400, is_retryable=False),
        failed(run, 3, 500, is_retryable=True),
    )
    assert found == [Mark.ANSWERED, Mark.ANSWERED, Mark.FAILED, Mark.OPEN, Mark.OPEN]


def test_attempt_that_ended_the_run_leaves_its_row_open(run: RunDir) -> None:
    """A bad key is no fault of the row."""
    assert marks(run, failed(run, 0, 401, is_retryable=False, final=False))[0] == Mark.OPEN


def test_answer_counts_whatever_comes_after(run: RunDir) -> None:
    """An answer is not displaced by a later failure, nor a failure in the way of a later answer."""
    lines = [
        attempt(run, 0),
        failed(run, 0, 400, is_retryable=False),
        failed(run, 1, 400, is_retryable=False),
        attempt(run, 1),
    ]
    assert marks(run, *lines)[:2] == [Mark.ANSWERED, Mark.ANSWERED]


def test_raw_provider_line_counts(run: RunDir) -> None:
    """A provider's own batch file settles rows too."""
    body = {"id": "b1", "custom_id": row_id(2), "response": {"status_code": 200, "body": completion(2)}, "error": None}
    assert marks(run, jsonl.dumps(body) + b"\n")[2] == Mark.ANSWERED


@given(cut=st.integers(0, 2000), glued=st.booleans())
def test_half_line_settles_nothing(tmp_path_factory: pytest.TempPathFactory, cut: int, glued: bool) -> None:
    """However a line was cut, and even with another written on behind it, its row is not taken for answered."""
    run = _shared_run(tmp_path_factory)
    whole = attempt(run, 0)
    torn = whole[: cut % (len(whole) - 1)]
    found = marks(run, torn + (b"" if glued else b"\n"), attempt(run, 1))
    assert found[0] == Mark.OPEN
    assert found[1] == (Mark.OPEN if glued and torn else Mark.ANSWERED)


_SHARED: list[RunDir] = []


def _shared_run(factory: pytest.TempPathFactory) -> RunDir:
    if not _SHARED:
        _SHARED.append(make_run(factory.mktemp("shared") / "run", 2))
    return _SHARED[0]


def test_answer_that_quotes_our_own_line_is_whole(run: RunDir) -> None:
    """Model text that looks like a line of ours does not confuse the quick look."""
    quote = attempt(run, 1).decode()
    assert marks(run, attempt(run, 0, response=completion(0, text=quote)))[:2] == [Mark.ANSWERED, Mark.OPEN]


def test_rehearsal_counts_alone_or_not_at_all(run: RunDir) -> None:
    """Rehearsals settle rows of rehearsals only."""
    Path(run.file("results/rehearsal-0001.jsonl")).write_bytes(attempt(run, 0, rehearsal=True, answered=...))
    Path(run.file("results/a.jsonl")).write_bytes(attempt(run, 1) + attempt(run, 2, rehearsal=True, answered=...))
    index = run.index()
    assert list(resume.read_standing(run, OPENAI, index).marks) == [0, Mark.ANSWERED, 0, 0, 0]
    assert list(resume.read_standing(run, OPENAI, index, rehearsal=True).marks) == [Mark.ANSWERED, 0, 0, 0, 0]


@pytest.mark.parametrize("judging", [False, True])
def test_results_of_another_run_are_refused(run: RunDir, judging: bool) -> None:
    """A foreign id means that files were mixed up: nothing is sent on such a ground."""
    line = attempt(run, 0, custom_id="other-000000-00000000")
    Path(run.file("results/a.jsonl")).write_bytes(line)
    read = resume.judge_standing if judging else resume.read_standing
    with pytest.raises(IntegrityError, match="other-000000"):
        read(run, OPENAI, run.index())


def test_status_is_sent_again_so_often_and_no_more(run: RunDir) -> None:
    """--retry-status counts the times; an ok in between ends it."""
    later = "2026-05-02T00:00:00Z"
    lines = [
        refused(run, 0),
        *[refused(run, 1)] * 3,
        refused(run, 2),
        attempt(run, 2, started_at=later),
        attempt(run, 3),
        refused(run, 4),
        failed(run, 4, 500, is_retryable=True),
    ]
    Path(run.file("results/a.jsonl")).write_bytes(b"".join(lines))
    standing = resume.judge_standing(run, OPENAI, run.index(), retry_status=frozenset({Status.REFUSAL}), retry_times=2)
    assert list(standing.again) == [1, 0, 0, 0, 1]
    assert list(standing.times) == [1, 3, 1, 0, 1]


# --- selection -----------------------------------------------------------------------------------------------


def standing_of(*row_marks: Mark, again: bytes = b"") -> Standing:
    """Return a standing."""
    standing = Standing(len(row_marks))
    standing.marks[:] = bytes(row_marks)
    standing.again = bytearray(again)
    return standing


ALL = standing_of(Mark.OPEN, Mark.FAILED, Mark.IN_BATCH, Mark.ANSWERED)


@pytest.mark.parametrize(
    ("options", "wanted", "counts"),
    [
        ({}, [1, 0, 0, 0], (4, 1, 1, 1, 1)),
        ({"resume": False}, [1, 1, 0, 1], (4, 0, 0, 1, 3)),
        ({"ids": bytearray([0, 1, 1, 1])}, [0, 1, 0, 1], (3, 0, 0, 1, 2)),
    ],
)
def test_selection_leaves_alone_what_it_should(
    options: dict[str, Any], wanted: list[int], counts: tuple[int, ...]
) -> None:
    """Rows in a batch job are never sent; settled ones only where that was asked for."""
    made = resume.select(range(4), ALL, **options)
    assert made == Selection(bytearray(wanted), counts[0], counts[1], counts[2], counts[3], counts[4])


def test_selection_sends_named_statuses_again() -> None:
    """A settled row whose status was named is sent again."""
    standing = standing_of(Mark.ANSWERED, Mark.ANSWERED, again=b"\1\0")
    assert list(resume.select(range(2), standing).wanted) == [1, 0]


def test_ids_file_names_rows_and_tells_strangers(run: RunDir, tmp_path: Path) -> None:
    """Blank lines and line ends of any kind are fine; every unknown id is listed with its line."""
    path = tmp_path / "ids.txt"
    path.write_bytes(f"{row_id(1)}\r\n\n{row_id(4)}".encode())
    assert list(resume.read_ids(str(path), run.index())) == [0, 1, 0, 0, 1]
    path.write_bytes(b"nobody\n" + row_id(0).encode() + b"\n\xff\xfe\n")
    with pytest.raises(InputError) as caught:
        resume.read_ids(str(path), run.index())
    assert [problem.line for problem in caught.value.problems] == [1, 3]
    with pytest.raises(InputError, match="cannot be read"):
        resume.read_ids(str(tmp_path / "none"), run.index())


def test_entries_are_the_wanted_lines_in_order(run: RunDir) -> None:
    """Only wanted lines are parsed, and nothing behind the last of them is read."""
    wanted = bytearray([0, 1, 0, 1, 0])
    assert [entry.position for entry in resume.entries(run, wanted)] == [1, 3]
    assert list(resume.entries(run, bytearray(5))) == []
    with pytest.raises(IntegrityError):
        list(resume.entries(run, bytearray([0, 0, 0, 0, 0, 1])))


def test_line_of_ours_is_not_parsed_when_it_says_answered(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes resuming a million rows cheap: no answer is read again."""
    Path(run.file("results/a.jsonl")).write_bytes(attempt(run, 0) + attempt(run, 1))
    index = run.index()

    def never(*_: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(jsonl, "parse_object", never)
    assert list(resume.read_standing(run, OPENAI, index).marks) == [Mark.ANSWERED, Mark.ANSWERED, 0, 0, 0]

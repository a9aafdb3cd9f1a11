"""Faults files: what may stand in one, and draws that come out alike every time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmbatch.errors import InputError
from vlmbatch.rehearsal.faults import ANSWER_FAULTS, TRY_FAULTS, Faults, load_faults, parse_faults

if TYPE_CHECKING:
    from pathlib import Path

DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64)


def test_draws_depend_on_seed_hash_and_try_alone() -> None:
    """Two provider processes with one file misbehave alike."""
    first = parse_faults({"seed": 3, "rates": {"http_500": 0.5, "empty": 0.5}})
    second = parse_faults({"seed": 3, "rates": {"http_500": 0.5, "empty": 0.5}})
    other = parse_faults({"seed": 4, "rates": {"http_500": 0.5, "empty": 0.5}})
    digests = [f"{number:064x}" for number in range(200)]
    draws = [(f.for_try(d, 1), f.for_answer(d)) for f in (first, second, other) for d in digests]
    assert draws[:200] == draws[200:400] != draws[400:]


@given(digest=DIGESTS, number=st.integers(0, 9), seed=st.integers(0, 1000))
def test_rate_one_always_happens_and_rate_nought_never(digest: str, number: int, seed: int) -> None:
    """The ends of the scale are exact."""
    for name in TRY_FAULTS:
        assert parse_faults({"seed": seed, "rates": {name: 1}}).for_try(digest, number) == name
    for name in ANSWER_FAULTS:
        assert parse_faults({"seed": seed, "rates": {name: 1}}).for_answer(digest) == name
        assert parse_faults({"seed": seed, "rates": {name: 0}}).for_answer(digest) is None


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.8])
def test_share_of_faulty_tries_is_near_the_rate(rate: float) -> None:
    """Over 4,000 requests the share is within four standard deviations of what was asked for."""
    faults = parse_faults({"rates": {"http_429": rate / 2, "reset": rate / 2}})
    hit = sum(faults.for_try(f"{number:064x}", 0) is not None for number in range(4000))
    assert abs(hit / 4000 - rate) < 4 * (rate * (1 - rate) / 4000) ** 0.5


def test_faulty_try_does_not_stay_faulty() -> None:
    """Whether a try fails is drawn anew for each try, so that trying again helps."""
    faults = parse_faults({"rates": {"http_503": 0.5}})
    assert {faults.for_try("0" * 64, number) for number in range(40)} == {"http_503", None}


@given(digest=DIGESTS, low=st.floats(0, 1), more=st.floats(0, 1))
def test_latency_lies_between_its_bounds(digest: str, low: float, more: float) -> None:
    """Seconds before an answer are within what the file says."""
    faults = parse_faults({"latency_s": {"min": low, "max": low + more}})
    assert low <= faults.latency(digest, 0) <= low + more


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"rate": {}}, "did you mean rates"),
        ({"rates": {"http_42": 0.1}}, "did you mean http_429"),
        ({"rates": {"http_429": 2}}, "from 0 to 1"),
        ({"rates": {"http_429": True}}, "from 0 to 1"),
        ({"rates": {"http_429": 0.7, "reset": 0.7}}, "add up"),
        ({"rates": []}, "must be a JSON object"),
        ({"latency_s": {"min": 2, "max": 1}}, "min <= max"),
        ({"latency_s": {"mean": 1}}, "unknown key latency_s.mean"),
        ({"seed": "x"}, "seed must be a whole number"),
        ({"seed": None}, "seed must be a whole number"),
        ({"retry_after_s": -1}, "retry_after_s"),
        ({"max_in_flight": 1.5}, "max_in_flight"),
        ({"batch": {"look": 1}}, "did you mean looks"),
        ({"batch": {"end": "done"}}, "completed, expired, failed, cancelled"),
        ({"batch": {"ends": "completed"}}, "completed, expired, failed, cancelled"),
        ({"batch": {"look_statuses": [500, "x"]}}, "HTTP statuses"),
        ({"batch": {"fail_code": 3}}, "fail_code must be a text"),
        ({"batch": {"lost_creates": -1}}, "lost_creates"),
        ([], "must be a JSON object"),
    ],
)
def test_mistake_in_the_file_is_named(value: Any, said: str) -> None:
    """Every mistake is refused in words that help."""
    with pytest.raises(InputError) as caught:
        parse_faults(value)
    assert any(said in problem.message for problem in caught.value.problems)


def test_all_mistakes_are_listed_at_once() -> None:
    """One look at the message is enough to mend the file."""
    with pytest.raises(InputError) as caught:
        parse_faults({"sed": 1, "rates": {"http_42": 0.1}, "batch": {"loks": 1}})
    assert len(caught.value.problems) == 3


def test_whole_file_is_read(tmp_path: Path) -> None:
    """Every key arrives."""
    path = tmp_path / "faults.json"
    value = {
        "seed": 7,
        "rates": {"http_429": 0.1, "refusal": 0.2},
        "retry_after_s": None,
        "latency_s": 0.5,
        "max_in_flight": 4,
        "quota_after": 9,
        "batch": {"looks": 1, "ends": ["expired"], "look_statuses": [500, 0], "upload_status": 413},
    }
    path.write_text(json.dumps(value))
    faults = load_faults(str(path))
    assert (faults.seed, faults.retry_after_s, faults.latency_s) == (7, None, (0.5, 0.5))
    assert (faults.max_in_flight, faults.quota_after) == (4, 9)
    assert (faults.batch.looks, faults.batch.ends, faults.batch.look_statuses) == (1, ("expired",), (500, 0))
    assert faults.batch.upload_status == 413


def test_empty_file_means_no_faults() -> None:
    """Nothing asked for, nothing wrong."""
    assert parse_faults({}) == Faults()


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff"])
def test_file_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """A missing or broken file is bad input, not a traceback."""
    path = tmp_path / "faults.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"faults\.json"):
        load_faults(str(path))

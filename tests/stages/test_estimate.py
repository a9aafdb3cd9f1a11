"""estimate without a sample: what a run holds, by formula; limits; the record."""

from __future__ import annotations

import json
import os
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stages.estimate_runs import PROMPT, Row, make_run
from vlmbatch import jsonl, tokens
from vlmbatch.errors import InputError, IntegrityError
from vlmbatch.prices import Prices, read_last
from vlmbatch.rundir import MANIFEST, RunDir
from vlmbatch.stages.estimate import estimate, estimate_size
from vlmbatch.stages.estimating.options import EstimateOptions, EstimateResult
from vlmbatch.stages.estimating.workload import Frame, Limit, Ruler, read_frame, survey

if TYPE_CHECKING:
    from vlmbatch.records import Event

NOW = "2026-11-30T12:00:00Z"


def run_estimate(run: RunDir, **options: Any) -> EstimateResult:
    """Estimate with the flags given."""
    return estimate(run, EstimateOptions(**options), now=NOW)


# --- what a run holds ------------------------------------------------------------------------------------------


def test_image_tokens_are_the_sum_over_sent_sizes(tmp_path: Path) -> None:
    """Every image counts, several in a row too, and the size that is sent is the one that counts."""
    rows = [
        Row(((1024, 1024),)),
        Row(((2048, 4096), (512, 512))),
        Row(((8000, 8000),), sent=(512, 512)),
        Row(()),
    ]
    result = run_estimate(make_run(tmp_path / "run", rows))
    assert (result.load.requests, result.load.images) == (4, 4)
    assert result.load.image_tokens == 765 + 1105 + 255 + 255
    assert result.load.sizes == {765: 1, 1360: 1, 255: 1, 0: 1}
    assert [image.tokens for image in result.load.largest] == [1105, 765, 255, 255]


def test_detail_of_the_frozen_bodies_counts(tmp_path: Path) -> None:
    """The detail stands in the body; it is read there, and a flag stands over it."""
    low = make_run(tmp_path / "low", 2, detail="low")
    assert run_estimate(low).load.image_tokens == 2 * 85
    assert run_estimate(low, detail="high").load.image_tokens == 2 * 765
    assert run_estimate(make_run(tmp_path / "none", 2, detail=None)).detail is None


def test_detail_of_another_wire_format_counts(tmp_path: Path) -> None:
    """A budget by mediaResolution is found wherever the format has it."""
    run = make_run(tmp_path / "run", 2, model="gemini-3-flash", provider="gemini", detail="low")
    assert run_estimate(run).load.image_tokens == 2 * 280


@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini", "vllm"])
@pytest.mark.parametrize("text", [PROMPT, "où est le château ? " * 40, "写真の説明" * 10])
def test_text_tokens_are_its_bytes_by_three(tmp_path: Path, provider: str, text: str) -> None:
    """What is left of a body without images and frame is the text, to a few bytes, whatever the wire format."""
    detail = None if provider == "anthropic" else "high"
    rows = [Row(text="x", media_type="image/png"), Row(text=text), Row(text=text * 3)]
    run = make_run(tmp_path / "run", rows, provider=provider, detail=detail, model="test-model")
    load = survey(run, Ruler(None), read_frame(run))
    prose = sum(len(row.text.encode()) for row in rows) + len("Be brief.") * len(rows)
    assert abs(load.text_bytes - prose) <= 4 * len(rows)


def test_text_tokens_given_by_hand_stand_for_the_rule(tmp_path: Path) -> None:
    """--text-tokens is taken for every request, and the record says so."""
    result = run_estimate(make_run(tmp_path / "run", 4), text_tokens=50)
    assert result.text_tokens == 200
    assert result.record["text_tokens"] == {"mid": 200, "rule": "50 a request, as given"}


@given(sizes=st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=12))
def test_survey_adds_up_row_by_row(tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]]) -> None:
    """One pass gives what counting each image by itself gives."""
    run = make_run(tmp_path_factory.mktemp("runs") / "run", [Row((size,)) for size in sizes])
    scheme = tokens.pick("gpt-4o", detail="high")
    assert scheme is not None
    counts = [scheme.count(*size).tokens for size in sizes]
    load = survey(run, Ruler(scheme), Frame())
    assert (load.image_tokens, load.requests) == (sum(counts), len(sizes))
    assert [image.tokens for image in load.largest] == sorted(counts, reverse=True)[:5]


def test_survey_tells_its_progress(tmp_path: Path) -> None:
    """Whoever waits sees requests pass."""
    events: list[Event] = []
    estimate(make_run(tmp_path / "run", 3), EstimateOptions(), now=NOW, on_event=events.append)
    assert [(event.kind, event.total) for event in events] == [("progress", 3)]


_IMAGE = {"path": "a.png", "bytes": 3, "width": 2, "height": 2, "media_type": "image/png"}


@pytest.mark.parametrize(
    "image",
    [*({key: value for key, value in _IMAGE.items() if key != lost} for lost in _IMAGE), {"sent": {}, "path": "a"}, 7],
    ids=[*_IMAGE, "sent", "number"],
)
def test_manifest_line_without_an_image_fact_is_named(tmp_path: Path, image: object) -> None:
    """A line that is JSON, but does not say what an image is, is damage of that line, wherever it stands."""
    run = make_run(tmp_path / "run", 7)
    lines = Path(run.file(MANIFEST)).read_bytes().splitlines(keepends=True)
    damaged = jsonl.loads(lines[6]) | {"images": [image]}
    tampered = RunDir(str(tmp_path), run.info, run.run_json)
    for number, content in ((7, [*lines[:6], jsonl.dumps(damaged)]), (1, [jsonl.dumps(damaged), *lines])):
        (tmp_path / MANIFEST).write_bytes(b"".join(content))
        with pytest.raises(IntegrityError, match=f"line {number} is damaged"):
            survey(tampered, Ruler(None), Frame())


@pytest.mark.parametrize("lost", ["bytes", "media_type"])
def test_frame_of_a_line_without_an_image_fact_is_damage(tmp_path: Path, lost: str) -> None:
    """The first line is measured before the pass: damage there is no traceback either."""
    run = make_run(tmp_path / "run", 2)
    first = jsonl.loads(Path(run.file(MANIFEST)).read_bytes().splitlines()[0])
    del first["images"][0][lost]
    path = Path(run.file(MANIFEST))
    path.chmod(0o644)
    path.write_bytes(jsonl.dumps(first) + b"\n")
    with pytest.raises(IntegrityError, match="line 1 is damaged"):
        read_frame(run)


# --- schemes ---------------------------------------------------------------------------------------------------


def test_unknown_model_gives_a_range_and_says_so(tmp_path: Path) -> None:
    """Without a rule the figures are a range over the provider's rules, never one number."""
    result = run_estimate(make_run(tmp_path / "run", 10, model="test-vlm-1"), out_tokens=100, prices=_prices())
    assert result.scheme is None
    load = result.load
    assert load.image_tokens_low < load.image_tokens < load.image_tokens_high
    assert any("no image token rule" in warning for warning in result.warnings)
    low, high = tokens.spread(1024, 1024, settings=tokens.settings(family="openai"))
    assert (load.image_tokens_low, load.image_tokens_high) == (10 * low, 10 * high)
    usd = result.forecast.realtime_usd
    assert usd is not None
    assert usd.low is not None
    assert usd.mid is not None
    assert usd.high is not None
    assert usd.low < usd.mid < usd.high


def test_named_scheme_against_the_models_own_is_said_aloud(tmp_path: Path) -> None:
    """A scheme that the user names holds, with a warning where the model's name speaks for another."""
    result = run_estimate(make_run(tmp_path / "run", 2), scheme="qwen2-vl")
    assert result.scheme is not None
    assert result.scheme.name == "qwen2-vl"
    assert any("speaks for openai-tile" in warning for warning in result.warnings)


def test_fixed_scheme_and_unknown_size_take_fixed_tokens(tmp_path: Path) -> None:
    """--fixed-tokens stands for every image under fixed, and for images whose size nobody knows."""
    run = make_run(tmp_path / "run", [Row(), Row(((0, 0),))])
    assert run_estimate(run, scheme="fixed", fixed_tokens=300).load.image_tokens == 600
    result = run_estimate(run, fixed_tokens=300)
    assert (result.load.image_tokens, result.load.unknown) == (765 + 300, 1)
    assert any("unknown size" in warning for warning in result.warnings)


def test_images_that_the_processor_refuses_are_counted(tmp_path: Path) -> None:
    """A shape that the model cannot take is told before anyone pays."""
    run = make_run(tmp_path / "run", [Row(((5000, 10),)), Row()], model="Qwen2.5-VL-7B", provider="vllm")
    result = run_estimate(run)
    assert result.load.refused == 1
    assert any("refuses" in warning for warning in result.warnings)


def test_scheme_file_stands_over_the_built_in_table(tmp_path: Path) -> None:
    """A row of the user's own counts, and its source goes on record."""
    mine = tmp_path / "mine.toml"
    mine.write_text(
        "[[model]]\nscheme='fixed'\nmatch=['gpt-4o']\nparams={tokens=11}\nsource='we measured'\nas_of='2026-12'\n"
    )
    result = run_estimate(make_run(tmp_path / "run", 3), scheme_file=str(mine))
    assert result.load.image_tokens == 33
    assert result.record["scheme"]["source"] == "we measured"


# --- prices and the channel ------------------------------------------------------------------------------------


def _prices(**more: Any) -> Prices:
    return Prices(price_in=Decimal("2.50"), price_out=Decimal(10), batch_discount=Decimal("0.5"), **more)


def test_price_is_tokens_times_price(tmp_path: Path) -> None:
    """A person can check the price with a pencil."""
    result = run_estimate(make_run(tmp_path / "run", 10), out_tokens=300, text_tokens=35, prices=_prices())
    used, made = 10 * (765 + 35), 10 * 300
    usd = Decimal(used) * Decimal("2.50") / 10**6 + Decimal(made) * 10 / 10**6
    assert result.record["realtime_usd"] == dict.fromkeys(("mid", "low", "high", "high_as_seen"), f"{usd:.4f}")
    assert result.record["batch_usd"]["mid"] == f"{usd / 2:.4f}"


def test_price_without_any_word_on_output_is_bounded_by_the_limit(tmp_path: Path) -> None:
    """Without --out-tokens the price lies between no answer and answers at the limit."""
    result = run_estimate(make_run(tmp_path / "run", 10, max_tokens=1000), text_tokens=0, prices=_prices())
    usd = result.forecast.realtime_usd
    assert usd is not None
    assert (usd.mid, usd.low, usd.high) == (None, Decimal("0.0191"), Decimal("0.1191"))


def test_no_price_is_built_in(tmp_path: Path) -> None:
    """Without prices there is no price, for any model."""
    result = run_estimate(make_run(tmp_path / "run", 2), out_tokens=10)
    assert result.forecast.realtime_usd is None
    assert result.record["price_in_usd_per_mtok"] is None


def test_channel_is_a_rule_of_thumb(tmp_path: Path) -> None:
    """From a thousand images on batch is named, below realtime, and for a local server nothing but realtime."""
    rows = [Row(((64, 64),), text="?") for _ in range(1000)]
    assert run_estimate(make_run(tmp_path / "many", rows)).channel.startswith("batch")
    assert run_estimate(make_run(tmp_path / "few", rows[:-1])).channel.startswith("realtime, as a rule")
    assert "no batch channel" in run_estimate(make_run(tmp_path / "own", rows, provider="vllm")).channel


# --- limits ----------------------------------------------------------------------------------------------------


def test_shard_over_the_limit_names_shard_and_lines(tmp_path: Path) -> None:
    """Exit 1, with the line from which on it is too much and each line that is too long by itself."""
    rows = [Row(text="short"), Row(text="x" * 5000), Row(text="short"), Row(text="short")]
    run = make_run(tmp_path / "run", rows)
    lengths = [entry.length + 1 for entry in run.iter_entries()]
    ids = [entry.custom_id for entry in run.iter_entries()]
    result = run_estimate(run, shard_limit_bytes=lengths[0] + 100)
    assert result.failure is not None
    assert result.failure.exit_code == 1
    whole, alone = result.failure.problems
    assert (whole.where, whole.line) == ("shards/00000.jsonl", 2)
    assert ids[1] in whole.message
    assert "3 line(s)" in whole.message
    assert (alone.line, ids[1] in alone.message) == (2, True)
    assert run_estimate(run, shard_limit_bytes=sum(lengths)).failure is None


def test_shards_within_the_limit_are_not_named(tmp_path: Path) -> None:
    """Only shards at fault are listed."""
    rows = [Row(text="short"), Row(text="x" * 5000), Row(text="short")]
    run = make_run(tmp_path / "run", rows, per_shard=1)
    size = run.info["shards"][0]["bytes"]
    result = run_estimate(run, shard_limit_bytes=size)
    assert list(result.load.over) == ["shards/00001.jsonl"]


def test_default_limit_is_the_providers_dated_one(tmp_path: Path) -> None:
    """Without a flag the provider's job limits hold: bytes and requests."""
    result = run_estimate(make_run(tmp_path / "run", 2))
    assert (result.limit.bytes, result.limit.requests) == (200_000_000, 50_000)
    own = run_estimate(make_run(tmp_path / "own", 2, provider="vllm"))
    assert own.limit == (float("inf"), float("inf"))


def test_shard_with_too_many_requests_is_at_fault(tmp_path: Path) -> None:
    """A shard may be over in requests as well as in bytes."""
    run = make_run(tmp_path / "run", 5)
    load = survey(run, Ruler(tokens.pick("gpt-4o")), Frame(), limit=Limit(requests=3))
    over = load.over["shards/00000.jsonl"]
    assert (over.first_line, over.beyond, over.alone) == (4, 2, [])
    assert "5 requests" in over.problems(Limit(requests=3))[0].message


# --- the record ------------------------------------------------------------------------------------------------


def test_record_is_appended_with_prices_source_and_scheme(tmp_path: Path) -> None:
    """Each estimate is one more line; money is decimal strings; run can read the prices back."""
    run = make_run(tmp_path / "run", 3)
    run_estimate(run)
    prices = _prices(price_source="https://example.org/prices", price_date="2026-11-30")
    run_estimate(run, out_tokens=20, prices=prices)
    path = run.file("estimates.jsonl")
    first, second = (json.loads(line) for line in Path(path).read_text().splitlines())
    assert next(iter(second)) == "schema"
    assert (second["schema"], second["estimated_at"]) == ("vlmbatch.estimate/1", NOW)
    assert second["price_in_usd_per_mtok"] == "2.50"
    assert (second["price_source"], second["price_date"]) == ("https://example.org/prices", "2026-11-30")
    assert second["scheme"]["params"]["tile"] == 170
    assert (second["fingerprint"], second["requests"]) == (run.fingerprint, 3)
    assert first["realtime_usd"] is None
    assert read_last(path) == prices


def test_frozen_files_stay_as_they_are(tmp_path: Path) -> None:
    """Estimate writes one file and touches nothing else."""
    run = make_run(tmp_path / "run", 3)
    before = {name: os.stat(run.file(name)).st_mtime_ns for name in ("run.json", MANIFEST, "shards/00000.jsonl")}
    run_estimate(run)
    assert {name: os.stat(run.file(name)).st_mtime_ns for name in before} == before
    run.verify()
    assert sorted(os.listdir(run.path)) == sorted(
        ["run.json", "manifest.jsonl", "inputs", "shards", "SHA256SUMS", "results", "estimates.jsonl"]
    )


def test_folder_that_cannot_be_written_still_gives_numbers(tmp_path: Path) -> None:
    """A read-only archive can be priced; that nothing was kept is said."""
    run = make_run(tmp_path / "run", 3)
    os.mkdir(run.file("estimates.jsonl"))
    result = run_estimate(run)
    assert result.load.image_tokens == 3 * 765
    assert any("not on record" in warning for warning in result.warnings)


def test_redacted_copy_without_shards_can_be_priced(tmp_path: Path) -> None:
    """It says itself that they are left out; text then includes the frame of the bodies."""
    run = make_run(tmp_path / "run", 3, detail=None)
    whole = run_estimate(run)
    os.unlink(run.file("shards/00000.jsonl"))
    Path(run.file("REDACTED.json")).write_bytes(b"{}")
    bare = run_estimate(run)
    assert bare.load.image_tokens == whole.load.image_tokens
    assert bare.text_tokens > whole.text_tokens


def test_tampered_first_line_is_an_integrity_fault(tmp_path: Path) -> None:
    """The one line that estimate looks into must be the one that build wrote."""
    run = make_run(tmp_path / "run", 2)
    path = run.file("shards/00000.jsonl")
    os.chmod(path, 0o644)
    data = bytearray(Path(path).read_bytes())
    data[40] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(IntegrityError):
        run_estimate(run)


@pytest.mark.parametrize(
    "options",
    [
        {"out_tokens": -1},
        {"shard_limit_bytes": 0},
        {"require_receipt": True},
        {"against": "x"},
        {"rehearsal": True},
        {"scheme": "nonsense"},
    ],
)
def test_options_that_make_no_sense_are_refused_and_leave_no_record(tmp_path: Path, options: dict[str, Any]) -> None:
    """Wrong usage writes nothing."""
    run = make_run(tmp_path / "run", 2)
    with pytest.raises(InputError):
        run_estimate(run, **options)
    assert not os.path.exists(run.file("estimates.jsonl"))


# --- one size --------------------------------------------------------------------------------------------------


def test_one_size_is_answered_without_a_run() -> None:
    """A size and a model are enough; an unknown model gives a range."""
    known = estimate_size(1024, 768, "gpt-4o", EstimateOptions())
    assert (known["tokens"], known["scheme"]) == (765, "openai-tile")
    unknown = estimate_size(1024, 768, "test-vlm-1", EstimateOptions())
    assert (unknown["tokens"], unknown["scheme"]) == (None, None)
    assert unknown["low"] < unknown["high"]
    with pytest.raises(InputError):
        estimate_size(0, 768, "test-vlm-1", EstimateOptions())
    assert jsonl.dumps(known)


# --- what is refused before anything is reckoned -----------------------------------------------------------------


@pytest.mark.parametrize("is_there", [True, False])
def test_folder_that_was_copied_in_part_is_not_reckoned(is_there: bool, tmp_path: Path) -> None:
    """A shard that is cut or missing is an integrity fault that names it; nothing goes on record."""
    run = make_run(tmp_path / "run", 3)
    shard = Path(run.file("shards/00000.jsonl"))
    shard.parent.chmod(0o755)
    shard.chmod(0o644)
    if is_there:
        shard.write_bytes(shard.read_bytes()[:-10])
    else:
        shard.unlink()
    with pytest.raises(IntegrityError) as caught:
        run_estimate(run)
    assert [problem.where for problem in caught.value.problems] == ["shards/00000.jsonl"]
    assert not os.path.exists(run.file("estimates.jsonl"))


@pytest.mark.parametrize(
    "given_prices",
    [
        {"price_in": "1"},
        {"price_out": "1"},
        {"price_cached": "1"},
        {"batch_discount": "0.5"},
        {"price_batch_in": "1"},
        {"price_batch_out": "1"},
        {"price_in": "1", "price_out": "2", "price_batch_in": "1"},
    ],
)
def test_price_that_prices_nothing_is_refused(given_prices: dict[str, str], tmp_path: Path) -> None:
    """An estimate that silently tells no price is none; nothing goes on record."""
    run = make_run(tmp_path / "run", 1)
    with pytest.raises(InputError, match="prices nothing"):
        run_estimate(run, prices=Prices.typed(**given_prices))
    assert not os.path.exists(run.file("estimates.jsonl"))


@pytest.mark.parametrize("day", ["yesterday", "30.11.2026", "2026-02-30", "20261130", "2026-11", ""])
def test_price_date_has_to_be_a_day(day: str, tmp_path: Path) -> None:
    """The day goes on record for reviewers: one way to write it."""
    prices = Prices.typed(price_in="1", price_out="2", price_date=day)
    with pytest.raises(InputError, match="--price-date"):
        run_estimate(make_run(tmp_path / "run", 1), prices=prices)

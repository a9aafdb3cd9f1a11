"""vlmbatch estimate: exit statuses, which stream, what a program reads, what a person reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.doors import call
from tests.stages.estimate_runs import Billed, bill, make_run
from vlmbatch.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def _vlmbatch(capfd: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["estimate", *argv])
    out, err = capfd.readouterr()
    code = left.value.code
    return (code if isinstance(code, int) else 0), out, err


def _json(out: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(out)
    return value


def test_size_answers_without_a_run(capfd: pytest.CaptureFixture[str]) -> None:
    """One image size: tokens and scheme at the top of the object, nothing else on stdout."""
    code, out, err = _vlmbatch(capfd, "--size", "1024x768", "--model", "gpt-4o", "--json")
    value = _json(out)
    assert (code, err) == (0, "")
    assert (value["tokens"], value["scheme"]) == (765, "openai-tile")
    assert value["data"]["picked"]["sure"] == "documented"


@pytest.mark.parametrize(
    ("argv", "tokens", "scheme"),
    [
        (["--model", "gpt-4o", "--detail", "low"], 85, "openai-tile"),
        (["--model", "M", "--scheme", "fixed", "--fixed-tokens", "12"], 12, "fixed"),
        (["--scheme", "gemma3"], 256, "gemma3"),
        (["--model", "claude-opus-5", "--scheme", "anthropic"], 1036, "anthropic-patch28"),
    ],
)
def test_size_with_scheme_and_detail(
    capfd: pytest.CaptureFixture[str], argv: list[str], tokens: int, scheme: str
) -> None:
    """Scheme and detail are heard."""
    _, out, _ = _vlmbatch(capfd, "--size", "1024x768", *argv, "--json")
    assert (_json(out)["tokens"], _json(out)["scheme"]) == (tokens, scheme)


def test_size_of_an_unknown_model_is_a_range(capfd: pytest.CaptureFixture[str]) -> None:
    """A model that no page speaks of gives a range, for people and for programs."""
    code, out, _ = _vlmbatch(capfd, "--size", "1024x768", "--model", "test-vlm-1", "--json")
    value = _json(out)
    assert (code, value["tokens"]) == (0, None)
    assert value["data"]["low"] < value["data"]["high"]
    _, out, _ = _vlmbatch(capfd, "--size", "1024x768", "--model", "test-vlm-1")
    assert " to " in out


def test_size_for_people_names_rule_and_source(capfd: pytest.CaptureFixture[str]) -> None:
    """A line with the number, the rule, how sure it is, and where it stands."""
    _, out, _ = _vlmbatch(capfd, "--size", "1024x768", "--model", "gpt-4o")
    assert out.startswith("1024 x 768: 765 tokens by openai-tile")
    assert "documented" in out
    _, out, _ = _vlmbatch(capfd, "--size", "9000x20", "--model", "Qwen2-VL-7B")
    assert "refused" in out


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--size", "1024x768"],
        ["--size", "1024", "--model", "m"],
        ["--size", "0x5", "--model", "gpt-4o"],
        ["--size", "5x5", "--scheme", "nonsense"],
        ["nowhere"],
        ["nowhere", "--size", "5x5", "--model", "m"],
        ["nowhere", "--model", "m"],
        ["nowhere", "--price-in", "two"],
        ["nowhere", "--batch-discount", "50"],
        ["nowhere", "--nonsense"],
    ],
)
def test_wrong_usage_exits_2(capfd: pytest.CaptureFixture[str], argv: list[str]) -> None:
    """Bad input is told on stderr, without a traceback."""
    code, out, err = _vlmbatch(capfd, *argv)
    assert code == 2
    assert "Traceback" not in out + err


def test_plan_for_people_is_pasteable(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The plan names requests, images, bytes, the largest images, the rule and the channel; no colour, no wrapping."""
    run = make_run(tmp_path / "run", 3)
    prices = (
        "--price-in",
        "2.50",
        "--price-out",
        "10",
        "--price-source",
        "https://example.org",
        "--price-date",
        "2026-11-30",
    )
    code, out, err = _vlmbatch(capfd, run.path, "--scheme", "openai-tile", "--out-tokens", "300", *prices)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    for words in ("3 requests", "3 images", "shards/00000.jsonl", "largest images", "1024 x 1024", "openai-tile"):
        assert words in out
    for words in (
        "2,295",
        "text, UTF-8 bytes / 3",
        "https://example.org, 2026-11-30",
        "channel: realtime",
        run.fingerprint,
    ):
        assert words in out


def test_plan_as_json_holds_everything(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A program finds scheme, tokens, shards, prices as strings, and the channel."""
    run = make_run(tmp_path / "run", 3)
    code, out, _ = _vlmbatch(
        capfd, run.path, "--out-tokens", "300", "--price-in", "2.50", "--price-out", "10", "--json"
    )
    value = _json(out)
    data = value["data"]
    assert (code, value["schema"], value["status"]) == (0, "vlmbatch.result/1", "success")
    assert (data["requests"], data["images"], data["image_tokens"]["mid"]) == (3, 3, 2295)
    assert data["scheme"]["name"] == "openai-tile"
    assert data["price_in_usd_per_mtok"] == "2.50"
    assert data["realtime_usd"]["mid"].count(".") == 1
    assert data["shards"][0]["file"] == "shards/00000.jsonl"
    assert data["shard_limit_bytes"] == 200_000_000


def test_shard_over_the_limit_exits_1_with_the_result(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The plan is printed all the same, the lines at fault too."""
    run = make_run(tmp_path / "run", 3)
    code, out, err = _vlmbatch(capfd, run.path, "--shard-limit-bytes", "900", "--json")
    value = _json(out)
    assert (code, value["status"], value["exit_code"]) == (1, "partial", 1)
    assert value["data"]["shards_over"][0]["lines"] >= 1
    assert value["errors"][1]["path"] == "shards/00000.jsonl"
    code, out, err = _vlmbatch(capfd, run.path, "--shard-limit-bytes", "900")
    assert code == 1
    assert "3 requests" in out
    assert "over the limit" in err


def test_calibrated_estimate_for_people(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Sample, range, verdict, receipts at fault and warnings, each in its place."""
    run = make_run(tmp_path / "run", 60)
    path = bill(run, [*[Billed(text=f"label {n}", made=9 + n) for n in range(12)], Billed(used=14)])
    argv = (run.path, "--calibrate", path, "--price-in", "2.50", "--price-out", "10", "--batch-discount", "0.5")
    code, out, err = _vlmbatch(capfd, *argv)
    assert code == 0
    for words in (
        "sample of 13 rows",
        "realtime",
        "batch",
        "smoke verdict",
        "image arrived",
        "receipts at fault: 1 of 13",
    ):
        assert words in out
    assert "only 13 measured row(s)" in err
    assert "did not arrive" in err
    code, out, err = _vlmbatch(capfd, *argv, "--require-receipt", "--json")
    value = _json(out)
    assert (code, value["status"]) == (1, "partial")
    assert value["data"]["receipts"]["missing"] == 1
    assert value["data"]["receipts_at_fault"][0]["arrival"] == "missing"


def test_price_file_and_scheme_file_are_heard(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Prices and rules may stand in files."""
    run = make_run(tmp_path / "run", 2)
    prices, schemes = tmp_path / "prices.toml", tmp_path / "schemes.toml"
    prices.write_text('price_in_usd_per_mtok = "1000000"\nprice_out_usd_per_mtok = "0"\n')
    schemes.write_text("[[model]]\nscheme='fixed'\nmatch=['gpt-4o']\nparams={tokens=3}\n")
    files = ("--price-file", str(prices), "--scheme-file", str(schemes))
    _, out, _ = _vlmbatch(capfd, run.path, *files, "--text-tokens", "0", "--out-tokens", "5", "--json")
    assert _json(out)["data"]["realtime_usd"]["mid"] == "6.0000"


def test_rehearsal_is_marked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Practice is called practice, and without the flag it is refused."""
    run = make_run(tmp_path / "run", 3)
    path = bill(run, [Billed()] * 3, "rehearsal-0001.jsonl", rehearsal=True)
    code, out, _ = _vlmbatch(capfd, run.path, "--calibrate", path, "--rehearsal")
    assert (code, "rehearsal:" in out) == (0, True)
    code, _, err = _vlmbatch(capfd, run.path, "--calibrate", path)
    assert (code, "a rehearsal" in err) == (2, True)


def test_foreign_results_exit_3(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Results of another run are an integrity fault, as everywhere."""
    run, other = make_run(tmp_path / "run", 3), make_run(tmp_path / "other", 5)
    path = bill(other, [Billed()] * 5)
    code, _, err = _vlmbatch(capfd, run.path, "--calibrate", path)
    assert (code, "not answers to this run" in err) == (3, True)


def test_hostile_path_is_only_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A control character in a name reaches no terminal."""
    code, out, err = _vlmbatch(capfd, str(tmp_path / "no\x1b[31mwhere"))
    assert (code, "\x1b" in out + err) == (2, False)


def test_table_is_printed_in_any_encoding(tmp_path: Path) -> None:
    """A locale that lacks a character of ours ends no command: it gets another in its place."""
    run = make_run(tmp_path / "run", 2)
    words = [sys.executable, "-m", "vlmbatch", "estimate", run.path]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run(words, capture_output=True, env=environ, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"------" in done.stdout


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (31, "next: vlmbatch run '{run}' --limit 30 --out '{run}/results/smoke.jsonl'"),
        (30, "next: vlmbatch run '{run}'"),
        (1, "next: vlmbatch run '{run}'"),
    ],
)
def test_next_command_fits_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str], rows: int, wanted: str) -> None:
    """A sample is proposed only where it leaves something to send; what is proposed can be pasted."""
    run = make_run(tmp_path / "a run", rows)
    _, out, _ = _vlmbatch(capfd, run.path)
    assert out.splitlines()[-1] == wanted.format(run=run.path)


def test_prose_breaks_between_words_on_a_terminal_and_nowhere_in_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 60 columns no word is cut; tables and commands stay as they are, and a pipe gets whole lines."""
    run = make_run(tmp_path / "run", 3)
    words = ["estimate", run.path, "--price-in", "1", "--price-out", "2", "--price-source", "https://example.org/" * 2]
    piped = call(*words, env={"COLUMNS": "60"}).out
    monkeypatch.setattr("vlmbatch.console.is_terminal", lambda stream: stream is sys.stdout)
    shown = call(*words, env={"COLUMNS": "60"}).out
    assert " ".join(shown.split()) == " ".join(piped.split())
    for head in ("image tokens:", "price (", "channel:"):
        (line,) = [line for line in piped.splitlines() if line.startswith(head)]
        assert len(line) > 60
        assert line not in shown

"""Redacted copies: what must go is nowhere, every hash is there, and whoever has the originals can prove each row."""

from __future__ import annotations

import base64
import json
import shutil
import stat
import subprocess
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.stages.made_runs import PROMPT, Made, make_run, picture, read_summary
from tests.stages.result_runs import attempt, completion, write_results
from tests.stages.result_runs import make_run as result_run
from tests.stages.test_archive import verify
from vlmbatch import jsonl
from vlmbatch.errors import InputError, IntegrityError
from vlmbatch.records import Status
from vlmbatch.rundir import RunDir
from vlmbatch.stages import archive
from vlmbatch.stages.collect import CollectOptions, collect
from vlmbatch.stages.report import write_report

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

SECRET_PATH = "ward-7/Smith, John.png"
SECRET_PROMPT = "Is the fracture of patient Smith healed?"
SECRET_FIELD = "born 1950"
EVERYTHING = ("images", "paths", "prompts")
CHOICES = [some for count in (1, 2, 3) for some in combinations(EVERYTHING, count)]


def _run(folder: Path) -> RunDir:
    made = [
        Made(
            text=f"answer {n}",
            status=Status.OK if n % 2 else Status.REFUSAL,
            path=f"{n}/{SECRET_PATH}",
            prompt=SECRET_PROMPT,
            row={"note": SECRET_FIELD, "label": "A", "n": n},
            image=picture(n),
        )
        for n in range(5)
    ]
    run = make_run(folder, made, system="You read radiographs of Smith.")
    Path(run.file("exports.csv")).write_text(SECRET_PATH)
    Path(run.file("reviews.jsonl")).write_bytes(b"")
    return run


def _redact(tmp_path: Path, what: Collection[str], **options: Any) -> tuple[RunDir, archive.RedactResult]:
    run = _run(tmp_path / "run")
    write_report(run, records=run.file("merged.jsonl"), summary=read_summary(run))
    return run, archive.redact(run, str(tmp_path / "copy"), what, **options)


def _all_bytes(folder: str | Path) -> bytes:
    return b"\0".join(path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file())


def _lines(path: str | Path) -> list[dict[str, Any]]:
    return [jsonl.loads(line) for line in Path(path).read_bytes().splitlines()]


@pytest.mark.parametrize("what", CHOICES, ids=lambda what: "+".join(sorted(what)))
def test_what_must_go_is_nowhere_in_the_copy(tmp_path: Path, what: tuple[str, ...]) -> None:
    """Neither plain nor in base64 does the copy hold what was to go, in any file; the rest is there."""
    _, done = _redact(tmp_path, what)
    everything = _all_bytes(done.path)
    gone = set(done.what)
    assert gone == {*what, *(("images",) if "prompts" in what else ())}
    pictures = [base64.b64encode(picture(n)) in everything for n in range(5)]
    assert pictures == [("images" not in gone)] * 5
    assert (SECRET_PATH.encode() in everything) == ("paths" not in gone)
    assert (b"private-photos" in everything) == ("paths" not in gone)
    assert (SECRET_PROMPT.encode() in everything) == ("prompts" not in gone)
    assert (PROMPT.encode() in everything) == ("prompts" not in gone)
    assert (b"radiographs of Smith" in everything) == ("prompts" not in gone)
    assert (SECRET_FIELD.encode() in everything) == (gone == {"images"})
    assert (b"/home/someone/private" in everything) == (gone == {"images"})
    for custom_id in (record["custom_id"] for record in _lines(Path(done.path) / "merged.jsonl")):
        assert custom_id.encode() in everything


@pytest.mark.parametrize("what", CHOICES, ids=lambda what: "+".join(sorted(what)))
def test_every_hash_stays_and_the_copy_verifies(tmp_path: Path, what: tuple[str, ...]) -> None:
    """Line, body, image and file hashes are those of the original; bare Python and sha256sum agree with the copy."""
    run, done = _redact(tmp_path, what)
    copy = Path(done.path)
    kept = ("custom_id", "inner_sha256", "line_sha256", "shard", "offset", "length")
    for before, after in zip(_lines(run.file("manifest.jsonl")), _lines(copy / "manifest.jsonl"), strict=True):
        assert {key: before[key] for key in kept} == {key: after[key] for key in kept}
        assert [image["sha256"] for image in before["images"]] == [image["sha256"] for image in after["images"]]
    info = json.loads((copy / "run.json").read_bytes())
    assert info["manifest"] == run.info["manifest"]
    assert info["shards"] == run.info["shards"]
    assert info["prompt"] == run.info["prompt"]
    subprocess.run(["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"], cwd=copy, check=True)
    subprocess.run(["sha256sum", "--strict", "--quiet", "-c", copy / "ORIGINALS.sha256"], cwd=run.path, check=True)
    code, said = verify(copy)
    assert code == 0, said
    assert f"VERIFIED  fingerprint {run.fingerprint}" in said
    assert f"a redacted copy without {', '.join(done.what)}" in said
    assert "5 records, one for each request" in said


def test_images_given_back_prove_every_line(tmp_path: Path) -> None:
    """Whoever has the images, and nothing else of the run, proves each line with them."""
    _, done = _redact(tmp_path, {"images"})
    assert done.openings is None
    photos = tmp_path / "photos" / "deep"
    photos.mkdir(parents=True)
    for n in range(5):
        (photos / f"{n}.bin").write_bytes(picture(n))
    code, said = verify(done.path, "--images", str(tmp_path / "photos"))
    assert code == 0, said
    assert "5 lines name the images that were taken out of them, 5 are proven" in said
    (photos / "3.bin").unlink()
    assert "taken out of them, 4 are proven" in verify(done.path, "--images", str(tmp_path / "photos"))[1]


def test_changed_prompt_in_a_redacted_line_is_found_with_the_images(tmp_path: Path) -> None:
    """A copy whose prompt was changed, hashes and all, does not survive the images."""
    _, done = _redact(tmp_path, {"images"})
    copy = Path(done.path)
    shard = copy / "shards" / "00000.jsonl"
    shard.write_bytes(shard.read_bytes().replace(b"healed", b"broken", 1))
    sums = (copy / "SHA256SUMS").read_text().splitlines()
    sums = [f"{jsonl.sha256(shard.read_bytes())}  shards/00000.jsonl" if "shards/" in line else line for line in sums]
    (copy / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    assert verify(copy)[0] == 0
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "0").write_bytes(picture(0))
    code, said = verify(copy, "--images", str(tmp_path / "photos"))
    assert code == 1
    assert "with its images, its line has another hash" in said


def test_false_fingerprint_of_a_copy_is_found_where_run_json_is_there(tmp_path: Path) -> None:
    """What REDACTED.json states is computed again where it can be, and is called a statement where it cannot."""
    _, done = _redact(tmp_path, {"images"})
    copy = Path(done.path)
    note = copy / "REDACTED.json"
    before = jsonl.sha256(note.read_bytes())
    note.write_bytes(note.read_bytes().replace(done.fingerprint.encode(), b"0" * 64))
    sums = copy / "SHA256SUMS"
    sums.write_text(sums.read_text().replace(before, jsonl.sha256(note.read_bytes())))
    code, said = verify(copy)
    assert code == 1
    assert "a fingerprint that is not run.json's" in said
    run = RunDir.open(tmp_path / "run")
    archive.redact(run, str(tmp_path / "blind"), {"paths"})
    assert f"fingerprint {run.fingerprint} (as REDACTED.json states it)" in verify(tmp_path / "blind")[1]


def test_text_that_looks_like_a_placeholder_does_no_harm(tmp_path: Path) -> None:
    """A prompt that holds the form of a placeholder stays as it is and is still proven."""
    prompt = f"Is sha256:{'0' * 64}"
    run = make_run(tmp_path / "run", [Made(prompt=prompt, image=picture(0))])
    archive.redact(run, str(tmp_path / "copy"), {"images"})
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "0").write_bytes(picture(0))
    code, said = verify(tmp_path / "copy", "--images", str(tmp_path / "photos"))
    assert code == 0, said
    assert "1 are proven" in said


def test_one_opening_proves_one_row_and_no_other(tmp_path: Path) -> None:
    """A line of the openings proves its row's path and fields; changed by one letter it proves nothing."""
    _, done = _redact(tmp_path, {"paths"})
    assert done.openings is not None
    assert stat.S_IMODE(Path(done.openings).stat().st_mode) == 0o600
    lines = Path(done.openings).read_bytes().splitlines()
    assert len(lines) == 6
    one = tmp_path / "one.jsonl"
    one.write_bytes(lines[3] + b"\n")
    code, said = verify(done.path, "--openings", str(one))
    assert code == 0, said
    assert "2 withheld values proven" in said
    one.write_bytes(lines[3].replace(b"Smith", b"Smyth") + b"\n")
    code, said = verify(done.path, "--openings", str(one))
    assert code == 1
    assert "images.0.path is not what was withheld" in said


@pytest.mark.parametrize(
    "what", [("paths",), ("prompts",), ("paths", "prompts")], ids=lambda what: "+".join(sorted(what))
)
def test_all_openings_prove_all_that_was_withheld(tmp_path: Path, what: tuple[str, ...]) -> None:
    """The openings hold everything that the copy has a commitment to."""
    _, done = _redact(tmp_path, what)
    in_rows = (Path(done.path) / "manifest.jsonl").read_bytes().count(b"hmac-sha256:")
    in_run = (Path(done.path) / "run.json").read_bytes().count(b"hmac-sha256:")
    assert in_rows == 5 * (1 + ("paths" in what))
    code, said = verify(done.path, "--openings", str(done.openings))
    assert code == 0, said
    assert f"{in_rows + in_run} withheld values proven" in said


def test_original_lines_prove_rows_of_a_copy_without_prompts(tmp_path: Path) -> None:
    """Frozen lines of the original have the hashes that the copy names; others do not."""
    run, done = _redact(tmp_path, {"prompts"})
    lines = Path(run.file("shards/00000.jsonl")).read_bytes().splitlines(keepends=True)
    some = tmp_path / "some.jsonl"
    some.write_bytes(lines[1] + lines[4])
    code, said = verify(done.path, "--lines", str(some))
    assert code == 0, said
    assert "2 of 5 requests proven" in said
    some.write_bytes(lines[1].replace(b"healed", b"broken"))
    assert verify(done.path, "--lines", str(some))[0] == 1


def test_commitments_are_blind(tmp_path: Path) -> None:
    """Two copies of one run share no commitment, and equal rows of one copy have different ones."""
    run = make_run(tmp_path / "run", [Made(path="same.png", row={"a": 1}, image=picture(n)) for n in range(4)])
    paths = []
    for name in ("one", "two"):
        archive.redact(run, str(tmp_path / name), {"paths"})
        for entry in _lines(tmp_path / name / "manifest.jsonl"):
            paths += [entry["images"][0]["path"], entry["row"]["vlmbatch_withheld"]]
    assert len(set(paths)) == len(paths) == 16


def test_fields_that_may_stay_do(tmp_path: Path) -> None:
    """Named fields of the rows stay readable, in manifest and records, and the whole row is still provable."""
    _, done = _redact(tmp_path, {"paths"}, keep_fields=["label", "n", "absent"])
    rows = [record["row"] for record in _lines(Path(done.path) / "merged.jsonl")]
    assert [(row["label"], row["n"], set(row)) for row in rows] == [
        ("A", n, {"label", "n", "vlmbatch_withheld"}) for n in range(5)
    ]
    assert verify(done.path, "--openings", str(done.openings))[0] == 0


def test_what_stays_keeps_every_digit(tmp_path: Path) -> None:
    """Fields of rows and answers that go along are those of the original, digit by digit."""
    row, text = b'{"a":1.10,"b":123456789012345678901234567890,"c":1}', '{"n":123456789012345678901234567890}'
    run = result_run(tmp_path / "run", [row], answer={"json": True, "schema": None})
    write_results(run, "a.jsonl", [attempt(run, 0, completion(text))])
    collect(run, (), CollectOptions(write=run.file("merged.jsonl")))
    done = archive.redact(run, str(tmp_path / "copy"), {"paths"}, keep_fields=["a", "b"])
    for name in ("manifest.jsonl", "merged.jsonl"):
        assert b'"row":' + row[: row.index(b',"c"')] in (Path(done.path) / name).read_bytes()
    assert f'"json":{text}'.encode() in (Path(done.path) / "merged.jsonl").read_bytes()


def test_numbers_of_the_request_stay_readable(tmp_path: Path) -> None:
    """Without prompts the parameters still tell the limit and the temperature, but no text."""
    _, done = _redact(tmp_path, {"prompts"})
    request = json.loads((Path(done.path) / "run.json").read_bytes())["request"]
    assert request["params"] == {"max_tokens": 512, "temperature": 0.1, "top_p": 1e-7}


def test_files_are_told_by_what_became_of_them(tmp_path: Path) -> None:
    """The result and REDACTED.json name every file of the original with its hash; unknown files never go along."""
    run, done = _redact(tmp_path, {"images"})
    note = json.loads((Path(done.path) / "REDACTED.json").read_bytes())
    states = {ref["file"]: ref["state"] for ref in note["files"]}
    there = {str(path.relative_to(run.path)) for path in Path(run.path).rglob("*") if path.is_file()}
    assert set(states) == {name for name in there if not name.startswith(".locks/")}
    assert set(done.withheld) == {"exports.csv", "report.html"}
    assert states["shards/00000.jsonl"] == "replaced"
    assert states["results/run.jsonl"] == states["inputs/prompt.txt"] == states["reviews.jsonl"] == "kept"


def test_tampered_copy_fails(tmp_path: Path) -> None:
    """A file put back, added or changed in a redacted copy is told."""
    run, done = _redact(tmp_path, {"paths"})
    shutil.copy(run.file("report.html"), done.path)
    code, said = verify(done.path)
    assert code == 1
    assert "'report.html' is there although it is withheld" in said
    Path(done.path, "report.html").unlink()
    merged = Path(done.path, "merged.jsonl")
    merged.write_bytes(merged.read_bytes().replace(b"answer 1", b"answer 2"))
    assert verify(done.path)[0] == 1


def test_copy_is_neither_sealed_bagged_nor_redacted_again(tmp_path: Path) -> None:
    """A redacted copy is finished: what would give it a second, false seal is refused."""
    _, done = _redact(tmp_path, {"images"})
    copy = RunDir.open(done.path)
    for work in (
        lambda: archive.seal(copy),
        lambda: archive.bag(copy, str(tmp_path / "bag")),
        lambda: archive.redact(copy, str(tmp_path / "again"), {"paths"}),
    ):
        with pytest.raises(InputError, match="is a redacted copy"):
            work()
    assert verify(done.path)[0] == 0


@pytest.mark.parametrize("what", CHOICES, ids=lambda what: "+".join(sorted(what)))
def test_report_of_a_copy_shows_no_more_than_the_copy(tmp_path: Path, what: tuple[str, ...]) -> None:
    """A page drawn from a redacted copy works and says that pictures and prompts are not there."""
    _, done = _redact(tmp_path, what)
    copy = RunDir.open(done.path)
    page = write_report(copy, records=copy.file("merged.jsonl"), summary=read_summary(copy))
    assert "show no picture and no prompt" in Path(page).read_text()


def test_wrong_wishes_and_existing_targets_are_refused(tmp_path: Path) -> None:
    """Nothing, or something unknown, cannot be left out; neither a copy nor its openings are ever overwritten."""
    run = _run(tmp_path / "run")
    for what in (set(), {"names"}, {"images", "faces"}):
        with pytest.raises(InputError, match="cannot be left out"):
            archive.redact(run, str(tmp_path / "copy"), what)
    archive.redact(run, str(tmp_path / "copy"), {"paths"})
    with pytest.raises(InputError, match="exists already"):
        archive.redact(run, str(tmp_path / "copy"), {"images"})
    shutil.rmtree(tmp_path / "copy")
    with pytest.raises(InputError, match=r"openings\.jsonl: exists already"):
        archive.redact(run, str(tmp_path / "copy"), {"paths"})


def test_damaged_original_leaves_no_copy(tmp_path: Path) -> None:
    """What differs from what build wrote is not copied under the run's name."""
    run = _run(tmp_path / "run")
    shard = Path(run.file("shards/00000.jsonl"))
    shard.chmod(0o644)
    shard.write_bytes(shard.read_bytes().replace(b"healed", b"broken", 1))
    with pytest.raises(IntegrityError):
        archive.redact(run, str(tmp_path / "copy"), {"images"})
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("what", CHOICES, ids="+".join)
def test_nothing_is_sent_from_a_copy(tmp_path: Path, what: tuple[str, ...]) -> None:
    """The check that stands before every sending finds that a copy is not what build wrote."""
    _, done = _redact(tmp_path, what)
    with pytest.raises(IntegrityError):
        RunDir.open(done.path).verify()


def test_words_of_servers_do_not_echo_the_prompt(tmp_path: Path) -> None:
    """Errors quote what was sent, and reasons quote the schema: where prompts go, these words go from every file."""
    run = result_run(tmp_path / "echo", 3)
    failure = {"error": {"message": f"bad prompt: {SECRET_PROMPT}", "type": "invalid_request_error"}}
    values = [attempt(run, 0, failure, status_code=400), attempt(run, 1, completion('{"a": 1}'))]
    write_results(run, "a.jsonl", values)
    schema = tmp_path / "schema.json"
    schema.write_text('{"properties": {"a": {"enum": ["fracture type C"]}}}')
    collect(run, (), CollectOptions(write=run.file("merged.jsonl"), json_schema=str(schema)))
    said = {"event": "abandoned", "job": "k", "why": f"upload: {SECRET_PROMPT}"}
    Path(run.file("batches.jsonl")).write_bytes(jsonl.dumps(said) + b"\n")
    assert b"fracture type C" in Path(run.file("summary.json")).read_bytes()
    done = archive.redact(run, str(tmp_path / "copy"), ["prompts"])
    everything = _all_bytes(done.path)
    assert SECRET_PROMPT.encode() not in everything
    assert b"fracture type C" not in everything
    first, second, _ = _lines(Path(done.path) / "merged.jsonl")
    assert first["error"]["status_code"] == 400
    assert [record["status"] for record in (first, second)] == ["http_error", "invalid_json"]
    status, told = verify(done.path)
    assert status == 0, told


@pytest.mark.parametrize("name", ["merged.jsonl", "summary.json"])
@pytest.mark.parametrize("change", [lambda data: data[:-40], lambda data: data[data.index(b"\n") + 1 :], lambda _: b""])
def test_damaged_records_or_summary_leave_no_copy(tmp_path: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """What is not one record for each request is said; nothing is blinded by guess."""
    run = _run(tmp_path / "run")
    path = Path(run.file(name))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(IntegrityError):
        archive.redact(run, str(tmp_path / "copy"), ["paths", "prompts"])
    assert not list(tmp_path.glob("*copy*"))

"""Sealing, and the script that checks a folder with bare Python: nothing damaged passes, nothing sound fails."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.stages.made_runs import Made, make_run
from vlmbatch import jsonl
from vlmbatch.errors import InputError, IntegrityError
from vlmbatch.records import CUSTOM_ID, Event, Status
from vlmbatch.rundir import SEAL_BROKEN, RunDir, fingerprint
from vlmbatch.stages import archive
from vlmbatch.stages.estimate import EstimateOptions, estimate
from vlmbatch.stages.run import RunOptions
from vlmbatch.stages.run import run as send

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

SCRIPT = Path(archive.__file__).parents[2] / "data" / "verify.py"


def verify(folder: Path | str, *arguments: str) -> tuple[int, str]:
    """Run the folder's own verify.py with bare Python; return its exit status and what it printed."""
    script = Path(folder) / "verify.py"
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(script if script.exists() else SCRIPT), *arguments, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("folder_verify", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(folder: Path, count: int = 6) -> RunDir:
    statuses = [Status.OK, Status.TRUNCATED, Status.REFUSAL]
    made = [Made(text=f"answer {n}", status=statuses[n % 3], row={"n": n, "ä": "ü"}) for n in range(count)]
    return make_run(folder, made)


def _rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.chmod(0o644)
    path.write_bytes(change(path.read_bytes()))


def _forge(run: RunDir) -> None:
    """Make all hashes of the frozen files agree again, as somebody would who changes a folder on purpose."""
    folder = Path(run.path)
    info = json.loads((folder / "run.json").read_bytes())
    for ref in [info["manifest"], *info["shards"]]:
        ref["sha256"] = hashlib.sha256((folder / ref["file"]).read_bytes()).hexdigest()
    _rewrite(folder / "run.json", lambda _: jsonl.dumps_pretty(info))
    summary = json.loads((folder / "summary.json").read_bytes())
    summary["run"]["fingerprint"] = fingerprint(info)
    (folder / "summary.json").write_bytes(jsonl.dumps_pretty(summary))
    names = [line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()]
    sums = "".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    _rewrite(folder / "SHA256SUMS", lambda _: sums.encode())


# --- seal ----------------------------------------------------------------------------------------------------


def test_sealed_folder_passes_bare_python_and_coreutils(tmp_path: Path) -> None:
    """The seal covers every file but itself and the locks; sha256sum and verify.py agree with it."""
    run = _run(tmp_path / "run")
    sums = Path(run.file("SHA256SUMS")).read_bytes()
    sealed = archive.seal(run)
    assert sealed.fingerprint == run.fingerprint
    assert sealed.sha256 == jsonl.sha256(Path(sealed.path).read_bytes())
    assert Path(run.file("SHA256SUMS")).read_bytes() == sums
    for name in ("SHA256SUMS", "SEALED.sha256"):
        subprocess.run(["sha256sum", "--strict", "--quiet", "-c", name], cwd=run.path, check=True)
    listed = {line.split("  ")[1] for line in Path(sealed.path).read_text().splitlines()}
    there = {str(path.relative_to(run.path)) for path in Path(run.path).rglob("*") if path.is_file()}
    assert listed == there - {"SEALED.sha256", ".locks/all.lock", ".locks/rehearsal.lock"}
    assert sealed.files == len(listed)
    code, said = verify(run.path)
    assert code == 0, said
    assert f"VERIFIED  fingerprint {run.fingerprint}" in said
    assert "counts agree: ok 2, truncated 2, refusal 2" in said


def test_folder_is_sealed_again_after_more_work(tmp_path: Path) -> None:
    """A second seal covers what came since, and is the same where nothing came."""
    run = _run(tmp_path / "run")
    first = archive.seal(run)
    assert archive.seal(run) == first
    Path(run.file("results/late.jsonl")).write_bytes(b"{}\n")
    assert verify(run.path)[0] == 1
    again = archive.seal(run)
    assert again.files == first.files + 1
    assert verify(run.path)[0] == 0


def test_other_stages_say_that_they_write_into_a_sealed_folder(tmp_path: Path) -> None:
    """An estimate and a run leave files that the seal does not know; before the seal there is nothing to say."""
    run = _run(tmp_path / "run")
    events: list[Event] = []

    def said() -> list[bool]:
        events.clear()
        warnings = estimate(run, EstimateOptions(), now="2026-05-01T10:00:00Z").warnings
        send(run, RunOptions(rehearsal=True, resume=False), key=None, on_event=events.append)
        return [SEAL_BROKEN in warnings, SEAL_BROKEN in [one.message for one in events if one.kind == "warning"]]

    assert said() == [False, False]
    archive.seal(run)
    assert said() == [True, True]
    assert verify(run.path)[0] == 1


def test_run_that_sends_nothing_leaves_the_seal_whole(tmp_path: Path) -> None:
    """With all rows answered, or without a key, nothing is written, so that nothing is said of the seal either."""
    run = _run(tmp_path / "run")
    send(run, RunOptions(rehearsal=True, resume=False), key=None)
    archive.seal(run)
    events: list[Event] = []
    assert send(run, RunOptions(rehearsal=True), key=None, on_event=events.append).to_send == 0
    with pytest.raises(InputError, match="no API key"):
        send(run, RunOptions(resume=False), key=None, on_event=events.append)
    assert SEAL_BROKEN not in [event.message for event in events]
    assert verify(run.path)[0] == 0


def test_no_seal_is_set_on_damage(tmp_path: Path) -> None:
    """A folder whose frozen files differ is refused with every file named, and stays as it was."""
    run = _run(tmp_path / "run")
    _rewrite(Path(run.file("shards/00000.jsonl")), lambda data: data.replace(b"picture", b"pictura", 1))
    _rewrite(Path(run.file("inputs/prompt.txt")), lambda data: data + b" ")
    with pytest.raises(IntegrityError) as caught:
        archive.seal(run)
    assert {problem.where for problem in caught.value.problems} == {"shards/00000.jsonl", "inputs/prompt.txt"}
    assert not Path(run.file("SEALED.sha256")).exists()
    assert not Path(run.file("verify.py")).exists()


def test_links_and_work_in_progress_refuse_a_seal(tmp_path: Path) -> None:
    """A link would not travel with the folder; somebody else's work would not be covered."""
    run = _run(tmp_path / "run")
    with run.lock(), pytest.raises(InputError, match="another process"):
        archive.seal(run)
    Path(run.file("results/away.jsonl")).symlink_to(tmp_path / "elsewhere.jsonl")
    with pytest.raises(InputError, match="would not travel") as caught:
        archive.seal(run)
    assert [problem.where for problem in caught.value.problems] == ["results/away.jsonl"]


def test_odd_names_are_sealed_and_checked(tmp_path: Path) -> None:
    """Names with line breaks, quotes or bytes that are not UTF-8 come through; one with a backslash is refused."""
    run = _run(tmp_path / "run")
    folder = Path(run.path) / "results"
    for name in (b"a\nb.jsonl", b"tab\tquote'\".jsonl", b"not-utf8-\xff.jsonl", "ü.jsonl".encode()):
        folder.joinpath(name.decode("utf-8", "surrogateescape")).write_bytes(name)
    archive.seal(run)
    subprocess.run(["sha256sum", "--strict", "--quiet", "-c", "SEALED.sha256"], cwd=run.path, check=True)
    code, said = verify(run.path)
    assert code == 0, said
    folder.joinpath("a\\b.jsonl").write_bytes(b"")
    with pytest.raises(InputError) as caught:
        archive.seal(run)
    assert [(problem.code, problem.where) for problem in caught.value.problems] == [("bad_name", "results/a\\b.jsonl")]


def test_progress_is_told_in_bytes(tmp_path: Path) -> None:
    """The last event of sealing says that all bytes are done."""
    run = _run(tmp_path / "run")
    events: list[Event] = []
    archive.seal(run, on_event=events.append)
    assert events[-1].done == events[-1].total
    assert events[-1].data == {"unit": "bytes"}


def test_folder_before_collect_is_sealed_and_says_so(tmp_path: Path) -> None:
    """What has no records yet is sealed as it is."""
    run = _run(tmp_path / "run")
    for name in ("merged.jsonl", "summary.json", "results/run.jsonl"):
        Path(run.file(name)).unlink()
    archive.seal(run)
    code, said = verify(run.path)
    assert code == 0
    assert "not collected" in said


# --- verify.py: nothing damaged passes -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run = _run(tmp_path_factory.mktemp("sealed") / "run", 4)
    archive.seal(run)
    return run


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_byte_changed_anywhere_fails(
    data: st.DataObject, sealed: RunDir, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """One byte off in any file of a sealed folder, and the folder is not verified."""
    names = sorted(path for path in Path(sealed.path).rglob("*") if path.is_file() and ".locks" not in path.parts)
    path = data.draw(st.sampled_from(names))
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[place]))
    try:
        _rewrite(path, lambda found: found[:place] + bytes([other]) + found[place + 1 :])
        try:
            is_sound = script.verify(script.Folder(sealed.path), Namespace(images=None, lines=None, openings=None))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            is_sound = False  # what the script's door turns into NOT VERIFIED
        assert not is_sound
    finally:
        _rewrite(path, lambda _: whole)
    capsys.readouterr()


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("manifest.jsonl", lambda data: data.replace(b"-000001-", b"-000000-"), "problem(s)"),
        ("manifest.jsonl", lambda data: b"".join([data, data.splitlines(keepends=True)[0]]), "stands there twice"),
        ("manifest.jsonl", lambda data: data.replace(b'"custom_id":"t0', b'"custom_id":"t 0', 1), "is no id"),
        ("manifest.jsonl", lambda data: data.replace(b'"offset":0', b'"offset":1'), "its line has another hash"),
        ("manifest.jsonl", lambda data: data.replace(b'"body_offset":', b'"body_offset":1', 1), "its body has another"),
        ("manifest.jsonl", lambda data: data[: data.index(b"\n") + 1], "requests, run.json says 6"),
        ("manifest.jsonl", lambda data: data + b"[]\n", "line 7"),
        ("shards/00000.jsonl", lambda data: data.replace(b"picture", b"pictura", 1), "its line has another hash"),
        ("merged.jsonl", lambda data: b"\n".join(data.splitlines()[::-1]) + b"\n", "custom_id is not that of"),
        ("merged.jsonl", lambda data: data[: data.index(b"\n") + 1], "ends before line 2"),
        ("merged.jsonl", lambda data: data + data.splitlines(keepends=True)[0], "more records than"),
        ("merged.jsonl", lambda data: data.replace(b'"status":"refusal"', b'"status":"ok"'), "refusal: says 2"),
        ("merged.jsonl", lambda data: data.replace(b'"status":"ok"', b'"status":"fine"'), "KeyError"),
        ("merged.jsonl", lambda data: data.replace(b'"row":{"n":3', b'"row":{"n":4'), "row is not that of"),
        ("merged.jsonl", lambda data: data.replace(b"picture-00002", b"picture-00003"), "images is not that of"),
        ("summary.json", lambda data: data.replace(b'"ok": 2', b'"ok": 3'), "ok: says 3, the records have 2"),
        ("summary.json", lambda data: data.replace(b'"requests": 6', b'"requests": 7'), "requests: says 7"),
        ("results/run.jsonl", lambda data: data.replace(b"latency_s", b"latency_t"), "'results/run.jsonl' has SHA-256"),
    ],
)  # fmt: skip
def test_forged_folder_fails_by_what_it_says(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes], said: str
) -> None:
    """Where somebody made the hashes agree again, what the files say about one another still gives them away."""
    run = _run(tmp_path / "run")
    _rewrite(Path(run.file(name)), change)
    _forge(run)
    code, told = verify(run.path)
    assert code == 1
    assert said in told
    assert "NOT VERIFIED" in told


def test_honest_forging_passes(tmp_path: Path) -> None:
    """The forging of the test above is itself no cause to fail."""
    run = _run(tmp_path / "run")
    _forge(run)
    assert verify(run.path)[0] == 0


@pytest.mark.parametrize("name", ["run.json", "manifest.jsonl", "shards/00000.jsonl", "merged.jsonl", "SHA256SUMS"])
def test_missing_file_fails(tmp_path: Path, name: str) -> None:
    """A file that is gone is told, without a traceback."""
    run = _run(tmp_path / "run")
    archive.seal(run)
    Path(run.file(name)).unlink()
    code, said = verify(run.path)
    assert code == 1
    assert "NOT VERIFIED" in said


def test_names_that_lead_out_are_refused(tmp_path: Path) -> None:
    """A folder that names files outside of itself cannot have them read."""
    run = _run(tmp_path / "run")
    (tmp_path / "secret").write_bytes(b"x")
    digest = hashlib.sha256(b"x").hexdigest()
    _rewrite(Path(run.file("SHA256SUMS")), lambda data: data + f"{digest}  ../secret\n".encode())
    code, said = verify(run.path)
    assert code == 1
    assert "'../secret' cannot be read: '../secret' leads out of the folder" in said


def test_many_problems_are_told_in_a_few_lines(tmp_path: Path) -> None:
    """A folder in which everything is wrong gives twenty lines and a count."""
    run = _run(tmp_path / "run", 90)
    _rewrite(Path(run.file("merged.jsonl")), lambda data: b"\n".join(data.splitlines()[::-1]) + b"\n")
    said = verify(run.path)[1]
    assert "and 250 more" in said
    assert len(said.splitlines()) < 40


def test_what_a_stranger_wrote_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """Ids and words of a hostile folder come out escaped, whatever the check says of them."""
    run = _run(tmp_path / "run")
    evil = b"\\u001b[2J\\u009b1m\xe2\x80\xae"
    _rewrite(Path(run.file("manifest.jsonl")), lambda data: data.replace(b"t0f3a9c-00000", evil))
    code, said = verify(run.path)
    assert code == 1
    assert "\\x1b[2J" in said
    assert said.replace("\n", "").isascii()
    assert said.replace("\n", "").isprintable()


def test_rehearsal_is_told(tmp_path: Path) -> None:
    """Somebody who checks a folder learns that no model was asked."""
    run = _run(tmp_path / "run")
    _rewrite(Path(run.file("summary.json")), lambda data: data.replace(b'"rehearsal": false', b'"rehearsal": true'))
    code, said = verify(run.path)
    assert code == 0
    assert "REHEARSAL" in said


# --- verify.py: it is what it says it is ---------------------------------------------------------------------


def test_script_is_old_python_and_standard_library_alone() -> None:
    """The script parses as Python 3.8 and imports nothing that does not come with it."""
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names
    newer = {"removeprefix", "removesuffix", "pairwise", "batched", "file_digest"}
    assert not {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & newer
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Match)]


def test_script_agrees_with_the_package(script: ModuleType) -> None:
    """Statuses and the form of an id are the package's."""
    assert list(script.STATUSES) == [status.value for status in Status]
    assert script.CUSTOM_ID.pattern == CUSTOM_ID.pattern + r"\Z"


_TEXTS = st.text(st.characters(codec="utf-8"))
_NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
_VALUES: Any = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(value=st.dictionaries(_TEXTS, _VALUES, max_size=6))
def test_fingerprint_is_the_package_s_for_any_run(value: dict[str, Any], script: ModuleType) -> None:
    """The script's canonical JSON is orjson's, byte for byte, so both give one fingerprint."""
    written = jsonl.dumps_pretty(value)
    read = json.loads(written, parse_int=script.Number, parse_float=script.Number)
    assert script.canonical(read).encode() == orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    assert script.fingerprint(read) == fingerprint(json.loads(written))


def test_what_the_seal_does_not_list_is_found_or_told(tmp_path: Path) -> None:
    """A link to a folder is no part of what was sealed; a hidden file is told, for systems leave such files behind."""
    run = _run(tmp_path / "run")
    archive.seal(run)
    Path(run.file(".DS_Store")).write_bytes(b"x")
    code, said = verify(run.path)
    assert code == 0, said
    assert "'.DS_Store' is hidden, is not listed, and was not checked" in said
    Path(run.file("more")).symlink_to(tmp_path)
    code, said = verify(run.path)
    assert code == 1
    assert "'more' is not listed" in said


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "bücher.txt"), ("ascii", "b\\xfccher.txt")])
def test_script_prints_names_readably_and_lets_none_steer_the_terminal(
    encoding: str, shown: str, tmp_path: Path
) -> None:
    """Umlauts stand as they are where stdout has them; what a terminal would obey is escaped anyway."""
    run = _run(tmp_path / "run")
    archive.seal(run)
    for name in ("bücher.txt", "\x1b[2Jgone.txt", "\u202etxt.exe"):
        (tmp_path / "run" / name).touch()
    done = subprocess.run(
        [sys.executable, "-S", run.file("verify.py")],
        capture_output=True,
        env={"PYTHONIOENCODING": encoding},
        check=False,
    )
    said = done.stdout.decode(encoding)
    assert shown in said
    assert "\\x1b[2Jgone.txt" in said
    assert "\\u202etxt.exe" in said
    assert not {"\x1b", "\u202e"} & set(said)

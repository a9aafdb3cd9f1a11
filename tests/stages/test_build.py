"""build: the folder it makes, to the byte."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pictures import jpeg, png
from vlmbatch.errors import InputError, IntegrityError
from vlmbatch.rundir import LineReader, RunDir
from vlmbatch.stages.build import build
from vlmbatch.stages.plan import BuildOptions


def _folder(path: Path, count: int = 5) -> Path:
    path.mkdir(parents=True)
    for number in range(count):
        name = path / f"{number:03d}.{'png' if number % 2 else 'jpg'}"
        name.write_bytes(png(8 + number, 9) if number % 2 else jpeg(10 + number, 7))
    return path


def _build(source: Path, out: Path, **more: object) -> RunDir:
    options = {"sources": (str(source),), "out": str(out), "model": "m", "prompt": "what?", **more}
    return build(BuildOptions(**options)).run  # type: ignore[arg-type]


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_build_hashes_are_those_of_the_bytes(tmp_path: Path) -> None:
    """Every hash, offset and length in the manifest is that of the bytes on disk, by our own arithmetic."""
    run = _build(_folder(tmp_path / "in"), tmp_path / "run")
    entries = list(run.iter_entries())
    assert len(entries) == 5
    for entry in entries:
        shard = (tmp_path / "run" / entry.shard).read_bytes()
        line = shard[entry.offset : entry.offset + entry.length]
        assert shard[entry.offset + entry.length : entry.offset + entry.length + 1] == b"\n"
        inner = line[entry.body_offset : entry.body_offset + entry.body_length]
        assert hashlib.sha256(line).hexdigest() == entry.line_sha256
        assert hashlib.sha256(inner).hexdigest() == entry.inner_sha256
        value = json.loads(line)
        assert value["custom_id"] == entry.custom_id
        assert list(value)[-1] == "body"
        canonical = json.dumps(json.loads(inner), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert inner == canonical.encode()


def test_build_inlines_the_file_bytes_unchanged(tmp_path: Path) -> None:
    """What stands in the data URI decodes to the very file, whatever its name says."""
    import base64

    source = tmp_path / "in"
    source.mkdir()
    (source / "really-a-png.jpg").write_bytes(png(9, 9))
    run = _build(source, tmp_path / "run")
    (entry,) = run.iter_entries()
    with LineReader(run) as reader:
        body = json.loads(reader.body(entry))
    (uri,) = [p["image_url"]["url"] for p in body["messages"][-1]["content"] if p["type"] == "image_url"]
    head, _, data = uri.partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(data, validate=True) == (source / "really-a-png.jpg").read_bytes()


def test_build_twice_in_two_places_gives_the_same_bytes(tmp_path: Path) -> None:
    """Two machines' folders differ in created_at and host of run.json and in nothing else."""
    first = _folder(tmp_path / "a" / "in", 9)
    second = tmp_path / "elsewhere" / "in"
    second.mkdir(parents=True)
    for name in reversed(sorted(os.listdir(first))):  # another order of creation, other times
        shutil.copyfile(first / name, second / name)
    one = _build(first, tmp_path / "a" / "run", workers=1)
    two = _build(second, tmp_path / "elsewhere" / "run", workers=3)
    trees = [_tree(Path(run.path)) for run in (one, two)]
    assert trees[0].keys() == trees[1].keys()
    differing = {name for name in trees[0] if trees[0][name] != trees[1][name]}
    assert differing <= {"run.json", "SHA256SUMS"}
    infos = [json.loads(tree["run.json"]) for tree in trees]
    for info in infos:
        del info["created_at"], info["host"]
    assert infos[0] == infos[1]
    assert one.fingerprint == two.fingerprint


def test_build_folder_passes_sha256sum(tmp_path: Path) -> None:
    """The checksum file holds by coreutils alone, and covers every frozen file."""
    run = _build(_folder(tmp_path / "in"), tmp_path / "run")
    done = subprocess.run(
        ["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=run.path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    listed = {line.split("  ", 1)[1] for line in (tmp_path / "run/SHA256SUMS").read_text().splitlines()}
    assert listed == set(_tree(tmp_path / "run")) - {"SHA256SUMS"}
    run.verify()


def test_build_leaves_the_frozen_files_read_only(tmp_path: Path) -> None:
    """Frozen files lose their write bit."""
    run = _build(_folder(tmp_path / "in"), tmp_path / "run")
    for name in _tree(Path(run.path)):
        assert (Path(run.path) / name).stat().st_mode & 0o222 == 0


@given(position=st.integers(min_value=0), bit=st.integers(0, 7))
@settings(max_examples=25)
def test_verify_names_any_flipped_bit(tmp_path_factory: pytest.TempPathFactory, position: int, bit: int) -> None:
    """One bit off in any frozen file is found, and the file is named."""
    folder = tmp_path_factory.mktemp("flip")
    run = _build(_folder(folder / "in", 3), folder / "run")
    names = sorted(_tree(folder / "run"))
    name = names[position % len(names)]
    path = folder / "run" / name
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1 << bit
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises((IntegrityError, InputError)) as caught:
        RunDir.open(run.path).verify()
    told = caught.value.message + "".join(str(p) for p in getattr(caught.value, "problems", ()))
    assert name in told or "run.json" in told or "SHA256SUMS" in told


def test_build_refuses_an_existing_target_untouched(tmp_path: Path) -> None:
    """A run is built once: an existing folder stays as it is, to the byte."""
    run = _build(_folder(tmp_path / "in"), tmp_path / "run")
    before = _tree(tmp_path / "run")
    with pytest.raises(InputError, match="exists already"):
        _build(tmp_path / "in", tmp_path / "run")
    assert _tree(Path(run.path)) == before


def test_build_bad_inputs_are_listed_at_once_and_nothing_stays(tmp_path: Path) -> None:
    """Without --skip-bad every bad image is named in one go, and no folder of ours is left, not even its parents."""
    source = _folder(tmp_path / "in")
    (source / "x.jpg").write_bytes(b"not an image")
    (source / "y.png").write_bytes(b"")
    with pytest.raises(InputError) as caught:
        _build(source, tmp_path / "deep" / "er" / "run")
    assert [p.where for p in caught.value.problems] == ["x.jpg", "y.png"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


def test_build_skip_bad_accounts_for_every_input(tmp_path: Path) -> None:
    """With --skip-bad, manifest and rejected add up to the inputs, and the good rows' ids do not depend on the bad."""
    source = _folder(tmp_path / "in")
    good = [e.custom_id.rsplit("-", 1)[1] for e in _build(source, tmp_path / "clean").iter_entries()]
    (source / "zz.jpg").write_bytes(b"not an image")
    run = _build(source, tmp_path / "run", skip_bad=True)
    rejected = [json.loads(line) for line in (tmp_path / "run/rejected.jsonl").read_text().splitlines()]
    assert len(rejected) == run.info["counts"]["rejected"] == 1
    assert rejected[0]["path"] == "zz.jpg"
    assert rejected[0]["reason"]["code"]
    assert run.info["source"]["count"] == run.requests + 1
    assert [e.custom_id.rsplit("-", 1)[1] for e in run.iter_entries()] == good


def test_build_two_prompts_share_no_id(tmp_path: Path) -> None:
    """Two runs over the same images share no custom_id, so their results cannot be mixed up."""
    source = _folder(tmp_path / "in")
    one = {e.custom_id for e in _build(source, tmp_path / "one").iter_entries()}
    two = {e.custom_id for e in _build(source, tmp_path / "two", prompt="what else?").iter_entries()}
    three = {e.custom_id for e in _build(source, tmp_path / "three", max_tokens=9).iter_entries()}
    assert not (one & two or one & three or two & three)


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), max_bytes=st.integers(900, 6000), most=st.integers(1, 5))
@settings(max_examples=15)
def test_shards_lose_repeat_and_reorder_nothing(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], max_bytes: int, most: int
) -> None:
    """However shards are cut, their lines in order are the manifest's, and no shard passes a limit it could keep."""
    folder = tmp_path_factory.mktemp("cut")
    (folder / "in").mkdir()
    for number, side in enumerate(sizes):
        (folder / "in" / f"{number:03d}.png").write_bytes(png(side, side))
    run = _build(folder / "in", folder / "run", shard_max_bytes=max_bytes, shard_max_requests=most)
    lines = [line for s in run.info["shards"] for line in (folder / "run" / s["file"]).read_bytes().splitlines()]
    assert [json.loads(line)["custom_id"] for line in lines] == [e.custom_id for e in run.iter_entries()]
    for shard in run.info["shards"]:
        assert shard["requests"] <= most
        assert shard["bytes"] <= max_bytes or shard["requests"] == 1
    run.verify()


def test_build_counts_duplicates_and_keeps_them(tmp_path: Path) -> None:
    """Byte-identical images are counted; each stays a request with an id of its own."""
    source = _folder(tmp_path / "in", 2)
    shutil.copyfile(source / "000.jpg", source / "copy.jpg")
    run = _build(source, tmp_path / "run")
    assert run.info["counts"]["duplicate_images"] == 1
    assert len({e.custom_id for e in run.iter_entries()}) == 3


def test_build_real_photographs_in_two_places(tmp_path: Path, photos: Path) -> None:
    """The JPEG and PNG photographs build, verify, and come out alike elsewhere."""
    source = tmp_path / "in"
    for path in sorted(photos.rglob("*")):
        if path.suffix.lower() in {".jpg", ".png"} and "invalid" not in path.parts:
            target = source / path.relative_to(photos)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    one = _build(source, tmp_path / "one")
    two = _build(source, tmp_path / "two")
    assert one.requests == sum(1 for p in source.rglob("*") if p.is_file())
    assert one.fingerprint == two.fingerprint
    for entry in one.iter_entries():
        assert hashlib.sha256((source / entry.images[0]["path"]).read_bytes()).hexdigest() == entry.images[0]["sha256"]

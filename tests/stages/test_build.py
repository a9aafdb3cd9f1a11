"""build: the folder it makes, to the byte."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.pictures import jpeg, png
from vlmbatch.errors import InputError, IntegrityError
from vlmbatch.images import ImagePolicy, decode
from vlmbatch.rundir import Draft, LineReader, RunDir
from vlmbatch.stages.build import build
from vlmbatch.stages.building import press
from vlmbatch.stages.building.plan import BuildOptions


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


TWO_OUTPUTS = """
processors: [{type: llm, server_args: {model_path: m}}]
loading_params: {datasets: [{path: t.jsonl, type: JSONL}]}
processing_params:
  inputs: [{name: image, key: image, type: image}]
  outputs:
    - {name: one, type: llm, prompt: "{{ image }} what?"}
    - {name: two, type: llm, prompt: "{{ image }} where?"}
"""


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
    for name in sorted(os.listdir(first), reverse=True):  # another order of creation, other times
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


def _rows(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_build_field_that_every_row_lacks_is_told_once(tmp_path: Path) -> None:
    """One problem with the near name, the fields that there are and all its lines, however the rows differ besides."""
    table = _rows(tmp_path / "t.jsonl", *({"image": "a.jpg", **({"n": n} if n % 3 else {})} for n in range(3000)))
    with pytest.raises(InputError) as caught:
        _build(table, tmp_path / "run")
    (problem,) = caught.value.problems
    assert problem.lines == tuple(range(1, 3001))
    assert str(problem) == (
        "t.jsonl:1: no field 'image_path'; did you mean 'image'? there are: 'image' (also lines 2, 3, 4 and 2,996 more)"
    )
    assert caught.value.message == "3,000 bad inputs; nothing was written"
    assert "--image-field" in caught.value.hint
    assert "--skip-bad" not in caught.value.hint  # it would leave nothing


def test_build_images_that_are_all_elsewhere_are_told_with_the_way_out(tmp_path: Path) -> None:
    """Where no path leads to a file, the paths start elsewhere; where one does, the others are wrong by themselves."""
    table = _rows(tmp_path / "t.jsonl", {"image_path": "a.jpg"}, {"image_path": "b.jpg"})
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(jpeg(9, 9))
    for base, is_told in ((None, True), (str(tmp_path / "in"), False)):
        with pytest.raises(InputError) as caught:
            _build(table, tmp_path / "run", image_base_path=base)
        assert ("--image-base-path" in caught.value.hint) is is_told


def test_build_different_faults_of_rows_stay_apart(tmp_path: Path) -> None:
    """What is said of two rows in the same words is one problem; the rest keep their lines, in input order."""
    (tmp_path / "a.jpg").write_bytes(jpeg(9, 9))
    rows = [{"image_path": path} for path in ("gone.jpg", None, "a.jpg", "gone.jpg", "lost.jpg", None)]
    with pytest.raises(InputError) as caught:
        _build(_rows(tmp_path / "t.jsonl", *rows), tmp_path / "run")
    assert [(p.code, p.lines) for p in caught.value.problems] == [
        ("image_not_found", (1, 4)),
        ("no_image", (2, 6)),
        ("image_not_found", (5,)),
    ]
    assert "--skip-bad" in caught.value.hint


def test_build_row_that_no_output_can_ask_about_is_told_once(tmp_path: Path) -> None:
    """Each output of a pipeline file is a request; the row's fault is one all the same."""
    (tmp_path / "p.yaml").write_text(TWO_OUTPUTS)
    _rows(tmp_path / "t.jsonl", {"picture": "a.jpg"}, {"picture": "b.jpg"})
    with pytest.raises(InputError) as caught:
        _build(tmp_path / "in", tmp_path / "run", sources=(), prompt=None, config=str(tmp_path / "p.yaml"))
    (problem,) = caught.value.problems
    assert problem.lines == (1, 2)
    assert "there are: 'picture'" in problem.message
    assert caught.value.message.startswith("4 bad inputs")


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


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": "what else?"},
        {"prompt": None, "prompt_template": "what?"},
        {"model": "n"},
        {"max_tokens": 9},
        {"temperature": 0.5},
        {"image_order": "last"},
        {"image_policy": ImagePolicy(max_side=4)},
        {"provider": "vllm"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_build_of_another_question_shares_no_id(tmp_path: Path, other: dict[str, object]) -> None:
    """Two runs over the same images that differ in anything asked share no custom_id: results cannot be mixed up."""
    source = _folder(tmp_path / "in")
    one = {e.custom_id for e in _build(source, tmp_path / "one").iter_entries()}
    two = {e.custom_id for e in _build(source, tmp_path / "two", **other).iter_entries()}
    assert not one & two


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    max_bytes=st.integers(900, 6000),
    most=st.integers(1, 5),
)
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


# --- what hostile names, values and disks do -----------------------------------------------------------------

ODD_NAMES = (b"a\nb.txt", b"a\\b.txt", b"\xff.txt", "a\u2028b.txt".encode(), b"x" * 200, b"a\x1b[31m.txt")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_build_prompt_file_of_an_odd_name_still_passes_sha256sum(tmp_path: Path, name: bytes) -> None:
    """A name that a checksum file cannot hold gives way to its role; the bytes are the file's all the same."""
    odd = os.path.join(os.fsencode(tmp_path), name)
    with open(odd, "wb") as file:
        file.write(b"what?")
    run = _build(_folder(tmp_path / "in", 1), tmp_path / "run", prompt=None, prompt_file=os.fsdecode(odd))
    done = subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=run.path, check=False)
    assert done.returncode == 0
    run.verify()
    assert (tmp_path / "run/inputs/prompt").read_bytes() == b"what?"


def test_build_files_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    """Prompt, system prompt and schema may have one name, and a file may be called as another's way out would be."""
    files = {"prompt_file": b"p", "system_file": b"s", "json_schema": b'{"type":"object"}', "extra_body": b"{}"}
    names = {"prompt_file": "a", "system_file": "schema-A", "json_schema": "A", "extra_body": "extra_body-a"}
    for option, data in files.items():
        (tmp_path / option).mkdir()
        (tmp_path / option / names[option]).write_bytes(data)
    paths = {option: str(tmp_path / option / name) for option, name in names.items()}
    run = _build(_folder(tmp_path / "in", 1), tmp_path / "run", prompt=None, **paths)
    kept = sorted(path.read_bytes() for path in (tmp_path / "run/inputs").iterdir())
    assert kept == sorted(files.values())
    assert len({path.name.lower() for path in (tmp_path / "run/inputs").iterdir()}) == len(files)
    run.verify()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"seed":123456789012345678901234567890}', "more than 64 bits"),
        (b'{"seed":1e999}', "inf is no number"),
        (b'{"stop":"\\ud800"}', "half a character"),
        (b'{"seed":1,"seed":2}', "stands twice"),
        (b'{"a":' + b"[" * 400 + b"]" * 400 + b"}", "levels deep"),
        (b"[1]", "a file is a JSON object"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b"\xff", "not UTF-8"),
    ],
)
@pytest.mark.parametrize("option", ["extra_body", "json_schema"])
def test_build_json_that_would_change_on_the_way_is_refused(
    tmp_path: Path, option: str, body: bytes, said: str
) -> None:
    """What goes into a body goes in as it was written, or the build says why it cannot."""
    (tmp_path / "f.json").write_bytes(body)
    with pytest.raises(InputError, match=said):
        _build(_folder(tmp_path / "in", 1), tmp_path / "run", **{option: str(tmp_path / "f.json")})
    assert not (tmp_path / "run").exists()


def test_build_whole_numbers_of_64_bits_stay_whole(tmp_path: Path) -> None:
    """The largest integers that a body can hold come out to the digit."""
    (tmp_path / "f.json").write_text(f'{{"seed":{2**64 - 1},"logit_bias":{{"1":{-(2**63)}}}}}')
    _build(_folder(tmp_path / "in", 1), tmp_path / "run", extra_body=str(tmp_path / "f.json"))
    line = (tmp_path / "run/shards/00000.jsonl").read_text()
    assert f'"seed":{2**64 - 1}' in line
    assert f'"1":{-(2**63)}' in line


def test_build_duplicates_are_counted_alike_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting in parts, as long runs do, finds the same number."""
    source = _folder(tmp_path / "in", 6)
    for number in range(4):
        shutil.copyfile(source / f"00{number}.{'png' if number % 2 else 'jpg'}", source / f"copy{number}")
    monkeypatch.setattr(press, "_PART", 3)
    assert _build(source, tmp_path / "run").info["counts"]["duplicate_images"] == 4


def test_build_names_drafts_that_may_go_on(tmp_path: Path) -> None:
    """A draft that another process holds, or that another machine made, is named and left alone."""
    options = BuildOptions(sources=(str(_folder(tmp_path / "in")),), out=str(tmp_path / "run"), model="m", prompt="p")
    foreign = tmp_path / ".run.0123456789abcdef.building"
    (foreign / "shards").mkdir(parents=True)
    (tmp_path / ".run2.0123456789abcdef.building").mkdir()
    with Draft(tmp_path / "run") as held:
        (warning,) = (said for said in build(options).warnings if "building" in said)
        assert os.path.isdir(held.path)
    assert os.path.basename(held.path) in warning
    assert foreign.name in warning
    assert "run2" not in warning
    assert foreign.is_dir()


@pytest.mark.parametrize("name", ["x", "deep/x"])
def test_build_inside_of_a_run_folder_is_refused(tmp_path: Path, name: str) -> None:
    """A run in a run would break the seal of the one around it; by a link it is refused too."""
    source = _folder(tmp_path / "in", 1)
    around = _build(source, tmp_path / "run")
    before = sorted(os.walk(tmp_path))
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for way in ("run", "link"):
        with pytest.raises(InputError, match="is a run folder itself"):
            _build(source, tmp_path / way / name)
    (tmp_path / "link").unlink()
    assert sorted(os.walk(tmp_path)) == before
    around.verify()


def test_build_file_larger_than_any_picture_is_not_read(tmp_path: Path) -> None:
    """A disk image in the folder is one bad input, not all of the memory."""
    source = _folder(tmp_path / "in", 1)
    with open(source / "disk.img", "wb") as file:
        file.truncate(1 << 40)
    run = _build(source, tmp_path / "run", skip_bad=True)
    (rejected,) = (json.loads(line) for line in (tmp_path / "run/rejected.jsonl").read_text().splitlines())
    assert (rejected["path"], rejected["reason"]["code"]) == ("disk.img", "unreadable")
    assert run.requests == 1


def _warnings(tmp_path: Path, data: bytes, name: str, **policy: object) -> str:
    (tmp_path / name).write_bytes(data)
    options = BuildOptions(
        sources=(str(tmp_path / name),),
        out=str(tmp_path / "run"),
        model="m",
        prompt="p",
        image_policy=ImagePolicy(**policy),  # type: ignore[arg-type]
    )
    return "\n".join(build(options).warnings)


def test_build_tells_of_frames_left_behind(tmp_path: Path) -> None:
    """An animation of which one frame is sent is told as that."""
    frames = [Image.new("RGB", (40, 40), colour) for colour in ("red", "blue")]
    made = io.BytesIO()
    frames[0].save(made, "PNG", save_all=True, append_images=frames[1:])
    told = _warnings(tmp_path, made.getvalue(), "a.png", convert_unsupported=True)
    assert "1 image(s) have several frames or pages, of which the first alone is sent" in told


def test_build_tells_of_a_second_picture_and_its_position(tmp_path: Path) -> None:
    """A position that only the second picture of an MPO holds leaves with it, so it is told; stripped, it is not."""
    gps = Image.Exif()
    gps.get_ifd(0x8825).update({1: "N", 2: (48.0, 51.0, 7.0), 3: "E", 4: (2.0, 17.0, 3.0)})
    picture = Image.new("RGB", (40, 40), "red")
    plain, second, both = io.BytesIO(), io.BytesIO(), io.BytesIO()
    picture.save(plain, "JPEG")
    picture.save(second, "JPEG", exif=gps)
    told = _warnings(tmp_path, plain.getvalue() + second.getvalue(), "a.jpg")
    assert "1 image(s) carry a GPS position" in told
    shutil.rmtree(tmp_path / "run")
    assert "GPS" not in _warnings(tmp_path, plain.getvalue() + second.getvalue(), "a.jpg", strip_metadata=True)
    assert b"GPS" not in (tmp_path / "run/shards/00000.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "run")
    picture.save(both, "MPO", save_all=True, append_images=[picture.rotate(90)])
    assert "hold a second picture behind the first" in _warnings(tmp_path, both.getvalue(), "b.jpg")


def test_build_tells_of_a_turn_by_xmp_alone(tmp_path: Path) -> None:
    """An orientation that stands in XMP alone is told: decoders differ over it."""
    made = io.BytesIO()
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    Image.new("RGB", (40, 40), "red").save(made, "JPEG", xmp=xmp)
    assert "turned by their XMP alone" in _warnings(tmp_path, made.getvalue(), "a.jpg")


def test_build_tells_of_pixels_that_nothing_here_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a decoder is missing, that only the container was checked is told."""
    monkeypatch.setattr(decode, "can_decode", lambda _type: False)
    assert "checked by their container alone" in _warnings(tmp_path, png(40, 40), "a.png")

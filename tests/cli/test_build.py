"""vlmbatch build, as a person or a program calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.doors import call
from tests.pictures import jpeg, png

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return a folder of three pictures."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes(png(30 + number, 40))
    return folder


def test_build_prints_counts_and_the_next_command(images: Path, tmp_path: Path) -> None:
    """The result stands on stdout, with what may be done next."""
    done = call("build", images, "--out", tmp_path / "run", "--model", "m", "--prompt", "what?")
    assert done.status == 0, done.err
    assert "3 requests" in done.out
    assert f"vlmbatch estimate {tmp_path / 'run'}" in done.out


def test_build_json_is_the_envelope_and_nothing_else(images: Path, tmp_path: Path) -> None:
    """With --json, stdout is one object."""
    done = call("build", images, "--out", tmp_path / "run", "--model", "m", "--prompt", "what?", "--json")
    told = done.json()
    assert told["schema"] == "vlmbatch.result/1"
    assert (told["command"], told["status"], told["exit_code"], told["errors"]) == ("build", "success", 0, [])
    assert told["data"]["counts"]["requests"] == 3


def test_build_json_failure_lists_every_problem(images: Path, tmp_path: Path) -> None:
    """A failure answers in the same envelope, with everything that is wrong in it, and on stderr for people."""
    (images / "a.jpg").write_bytes(b"text")
    (images / "b.jpg").write_bytes(b"")
    done = call("build", images, "--out", tmp_path / "run", "--model", "m", "--prompt", "what?", "--json")
    told = done.json()
    assert done.status == told["exit_code"] == 2
    assert told["status"] == "error"
    assert [e["path"] for e in told["errors"][1:]] == ["a.jpg", "b.jpg"]
    assert "a.jpg" in done.err
    assert "hint: " in done.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["IMAGES", "--out", "RUN", "--model", "m"], "no text to send"),
        (["IMAGES", "--out", "RUN", "--prompt", "p"], "--model is missing"),
        (["--out", "RUN", "--model", "m", "--prompt", "p"], "SOURCE is missing"),
        (["IMAGES", "--model", "m", "--prompt", "p"], "--out"),
        (["none", "--out", "RUN", "--model", "m", "--prompt", "p"], "none"),
        (
            ["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--provider", "nope"],
            "there is no provider 'nope'",
        ),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt-file", "none.txt"], "none.txt: cannot be read"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--check", "some"], "--check: 'some'"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--max-tokens", "many"], "--max-tokens"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--id-prefix", "a b"], "--id-prefix 'a b'"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--limit-override", "x"], "not NAME=N"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--shard-max-bytes", "-1"], "must be positive"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--prompt-file", "f"], "exclude each other"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--prompt-template", "t"], "excludes --prompt"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", " "], "--prompt: empty"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--image-order", "middle"], "first or last"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--max-tokens", "0"], "must be positive"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--shard-max-requests", "0"], "must be positive"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--workers", "-1"], "--workers must be positive"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--temperature", "nan"], "JSON cannot write"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--top-p", "inf"], "JSON cannot write"),
        (["IMAGES", "--out", "RUN", "--model", "m\udcff", "--prompt", "p"], "--model is not UTF-8"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p\udcff"], "--prompt is not UTF-8"),
        (["IMAGES", "--out", "RUN", "--model", " ", "--prompt", "p"], "--model is missing"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--quality", "50"], "no image is to be written"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--background", "black"], "no image is to be"),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--delimiter", ";"], "--delimiter speaks of"),
        (["--config", "none.yaml", "--out", "RUN", "--image-order", "middle"], "--image-order takes first or last"),
        (["--config", "none.yaml", "--out", "RUN", "--max-tokens", "-5"], "--max-tokens must be positive"),
        (["--config", "none.yaml", "--out", "RUN", "--prompt", ""], "the file's outputs say it"),
        (["--config", "none.yaml", "--out", "RUN", "--prompt-template", "t"], "the file's outputs say it"),
        (["--config", "none.yaml", "--out", "RUN", "--question-field", "q"], "the file's inputs say it"),
        (["--config", "none.yaml", "--out", "RUN", "--image-field", "i"], "the file's inputs say it"),
        (
            ["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--temperature", "-1"],
            "--temperature must be 0 to 2",
        ),
        (["IMAGES", "--out", "RUN", "--model", "m", "--prompt", "p", "--top-p", "3"], "--top-p must be above 0"),
        (["--config", "none.yaml", "--out", "RUN"], "none.yaml: cannot be read"),
        (["IMAGES", "--config", "none.yaml", "--out", "RUN"], "SOURCE: the pipeline file names its datasets"),
    ],
)
def test_build_wrong_usage_is_told_in_words(images: Path, tmp_path: Path, words: list[str], said: str) -> None:
    """Every beginner's mistake is status 2, a sentence and a hint, and leaves nothing behind."""
    place = {"IMAGES": str(images), "RUN": str(tmp_path / "run")}
    done = call("build", *(place.get(word, word) for word in words))
    assert done.status == 2
    assert said in done.err
    assert "Traceback" not in done.err
    assert done.err.count("\n") <= 4
    assert sorted(os.listdir(tmp_path)) == ["images"]


def test_build_empty_folder_is_told(tmp_path: Path) -> None:
    """A folder without usable images is nothing to build."""
    (tmp_path / "images").mkdir()
    done = call("build", tmp_path / "images", "--out", tmp_path / "run", "--model", "m", "--prompt", "p")
    assert done.status == 2
    assert "nothing to build" in done.err


def test_build_file_names_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    """A file name with escape sequences is shown, not obeyed."""
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a\x1b[31m\n\u202ered.jpg").write_bytes(b"text")
    done = call("build", folder, "--out", tmp_path / "run", "--model", "m", "--prompt", "p")
    assert done.status == 2
    assert "\x1b[31m" not in done.err
    assert "\u202e" not in done.err
    assert "\\x1b[31m\\n" in done.err


def test_build_table_from_stdin_keeps_the_rows(tmp_path: Path) -> None:
    """JSON lines on stdin are a table; rows stand in the manifest byte for byte."""
    (tmp_path / "a.jpg").write_bytes(jpeg(40, 40))
    row = '{"image_path":"a.jpg","q":"what?","n":12345678901234567890123}'
    words = ("build", "-", "--out", tmp_path / "run", "--model", "m", "--question-field", "q")
    done = call(*words, "--image-base-path", tmp_path, stdin=row.encode() + b"\n")
    assert done.status == 0, done.err
    manifest = (tmp_path / "run/manifest.jsonl").read_text()
    assert manifest.endswith(f'"row":{row}}}\n')


def test_build_gps_and_orientation_are_told(tmp_path: Path, photos: Path) -> None:
    """Positions and orientations in real photographs are warned about, and the flags that mend it silence it."""
    words = ("build", photos / "gps", photos / "orientation", "--model", "m", "--prompt", "p")
    done = call(*words, "--out", tmp_path / "one")
    assert "3 image(s) carry a GPS position" in done.err
    assert "7 image(s) have an EXIF orientation" in done.err
    mended = call(*words, "--out", tmp_path / "two", "--strip-metadata", "--orient", "apply")
    assert mended.status == 0, mended.err
    assert "GPS" not in mended.err
    assert "orientation" not in mended.err
    sent = [
        json.loads(line)["images"][0]["sent"] for line in (tmp_path / "two/manifest.jsonl").read_text().splitlines()
    ]
    assert len({(s["width"], s["height"]) for s in sent[-8:]}) == 1


def test_build_disk_full_leaves_nothing(images: Path, tmp_path: Path) -> None:
    """When the disk gives out in the middle, no half folder stands under the name."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100));"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "from vlmbatch.cli import main; main(sys.argv[1:])"
    )
    words = ["build", str(images), "--out", str(tmp_path / "run"), "--model", "m", "--prompt", "p"]
    done = _python(code, words)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert f"{tmp_path / 'run'}: cannot be written (" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["images"]


def test_build_with_stdin_closed_goes_on(images: Path, tmp_path: Path) -> None:
    """A daemon has no standard input: only ``-`` needs one, and says that it is closed."""
    words = ["build", str(images), "--out", str(tmp_path / "run"), "--model", "m", "--prompt", "p"]
    done = _elsewhere(words, before="exec <&-")
    assert done.returncode == 0, done.stderr
    words = ["build", "-", "--out", str(tmp_path / "two"), "--model", "m", "--prompt", "p"]
    done = _elsewhere(words, before="exec <&-")
    assert done.returncode == 2, done.stderr
    assert "(standard input) is closed" in done.stderr


def test_build_whose_messages_nobody_takes_goes_on(tmp_path: Path) -> None:
    """A terminal that was closed, or a full disk behind stderr, costs the messages and not the work."""
    (tmp_path / "tiny.png").write_bytes(png(8, 8))
    words = ["build", str(tmp_path / "tiny.png"), "--out", str(tmp_path / "run"), "--model", "m", "--prompt", "p"]
    assert "warning" in call(*words[:2], "--out", tmp_path / "loud", *words[4:]).err
    done = _elsewhere(words, before="exec 2>/dev/full")
    assert (done.returncode, done.stdout.splitlines()[0][:5]) == (0, "built")


def test_build_names_that_are_not_utf8_pass_through_the_envelope(images: Path, tmp_path: Path) -> None:
    """With --json, odd bytes in --out or in an error are escapes in the one object, not a fault of ours."""
    run = os.path.join(os.fsencode(tmp_path), b"r\xff")
    done = call("build", images, "--out", os.fsdecode(run), "--model", "m", "--prompt", "p", "--json")
    assert done.status == 0, done.err
    assert os.fsencode(done.json()["data"]["run"]) == run
    missing = os.fsdecode(b"none\xff.txt")
    done = call("build", images, "--out", tmp_path / "x", "--model", "m", "--prompt-file", missing, "--json")
    assert done.status == done.json()["exit_code"] == 2
    assert missing in done.json()["errors"][0]["message"]


def test_build_next_command_can_be_pasted(images: Path, tmp_path: Path) -> None:
    """A name with spaces is quoted in the command that is proposed."""
    done = call("build", images, "--out", tmp_path / "my run", "--model", "m", "--prompt", "p")
    assert f"vlmbatch estimate '{tmp_path / 'my run'}'" in done.out


def test_build_background_stands_behind_transparency(tmp_path: Path) -> None:
    """A clear pixel becomes the colour that was asked for."""
    import base64
    import io

    from PIL import Image

    clear = io.BytesIO()
    Image.new("RGBA", (40, 40), (255, 0, 0, 0)).save(clear, "PNG")
    (tmp_path / "a.png").write_bytes(clear.getvalue())
    words = ("build", tmp_path / "a.png", "--model", "m", "--prompt", "p", "--format", "jpeg")
    for colour, wanted in (("#0000ff", (0, 0, 255)), ("white", (255, 255, 255))):
        run = tmp_path / f"run-{colour}"
        done = call(*words, "--out", run, "--background", colour)
        assert done.status == 0, done.err
        line = json.loads((run / "shards/00000.jsonl").read_bytes())
        (uri,) = [p["image_url"]["url"] for p in line["body"]["messages"][-1]["content"] if p["type"] == "image_url"]
        pixel = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).getpixel((20, 20))
        assert all(abs(got - want) <= 3 for got, want in zip(pixel, wanted, strict=True))  # type: ignore[arg-type]


def test_build_hint_names_the_flag_that_converts(tmp_path: Path) -> None:
    """Where a provider does not take a type, the hint says how to send it all the same."""
    from PIL import Image

    Image.new("RGB", (40, 40)).save(tmp_path / "a.tif")
    words = ("build", tmp_path / "a.tif", "--out", tmp_path / "run", "--model", "m", "--prompt", "p")
    assert "--convert-unsupported" in call(*words).err
    assert call(*words, "--convert-unsupported").status == 0


def _build_under_a_signal(
    images: Path, out: Path, number: int, *, before: str = ""
) -> subprocess.CompletedProcess[str]:
    """Build from a table in whose midst a signal comes, so that the build is surely at work then."""
    code = f"{_SIGNALLING}{before}\nsys.stdin = type('In', (), {{'buffer': Table({number})}})()\nmain(sys.argv[1:])"
    words = ["build", "-", "--image-base-path", str(images), "--out", str(out), "--model", "m", "--prompt", "p"]
    return _python(code, [*words, "--json"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_build_told_to_stop_leaves_nothing(images: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, a scheduler and a closing terminal end the build with status 130, a sentence, and no half folder."""
    done = _build_under_a_signal(images, tmp_path / "deep/run", number)
    assert done.returncode == 130, done.stderr
    assert "interrupted" in done.stderr
    assert json.loads(done.stdout)["exit_code"] == 130
    assert sorted(os.listdir(tmp_path)) == ["images"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_build_told_twice_to_stop_still_leaves_nothing(images: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Schedulers and closing terminals say it twice; the second time comes while the first half folder is removed."""
    again = f"remove = shutil.rmtree\nshutil.rmtree = lambda *a, **k: (os.kill(os.getpid(), {number}), remove(*a, **k))"
    done = _build_under_a_signal(images, tmp_path / "run", number, before=again)
    assert done.returncode == 130, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["images"]


def test_build_under_nohup_goes_on(images: Path, tmp_path: Path) -> None:
    """A signal that the shell has switched off stays off."""
    nohup = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    done = _build_under_a_signal(images, tmp_path / "run", signal.SIGHUP, before=nohup)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["data"]["counts"]["requests"] > 0


def test_build_after_a_killed_one_removes_what_it_left(images: Path, tmp_path: Path) -> None:
    """Nobody can clean up after SIGKILL but the next build of that name, which says so."""
    done = _build_under_a_signal(images, tmp_path / "run", signal.SIGKILL)
    assert done.returncode == -signal.SIGKILL
    (left,) = {*os.listdir(tmp_path)} - {"images"}
    after = call("build", images, "--out", tmp_path / "run", "--model", "m", "--prompt", "p")
    assert (after.status, sorted(os.listdir(tmp_path))) == (0, ["images", "run"])
    assert f"removed {left}" in after.err


_SIGNALLING = """
import os, shutil, signal, sys
from vlmbatch.cli import main
class Table:
    def __init__(self, number):
        self.number, self.reads = number, 0
    def read(self, size):
        self.reads += 1
        if self.reads == 3:
            os.kill(os.getpid(), self.number)
        line = b'{"image_path": "0.png"}\\n'
        return line * (size // len(line) // 500) if self.reads < 20 else b''
    def close(self):
        pass
"""


def _python(code: str, words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, timeout=120
    )


def _elsewhere(words: list[str], *, before: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a shell of its own, after a shell command."""
    script = f'{before}; exec "$@"'
    whole = ["sh", "-c", script, "sh", sys.executable, "-m", "vlmbatch", *words]
    return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=120)


def test_build_json_without_the_word_is_warned_about(images: Path, tmp_path: Path) -> None:
    """JSON without a schema wants the word in the prompt; with the word there is nothing to say."""
    words = ("build", images, "--model", "m", "--response-format", "json")
    assert "says JSON" in call(*words, "--out", tmp_path / "one", "--prompt", "What?").err
    assert "says JSON" not in call(*words, "--out", tmp_path / "two", "--prompt", "What? Answer in JSON.").err


def test_build_model_of_another_provider_is_warned_about(images: Path, tmp_path: Path) -> None:
    """A Claude built in the default words is told at build, unless the provider was named on purpose."""
    words = ("build", images, "--model", "claude-sonnet-5", "--prompt", "p")
    assert "--provider anthropic?" in call(*words, "--out", tmp_path / "one").err
    assert "--provider" not in call(*words, "--out", tmp_path / "two", "--provider", "compatible").err
    assert "--provider" not in call(*words, "--out", tmp_path / "three", "--provider", "anthropic").err


def test_build_model_that_the_default_provider_has_not_is_warned_about(images: Path, tmp_path: Path) -> None:
    """Whoever means a server of their own is told before pictures go to somebody else."""
    words = ("build", images, "--prompt", "p", "--model")
    one = call(*words, "Qwen/Qwen2.5-VL-7B-Instruct", "--out", tmp_path / "one")
    assert "--provider vllm|sglang|compatible" in one.err
    assert call(*words, "gpt-5.4-mini", "--out", tmp_path / "two").err == ""
    assert call(*words, "Qwen/Q", "--provider", "openai", "--out", tmp_path / "three").err == ""
    assert "did you mean gpt-5.4-mini?" in call(*words, "gtp-5.4-mini", "--out", tmp_path / "four").err


def test_build_image_over_a_limit_is_told_with_what_makes_it_fit(tmp_path: Path) -> None:
    """The hint names the options, and they do it."""
    (tmp_path / "a.png").write_bytes(png(8001, 30))
    words = ("build", tmp_path / "a.png", "--out", tmp_path / "run", "--model", "claude-x", "--prompt", "p")
    told = call(*words, "--provider", "anthropic")
    assert told.status == 2
    assert "8,000 (image_side_px)" in told.err
    assert "1 bad input;" in told.err
    for option in ("--max-side N", "--limit-override image_side_px=N"):
        assert option in told.err.splitlines()[-1]
    assert call(*words, "--provider", "anthropic", "--max-side", 8000).status == 0


def test_build_warning_of_a_doubtful_limit_has_its_number(images: Path, tmp_path: Path) -> None:
    """Large images are told with where large begins, one of them in the singular."""
    words = ("build", images, "--model", "gpt-5.4", "--prompt", "p", "--out")
    (images / "0.png").write_bytes(png(7000, 4400))
    assert "1 image has over 30,720,000 pixels" in call(*words, tmp_path / "one").err


def test_build_table_without_a_header_is_told_so(tmp_path: Path) -> None:
    """The first row of a plain list looks like names of columns."""
    table = tmp_path / "t.csv"
    table.write_text("chelsea.png,What?\ncoffee.png,What?\n", encoding="utf-8")
    told = call("build", table, "--out", tmp_path / "run", "--model", "gpt-5.4", "--prompt", "p")
    assert "the first line was taken for the header" in told.err


def test_build_folder_without_images_is_told_with_what_was_left_out(tmp_path: Path) -> None:
    """An empty folder, and one with a table in it, are two mistakes."""
    folder = tmp_path / "folder"
    folder.mkdir()
    words = ("build", folder, "--out", tmp_path / "run", "--model", "gpt-5.4", "--prompt", "p")
    told = call(*words).err
    assert "no image found" in told
    assert "check the path" in told
    assert "table" not in told
    (folder / "t.csv").write_text("image_path\n", encoding="utf-8")
    told = call(*words).err
    assert "1 by suffix" in told
    assert "a table is named itself" in told


@pytest.mark.parametrize("flag", ["--prompt-file", "--system-file", "--json-schema", "--extra-body"])
def test_build_names_a_bad_file_as_it_was_given(images: Path, tmp_path: Path, flag: str) -> None:
    """Two files of one name are told apart by their folders."""
    given = str(images / "0.png")
    told = call("build", images, "--out", tmp_path / "run", "--model", "gpt-5.4", "--prompt-template", "p", flag, given)
    if flag == "--prompt-file":
        told = call("build", images, "--out", tmp_path / "run", "--model", "gpt-5.4", flag, given)
    assert told.status == 2
    assert given in told.err


def test_build_one_wrong_option_is_singular(images: Path, tmp_path: Path) -> None:
    """One is, two are."""
    words = ("build", images, "--out", tmp_path / "run", "--model", "m", "--prompt", "p", "--max-tokens", "0")
    assert "error: 1 option is wrong" in call(*words).err
    assert "error: 2 options are wrong" in call(*words, "--workers", "0").err

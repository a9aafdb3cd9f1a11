"""Bags and their crates: what published tools for BagIt and RO-Crate say of them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.stages.made_runs import Made, make_run
from tests.stages.test_archive import verify
from vlmbatch.errors import InputError, IntegrityError
from vlmbatch.records import Status
from vlmbatch.stages import archive

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir

DAY = date(2026, 5, 17)
CC0 = "https://creativecommons.org/publicdomain/zero/1.0/"

VALIDATE = """
import json, sys
from importlib.util import find_spec
from pathlib import Path
from rocrate_validator import services
from rocrate_validator.utils.http import HttpRequester

# The crate's terms are schema.org's in every version of the context: the one at hand stands in for the network.
class Context:
    status_code = 200
    headers = {"Content-Type": "application/ld+json"}
    text = (Path(find_spec("rocrate").origin).parent / "data" / "ro-crate.jsonld").read_text()

    def json(self):
        return json.loads(self.text)

HttpRequester.get = lambda self, url, **_: Context()
result = services.validate(services.ValidationSettings(
    rocrate_uri=sys.argv[1], profile_identifier="process-run-crate", requirement_severity=sys.argv[2], no_cache=True,
))
print(json.dumps(sorted({f"{issue.check.identifier}: {issue.message}" for issue in result.get_issues()})))
"""


def _run(folder: Path) -> RunDir:
    return make_run(folder, [Made(), Made(status=Status.REFUSAL), Made(row={"a": 1})])


def _crate(bag: Path) -> dict[str, dict[str, Any]]:
    value = json.loads((bag / "data" / "ro-crate-metadata.json").read_bytes())
    return {entity["@id"]: entity for entity in value["@graph"]}


def _crate_python() -> str:
    """Return a Python that has the validator: this one, or the one named by VLMBATCH_ROCRATE_PYTHON."""
    if importlib.util.find_spec("rocrate_validator") and importlib.util.find_spec("rocrate"):
        return sys.executable
    named = os.environ.get("VLMBATCH_ROCRATE_PYTHON")
    if not named:
        pytest.skip("no roc-validator here, and VLMBATCH_ROCRATE_PYTHON names no Python that has it")
    return named


def _issues(crate: Path, severity: str) -> list[str]:
    """Return what the published validator finds wrong with a crate at a severity and above."""
    done = subprocess.run(
        [_crate_python(), "-c", VALIDATE, str(crate), severity],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    issues: list[str] = json.loads(done.stdout.splitlines()[-1])
    return issues


def test_bag_is_valid_and_holds_the_folder_byte_for_byte(tmp_path: Path) -> None:
    """The Library of Congress's tool validates the bag; its payload is the folder and the crate's description."""
    bagit = pytest.importorskip("bagit")
    run = _run(tmp_path / "run")
    archive.seal(run)
    done = archive.bag(run, str(tmp_path / "bag"), archive.BagOptions(date=DAY))
    bag = bagit.Bag(done.path)
    bag.validate(processes=1)
    assert bag.version_info == (1, 0)
    assert bag.algorithms == ["sha256"]
    assert bag.info["Bagging-Date"] == "2026-05-17"
    assert bag.info["External-Identifier"] == f"vlmbatch-fingerprint:{run.fingerprint}"
    assert bag.info["Payload-Oxum"] == f"{done.bytes}.{done.files}"
    payload = tmp_path / "bag" / "data"
    names = {str(path.relative_to(payload)) for path in payload.rglob("*") if path.is_file()}
    assert len(names) == done.files
    for name in names - {"ro-crate-metadata.json"}:
        assert (payload / name).read_bytes() == Path(run.file(name)).read_bytes()
    assert done.sealed
    code, said = verify(payload)
    assert code == 0, said


def test_one_byte_off_in_the_bag_is_found_by_the_tool(tmp_path: Path) -> None:
    """The bag's hashes are those of its payload: a changed record is told."""
    bagit = pytest.importorskip("bagit")
    archive.bag(_run(tmp_path / "run"), str(tmp_path / "bag"))
    merged = tmp_path / "bag" / "data" / "merged.jsonl"
    merged.write_bytes(merged.read_bytes().replace(b"plain", b"plane", 1))
    with pytest.raises(bagit.BagValidationError):
        bagit.Bag(str(tmp_path / "bag")).validate(processes=1)


def test_odd_names_come_through_the_bag(tmp_path: Path) -> None:
    """Line breaks are encoded as the standard says; spaces and umlauts need no care."""
    bagit = pytest.importorskip("bagit")
    run = _run(tmp_path / "run")
    for name in ("a\nb.jsonl", "a b ü.jsonl"):
        Path(run.file(f"results/{name}")).write_bytes(b"{}\n")
    archive.bag(run, str(tmp_path / "bag"))
    bagit.Bag(str(tmp_path / "bag")).validate(processes=1)
    assert "  data/results/a%0Ab.jsonl\n" in (tmp_path / "bag/manifest-sha256.txt").read_text()
    assert "results/a%20b%20%C3%BC.jsonl" in _crate(tmp_path / "bag")


def test_existing_target_or_one_inside_the_run_is_refused(tmp_path: Path) -> None:
    """A bag never overwrites, and never lies in the folder that it copies."""
    run = _run(tmp_path / "run")
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_bytes(b"")
    for target in ("there", "run/bag", "run/results/bag", "run/new/bag", "file/bag"):
        with pytest.raises(InputError):
            archive.bag(run, str(tmp_path / target))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "run", "there"]
    archive.bag(run, str(tmp_path / "run-bag"))


def test_parents_of_a_bag_are_made_and_go_again_where_it_does_not_come_to_be(tmp_path: Path) -> None:
    """As build makes those of --out."""
    run = _run(tmp_path / "run")
    archive.bag(run, str(tmp_path / "new" / "parent" / "bag"))
    assert (tmp_path / "new" / "parent" / "bag" / "bagit.txt").exists()
    Path(run.file("results/away")).symlink_to(tmp_path)
    with pytest.raises(InputError, match="would not travel"):
        archive.bag(run, str(tmp_path / "other" / "parent" / "bag"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "run"]


def test_damage_and_changes_after_the_seal_leave_no_bag(tmp_path: Path) -> None:
    """Neither a damaged frozen file nor one changed since the seal is packed under a fresh hash."""
    run = _run(tmp_path / "run")
    archive.seal(run)
    merged = Path(run.file("merged.jsonl"))
    whole = merged.read_bytes()
    merged.write_bytes(whole + b"\n")
    with pytest.raises(IntegrityError, match="changed since the folder was sealed") as caught:
        archive.bag(run, str(tmp_path / "bag"))
    assert [problem.where for problem in caught.value.problems] == ["merged.jsonl"]
    merged.write_bytes(whole)
    shard = Path(run.file("shards/00000.jsonl"))
    shard.chmod(0o644)
    shard.write_bytes(shard.read_bytes()[:-2] + b"]\n")
    with pytest.raises(IntegrityError, match="differ from what build wrote"):
        archive.bag(run, str(tmp_path / "bag"))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("license_", ["", CC0, "Ask the lab."], ids=["none", "address", "words"])
def test_crate_meets_the_published_profile(tmp_path: Path, license_: str) -> None:
    """The validator of the RO-Crate community finds nothing required missing, whatever is known of the licence."""
    archive.bag(_run(tmp_path / "run"), str(tmp_path / "bag"), archive.BagOptions(license=license_, date=DAY))
    assert _issues(tmp_path / "bag" / "data", "REQUIRED") == []


def test_validator_would_tell_a_broken_crate(tmp_path: Path) -> None:
    """The check above is one: an action without its instrument and a root without a licence are told."""
    archive.bag(_run(tmp_path / "run"), str(tmp_path / "bag"), archive.BagOptions(date=DAY))
    path = tmp_path / "bag" / "data" / "ro-crate-metadata.json"
    value = json.loads(path.read_bytes())
    for entity in value["@graph"]:
        entity.pop("instrument", None)
        entity.pop("license", None)
    path.write_text(json.dumps(value))
    issues = " ".join(_issues(tmp_path / "bag" / "data", "REQUIRED"))
    assert "instrument" in issues
    assert "license" in issues


def test_crate_tells_what_the_run_knows(tmp_path: Path) -> None:
    """Every file is a part, every step an action from what it took to what it made, with the times on record."""
    run = _run(tmp_path / "run")
    archive.bag(run, str(tmp_path / "bag"), archive.BagOptions(date=DAY))
    crate = _crate(tmp_path / "bag")
    payload = tmp_path / "bag" / "data"
    names = {str(path.relative_to(payload)) for path in payload.rglob("*") if path.is_file()}
    assert {part["@id"] for part in crate["./"]["hasPart"]} == names - {"ro-crate-metadata.json"}
    assert [one["@id"] for one in crate["./"]["mentions"]] == ["#build", "#run-0", "#collect"]
    assert "No licence is stated" in crate["./"]["license"]
    asked = crate["#run-0"]
    assert asked["instrument"] == [{"@id": "#vlmbatch"}, {"@id": "#model"}]
    assert (asked["startTime"], asked["endTime"]) == ("2026-05-02T10:00:00+00:00", "2026-05-02T10:00:03+00:00")
    assert asked["object"] == {"@id": "shards/00000.jsonl"}
    assert crate["#build"]["endTime"] == "2026-05-01T10:00:00+00:00"
    assert {"@id": "merged.jsonl"} in crate["#collect"]["result"]
    assert crate["manifest.jsonl"]["sha256"] == run.info["manifest"]["sha256"]
    assert crate["#model"]["name"] == "test-model"


@pytest.mark.parametrize("latency", ["long", [1], True, -1, 1e300, 5e8])
def test_crate_takes_no_time_that_is_none(tmp_path: Path, latency: object) -> None:
    """An attempt with a nonsensical duration, or one that ends past the calendar, is packed like any other."""
    run = _run(tmp_path / "run")
    value = {"custom_id": "x", "line_sha256": "0" * 64, "started_at": "9999-12-31T00:00:00Z", "latency_s": latency}
    path = Path(run.file("results/strange.jsonl"))
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value) + "\n")
    done = archive.bag(run, str(tmp_path / "bag"))
    crate = json.loads((Path(done.path) / "data/ro-crate-metadata.json").read_bytes())
    (action,) = [one for one in crate["@graph"] if "strange" in str(one.get("name")) and "startTime" in one]
    assert action["startTime"] == action["endTime"] == "9999-12-31T00:00:00+00:00"

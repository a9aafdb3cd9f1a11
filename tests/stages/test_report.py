"""report.html as a file: what stands in it, what it leaves out and says so, and that nothing in it can end early."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stages.made_runs import PROMPT, Made, make_run, picture, read_summary
from vlmbatch import jsonl
from vlmbatch.errors import IntegrityError
from vlmbatch.records import Event, Status, no_usage
from vlmbatch.stages.report import ReportOptions, write_report
from vlmbatch.stages.reporting import inline, pages, survey

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir

STATUSES = [status.value for status in Status]


class Page(HTMLParser):
    """The page as an HTML parser sees it: elements with their attributes, and the text of each script and style."""

    def __init__(self, path: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._open = ""
        self.source = Path(path).read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.elements.append((tag, known))
        if tag in {"script", "style", "title"}:
            self._open = known.get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        if tag in {"script", "style", "title"}:
            self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open] = self.texts.get(self._open, "") + data

    @property
    def meta(self) -> Any:
        return json.loads(self.texts["meta"])

    def unpack(self, kind: str) -> list[Any]:
        """Return the blocks of a kind, in order, unpacked."""
        names = sorted((name for name in self.texts if name.startswith(kind)), key=lambda name: int(name.split("-")[1]))
        return [json.loads(gzip.decompress(base64.b64decode(self.texts[name]))) for name in names]

    def rows(self) -> list[dict[str, Any]]:
        return [row for block in self.unpack("rows-") for row in block]

    def index(self, key: str) -> list[Any]:
        return [value for block in self.unpack("index-") for value in block[key]]

    def thumbs(self) -> list[bytes]:
        blocks = [json.loads(text) for name, text in self.texts.items() if name.startswith("thumbs-")]
        return [base64.b64decode(one) for block in blocks for one in block]


def _write(run: RunDir, **options: Any) -> Page:
    records = run.file("merged.jsonl")
    return Page(write_report(run, records=records, summary=read_summary(run), options=ReportOptions(**options)))


def test_page_holds_every_record_in_manifest_order(tmp_path: Path) -> None:
    """Rows and index hold all records, whole, in the order of the manifest, over several blocks."""
    made = [Made(text=f"answer {n}", status=list(Status)[n % 9], row={"n": n}) for n in range(450)]
    page = _write(make_run(tmp_path / "run", made))
    assert [row["text"] for row in page.rows()] == [one.text for one in made]
    assert [row["fields"] for row in page.rows()] == [[["n", str(n)]] for n in range(450)]
    assert [STATUSES[number] for number in page.index("status")] == [one.status for one in made]
    assert page.meta["prompts"] == [f"⟨image 1⟩\n\n{PROMPT}"]
    assert page.meta["requests"] == 450


def test_policy_names_the_two_elements_and_no_address(tmp_path: Path) -> None:
    """The policy allows the page's own script and style by hash, and the page names nothing outside itself."""
    page = _write(make_run(tmp_path / "run", [Made()]))
    policies = [
        known["content"] for tag, known in page.elements if known.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    parts = dict(part.strip().split(" ", 1) for part in str(policies[0]).split(";"))
    for element in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(page.texts[element].encode()).digest()).decode()
        assert parts[f"{element}-src"] == f"'sha256-{digest}'"
    assert parts["default-src"] == "'none'"
    assert parts["img-src"] == "data: blob:"
    assert not [1 for _, known in page.elements if {"src", "href", "style", "onclick"} & set(known)]
    assert [tag for tag, known in page.elements if tag == "script" and "type" not in known] == ["script"]


def test_hostile_names_and_text_stay_inside_their_blocks(tmp_path: Path) -> None:
    """A folder's name and texts with markup change nothing in the structure of the page."""
    evil = "</script></title><script>alert(1)</script><!--{{data}}"
    plain = _write(make_run(tmp_path / "plain", [Made()]))
    folder = tmp_path / "<script>{{data}}<" / "x"
    page = _write(
        make_run(folder.parent, [Made(text=evil, prompt=evil, path=evil, record={"model": evil})], system=evil)
    )
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert page.rows()[0]["text"] == evil
    assert page.meta["system"] == evil
    assert page.texts["title"].startswith("<script>{{data}}< ")


def test_same_folder_gives_the_same_bytes(tmp_path: Path) -> None:
    """No clock, no hash seed and no thread order has a part in the page."""
    run = make_run(tmp_path / "run", [Made(text=str(n)) for n in range(120)])
    assert _write(run).source == _write(run, path=str(tmp_path / "other.html")).source


def test_pictures_keep_to_their_budget_and_go_to_the_sample_first(tmp_path: Path) -> None:
    """With a small budget the review sample has pictures, the rest is spread, and the page says what is missing."""
    run = make_run(tmp_path / "run", [Made() for _ in range(300)])
    whole = _write(run, path=str(tmp_path / "whole.html"))
    assert whole.meta["notes"] == []
    assert min(whole.index("thumb")) >= 0
    budget = sum(map(len, whole.thumbs())) // 3
    page = _write(run, thumbnail_bytes=budget, sample=10)
    assert 0.9 * budget < sum(map(len, page.thumbs())) <= budget
    with_thumb = {n for n, number in enumerate(page.index("thumb")) if number >= 0}
    ids = page.index("id")
    sample = {ids.index(custom_id) for custom_id in page.meta["sample"]}
    assert sample <= with_thumb
    thirds = [sum(start <= n < start + 100 for n in with_thumb - sample) for start in (0, 100, 200)]
    assert max(thirds) - min(thirds) <= 5
    assert str(300 - len(with_thumb)) in page.meta["notes"][0]


def test_one_image_in_many_records_is_drawn_once(tmp_path: Path) -> None:
    """Several questions about one image share its thumbnail."""
    same = picture(1)
    page = _write(make_run(tmp_path / "run", [Made(image=same, prompt=f"Question {n}?") for n in range(20)]), sample=0)
    assert len(page.thumbs()) == 1
    assert page.index("thumb") == [0] * 20
    assert page.meta["prompts"] == [f"⟨image 1⟩\n\nQuestion {n}?" for n in range(20)]
    assert page.meta["prompt"] == PROMPT


def test_undrawable_image_is_counted_not_fatal(tmp_path: Path) -> None:
    """Bytes that no decoder here takes leave a gap and a sentence."""
    page = _write(make_run(tmp_path / "run", [Made(image=b"not a picture at all, but long enough"), Made()]))
    assert page.index("thumb")[0] == -1
    assert any("1 image(s) could not be drawn" in note for note in page.meta["notes"])


def test_larger_run_is_thinned_evenly_and_says_so(tmp_path: Path) -> None:
    """Beyond the most records the page holds every n-th, and the whole review sample."""
    run = make_run(tmp_path / "run", [Made(text=str(n)) for n in range(1000)])
    page = _write(run, max_records=100, sample=20)
    shown = [int(row["text"]) for row in page.rows()]
    assert shown == sorted(set(shown))
    assert set(range(0, 1000, 10)) <= set(shown)
    assert set(page.meta["sample"]) <= set(page.index("id"))
    assert "of 1,000 records" in page.meta["notes"][0]
    assert sum(page.meta["tokens"]["counts"]) == 1000


def test_sample_is_the_least_hashes_of_answered_records(tmp_path: Path) -> None:
    """The draw can be repeated with any SHA-256 tool, and holds answered records alone."""
    made = [Made(status=Status.OK if n % 3 else Status.MISSING) for n in range(60)]
    run = make_run(tmp_path / "run", made)
    page = _write(run, sample=7, seed=5)
    answered = [custom_id for custom_id, one in zip(page.index("id"), made, strict=True) if one.status is Status.OK]
    assert page.meta["sample"] == sorted(answered, key=lambda one: hashlib.sha256(f"5:{one}".encode()).digest())[:7]
    assert _write(run, sample=7, seed=6).meta["sample"] != page.meta["sample"]


def test_earlier_reviews_stand_in_the_page(tmp_path: Path) -> None:
    """What collect read from reviews.jsonl is what the page starts from."""
    review = {"verdict": "reject", "comment": "blurred"}
    page = _write(make_run(tmp_path / "run", [Made(), Made(record={"review": review})]))
    assert page.meta["reviews"] == {page.index("id")[1]: review}


def test_records_of_another_run_are_refused(tmp_path: Path) -> None:
    """Records that are not those of the manifest, or fewer, or damaged, stop the report; an older page stands."""
    run = make_run(tmp_path / "run", [Made(), Made()])
    other = make_run(tmp_path / "other", [Made(image=picture(7)), Made(image=picture(8))])
    page = Path(run.file("report.html"))
    older = b"<!doctype html><title>an older vlmbatch report</title>"
    page.write_bytes(older)
    fewer = tmp_path / "fewer.jsonl"
    fewer.write_bytes(Path(run.file("merged.jsonl")).read_bytes().splitlines(keepends=True)[0])
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(Path(run.file("merged.jsonl")).read_bytes()[:-40])
    for records in (other.file("merged.jsonl"), str(fewer), str(torn)):
        with pytest.raises(IntegrityError):
            write_report(run, records=records, summary=read_summary(run))
    assert page.read_bytes() == older
    assert sorted(path.name for path in page.parent.iterdir() if path.name.startswith(".")) == []


def test_damaged_shard_is_refused(tmp_path: Path) -> None:
    """A prompt or picture is shown only from a line that still has its hash."""
    run = make_run(tmp_path / "run", [Made()])
    shard = Path(run.file("shards/00000.jsonl"))
    shard.chmod(0o644)
    shard.write_bytes(shard.read_bytes().replace(b"Describe", b"Discribe"))
    with pytest.raises(IntegrityError, match="differs from what build wrote"):
        _write(run)


def test_folder_without_shards_still_gives_a_page(tmp_path: Path) -> None:
    """An archive without the frozen lines is reported without pictures and prompts, and says so."""
    run = make_run(tmp_path / "run", [Made(text="kept")])
    Path(run.file("shards/00000.jsonl")).unlink()
    page = _write(run)
    assert page.rows()[0]["text"] == "kept"
    assert page.rows()[0]["prompt"] is None
    assert any("no picture and no prompt" in note for note in page.meta["notes"])


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    """Events tell how many records are written, up to all."""
    run = make_run(tmp_path / "run", [Made() for _ in range(5)])
    events: list[Event] = []
    write_report(run, records=run.file("merged.jsonl"), summary=read_summary(run), on_event=events.append)
    assert [event.done for event in events if event.stage == "report"] == [1, 2, 3, 4, 5]


def test_rehearsal_is_marked(tmp_path: Path) -> None:
    """A report of a rehearsal says so to the page, which shows a banner."""
    run = make_run(tmp_path / "run", [Made()])
    summary = {**read_summary(run), "rehearsal": True}
    assert Page(write_report(run, records=run.file("merged.jsonl"), summary=summary)).meta["rehearsal"] is True


def test_rejected_inputs_are_told_on_the_overview(tmp_path: Path) -> None:
    """How many there were, and why, even where the file that names them was left out of the folder."""
    run = make_run(tmp_path / "run", [Made(), Made()])
    info: Any = run.info
    info["counts"]["rejected"], info["source"]["count"] = 3, 5
    info["rejected"] = {"file": "rejected.jsonl", "sha256": "", "bytes": 1}
    assert "2 requests of 5 inputs; 3 rejected." in _write(run).meta["notes"]
    codes = ("too_large", "not_an_image", "too_large")
    lines = [{"index": n, "reason": {"code": code}} for n, code in enumerate(codes)]
    Path(run.file("rejected.jsonl")).write_bytes(b"".join(jsonl.dumps(line) + b"\n" for line in lines))
    said = "2 requests of 5 inputs; 3 rejected: too_large (2), not_an_image (1)."
    assert said in _write(run).meta["notes"]
    info["counts"]["rejected"] = 0
    assert not any("rejected" in note for note in _write(run).meta["notes"])


def test_record_shows_what_it_cost_at_the_runs_prices(tmp_path: Path) -> None:
    """All its attempts count, as they do in the run's sum; where no price or no usage is told, no cost is."""
    beaten = {"source_file": "a", "source_line": 1, "status": "http_error", "channel": "realtime"}
    used, none = no_usage() | {"input_tokens": 1000, "output_tokens": 100}, no_usage()
    made = [
        Made(record={"usage": used}),
        Made(record={"usage": used, "superseded": [beaten | {"usage": used}, beaten | {"usage": none}]}),
        Made(record={"usage": none}),
        Made(record={"usage": used, "channel": None}),
    ]
    run = make_run(tmp_path / "run", made)
    assert [row["cost"] for row in _write(run).rows()] == ["0.0035", "0.007", None, None]
    summary = read_summary(run)
    summary["cost"]["prices"] = None
    page = Page(write_report(run, records=run.file("merged.jsonl"), summary=summary))
    assert {row["cost"] for row in page.rows()} == {None}


def test_page_knows_how_many_were_answered(tmp_path: Path) -> None:
    """So that it does not call all of them a random draw."""
    run = make_run(tmp_path / "run", [Made(), Made(status=Status.MISSING), Made(status=Status.REFUSAL)])
    meta = _write(run).meta
    assert (meta["answered"], len(meta["sample"])) == (2, 2)


# --- small parts ---------------------------------------------------------------------------------------------


@given(st.integers(1, 3000))
def test_spread_order_visits_each_once_and_evenly(count: int) -> None:
    """Every place comes once, and the first part of the order leaves no wide gap."""
    order = list(pages.spread_order(count))
    assert sorted(order) == list(range(count))
    first = sorted(order[: max(count // 10, 1)])
    gaps = [after - before for before, after in pairwise(first)]
    assert max(gaps, default=0) <= 3 * count / len(first)


@given(st.lists(st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=200))
def test_chart_counts_every_value(values: list[float]) -> None:
    """No value falls out of a histogram, whatever its axis."""
    chart = survey._chart(sorted(values), survey._nice(max(values)), ["said"])
    assert sum(chart["counts"]) == len(values)
    assert chart["top"] >= max(values) * (1 - 1e-9)


@given(
    st.dictionaries(
        st.text(), st.integers() | st.decimals(allow_nan=False, allow_infinity=False).map(str) | st.booleans()
    )
)
def test_row_fields_keep_every_digit(row: dict[str, Any]) -> None:
    """Integers of any length and texts are shown as they stand in the row."""
    shown = dict(map(tuple, pages.row_fields(json.dumps(row).encode())))
    assert shown == {name: json.dumps(value) if isinstance(value, bool) else str(value) for name, value in row.items()}


def test_row_fields_show_nested_values_as_json() -> None:
    """Lists and objects in a row read as JSON with their own digits."""
    row = b'{"a":[1.10,"x",{"b":null}],"c":{"d":12345678901234567890}}'
    assert pages.row_fields(row) == [["a", '[1.10, "x", {"b": null}]'], ["c", '{"d": 12345678901234567890}']]


def _user(*parts: dict[str, Any], name: str = "content") -> list[dict[str, Any]]:
    return [{"role": "user", name: [*parts, {"text": "Q"}]}]


@pytest.mark.parametrize(
    "body",
    [
        {
            "messages": [
                {"role": "system", "content": "S"},
                *_user({"type": "image_url", "image_url": {"url": "data:image/png;base64,%s"}}),
            ]
        },
        {"system": "S", "messages": _user({"type": "image", "source": {"type": "base64", "data": "%s"}})},
        {
            "systemInstruction": {"parts": [{"text": "S"}]},
            "contents": _user({"inline_data": {"mime_type": "image/png", "data": "%s"}}, name="parts"),
        },
    ],
    ids=["data-uri", "source", "inline-data"],
)
def test_body_of_each_shape_gives_its_prompt_and_image(body: dict[str, Any]) -> None:
    """Image and user's text are found in every wire format; the system prompt is not the user's."""
    data = picture(3)
    frozen = jsonl.dumps(body).replace(b"%s", base64.b64encode(data))
    image: Any = {"path": "a.png", "sha256": "0" * 64, "sent": {"sha256": jsonl.sha256(data)}}
    assert inline.read_prompt(frozen) == [None, "Q"]
    assert [(one.sha256, one.data) for one in inline.iter_images(frozen, [image])] == [(jsonl.sha256(data), data)]
    assert [frozen[one.start : one.end] for one in inline.iter_images(frozen, [image])] == [base64.b64encode(data)]


def test_base64_of_something_else_is_no_image() -> None:
    """Base64 in a prompt, or bytes that the manifest does not name, are let be."""
    data = picture(3)
    body = jsonl.dumps({"messages": [{"role": "user", "content": base64.b64encode(b"other bytes " * 9).decode()}]})
    assert list(inline.iter_images(body, [{"path": "a", "sha256": jsonl.sha256(data)}])) == []  # type: ignore[list-item]


def test_template_holds_no_address_and_no_unsafe_call() -> None:
    """The template's script has none of the calls that parse text as markup or code, and asks nobody."""
    source = Path(pages.__file__).parents[2].joinpath("data/report.html").read_text(encoding="utf-8")
    unsafe = (
        r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|fetch\(|XMLHttp|WebSocket|import\("
    )
    assert re.findall(unsafe, source) == []
    assert re.findall(r"https?://[^\s\"']+", source) == ["http://www.w3.org/2000/svg"]

"""The report in a real browser: hostile text runs nothing, 50,000 records open, reviewers can work and hand on."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.stages import chromium
from tests.stages.made_runs import Made, make_run, picture, read_summary
from vlmbatch import jsonl
from vlmbatch.records import Status
from vlmbatch.stages.report import ReportOptions, write_report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.stages.chromium import Browser

pytestmark = pytest.mark.skipif(chromium.PATH is None, reason="no chromium on the path")

HOSTILE = [
    "<script>window.pwned = 1</script>",
    "</script><script>window.pwned = 2</script>",
    "<img src=x onerror='window.pwned = 3'>",
    '"><svg/onload=window.pwned=4>',
    "javascript:window.pwned=5",
    "line\u2028separator\u2029paragraph",
    "\u202egnp.exe\u202c and \u200fright to left\u200e",
    "<!--<script>",
    "]]><iframe srcdoc='<script>parent.pwned=6</script>'>",
    "{{data}} {{csp}} ${window.pwned = 7} `window.pwned = 8`",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'><base href='http://127.0.0.1:9/'>",
    "<style>body{display:none}</style><link rel=stylesheet href=http://127.0.0.1:9/x.css>",
    "\x00\x07\x1b[31m \ud800 lone",
]

CATCH_EXPORT = """
URL.createObjectURL = (blob) => { window.exported = blob.text(); return "blob:none"; };
HTMLAnchorElement.prototype.click = () => {};
0"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.Browser() as one:
        yield one


def _report(folder: Path, made: list[Made], *, system: str = "", **options: Any) -> str:
    run = make_run(folder, made, system=system)
    summary = read_summary(run)
    return write_report(run, records=run.file("merged.jsonl"), summary=summary, options=ReportOptions(**options))


def _plain(count: int) -> list[Made]:
    statuses = [Status.OK, Status.OK, Status.OK, Status.TRUNCATED, Status.REFUSAL]
    return [Made(text=f"Answer number {n}.", status=statuses[n % 5], row={"n": n}) for n in range(count)]


def _shots() -> Path | None:
    """Return the folder in which a person wants to find the pictures, if one is named."""
    named = os.environ.get("VLMBATCH_SCREENSHOTS")
    return Path(named) if named else None


def test_hostile_text_everywhere_runs_nothing(browser: Browser, tmp_path: Path) -> None:
    """Markup in answers, reasoning, prompts, paths, rows, errors and names is shown as text and runs nothing."""
    made = [
        Made(
            text=text,
            path=f"{text.replace(chr(0xD800), '')}/{n}.png",
            prompt=text.replace("\ud800", ""),
            row={"<b>field</b>": text.replace("\ud800", "")},
            status=Status.OK if n % 2 else Status.HTTP_ERROR,
            record={
                "reasoning": text,
                "reason": text,
                "model": text.replace("\ud800", ""),
                "finish_reason": text,
                "error": {"type": "api_status", "message": text, "status_code": 500, "is_retryable": True},
            },
        )
        for n, text in enumerate(HOSTILE)
    ]
    path = _report(tmp_path / "<img src=x onerror=window.pwned=9>", made, system=HOSTILE[1])
    page = browser.open(path)
    scripts = page.run("document.querySelectorAll('script:not([type])').length")
    assert scripts == 1
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.run("document.getElementById('tab-records').click()")
    page.wait("document.querySelector('#one .id') !== null")
    for text in HOSTILE:
        custom_id = page.run("document.querySelector('#one .id').textContent")
        shown = page.run("document.querySelector('#one .answer').textContent")
        assert shown == text, custom_id
        page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        page.press("j")
        if text is not HOSTILE[-1]:
            page.wait(f"document.querySelector('#one .id').textContent !== {json.dumps(custom_id)}")
    assert page.run("window.pwned ?? null") is None
    assert (
        page.run(
            "document.querySelectorAll('script:not([type]), iframe, object, embed, link, base, svg script').length"
        )
        == 1
    )
    assert page.run("[...document.images].filter((one) => !one.src.startsWith('data:image/webp')).length") == 0
    assert page.run("document.querySelectorAll('a[href], [onerror], [onload], [style*=url]').length") == 0
    assert page.run("window.violations") == []
    page.look()
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
    assert page.said == []
    page.close()


def test_policy_stops_what_the_script_would_let_through(browser: Browser, tmp_path: Path) -> None:
    """Were text ever parsed as markup by mistake, the page's policy would still run and load nothing."""
    page = browser.open(_report(tmp_path / "run", _plain(3)))
    tried = """(() => {
      const evil = "<img src=x onerror=window.pwned=1>";
      try { document.body.innerHTML = evil; } catch (fault) { window.stopped = fault.name; }
      const image = document.createElement("img");
      image.src = "http://127.0.0.1:9/beacon.png";
      try { image.setAttribute("onerror", "window.pwned = 2"); } catch (fault) { window.stopped += fault.name; }
      const script = document.createElement("script");
      try { script.append("window.pwned = 3"); } catch (fault) { window.stopped += fault.name; }
      const link = document.createElement("a");
      link.href = "javascript:window.pwned = 4";
      document.body.append(image, script, link);
      link.click();
    })()"""
    page.run(tried)
    for directive in ("img-src", "require-trusted-types-for", "script-src"):
        page.wait(f"window.violations.some((one) => one.includes({json.dumps(directive)}))")
    assert page.run("window.pwned ?? null") is None
    assert page.run("window.stopped").startswith("TypeErrorTypeError")
    page.close()


def test_fifty_thousand_records_open_filter_and_search(browser: Browser, tmp_path: Path) -> None:
    """A page of 50,000 records keeps few nodes, filters at once, and finds a word deep in one record's reasoning."""
    shared = picture(1)
    made = [
        Made(
            text=f"Answer number {n} " + "about boats in the harbour. " * 6,
            status=Status.REFUSAL if n % 1000 == 7 else Status.OK,
            image=shared,
            record={"reasoning": "xylophone in the fog"} if n == 31_415 else {},
        )
        for n in range(50_000)
    ]
    page = browser.open(_report(tmp_path / "run", made), "view=records")
    assert page.run("document.getElementById('count').textContent") == "50,000 records"
    assert page.run("document.querySelectorAll('*').length") < 2_000
    page.run(
        "[...document.querySelectorAll('#chips .chip')].find((one) => one.textContent.startsWith('refusal')).click()"
    )
    assert page.run("document.getElementById('count').textContent") == "50 of 50,000 records"
    page.run("document.getElementById('clear').click()")
    page.run("document.getElementById('list').scrollTop = 40_000 * 68; 0")
    page.wait("document.querySelector('.item .name')?.textContent.includes('picture-39')")
    page.press("/")
    page.type("Xylophone FOG")
    page.wait("document.getElementById('count').textContent === '1 of 50,000 records'")
    page.press("Enter")
    page.wait("document.querySelector('#one .where')?.textContent.includes('picture-31415')")
    assert page.run("document.querySelectorAll('#one mark').length") == 2
    assert page.run("document.querySelectorAll('*').length") < 2_000
    page.close()


def test_review_by_keyboard_is_kept_and_exported(browser: Browser, tmp_path: Path) -> None:
    """Accept, reject and comment by key survive a reload and leave as the lines that collect reads."""
    path = _report(tmp_path / "run", _plain(30), sample=6, seed=3)
    page = browser.open(path)
    page.press("s")
    page.wait("document.getElementById('count').textContent === '6 of 30 records'")
    ids = [page.run("document.querySelector('#one .id').textContent")]
    page.press("a")
    page.wait(f"document.querySelector('#one .id').textContent !== {json.dumps(ids[0])}")
    ids.append(page.run("document.querySelector('#one .id').textContent"))
    page.press("c")
    page.type('two boats, not three: "</script>"')
    page.press("Escape", "x")
    page.reload()
    page.wait("document.querySelectorAll('.item .pass').length === 1")
    assert page.run("document.querySelectorAll('.item .fail').length") == 1
    page.run(CATCH_EXPORT)
    page.press("e")
    lines = [json.loads(line) for line in page.run("window.exported").splitlines()]
    by_id = {line["custom_id"]: line for line in lines}
    assert by_id[ids[0]]["verdict"] == "accept"
    assert by_id[ids[1]]["verdict"] == "reject"
    assert by_id[ids[1]]["comment"] == 'two boats, not three: "</script>"'
    assert all(set(line) == {"custom_id", "verdict", "comment", "at"} for line in lines)
    page.close()


def test_sort_and_state_in_address_show_the_same_list(browser: Browser, tmp_path: Path) -> None:
    """An address with filter, order and record opens just that view."""
    path = _report(tmp_path / "run", _plain(40))
    records = [jsonl.loads(line) for line in (tmp_path / "run/merged.jsonl").read_bytes().splitlines()]
    refused = [record for record in records if record["status"] == "refusal"]
    want = sorted(refused, key=lambda record: -record["usage"]["output_tokens"])
    page = browser.open(path, f"view=records&status=refusal&sort=output&id={want[2]['custom_id']}")
    page.wait("document.querySelector('#one .soft')?.textContent === '3 of 8'")
    shown = page.run("[...document.querySelectorAll('.item .name')].map((one) => one.textContent)")
    assert shown == [record["images"][0]["path"] for record in want]
    page.close()


def test_json_answer_is_laid_out_without_touching_a_digit(browser: Browser, tmp_path: Path) -> None:
    """Numbers that a browser cannot hold keep their digits on the page, in answers and in rows."""
    row = {"id": 12345678901234567890, "weight": 0.1}
    value = {"empty": {}, "list": [1, 2], "say": 'a "quoted", [bracket]', "id": 2**63 - 1}
    made = [Made(text=json.dumps(value), row=row, record={"json": value, "authoritative": "json"})]
    page = browser.open(_report(tmp_path / "run", made), "view=records")
    page.wait("document.querySelector('#one pre') !== null")
    assert page.run("document.querySelector('#one pre').textContent") == json.dumps(value, indent=2)
    assert "12345678901234567890" in page.run("document.getElementById('one').textContent")
    page.close()


@pytest.mark.parametrize("name", ["light", "dark", "narrow"])
def test_page_draws_in_each_look(browser: Browser, tmp_path: Path, name: str) -> None:
    """Light, dark and narrow are drawn, differ, and nothing sticks out sideways."""
    from PIL import Image

    path = _report(tmp_path / "run", _plain(60))
    page = browser.open(path, size=(430, 900) if name == "narrow" else (1400, 900))
    scheme = "dark" if name == "dark" else "light"
    page.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    folder = _shots() or tmp_path
    overview = page.screenshot(folder / f"report-{name}-overview.png")
    page.press("s")
    page.wait("document.querySelector('#one article') !== null")
    page.screenshot(folder / f"report-{name}-records.png")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    corner = Image.open(io.BytesIO(overview)).convert("L").getpixel((5, 880))
    assert isinstance(corner, int)
    assert (corner < 64) == (name == "dark")
    page.close()


def test_print_holds_overview_and_filtered_records(browser: Browser, tmp_path: Path) -> None:
    """Printing gives the overview and the filtered records, without lists and buttons."""
    page = browser.open(_report(tmp_path / "run", _plain(20)), "view=records&status=refusal")
    page.run("window.print = () => { window.printed = true; }; 0")
    page.press("p")
    page.wait("window.printed")
    assert page.run("document.querySelectorAll('#paper article').length") == 4
    page.do("Emulation.setEmulatedMedia", media="print")
    visible = "[...document.querySelectorAll('%s')].filter((one) => one.checkVisibility()).length"
    assert page.run(visible % "#records, .tabs, button.help, #sheet input") == 0
    assert page.run(visible % "#sheet, #paper article") == 5
    page.pdf((_shots() or tmp_path) / "report-print.pdf")
    page.close()


def test_keyboard_help_lists_every_key(browser: Browser, tmp_path: Path) -> None:
    """``?`` opens the list of keys."""
    page = browser.open(_report(tmp_path / "run", _plain(3)))
    page.press("?")
    assert page.run("document.getElementById('help').open")
    said = page.run("document.getElementById('help').textContent")
    assert "j k next, previous record" in said
    assert "[object" not in said
    page.close()


def test_tables_can_be_read_on_a_narrow_screen(browser: Browser, tmp_path: Path) -> None:
    """At 500 pixels the table of tokens and cost fits; where one does not, its edge is shaded and a bar scrolls it."""
    path = _report(tmp_path / "run", _plain(40))
    page = browser.open(path, size=(500, 900))
    widths = page.run(
        "[...document.querySelectorAll('#sheet .scroll')].map((one) => one.scrollWidth - one.clientWidth)"
    )
    assert widths == [0] * len(widths)
    assert "local" in page.run("getComputedStyle(document.querySelector('.scroll')).backgroundAttachment")
    page.close()


def test_sample_of_all_records_is_not_called_a_draw(browser: Browser, tmp_path: Path) -> None:
    """All is all; a part is told with what it is drawn from; a record tells its cost."""
    path = _report(tmp_path / "run", [Made() for _ in range(5)])
    page = browser.open(path, "view=records")
    page.wait("document.querySelector('#one .facts')")
    assert "Cost, USD" in page.run("document.querySelector('#one .facts').textContent")
    text = "document.getElementById('sheet').textContent"
    assert "All 5 records that a model answered are in the review sample." in page.run(text)
    page.close()
    page = browser.open(_report(tmp_path / "part", [Made() for _ in range(5)], sample=2))
    assert "2 of 5 answered records were drawn at random (seed 0)." in page.run(text)
    page.close()

"""report.html: one file in which a person reads a whole run, offline, whoever wrote what stands in it.

The page is a fixed template; records, thumbnails and figures stand in it as blocks of data that its script unpacks
when they are looked at. Model text, paths and error messages reach the screen as text nodes alone, and the page's own
policy lets no other script, style or address in. No clock has a part in it: the same folder gives the same bytes.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import re
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from vlmbatch import jsonl, replacing
from vlmbatch.prices import Prices
from vlmbatch.records import Event, Status
from vlmbatch.rundir import REPORT
from vlmbatch.stages.reporting import pages
from vlmbatch.stages.reporting.survey import Survey, seconds, survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vlmbatch.rundir import RunDir

_ELEMENT = {name: re.compile(rf"<{name}>(.*?)</{name}>", re.DOTALL) for name in ("style", "script")}
_ESCAPES = {b"<": b"\\u003c", b">": b"\\u003e", b"&": b"\\u0026"}
_DASH = "\N{EN DASH}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """How a report is made.

    Attributes:
        path: Where it goes; empty = report.html in the run folder.
        sample: Records drawn at random for reviewers.
        seed: Which sample: the records whose SHA-256 of ``seed:custom_id`` is least.
        thumbnail_bytes: Bytes that all pictures in the page may take; where they do not suffice, pictures go to
            the review sample and to records spread evenly over the run, and the page says so.
        max_records: Records that the page holds; of a larger run every n-th, and the page says so. Figures and
            checks are those of the whole run either way.
    """

    path: str = ""
    sample: int = 50
    seed: int = 0
    thumbnail_bytes: int = 20_000_000
    max_records: int = 100_000


def write_report(
    run: RunDir,
    *,
    records: str,
    summary: Mapping[str, Any],
    options: ReportOptions | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> str:
    """Write the page; return its path. Memory holds a few numbers per request and the pictures, never the records.

    Args:
        run: The run.
        records: Path of its merged.jsonl.
        summary: Its summary.json.
        options: What goes into it.
        on_event: Called with progress (records written) and with what was left out.

    Raises:
        InputError: Something else than a report stands in its place.
        IntegrityError: The records are not those of this manifest, or a frozen line differs from what build wrote.
        OSError: A file cannot be read or written; an older report stands.
    """
    options = options or ReportOptions()
    path = options.path or run.file(REPORT)
    check_place(path)
    found = survey(run, records, sample=options.sample, seed=options.seed, max_records=options.max_records)
    pictures = pages.draw_pictures(run, found, budget=options.thumbnail_bytes, on_event=on_event)
    cost = summary.get("cost") or {}
    known = Prices.parse(cost["prices"], where="the summary") if cost.get("prices") else None
    book = pages.Book(run, records, found, pictures, known)
    head, tail = _template(run.name)
    with jsonl.atomic_writer(path) as file:
        file.write(head.encode())
        for block in book.blocks(on_event):
            file.write(block)
        file.write(_data_block("meta", _meta(run, summary, found, book, options)))
        file.write(tail.encode())
    return path


def check_place(path: str) -> None:
    """Refuse to write a report over anything but an earlier one.

    Raises:
        InputError: Something else stands there.
    """
    replacing.check(f"the report {path}", path, replacing.PAGE)


def _template(name: str) -> tuple[str, str]:
    """Return what stands before and behind the data; by its policy the page's own two elements run, nothing else."""
    page = files("vlmbatch").joinpath("data/report.html").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {_source_hash(page, 'script')}; style-src {_source_hash(page, 'style')}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    )
    head, tail = page.split("{{data}}")
    return head.replace("{{csp}}", policy).replace("{{title}}", html.escape(f"{name} {_DASH} vlmbatch report")), tail


def _source_hash(page: str, element: str) -> str:
    (text,) = _ELEMENT[element].findall(page)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data_block(name: str, value: Any) -> bytes:
    """Return JSON that no content can end early: the characters that mean something to an HTML parser are escaped."""
    data = jsonl.dumps(value)
    for character, escape in _ESCAPES.items():
        data = data.replace(character, escape)
    return b'<script type="application/json" id="%b">%b</script>\n' % (name.encode(), data)


# --- what the overview says ----------------------------------------------------------------------------------


def _meta(
    run: RunDir, summary: Mapping[str, Any], found: Survey, book: pages.Book, options: ReportOptions
) -> dict[str, Any]:
    prompts = book.prompts
    return {
        "name": run.name,
        "model": run.info["model"],
        "fingerprint": run.fingerprint,
        "rehearsal": bool(summary.get("rehearsal")),
        "requests": summary["requests"],
        "counts": summary["counts"],
        "statuses": [status.value for status in Status],
        "rows_a_block": pages.ROWS_A_BLOCK,
        "thumbs_a_block": pages.THUMBS_A_BLOCK,
        "index_blocks": book.index_blocks,
        "answered": found.answered,
        "sample": found.sample_ids,
        "seed": options.seed,
        "reviews": book.reviews,
        "prompts": prompts,
        "prompt": prompts[0] if book.is_one_prompt else _input_text(run, "prompt"),
        "system": _input_text(run, "system"),
        "figures": [{"name": name, "value": value} for name, value in _figures(summary)],
        "checks": [_check(check) for check in summary.get("checks") or ()],
        "tokens": found.token_chart(summary),
        "latency": found.latency_chart(summary),
        "tables": list(_tables(summary)),
        "asked": list(_asked(run)),
        "origin": list(_origin(run, summary)),
        "files": summary.get("files") or [],
        "notes": [*_rejected(run), *_remarks(found, book)],
    }


def _input_text(run: RunDir, role: str) -> str:
    """Return a verbatim copy (prompt, system prompt) as text; empty where the run has none, or it is withheld."""
    ref: Any = run.info.get(role)
    try:
        with open(run.file(ref["file"]), "rb") as file:
            return file.read().decode("utf-8", "replace")
    except (OSError, TypeError, KeyError):
        return ""


def _figures(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    requests, counts, cost = summary["requests"], summary["counts"], summary.get("cost") or {}
    yield "requests", f"{requests:,}"
    yield "ok", f"{100 * counts[Status.OK] / requests:.1f} %" if requests else _DASH
    total: Counter[str] = Counter()
    for channel in (summary.get("tokens") or {}).values():
        total.update(channel)
    yield "input tokens", _short(total["input_tokens"])
    yield "output tokens", _short(total["output_tokens"])
    spent = cost.get("total_usd")
    yield "cost (USD)", _DASH if spent is None else f"{'≥ ' if cost.get('is_lower_bound') else ''}{_money(spent)}"
    median = (summary.get("latency_s") or {}).get("p50")
    if median is not None:
        yield "median latency", seconds(median)


def _short(count: int) -> str:
    """Return a count in few digits: 12,345,678 as ``12.3 M``, counts below 10,000 whole."""
    for unit, name, least in ((10**9, "G", 10**9), (10**6, "M", 10**6), (10**3, "k", 10**4)):
        if count >= least:
            return f"{count / unit:.1f} {name}"
    return f"{count:,}"


def _money(text: str) -> str:
    """Return an amount with cents, or with two digits that say something where it is smaller than that."""
    amount = Decimal(text)
    return f"{amount:,.2f}" if amount >= 1 or not amount else f"{amount:.2g}"


def _check(check: Mapping[str, Any]) -> dict[str, Any]:
    return {key: check.get(key) if key == "holds" else str(check.get(key) or "") for key in _CHECK_KEYS}


_CHECK_KEYS = ("name", "asked", "holds", "detail")


def _tables(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from _cost_table(summary)
    reasons = summary.get("reasons") or ()
    if reasons:
        rows = [[one["status"], one["reason"] or _DASH, {"n": f"{one['count']:,}"}] for one in reasons]
        yield {"title": "Why records are not ok", "head": ["Status", "Reason", {"n": "Records"}], "rows": rows}
    by_output = summary.get("by_output") or {}
    if by_output:
        rows = [[name, *({"n": f"{counts[s]:,}"} for s in Status)] for name, counts in by_output.items()]
        yield {"title": "By output", "head": ["Output", *({"n": s.value} for s in Status)], "rows": rows}


def _cost_table(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield tokens and cost by channel: all attempts that could bill, superseded ones too."""
    cost, rows = summary.get("cost") or {}, []
    for channel, tokens in (summary.get("tokens") or {}).items():
        if tokens["attempts"]:
            spent = cost.get(f"{channel}_usd")
            numbers = [f"{tokens.get(key) or 0:,}" for key in _TOKEN_COLUMNS]
            rows.append([channel, *({"n": text} for text in (*numbers, _DASH if spent is None else _money(spent)))])
    if rows:
        head = ["Channel", *({"n": title} for title in (*_TOKEN_COLUMNS.values(), "Cost, USD"))]
        yield {"title": "Tokens and cost, all attempts", "head": head, "rows": rows, "note": _price_note(cost)}


_TOKEN_COLUMNS = {
    "attempts": "Attempts",
    "input_tokens": "Input",
    "cached_tokens": "of it cached",
    "output_tokens": "Output",
    "reasoning_tokens": "of it reasoning",
}


def _price_note(cost: Mapping[str, Any]) -> str:
    prices = cost.get("prices")
    if not prices:
        return "No price was given to estimate, so no cost is told."
    told = [
        f"USD {prices['price_in_usd_per_mtok']} in, {prices['price_out_usd_per_mtok']} out per million tokens",
        f"source: {prices['price_source']}" if prices.get("price_source") else "source not told",
        str(prices.get("price_date") or "date not told"),
        "a lower bound: some sendings told no usage" if cost.get("is_lower_bound") else "",
    ]
    return "; ".join(text for text in told if text) + "."


def _asked(run: RunDir) -> Iterator[tuple[str, str]]:
    info = run.info
    yield "Provider", info["provider"]
    yield "Model", info["model"]
    yield "Endpoint", f"{info['request'].get('method', 'POST')} {info['request'].get('url', '')}"
    for name, value in (info["request"].get("params") or {}).items():
        yield name, value if isinstance(value, str) else jsonl.dumps(value).decode()


def _origin(run: RunDir, summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    info = run.info
    source = info.get("source") or {}
    yield "Fingerprint", run.fingerprint
    yield "Source", f"{source.get('kind', '')} {source.get('path', '')} ({source.get('count', 0):,} inputs)"
    yield "Built", f"{info.get('created_at', '')} by {' '.join((info.get('tool') or {}).values())}"
    yield "Models seen", _named(summary.get("models")) or _DASH
    endpoints = _named(summary.get("endpoints"))
    if endpoints:
        yield "Sent to", endpoints


def _named(counts: Mapping[str, int] | None) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in (counts or {}).items())


def _rejected(run: RunDir) -> Iterator[str]:
    """Yield how many inputs became no request, and why; nothing where all did."""
    info: Any = run.info
    count = (info.get("counts") or {}).get("rejected")
    if not count:
        return
    codes: Counter[str] = Counter()
    with contextlib.suppress(OSError, TypeError):  # a redacted copy has no such file
        for line in jsonl.iter_lines(run.file(info["rejected"]["file"])):
            reason = (jsonl.parse_object(line.data) or {}).get("reason") or {}
            codes[str(reason.get("code"))] += 1
    why = f": {', '.join(f'{code} ({n:,})' for code, n in codes.most_common())}" if codes else ""
    inputs = (info.get("source") or {}).get("count", 0)
    yield f"{run.requests:,} requests of {inputs:,} inputs; {count:,} rejected{why}."


def _remarks(found: Survey, book: pages.Book) -> Iterator[str]:
    """Yield what the page leaves out, in sentences."""
    if len(found.shown) < found.requests:
        yield (
            f"The page holds {len(found.shown):,} of {found.requests:,} records, spread evenly over the run; "
            "figures and checks are those of all."
        )
    if book.without_picture:
        yield (
            f"{book.without_picture:,} records are shown without a thumbnail: the {book.pictures.budget:,} bytes for "
            "pictures went to the review sample and to records spread evenly over the run."
        )
    if book.pictures.undrawn:
        yield f"{len(book.pictures.undrawn):,} image(s) could not be drawn here; what was sent is unchanged."
    if book.without_shard:
        yield f"{book.without_shard:,} records show no picture and no prompt: their shards are not in this folder."

"""Records out: bytes of the winning attempt and bytes of the manifest line, put together and parsed no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch import jsonl, rundir
from vlmbatch.attempts import Outcome
from vlmbatch.records import Reading, Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vlmbatch.records import Review
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.collecting.merge import Read
    from vlmbatch.stages.collecting.spool import Spool

_ID_START = b'{"custom_id":"'
_IMAGES_KEY = b',"images":'
_ROW_KEY = b',"row":'
_AFTER_IMAGES = (b',"source_line":', b',"output":')


def half_record(outcome: Outcome, reading: Reading, verdict: Verdict, *, is_json: bool) -> dict[str, Any]:
    """Return everything of a record that its winning attempt tells."""
    text, status = reading.text, verdict.status
    is_ok = status is Status.OK
    return {
        "status": status,
        "reason": verdict.reason,
        "text": text,
        "json": verdict.json,
        "reasoning": reading.reasoning,
        "usage": reading.usage,
        "finish_reason": reading.finish_reason,
        "model": reading.model,
        "error": None if is_ok else reading.error or outcome.error,
        "authoritative": "json" if is_json and is_ok else None if text is None else "text",
        "notes": [*reading.notes, *verdict.notes],
        "channel": outcome.channel,
        "latency_s": outcome.latency_s,
        "system_fingerprint": reading.fingerprint,
        "rehearsal": outcome.rehearsal,
    }


def missing_half(*, rehearsal: bool) -> bytes:
    """Return the half record of a request that has no attempt."""
    outcome = Outcome("", None, None, None, None, None, None, "", "", None, [], rehearsal, True, None, "", 0, 0, 0)
    half = half_record(outcome, Reading(), Verdict(Status.MISSING, "no attempt on record"), is_json=False)
    return jsonl.dumps(half | {"channel": None})


class Line(NamedTuple):
    """One record as it goes to disk, and what of its manifest line it does not hold.

    ``row`` is the input row's own JSON; ``place`` what the manifest says of where the row stood (``source_line``,
    ``output``), as members without braces, or empty.
    """

    data: bytes
    row: bytes
    place: bytes


def iter_records(
    run: RunDir, read: Read, spool: Spool, *, rehearsal: bool, reviews: Mapping[int, Review]
) -> Iterator[Line]:
    """Yield the records, one for each manifest line and in that order.

    Args:
        run: The run.
        read: What the first pass found.
        spool: The halves that it wrote.
        rehearsal: Whether these are rehearsals.
        reviews: What reviewers said, by manifest line.
    """
    overlay = read.overlay
    offsets, lengths, lines = overlay.spool_offset, overlay.spool_length, overlay.line
    kind, kinds, get = overlay.kind, overlay.kinds, spool.get
    sources = [b',"source_file":%b,"source_line":' % jsonl.dumps(file.name) for file in read.files]
    nothing = missing_half(rehearsal=rehearsal)
    manifest = jsonl.iter_lines(run.file(rundir.MANIFEST))
    for position, ((_, _, line, _), attempt) in enumerate(zip(manifest, overlay.winner, strict=True)):
        head, images, place, row = cut_entry(line, position)
        if attempt < 0:
            half, source, beaten = nothing, b',"source_file":null,"source_line":null', b"[]"
        else:
            half = get(offsets[attempt], lengths[attempt])
            source = b"%b%d" % (sources[kinds[kind[attempt]].file], lines[attempt])
            beaten = _superseded(read, spool, position)
        review = jsonl.dumps(reviews[position]) if position in reviews else b"null"
        data = b'%b,%b%b%b,"superseded":%b,"review":%b,"row":%b}' % (
            head, half[1:-1], images, source, beaten, review, row,
        )  # fmt: skip
        yield Line(data, row, place)


def _superseded(read: Read, spool: Spool, position: int) -> bytes:
    overlay = read.overlay
    rows = overlay.beaten(position)
    if not rows:
        return b"[]"
    kinds = [overlay.kinds[overlay.kind[row]] for row in rows]
    return jsonl.dumps(
        [
            {
                "source_file": read.files[kind.file].name,
                "source_line": overlay.line[row],
                "status": kind.status,
                "channel": kind.channel,
                "usage": jsonl.loads(spool.of_attempt(overlay, row))["usage"],
            }
            for row, kind in zip(rows, kinds, strict=True)
        ]
    )


def cut_entry(data: bytes, position: int) -> tuple[bytes, bytes, bytes, bytes]:
    """Cut a manifest line into what a record takes over, as the bytes that stand there.

    The keys that are looked for cannot stand inside a JSON string, where their quotes would be escaped; the order
    of the keys is that of build.

    Returns:
        The id as the start of an object (``{"custom_id":"…"``), the images with comma and key before them, what stands
        between them and the row, without the comma (``"source_line":1,"output":"x"``, or nothing), and the row.

    Raises:
        IntegrityError: The line is damaged.
    """
    row = data.find(_ROW_KEY)
    start = data.find(_IMAGES_KEY, 0, row)
    if start < 0 or not data.startswith(_ID_START):
        entry = rundir.parse_entry(data, position)
        head = b'%b%b"' % (_ID_START, entry.custom_id.encode())
        return head, _IMAGES_KEY + jsonl.dumps(entry.images), b"", entry.row
    end = row
    for key in _AFTER_IMAGES:
        found = data.find(key, start, end)
        end = end if found < 0 else found
    head_end = data.index(b'"', len(_ID_START)) + 1
    return data[:head_end], data[start:end], data[end + 1 : row], data[row + len(_ROW_KEY) : -1]

"""Records out: bytes of the winning attempt and bytes of the manifest line, put together and parsed no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch import jsonl, rundir
from vlmbatch.attempts import Outcome
from vlmbatch.records import Reading, Status, Verdict
from vlmbatch.rundir import ID_KEY, ROW_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vlmbatch.records import Review
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.collecting.facts import Read
    from vlmbatch.stages.collecting.spool import Spool

_IMAGES_KEY = b',"images":'
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
        "system_fingerprint": reading.system_fingerprint,
        "rehearsal": outcome.rehearsal,
    }


def missing_half(*, rehearsal: bool) -> bytes:
    """Return the half record of a request that has no attempt."""
    verdict = Verdict(Status.MISSING, "no attempt on record")
    half = half_record(Outcome("", rehearsal=rehearsal), Reading(), verdict, is_json=False)
    return jsonl.dumps(half | {"channel": None})


class Line(NamedTuple):
    """One record as it goes to disk, and the input row's own JSON."""

    data: bytes
    row: bytes


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
    for position, ((_, _, line), attempt) in enumerate(zip(manifest, overlay.winner, strict=True)):
        head, images, row = cut_entry(line, position)
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
        yield Line(data, row)


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


def cut_entry(data: bytes, position: int) -> tuple[bytes, bytes, bytes]:
    """Cut a manifest line into what a record takes over, as the bytes that stand there.

    The keys that are looked for cannot stand inside a JSON string, where their quotes would be escaped; the order
    of the keys is that of build.

    Returns:
        The id as the start of an object (``{"custom_id":"…"``), the images with comma and key before them, and the row.

    Raises:
        IntegrityError: The line is damaged.
    """
    row = data.find(ROW_KEY)
    start = data.find(_IMAGES_KEY, 0, row)
    if start < 0 or not data.startswith(ID_KEY):
        entry = rundir.parse_entry(data, position)
        head = b'%b%b"' % (ID_KEY, entry.custom_id.encode())
        return head, _IMAGES_KEY + jsonl.dumps(entry.images), entry.row
    end = row
    for key in _AFTER_IMAGES:
        found = data.find(key, start, end)
        end = end if found < 0 else found
    head_end = data.index(b'"', len(ID_KEY)) + 1
    return data[:head_end], data[start:end], data[row + len(ROW_KEY) : -1]

"""The smoke verdict: is a sample good enough to send the rest? One line per question, with the figure it rests on."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from vlmbatch import jsonl, rundir
from vlmbatch.errors import InputError
from vlmbatch.records import MODEL_ANSWERS, Status
from vlmbatch.stages.estimating.receipts import Arrival
from vlmbatch.stages.estimating.sample import digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from vlmbatch.records import ImageRecord
    from vlmbatch.stages.estimating.receipts import Receipts
    from vlmbatch.stages.estimating.sample import Measured
    from vlmbatch.stages.estimating.workload import Row

Answer = Literal["pass", "fail", "cannot tell"]

_ENOUGH_TO_DIFFER = 5
"""So many different images with one and the same answer are no coincidence."""

_AGREEMENT = 0.9
_FREE_TEXT = 200
"""Answers that are longer on average are free text: two good ones need not agree word for word."""

_AT_CAP = frozenset({Status.TRUNCATED, Status.EMPTY_AT_CAP})

_NO_RECORD = (AttributeError, KeyError, TypeError)
"""What comes of a line that is no record of ours; like a torn one it is passed over."""


class Check(NamedTuple):
    """One line of the verdict."""

    name: str
    answer: Answer
    figure: str


def verdict(
    rows: Mapping[str, Row],
    measured: Mapping[str, Measured],
    receipts: Receipts,
    earlier: Mapping[str, bytes] | None = None,
) -> list[Check]:
    """Return the verdict on a sample.

    Args:
        rows: The manifest's rows of the sample.
        measured: What came of them.
        receipts: Their image receipts.
        earlier: Digests of an earlier run's answers to the same inputs, by custom_id here; None = none named.
    """
    values = list(measured.values())
    checks = [
        _shape(values),
        _arrival(receipts),
        _variety(rows, measured),
        _cap(values),
        _json(values),
    ]
    return checks if earlier is None else [*checks, _agreement(measured, earlier)]


def _shape(values: Sequence[Measured]) -> Check:
    refused = sum(one.shape_refused for one in values)
    answered = sum(one.status in MODEL_ANSWERS for one in values)
    answer: Answer = "fail" if refused else "pass" if answered else "cannot tell"
    return Check(
        "request shape accepted", answer, f"{answered:,} of {len(values):,} answered, {refused:,} refused as such"
    )


def _arrival(receipts: Receipts) -> Check:
    good, bad = len(receipts.with_arrival(Arrival.ARRIVED)), len(receipts.at_fault)
    answer: Answer = "fail" if bad else "pass" if good and good == len(receipts.rows) else "cannot tell"
    missing = len(receipts.with_arrival(Arrival.MISSING))
    unclear = len(receipts.with_arrival(Arrival.UNCLEAR))
    parts = [f"{good:,} of {len(receipts.rows):,} billed as the formula has it"]
    parts += [f"{missing:,} billed as text alone"] if missing else []
    parts += [f"{bad - missing:,} billed otherwise"] if bad > missing else []
    parts += [f"{unclear:,} unclear"] if unclear else []
    return Check("image arrived", answer, ", ".join(parts))


def _variety(rows: Mapping[str, Row], measured: Mapping[str, Measured]) -> Check:
    """Ask whether different images got different answers, among rows that were asked the same."""
    asked: dict[tuple[str, int], dict[tuple[str, ...], bytes]] = defaultdict(dict)
    for custom_id, one in measured.items():
        row = rows[custom_id]
        if one.digest and row.images:
            asked[row.output, row.text_bytes][_key(row.images)] = one.digest
    # The question most often asked decides: answers to different questions differ anyhow, unless nobody looked at all.
    everything = {images: digest for answers in asked.values() for images, digest in answers.items()}
    is_mute = len(everything) >= _ENOUGH_TO_DIFFER and len(set(everything.values())) == 1
    answers = everything if is_mute else max(asked.values(), key=len, default={})
    images, distinct = len(answers), len(set(answers.values()))
    answer: Answer = "pass" if distinct > 1 else "fail" if images >= _ENOUGH_TO_DIFFER else "cannot tell"
    figure = f"{distinct:,} different answer(s) to {images:,} image(s){'' if is_mute else ' asked the same'}"
    return Check("answers vary with the image", answer, figure)


def _cap(values: Sequence[Measured]) -> Check:
    answered = [one for one in values if one.status in MODEL_ANSWERS]
    at_cap = sum(one.status in _AT_CAP for one in answered)
    answer: Answer = "fail" if at_cap else "pass" if answered else "cannot tell"
    return Check("no answer at the limit", answer, f"{at_cap:,} of {len(answered):,} at the limit")


def _json(values: Sequence[Measured]) -> Check:
    asked = [one for one in values if one.json_asked and one.status in {Status.OK, Status.INVALID_JSON}]
    if not asked:
        is_asked = any(one.json_asked for one in values)
        return Check("JSON is valid", "cannot tell", "no answer" if is_asked else "JSON was not asked for")
    valid = sum(one.status is Status.OK for one in asked)
    return Check("JSON is valid", "pass" if valid == len(asked) else "fail", _rate(valid, len(asked)))


def _agreement(measured: Mapping[str, Measured], earlier: Mapping[str, bytes]) -> Check:
    both = [(measured[name], then) for name, then in earlier.items() if measured[name].digest and then]
    name = "agrees with the earlier run"
    if not both:
        return Check(name, "cannot tell", "no input that both runs answered")
    equal = sum(one.digest == then for one, then in both)
    if equal >= _AGREEMENT * len(both):
        return Check(name, "pass", _rate(equal, len(both)))
    is_free = sum(one.length for one, _ in both) / len(both) > _FREE_TEXT
    figure = f"{_rate(equal, len(both))} word for word" if is_free else _rate(equal, len(both))
    return Check(name, "cannot tell" if is_free else "fail", figure)


def _rate(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({part / whole:.0%})"


# --- the earlier run -------------------------------------------------------------------------------------------


def _key(images: Iterable[ImageRecord]) -> tuple[str, ...]:
    return tuple(image["sha256"] for image in images)


def read_earlier(folder: str, rows: Mapping[str, Row]) -> dict[str, bytes]:
    """Return what an earlier run answered to the same images, by the custom_id of this run's row.

    Where several of its records are about the same images, the one with the same input row is taken, if there is one.

    Raises:
        InputError: The folder holds no records.
    """
    path = os.path.join(folder, rundir.MERGED)
    if not os.path.exists(path):
        raise InputError(
            f"--against {folder}: no {rundir.MERGED} there", hint=f"vlmbatch collect {folder} --write {path}"
        )
    wanted = {_key(row.images) for row in rows.values() if row.images}
    found: dict[tuple[str, ...], list[tuple[Any, bytes]]] = defaultdict(list)
    for line in jsonl.iter_lines(path):
        record = jsonl.parse_object(line.data) or {}
        with contextlib.suppress(*_NO_RECORD):
            key = _key(record["images"])
            if key in wanted and record["status"] == Status.OK:
                found[key].append((record["row"], digest(record["text"], record["json"])))
    matched = {custom_id: _match(found.get(_key(row.images), []), row) for custom_id, row in rows.items()}
    return {custom_id: then for custom_id, then in matched.items() if then}


def _match(found: Sequence[tuple[Any, bytes]], row: Row) -> bytes:
    if len(found) == 1:
        return found[0][1]
    same = [then for value, then in found if value == jsonl.loads(row.row)]
    return same[0] if len(same) == 1 else b""

"""The gate before delivery: conditions on the collected numbers, each one holding or not, with the figure.

A condition is ``NAME OP NUMBER[%]``, such as ``refusal<=2%`` or ``cost.total_usd<=5``. A percentage is a share of what
the name counts in (requests, answers, attempts). Any number of summary.json can be named by its path.
"""

from __future__ import annotations

import operator
import re
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vlmbatch import tokens
from vlmbatch.errors import InputError
from vlmbatch.records import MODEL_ANSWERS, Status
from vlmbatch.stages.collecting.overlay import IMAGE_SEEN, IMAGE_UNSEEN
from vlmbatch.stages.collecting.summary import AT_CAP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vlmbatch.records import ImageRecord
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.collecting.facts import Read

FIELD: Final = "field:"
"""Before the path of a JSON field in a condition's name."""

DEFAULTS: Final = {
    "complete": "missing==0",
    "ids unique": "duplicate_ids==0",
    "nothing foreign": "foreign==0",
    "no failures": "failed==0",
    "none at the cap": "at_cap==0",
    "JSON valid": "invalid_json<=1%",
    "refusals": "refusal<=5%",
    "empty answers": "empty<=1%",
    "image receipts": "receipts>=100%",
}
"""What a delivery should meet where the user says nothing else; a condition of the same name takes its place."""

_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_ABSENT: Final = object()
_SIDE_STEP_PX: Final = 64
_CONDITION = re.compile(r"\s*([^<>=!%]+?)\s*(<=|>=|==|!=|=|<|>)\s*([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*")


class Condition(NamedTuple):
    """One condition: what is counted, how it is compared, with how much, and whether that is a percentage."""

    metric: str
    sign: str
    bound: Decimal
    is_share: bool

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.bound}{'%' if self.is_share else ''}"


class Figure(NamedTuple):
    """A number and what it is a part of, None where it is no part of anything."""

    value: Decimal
    of: int | None = None


class Check(NamedTuple):
    """One line of the gate."""

    name: str
    asked: str
    holds: bool
    detail: str


def parse_condition(text: str) -> Condition:
    """Parse a condition.

    Raises:
        InputError: It is none.
    """
    match = _CONDITION.fullmatch(text)
    if not match:
        raise InputError(
            f"{text!r} is not a condition",
            hint="write NAME OP NUMBER, with <=, >=, <, >, == or != and a % where a share is meant: refusal<=2%",
        )
    metric, sign, bound, percent = match.groups()
    return Condition(metric, "==" if sign == "=" else sign, Decimal(bound), bool(percent))


def parse_field(text: str) -> Condition:
    """Parse a required field: its path alone (then every ok answer must have it), or with a condition on the share.

    Raises:
        InputError: It is neither.
    """
    if _CONDITION.fullmatch(text):
        condition = parse_condition(text)
        return condition._replace(metric=FIELD + condition.metric)
    if not text.strip() or set(text) & set("<>=!%"):
        raise InputError(f"{text!r} is not a field", hint="write its path, or path and share: label, box.width>=99%")
    return Condition(FIELD + text.strip(), ">=", Decimal(100), True)


def required_fields(wanted: Sequence[tuple[str, Condition]]) -> list[str]:
    """Return the paths of the fields that conditions ask for."""
    metrics = (condition.metric for _, condition in wanted)
    return [metric.removeprefix(FIELD) for metric in metrics if metric.startswith(FIELD)]


def conditions(*, gate: bool, require: Sequence[str], fields: Sequence[str]) -> list[tuple[str, Condition]]:
    """Return what is to be checked, each with the name of its line: the defaults, as far as nothing replaces them.

    Args:
        gate: Whether the defaults are asked for.
        require: Conditions of the user's.
        fields: Required fields of the JSON answer.

    Raises:
        InputError: One of them cannot be read.
    """
    own = [parse_condition(text) for text in require]
    taken = {condition.metric for condition in own}
    named = [(name, parse_condition(text)) for name, text in DEFAULTS.items()] if gate else []
    kept = [(name, condition) for name, condition in named if condition.metric not in taken]
    needed = [(c.metric.replace(FIELD, "field ", 1), c) for c in map(parse_field, fields)]
    return [*kept, *((condition.metric, condition) for condition in own), *needed]


def check(
    wanted: Sequence[tuple[str, Condition]], figures: Mapping[str, Figure | None], summary: Mapping[str, Any]
) -> list[Check]:
    """Hold the numbers against the conditions.

    Args:
        wanted: Name and condition of each line.
        figures: What can be counted, by name (:func:`figures`); None = not known, which holds nowhere.
        summary: summary.json, whose numbers can be named by their path.

    Raises:
        InputError: A name is known neither here nor there, or a share is asked of what is no part of anything.
    """
    return [_check(name, condition, _figure(condition, figures, summary)) for name, condition in wanted]


def _check(name: str, condition: Condition, figure: Figure | None) -> Check:
    if figure is None:
        return Check(name, str(condition), False, f"{condition.metric} is not known")
    value, of = figure
    compare = _OPERATORS[condition.sign]
    if condition.is_share:
        if not of:
            return Check(name, str(condition), True, "there is nothing that this could be a share of")
        holds = compare(value * 100, condition.bound * of)
    else:
        holds = compare(value, condition.bound)
    share = f" of {of:,} ({value * 100 / of:.4g} %)" if of else ""
    return Check(name, str(condition), holds, f"{value:,}{share}")


def _figure(condition: Condition, figures: Mapping[str, Figure | None], summary: Mapping[str, Any]) -> Figure | None:
    metric = condition.metric
    if metric in figures:
        figure, is_known = figures[metric], True
    else:
        node = _look_up(summary, metric)
        figure, is_known = _as_figure(node), False
        if figure is None and node is not None:
            raise InputError(
                f"{metric!r} is not a number that can be asked for",
                hint=f"use {', '.join(figures)}, or a path in summary.json",
            )
    if condition.is_share and (not is_known or (figure is not None and figure.of is None)):
        raise InputError(f"{metric!r} is no share of anything", hint="leave the % away")
    return figure


def _look_up(node: Any, path: str) -> Any:
    """Return what stands at a path of keys joined by dots; a key may hold dots itself (``models.gpt-4.1``)."""
    members = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in members:
        name = str(key)
        if path == name:
            return value
        if path.startswith(f"{name}."):
            found = _look_up(value, path[len(name) + 1 :])
            if found is not _ABSENT:
                return found
    return _ABSENT


def _as_figure(node: Any) -> Figure | None:
    if isinstance(node, int | float) and not isinstance(node, bool):
        return Figure(Decimal(str(node)))
    if isinstance(node, str) and re.fullmatch(r"\d+(\.\d+)?", node):
        return Figure(Decimal(node))
    return None


# --- what can be counted -------------------------------------------------------------------------------------


def figures(run: RunDir, read: Read, summary: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Figure | None]:
    """Return everything that a condition can name without a path, with what it is a part of.

    Shares of reviews are not known (None) where nobody reviewed anything.

    Args:
        run: The run.
        read: Its results.
        summary: summary.json.
        fields: Paths of the required fields, in the order of the overlay's ``filled``.
    """
    counts, requests = summary["counts"], summary["requests"]
    failed = counts[Status.HTTP_ERROR] + counts[Status.NETWORK_ERROR]
    attempts = summary["attempts"]
    found = {name: (count, requests) for name, count in counts.items()}
    found |= {
        "at_cap": (sum(counts[status] for status in AT_CAP), requests),
        "failed": (failed, requests),
        "answered": (summary["answered"], requests),
        "duplicate_ids": (requests - read.ledger.unique, requests),
        "foreign": (0, attempts["total"]),
        "superseded": (attempts["superseded"], attempts["total"]),
        "torn_lines": (sum(file["torn_lines"] for file in summary["files"]), None),
        "models": (len(summary["models"]), None),
        "receipts": _count_receipts(run, read),
    }
    for number, path in enumerate(fields):
        found[FIELD + path] = _count_filled(read, number)
    return {name: Figure(Decimal(value), of) for name, (value, of) in found.items()} | _reviewed(summary["reviews"])


def _reviewed(reviews: Mapping[str, int] | None) -> dict[str, Figure | None]:
    reviewed = reviews["accept"] + reviews["reject"] if reviews else 0
    names = {"accepted": "accept", "rejected": "reject"}
    return {
        name: Figure(Decimal(reviews[verdict]), reviewed) if reviews and reviewed else None
        for name, verdict in names.items()
    }


def _count_filled(read: Read, number: int) -> tuple[int, int]:
    """Return how many ok answers fill a required field, and how many should."""
    won = [(kind.filled[number], count) for kind, count in read.overlay.count_won() if kind.status is Status.OK]
    due = [(is_filled, count) for is_filled, count in won if is_filled is not None]
    return sum(count for is_filled, count in due if is_filled), sum(count for _, count in due)


def _count_receipts(run: RunDir, read: Read) -> tuple[int, int]:
    """Return how many answers prove by their tokens that the images arrived, and how many should.

    Where the provider counts the images' tokens apart, that decides. Else an answer whose input tokens are fewer than
    the fewest that any known model takes for such images saw none; one that tells no tokens proves nothing. (A server
    that drops the image answers all the same.)
    """
    overlay = read.overlay
    proven = due = 0
    for entry in run.iter_entries():
        row = overlay.winner[entry.position]
        if row < 0 or not entry.images or overlay.status(row) not in MODEL_ANSWERS:
            continue
        due += 1
        told = overlay.kinds[overlay.kind[row]].flags & (IMAGE_SEEN | IMAGE_UNSEEN)
        least = 0 if told else sum(map(_fewest_tokens, entry.images))
        proven += told == IMAGE_SEEN if told else overlay.input_tokens[row] >= least
    return proven, due


def _fewest_tokens(image: ImageRecord) -> int:
    sent = image.get("sent", image)
    return _fewest(sent["width"] // _SIDE_STEP_PX, sent["height"] // _SIDE_STEP_PX)


@lru_cache(maxsize=1 << 16)
def _fewest(width: int, height: int) -> int:
    """Return the fewest tokens for an image of at least this size, counted in steps (asking all rules takes long)."""
    return tokens.spread(max(width * _SIDE_STEP_PX, 1), max(height * _SIDE_STEP_PX, 1)).low

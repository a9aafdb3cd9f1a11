"""What OpenAI's model families take besides the text: efforts, temperature. Dated facts (references/providers.md).

Names are matched behind the last slash, so that a relay's ``openai/gpt-5:nitro`` counts too, and so does a fine-tuned
model (``ft:o4-mini-2025-04-16:org::id``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from vlmbatch.errors import Problem

if TYPE_CHECKING:
    from vlmbatch.providers.base import Ask

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""openai 3.57.0, types.shared.ReasoningEffort."""

_DATE = r"(-\d{4}-\d{2}-\d{2})?"


class Family(NamedTuple):
    """What the models of one family take.

    Attributes:
        models: Regular expression for the whole name.
        default_effort: The effort where none is sent; None for models that do not reason.
        sampling: When temperature and top_p are accepted.
        efforts: The legal efforts, empty where the documentation does not settle them.
        is_sure: Whether that is documented (else a wrong effort is only warned about).
    """

    models: str
    default_effort: str | None
    sampling: Literal["never", "without_reasoning", "always"]
    efforts: tuple[str, ...] = ()
    is_sure: bool = True


# As of 2026-11-30; the first row that fits counts.
_FAMILIES = (
    Family(rf"gpt-5(-mini|-nano)?{_DATE}", "medium", "never", ("minimal", "low", "medium", "high")),
    Family(r"gpt-5\.1(-.*)?", "none", "without_reasoning", ("none", "low", "medium", "high")),
    Family(r"gpt-5\.[24](-.*)?", "none", "without_reasoning"),
    Family(r"gpt-5\.\d+(-.*)?", "medium", "without_reasoning"),
    Family(r"gpt-6-astra(-.*)?", "medium", "never", ("low", "medium", "high", "xhigh", "max"), is_sure=False),
    Family(r"gpt-([6-9]|\d\d)(\.\d+)?(-.*)?", "medium", "without_reasoning"),
    Family(r"o\d(-.*)?", "medium", "never"),
)
_ANY = Family(".*", None, "always", is_sure=False)


_OWN = re.compile(r"gpt-(?!oss)|chatgpt-|codex-|computer-use-|o\d")
"""Beginnings of the names that OpenAI gives to models that it serves itself (openai 3.57.0, types.shared.ChatModel)."""


def is_own(model: str) -> bool:
    """Tell whether OpenAI itself serves a model, by its name."""
    return _OWN.match(_bare(model)) is not None


def _family_of(model: str) -> Family:
    """Return what is known of a model, by its name."""
    name = _bare(model)
    return next((family for family in _FAMILIES if re.fullmatch(family.models, name)), _ANY)


def _bare(model: str) -> str:
    return model.rpartition("/")[2].removeprefix("ft:").partition(":")[0]


def is_reasoning(model: str) -> bool:
    """Tell whether a model reasons, so that it takes its output limit only as ``max_completion_tokens``."""
    return _family_of(model).default_effort is not None


def _drops_sampling(ask: Ask) -> bool:
    """Tell whether temperature and top_p have to be left out: the model refuses them as it is asked."""
    family = _family_of(ask.model)
    if family.sampling == "without_reasoning":
        return (ask.reasoning_effort or family.default_effort) != "none"
    return family.sampling == "never"


def sampling(ask: Ask, *, obey: bool = True) -> dict[str, float]:
    """Return temperature and top_p as they go into the body; ``obey``: as far as the model's family takes them."""
    asked = {"temperature": ask.temperature, "top_p": ask.top_p}
    is_dropped = obey and _drops_sampling(ask)
    return {} if is_dropped else {name: value for name, value in asked.items() if value is not None}


def check_sampling(ask: Ask) -> list[str]:
    """Return a warning for each sampling option that is left out."""
    if not _drops_sampling(ask):
        return []
    flags = [flag for flag, value in (("--temperature", ask.temperature), ("--top-p", ask.top_p)) if value is not None]
    return [f"{flag} is left out: {ask.model} refuses it while it reasons" for flag in flags]


def check_effort(ask: Ask) -> tuple[list[Problem], list[str]]:
    """Check the effort against what the model is documented to take."""
    effort, family = ask.reasoning_effort, _family_of(ask.model)
    if effort is None:
        return [], []
    legal = family.efforts or EFFORTS
    if effort in legal:
        return [], []
    message = f"{effort!r}: {ask.model} takes {', '.join(legal)}"
    if family.is_sure:
        return [Problem("option", message, where="--reasoning-effort")], []
    return [], [f"--reasoning-effort {message}, as far as known"]

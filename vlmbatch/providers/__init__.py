"""Adapters, one per wire format, and the registry that names them.

A new provider is one file and one line in the registry here; a server that speaks OpenAI chat is a row of the table
in openai.py. Nothing outside this folder knows a provider's name.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from vlmbatch.errors import InputError
from vlmbatch.providers import common, openai_families
from vlmbatch.providers.anthropic import MESSAGES_PROVIDER
from vlmbatch.providers.gemini import GEMINI_PROVIDER
from vlmbatch.providers.openai import SERVERS
from vlmbatch.providers.openai_responses import RESPONSES_PROVIDER

if TYPE_CHECKING:
    from vlmbatch.providers.base import Provider

DEFAULT = "openai"
LOCAL_DEFAULT = "vllm"
"""Whose words a pipeline file is built in: such files describe a server of one's own."""

_REGISTRY: dict[str, Provider] = {
    **{server.name: server for server in SERVERS},
    MESSAGES_PROVIDER.name: MESSAGES_PROVIDER,
    GEMINI_PROVIDER.name: GEMINI_PROVIDER,
}
_BY_PATH: dict[tuple[str, str], Provider] = {(RESPONSES_PROVIDER.name, "responses"): RESPONSES_PROVIDER}
"""Providers with a second wire format: it is chosen by the last segment of the endpoint's path."""

_MAKERS = {"claude": MESSAGES_PROVIDER.name, "gemini": GEMINI_PROVIDER.name}
"""What model names begin with that one provider alone gives, up to the first hyphen."""

_HEADS = ("gpt", "chatgpt", *_MAKERS)


def doubt(model: str, provider: str) -> str:
    """Return what speaks against a model being the provider's where nobody named the provider; empty = nothing does.

    Args:
        model: The model's name as the user gave it.
        provider: Who is asked because nobody else was named.
    """
    head, hyphen, rest = model.partition("-")
    maker = _MAKERS.get(head) if hyphen else None
    if maker not in {None, provider}:
        return f"{model} looks like a model of {maker}, and this run is built for {provider}; --provider {maker}?"
    if provider != DEFAULT or openai_families.is_own(model):
        return ""
    near = difflib.get_close_matches(head.lower(), _HEADS, n=1) if re.match(r"\d", rest) else []
    meant = f" (did you mean {near[0]}-{rest}?)" if near else ""
    servers = "|".join(server.name for server in SERVERS if server.name != provider)
    return (
        f"{model} is not known as a model of {provider}, for which this run is built and where its images would go"
        f"{meant}; for a server of your own build with --provider {servers}, and run with --base-url"
    )


def names() -> tuple[str, ...]:
    """Return the names that ``--provider`` takes."""
    return tuple(_REGISTRY)


def details() -> tuple[str, ...]:
    """Return the words that ``--detail`` takes, whoever is asked."""
    return common.DETAILS


def efforts() -> tuple[str, ...]:
    """Return the words that ``--reasoning-effort`` takes, each by some provider."""
    return openai_families.EFFORTS


def get(name: str, url: str = "") -> Provider:
    """Return the adapter of a provider.

    Args:
        name: One of :func:`names`.
        url: The endpoint's path where it is not the default; some providers speak two wire formats.

    Raises:
        InputError: There is no such provider.
    """
    if name not in _REGISTRY:
        raise InputError(f"there is no provider {name!r}", hint=f"the providers are {', '.join(_REGISTRY)}")
    return _BY_PATH.get((name, url.rstrip("/").rpartition("/")[2]), _REGISTRY[name])

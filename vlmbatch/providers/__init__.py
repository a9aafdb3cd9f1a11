"""Adapters, one per wire format, and the registry that names them.

A new provider is one file and one line in the registry here; a server that speaks OpenAI chat is a row of the table
in openai.py. Nothing outside this folder knows a provider's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlmbatch.errors import InputError
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

_MAKERS = {"claude-": MESSAGES_PROVIDER.name, "gemini-": GEMINI_PROVIDER.name}
"""Beginnings of model names that one provider alone gives."""


def maker(model: str) -> str | None:
    """Return the provider whose name a model bears, None where the name does not tell."""
    return next((provider for start, provider in _MAKERS.items() if model.startswith(start)), None)


def names() -> tuple[str, ...]:
    """Return the names that ``--provider`` takes."""
    return tuple(_REGISTRY)


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

"""Tables of the providers, from their adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlmbatch import providers
from vlmbatch.providers.base import Ask

if TYPE_CHECKING:
    from collections.abc import Callable

_MODEL = "MODEL"


def at_a_glance() -> str:
    """Return who each provider is: address, key, endpoint, and how a shard is cut."""
    rows = [
        "| `--provider` | own address | key variable | endpoint | a shard holds at most |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in providers.names():
        provider = providers.get(name)
        size, requests = provider.shard_limits(_MODEL)
        keys = ", else ".join(f"`{key}`" for key in provider.default_key_envs()) or "none"
        address = provider.default_base_url() or "none: `--base-url`"
        url = provider.url(Ask(model=_MODEL))
        rows.append(f"| `{name}` | {address} | {keys} | `{url}` | {size:,} bytes, {requests:,} requests |")
    return "\n".join(rows)


BLOCKS: dict[str, Callable[[], str]] = {"providers": at_a_glance}

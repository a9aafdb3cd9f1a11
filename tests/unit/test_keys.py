"""Where the key is found, and what is said of it: never where it could be read by others."""

from __future__ import annotations

import pytest

from vlmbatch import providers
from vlmbatch.keys import key_for_run

OPENAI = providers.get("openai")
ENVIRON = {"OPENAI_API_KEY": "sk-CANARY-0123456789"}


@pytest.mark.parametrize(
    "url", ["https://user:hidden@relay.example/v1", "https://relay.example/v1?key=hidden", "http://[::1?hidden"]
)
def test_key_that_nobody_named_is_not_sent_elsewhere_and_the_address_is_shown_bare(url: str) -> None:
    """The note names the address without what may be secret in it; a URL that is none is left to whoever sends."""
    told: list[str] = []
    assert key_for_run(OPENAI, [url], ENVIRON, tell=told.append) is None
    assert len(told) == 1
    assert "hidden" not in told[0]
    assert "CANARY" not in told[0]


def test_key_goes_to_the_providers_own_address_and_where_it_is_named() -> None:
    """The usual variable is for the provider; another address gets a key that was named for it."""
    assert key_for_run(OPENAI, [], ENVIRON, tell=print) == ENVIRON["OPENAI_API_KEY"]
    relay = ["https://relay.example/v1"]
    assert key_for_run(OPENAI, relay, ENVIRON, name="OPENAI_API_KEY", tell=print) == ENVIRON["OPENAI_API_KEY"]

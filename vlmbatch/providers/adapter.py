"""What every adapter does alike: preflight by the dated limits, addresses, the reading of errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlmbatch.errors import InputError
from vlmbatch.providers import failures
from vlmbatch.providers import limits as preflight
from vlmbatch.providers.common import as_dict, as_list, is_own_host, join_url
from vlmbatch.records import ErrorInfo, ErrorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vlmbatch.errors import Problem
    from vlmbatch.providers.base import Ask, Limits
    from vlmbatch.records import ImageFacts


@dataclass(frozen=True, slots=True)
class Adapter:
    """The part of a provider that does not depend on its wire format.

    Attributes:
        name: The provider's name in the registry.
        base_url: Its own address, empty where there is none.
        key_envs: Conventional names of the key's variable.
        takes_file_ids: Whether an image may be named by an id of the provider's file store.
    """

    name: str
    base_url: str = ""
    key_envs: tuple[str, ...] = ()
    takes_file_ids: bool = False

    def check_images(
        self, facts: Sequence[ImageFacts], *, limits: Limits | None = None
    ) -> tuple[list[Problem], list[str]]:
        """Check the images of one request as they are sent; the codes of warnings are explained in limits.py."""
        return preflight.check_images(facts, limits or self.limits(""))

    def check_request(self, request_bytes: int, *, limits: Limits | None = None) -> list[Problem]:
        """Check the bytes of one request body."""
        return preflight.check_request(request_bytes, limits or self.limits(""))

    def limits(self, model: str, override: Mapping[str, Any] | None = None) -> Limits:
        """Return the dated limits for a model, the user's own values laid over them."""
        return preflight.limits_for(self.name, model, override)

    def shard_limits(self, model: str) -> tuple[int, int]:
        """Return the bytes and requests at which a shard is cut by default."""
        return preflight.shard_limits(self.limits(model))

    def frozen_headers(self, ask: Ask) -> dict[str, str]:  # noqa: ARG002  (part of the interface)
        """Return no headers: most wire formats have none that mean anything."""
        return {}

    def default_base_url(self) -> str:
        """Return the provider's own address."""
        return self.base_url

    def default_key_envs(self) -> tuple[str, ...]:
        """Return the conventional names of the key's variable."""
        return self.key_envs

    def endpoint(self, url: str, base_url: str) -> str:
        """Return the whole URL of a path."""
        return join_url(base_url or self.base_url, url)

    def is_direct(self, base_url: str) -> bool:
        """Tell whether a base URL is the provider's own address."""
        return is_own_host(base_url, self.base_url)

    def ends_run(self, status_code: int | None, body: Any) -> str | None:
        """Return why no other row can fare better either, or None."""
        return failures.ends_run(status_code, body)

    def retry_after_s(self, status_code: int | None, body: Any) -> float | None:  # noqa: ARG002  (the interface)
        """Return None: most bodies name no wait, their headers do."""
        return None

    def _no_file_ids(self) -> InputError:
        return InputError(
            f"{self.name}: this wire format has no place for an image's file id",
            hint="send the images inline (the default), or choose an endpoint with a file store",
        )


def listed_names(body: Any, *keys: str) -> list[str]:
    """Return the names in a list of models: of each entry the first of these keys that holds text."""
    entries = as_list(body) or next((as_list(value) for value in as_dict(body).values() if as_list(value)), [])
    named = [
        next((entry[key] for key in keys if isinstance(entry.get(key), str)), "") for entry in map(as_dict, entries)
    ]
    return [name for name in named if name]


def no_result(code: str, message: str) -> ErrorInfo:
    """Return the error of a batch line that holds no HTTP answer: the row never ran, so it may be sent again."""
    return failures.error_info(ErrorType.RUNTIME, message, None, code=code, retryable=True)

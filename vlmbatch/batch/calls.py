"""Sending the calls that hooks describe, and what a refusal means: the one place where this channel has a policy.

Whatever may be repeated without harm is repeated, by the rules of retry.py. The call that makes a job is sent once.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from vlmbatch import jsonl, retry
from vlmbatch.errors import CheckFailed, RefusedError, VlmbatchError
from vlmbatch.providers.base_batch import Reply
from vlmbatch.records import Try

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from vlmbatch.providers.base import Call
    from vlmbatch.providers.base_batch import BatchApi, Steps
    from vlmbatch.transport import Answer, Transport

T = TypeVar("T")

_CONTROL_TIMEOUT_S = 60.0
_SHOWN = 300
_NO_SUCH_PLACE = frozenset({404, 405, 501})
_UNKNOWN_EFFECT = frozenset({408, 409, 425})


class CallError(Exception):
    """A call brought no good answer.

    Attributes:
        status_code: HTTP status, None where there was no answer.
        message: The provider's words, or what the network said.
        retry_after_s: The wait that was asked for, None where none was.
        may_have_acted: Whether the provider may have done what was asked all the same.
        is_retryable: Whether sending it again may help.
    """

    def __init__(
        self,
        status_code: int | None,
        message: str,
        *,
        retry_after_s: float | None,
        may_have_acted: bool,
        is_retryable: bool,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.message = message
        self.retry_after_s = retry_after_s
        self.may_have_acted = may_have_acted
        self.is_retryable = is_retryable

    @property
    def is_missing(self) -> bool:
        """Whether what was asked for is not there."""
        return self.status_code in _NO_SUCH_PLACE

    def __str__(self) -> str:
        return f"HTTP {self.status_code}: {self.message}" if self.status_code else self.message


class Caller:
    """Sends calls to one provider.

    Args:
        transport: The wire.
        api: Names the URLs.
        base_url: Where to.
        headers: Of every call, the key included.
        policy: How patient to be; its deadline is that of calls that carry lines or results.
    """

    def __init__(
        self, transport: Transport, api: BatchApi, base_url: str, headers: Mapping[str, str], policy: retry.Policy
    ) -> None:
        self._transport = transport
        self._api = api
        self._base_url = base_url
        self._headers = dict(headers)
        self._policy = policy
        self._rng = random.Random()  # noqa: S311  (jitter)

    async def once(self, call: Call, *, is_large: bool = False, sink: Callable[[bytes], object] | None = None) -> Reply:
        """Send a call and do not repeat it.

        Args:
            call: What to send.
            is_large: Whether it carries lines or results, so that it may take its time.
            sink: Takes the bytes of a good answer as they come.

        Raises:
            CallError: There is no good answer.
            RefusedError: The provider refuses everything of ours (key, credit).
        """
        timeout_s = self._policy.timeout_s if is_large else min(self._policy.timeout_s, _CONTROL_TIMEOUT_S)
        return await self._send(call, timeout_s, sink)

    async def _send(self, call: Call, timeout_s: float, sink: Callable[[bytes], object] | None) -> Reply:
        answer = await self._transport.send(
            call.method,
            self._api.url(call.path, self._base_url),
            headers={**self._headers, **call.headers},
            body=memoryview(call.body),
            timeout_s=timeout_s,
            sink=sink,
        )
        if answer.status_code is not None and 200 <= answer.status_code <= 299:
            return Reply(answer.headers, None if sink else _parsed(answer.body))
        raise self._failed(answer)

    async def send(
        self, call: Call, *, is_large: bool = False, sink: Callable[[], Callable[[bytes], object]] | None = None
    ) -> Reply:
        """Send a call that does no harm when it is repeated, as often as it helps.

        Args:
            call: What to send.
            is_large: As for :meth:`once`.
            sink: Makes a fresh taker of bytes for each try.

        Raises:
            CallError: There is no good answer, and trying again would not help (any more).
            RefusedError: As for :meth:`once`.
        """
        return await self._again(lambda: self.once(call, is_large=is_large, sink=sink() if sink else None))

    async def follow(self, steps: Callable[[], Steps[T]]) -> T:
        """Send calls that follow from one another; where one fails, all are sent again from the first.

        Raises:
            CallError: As for :meth:`send`.
            RefusedError: As for :meth:`once`.
        """

        async def walk() -> T:
            going = steps()
            call = next(going)
            while True:
                reply = await self.once(call, is_large=True)
                try:
                    call = going.send(reply)
                except StopIteration as end:
                    result: T = end.value
                    return result

        return await self._again(walk)

    async def _again(self, attempt: Callable[[], Awaitable[T]]) -> T:
        tries: list[Try] = []
        while True:
            try:
                return await attempt()
            except CallError as error:
                tries.append(Try(status_code=error.status_code, error=None, waited_s=0.0))
                wait_s = self._wait_s(error, tries)
                if wait_s is None:
                    raise
                await asyncio.sleep(wait_s)

    def _wait_s(self, error: CallError, tries: list[Try]) -> float | None:
        """Return how long to wait before the next try, None where there is none."""
        failure = retry.Failure(error.status_code, is_retryable=error.is_retryable, body_wait_s=error.retry_after_s)
        decision = retry.decide(failure, tries, datetime.now(UTC), self._rng, self._policy)
        return decision.seconds if isinstance(decision, retry.Wait) else None

    def _failed(self, answer: Answer) -> CallError:
        """Say what an answer that is not good means.

        Raises:
            RefusedError: It is about the key or the account.
        """
        status, body = answer.status_code, _parsed(answer.body)
        if status is None:
            return CallError(None, answer.message, retry_after_s=None, may_have_acted=answer.sent, is_retryable=True)
        provider = self._api.provider
        if status not in _NO_SUCH_PLACE and (why := provider.ends_run(status, body)):
            raise RefusedError(
                f"the provider refuses batch jobs: {why}", hint="what was submitted stands in batches.jsonl"
            )
        wait_s = retry.asked_wait_s(answer.headers, datetime.now(UTC), provider.retry_after_s(status, body))
        error = provider.read(status, body).error
        return CallError(
            status,
            _words(error, body),
            retry_after_s=wait_s,
            may_have_acted=status >= 500 or status in _UNKNOWN_EFFECT,
            is_retryable=error is not None and error["is_retryable"],
        )


def as_ending(error: CallError, what: str, hint: str) -> VlmbatchError:
    """Return what ends the command for want of a good answer: the provider's no, or a network that is down."""
    if error.status_code is None:
        return CheckFailed(f"{what}: {error}", hint=hint)
    return RefusedError(f"{what}: {error}", hint=hint)


def patient(timeout_s: float) -> retry.Policy:
    """Return how patient the channel is with calls that may be repeated."""
    return replace(retry.Policy(), timeout_s=timeout_s)


def _parsed(body: bytes) -> object:
    try:
        return jsonl.loads(body) if body else None
    except ValueError:
        return body.decode("utf-8", "replace")


def _words(error: Mapping[str, object] | None, body: object) -> str:
    said = str((error or {}).get("message") or body or "no reason is told")
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}…"

"""Who answers before anything is sent: a free look at each endpoint.

The look is the list of models, which costs nothing. It also tells what is being spoken to, for the record.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from vlmbatch import jsonl
from vlmbatch.errors import CheckFailed, RefusedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from vlmbatch.providers.base import Call, Provider
    from vlmbatch.realtime.endpoints import Endpoint, Endpoints
    from vlmbatch.transport import Answer, Transport

_LOOK_TIMEOUT_S: Final = 5.0
_LOOK_AGAIN_S: Final = 2.0
_UNWELL: Final = frozenset({502, 503, 504})
_LATE: Final = "timeout"
_KEPT: Final = 50
_LISTED: Final = 8


async def look(
    endpoints: Endpoints,
    transport: Transport,
    provider: Provider,
    headers: Mapping[str, str],
    model: str,
    patience_s: float,
    warn: Callable[[str], None],
) -> None:
    """Look at every endpoint; one that does not answer starts out set aside, one without the model is doubted.

    Args:
        endpoints: Where rows are going to be sent.
        transport: The wire.
        provider: Whose wire format it is.
        headers: Of every request.
        model: The run's model.
        patience_s: Where not one can be reached, they are looked at again for so long.
        warn: Told what one should know.

    Raises:
        CheckFailed: Not one can be reached.
        RefusedError: The key is refused.
    """
    call = provider.models_call()
    if call is None:
        return
    every = list(endpoints.all)

    async def ask_all() -> list[Answer]:
        return await asyncio.gather(*(_ask(endpoint, transport, provider, headers, call) for endpoint in every))

    answers = await _heard(every, ask_all, patience_s, warn)
    lacking: list[Endpoint] = []
    for endpoint, answer in zip(every, answers, strict=True):
        if answer.status_code in _UNWELL or (answer.status_code is None and answer.code != _LATE):
            message = answer.message or f"HTTP {answer.status_code}"
            endpoints.set_aside(endpoint, message)
            warn(f"{endpoint.name} does not answer ({message}); it is tried again later")
        elif answer.status_code == 401:
            reason = provider.ends_run(401, _json(answer.body)) or "the key is refused"
            raise RefusedError(f"{endpoint.name}: {reason}", hint="nothing was sent; check the key")
        elif _lacks(endpoint, answer, provider, model):
            lacking.append(endpoint)
        elif "server_models" not in endpoint.session:
            warn(f"{endpoint.name} lists no models, so a wrong {model!r} would show only with the first answers")
    _doubt(lacking, endpoints, model, warn)


async def _heard(
    every: Sequence[Endpoint],
    ask_all: Callable[[], Awaitable[Sequence[Answer]]],
    patience_s: float,
    warn: Callable[[str], None],
) -> Sequence[Answer]:
    """Ask all endpoints until one says anything, or patience ends."""
    until_s = time.monotonic() + patience_s
    is_told = False
    while True:
        answers = await ask_all()
        if any(answer.status_code is not None or answer.code == _LATE for answer in answers):
            return answers
        said = "; ".join(f"{one.name}: {answer.message}" for one, answer in zip(every, answers, strict=True))
        if time.monotonic() >= until_s:
            raise CheckFailed(
                f"no endpoint answers: {said}", hint="nothing was sent; check the address, and the server"
            )
        if not is_told:
            warn(f"no endpoint answers ({said}); they are looked at again for {patience_s:.0f} s")
            is_told = True
        await asyncio.sleep(min(_LOOK_AGAIN_S, patience_s / 10))


async def _ask(
    endpoint: Endpoint, transport: Transport, provider: Provider, headers: Mapping[str, str], call: Call
) -> Answer:
    url = provider.endpoint(call.path, endpoint.base_url)
    answer = await transport.send(call.method, url, headers={**headers, **call.headers}, timeout_s=_LOOK_TIMEOUT_S)
    if answer.status_code == 200 and not endpoint.is_direct:
        place = _root(endpoint.base_url) + "/version"
        version = await transport.send("GET", place, headers={}, timeout_s=_LOOK_TIMEOUT_S)
        value = _json(version.body) if version.status_code == 200 else None
        if isinstance(value, dict) and isinstance(value.get("version"), str):
            endpoint.session["server_version"] = value["version"]
    return answer


def _root(base_url: str) -> str:
    """Return scheme and host of a base URL."""
    scheme, _, rest = base_url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _json(body: bytes) -> Any:
    try:
        return jsonl.loads(body)
    except ValueError:
        return None


def _lacks(endpoint: Endpoint, answer: Answer, provider: Provider, model: str) -> bool:
    """Note the models that an endpoint lists; return whether the run's is missing from a list that there is."""
    value = _json(answer.body) if answer.status_code == 200 else None
    names = provider.read_models(value) if value is not None else []
    if names:
        endpoint.session["server_models"] = names[:_KEPT]
    return bool(names) and model not in names


def _doubt(lacking: Sequence[Endpoint], endpoints: Endpoints, model: str, warn: Callable[[str], None]) -> None:
    """See to endpoints whose list lacks the model.

    Where another one has it, they get nothing. Where none has, the lists may be wrong all the same (some servers list a
    file's path, or a longer name, and answer to any): one request goes first, and the rest follow if it is answered.
    """
    for endpoint in lacking:
        listed = ", ".join(endpoint.session["server_models"][:_LISTED])
        if len(lacking) < len(endpoints.all):
            warn(f"{endpoint.name} does not list the model {model!r} (it has: {listed}); nothing is sent there")
        else:
            warn(f"{endpoint.name} does not list the model {model!r} (it has: {listed}); one request goes first")
            endpoints.try_first(endpoint)
    if len(lacking) < len(endpoints.all):
        for endpoint in lacking:
            endpoints.all.remove(endpoint)

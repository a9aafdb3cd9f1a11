"""What an endpoint and a local tokenizer tell of models."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from vlmbatch import jsonl
from vlmbatch.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vlmbatch.providers.base import Call, Provider

_TIMEOUT_S: Final = 30.0


def list_models(provider: Provider, base_urls: Sequence[str], key: str | None) -> list[str]:
    """Return the models that an endpoint lists.

    Args:
        provider: Its adapter.
        base_urls: Where it is (the first one is asked); empty = the provider's own address.
        key: The API key, None where none is needed.

    Raises:
        InputError: It lists none, or cannot be reached.
    """
    call = provider.models_call()
    if call is None:
        raise InputError(f"{provider.name} has no list of models", hint="the provider's documentation names them")
    url = provider.endpoint(call.path, base_urls[0] if base_urls else "")
    headers = {**provider.headers(key, {}), **call.headers}
    with ThreadPoolExecutor(1) as pool:  # the caller may have a loop of its own in this thread
        status, body, message = pool.submit(lambda: asyncio.run(_ask(call, url, headers, key))).result()
    if status != 200:
        raise InputError(f"{url}: {message or f'HTTP {status}'}", hint="check address and key")
    try:
        return provider.read_models(jsonl.loads(body))
    except ValueError:
        raise InputError(f"{url}: the answer is no JSON", hint="check the address") from None


async def _ask(call: Call, url: str, headers: Mapping[str, str], key: str | None) -> tuple[int | None, bytes, str]:
    from vlmbatch.transport import Transport

    async with Transport(secret=key) as transport:
        answer = await transport.send(call.method, url, headers=headers, timeout_s=_TIMEOUT_S)
    return answer.status_code, answer.body, answer.message


def apply_chat_template(
    model: str, conversation: Sequence[Mapping[str, Any]], tokenizer_kwargs: Mapping[str, Any]
) -> str:
    """Return a conversation as the text that a local model would read; nothing is downloaded.

    Args:
        model: The model's folder, or its name in the local cache.
        conversation: Messages with ``role`` and ``content``.
        tokenizer_kwargs: For the tokenizer's own method of this name.

    Raises:
        InputError: transformers is not installed, or the model is not on this machine.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise InputError(
            "apply_chat_template needs the model's tokenizer, and transformers is not installed",
            hint="pip install transformers; answers need it not: the server applies the template itself",
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
        return str(tokenizer.apply_chat_template(list(conversation), **{"tokenize": False, **tokenizer_kwargs}))
    except (OSError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise InputError(f"{model}: no chat template here ({said})", hint="give the model's own folder") from None

"""Which batch API goes with which wire format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlmbatch.errors import InputError
from vlmbatch.providers.anthropic_batch import MessageBatches
from vlmbatch.providers.gemini_batch import BatchGenerate
from vlmbatch.providers.openai_batch import FilesAndBatches, ResponsesFilesAndBatches

if TYPE_CHECKING:
    from vlmbatch.providers.base import Provider
    from vlmbatch.providers.base_batch import BatchApi

_BY_WIRE: dict[str, type[BatchApi]] = {
    "openai-chat": FilesAndBatches,
    "openai-responses": ResponsesFilesAndBatches,
    "anthropic-messages": MessageBatches,
    "gemini-generate-content": BatchGenerate,
}


def batch_api(provider: Provider, path: str, model: str) -> BatchApi:
    """Return the batch API of a provider.

    Args:
        provider: The run's adapter.
        path: The frozen path of its realtime endpoint.
        model: The run's model.

    Raises:
        InputError: No batch API is known for its wire format.
    """
    kind = _BY_WIRE.get(provider.wire)
    if kind is None:
        raise InputError(f"{provider.name} has no batch API that is known here", hint="use --channel realtime")
    return kind(provider, path, model)

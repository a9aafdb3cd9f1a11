"""What a model's name says about who serves it, where nobody named a provider."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from openai.types.shared.all_models import AllModels

from vlmbatch import providers


def _texts(kind: Any) -> list[str]:
    return [word for one in get_args(kind) for word in ([one] if isinstance(one, str) else _texts(one))]


def test_every_model_of_the_sdk_is_known_as_the_makers_own() -> None:
    """Nobody is warned of a model that the default provider has."""
    models = _texts(AllModels)
    assert len(models) > 50
    assert [model for model in models if providers.doubt(model, providers.DEFAULT)] == []


@pytest.mark.parametrize("model", ["openai/gpt-5:nitro", "ft:gpt-4o-2024-08-06:org::id", "gpt-9.9-nova"])
def test_names_of_relays_and_new_models_are_not_doubted(model: str) -> None:
    """A relay's name, a fine-tuned model, and one that comes after this program."""
    assert providers.doubt(model, providers.DEFAULT) == ""


@pytest.mark.parametrize(
    "model",
    ["Qwen/Qwen2.5-VL-7B-Instruct", "llava-1.6", "openai/gpt-oss-120b", "gemma-3-27b-it", "OpenGVLab/InternVL3"],
)
def test_open_models_are_told_where_their_images_would_go(model: str) -> None:
    """The way out is in the sentence; it names no model instead."""
    said = providers.doubt(model, providers.DEFAULT)
    assert "--provider vllm|sglang|compatible" in said
    assert "did you mean" not in said


@pytest.mark.parametrize(
    ("model", "meant"), [("gtp-5.4-mini", "gpt-5.4-mini"), ("gpt5-5", "gpt-5"), ("cluade-4-5-opus", "claude-4-5-opus")]
)
def test_slips_are_told_with_the_name_that_is_near(model: str, meant: str) -> None:
    """Only the beginning is mended: what stands behind it is the user's."""
    assert f"did you mean {meant}?" in providers.doubt(model, providers.DEFAULT)


def test_other_makers_are_named() -> None:
    """Whose model it is says which provider is meant, whatever the default."""
    assert "--provider anthropic?" in providers.doubt("claude-sonnet-5", providers.DEFAULT)
    assert "--provider gemini?" in providers.doubt("gemini-3-pro", providers.LOCAL_DEFAULT)


def test_server_of_ones_own_has_models_of_any_name() -> None:
    """A pipeline file describes such a server."""
    assert providers.doubt("anything", providers.LOCAL_DEFAULT) == ""

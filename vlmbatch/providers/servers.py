"""How servers of one's own are started: the settings of a pipeline file in the words of each server's command line.

Sources: references/servers.md.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch import jsonl
from vlmbatch.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Recipe(NamedTuple):
    """One server's command line.

    Attributes:
        words: The command, with ``{model}`` and ``{port}`` in it.
        flags: The server's own name of each setting.
        names_templates: Whether ``--chat-template`` takes the name of a built-in template (else a file alone).
    """

    words: tuple[str, ...]
    flags: Mapping[str, str]
    names_templates: bool


_SHARED = {"trust_remote_code": "--trust-remote-code", "disable_custom_all_reduce": "--disable-custom-all-reduce"}
_RECIPES = {
    "vllm": Recipe(
        ("vllm", "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}"),
        {"tp_size": "--tensor-parallel-size", **_SHARED},
        names_templates=False,
    ),
    "sglang": Recipe(
        ("python3", "-m", "sglang.launch_server", "--model-path", "{model}", "--host", "127.0.0.1", "--port", "{port}"),
        {"tp_size": "--tp-size", **_SHARED},
        names_templates=True,
    ),
}


def serve_command(provider: str, server_args: Mapping[str, Any], chat_template: str | None = None) -> str:
    """Return the command line that starts a provider's server, with ``{model}`` and ``{port}`` left to fill in.

    Args:
        provider: Name in the registry.
        server_args: ``server_args`` of a pipeline file.
        chat_template: ``chat_template`` of a pipeline file.

    Raises:
        InputError: Nobody knows how such a server is started, or a setting is not known.
    """
    recipe = _RECIPES.get(provider)
    if recipe is None:
        raise InputError(
            f"--serve auto: there is no server of {provider} to start here",
            hint="give the command: --serve 'COMMAND --port {port}'",
        )
    words = [*recipe.words, *_settings(recipe, server_args)]
    # A server that knows no template by name takes the one that stands with the model.
    if chat_template and (recipe.names_templates or chat_template.endswith(".jinja")):
        words += ["--chat-template", chat_template]
    return shlex.join(words)


def _settings(recipe: Recipe, server_args: Mapping[str, Any]) -> Iterator[str]:
    extra = server_args.get("extra_engine_args") or {}
    own = {recipe.flags[name]: value for name, value in server_args.items() if name in recipe.flags}
    for flag, value in {**own, **{_flag(name): value for name, value in extra.items()}}.items():
        if value is True:
            yield flag
        elif value is not False and value is not None:
            yield from (flag, value if isinstance(value, str) else jsonl.dumps(value).decode())


def _flag(name: str) -> str:
    return name if name.startswith("-") else f"--{name.replace('_', '-')}"

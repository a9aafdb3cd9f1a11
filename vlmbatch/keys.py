"""Where the API key is found: by the name of a variable or in a file; its value goes into the headers and nowhere else.

The environment is a mapping that the door hands in. A key that the user did not name goes to the provider's own address
alone: the conventional variable is no permission to send it to a stranger.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vlmbatch.errors import InputError, cannot_read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vlmbatch.providers.base import Provider

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOOKS_LIKE_A_KEY = re.compile(r"(sk|AIza|hf_|gsk_)[-_A-Za-z0-9]{16,}")


def key_for_run(
    provider: Provider,
    base_urls: Sequence[str],
    environ: Mapping[str, str],
    *,
    given: str | None = None,
    name: str | None = None,
    file: str | None = None,
    is_served: bool = False,
    tell: Callable[[str], object],
) -> str | None:
    """Return the key that a run is sent with, None where there is none.

    Args:
        provider: The run's adapter.
        base_urls: Where rows are sent; empty = the provider's own address.
        environ: The environment.
        given: The key itself, where a program hands it over; blank = none is needed.
        name: The variable that the user named.
        file: The file that the user named.
        is_served: Whether rows go to a server that is started for the run, which wants a key only if one is named.
        tell: Told what a person should know of it.

    Raises:
        InputError: A key that the user named is not there, or is none.
    """
    if given is not None:
        return _cleaned(given, "key=", tell) or None
    is_named = name is not None or file is not None
    if is_served and not is_named:
        return None
    names = (name,) if name is not None else provider.default_key_envs()
    other = next((url for url in base_urls if not _is_direct(provider, url)), None)
    if other is not None and not is_named:
        present = next((one for one in names if environ.get(one)), None)
        if present is not None:
            tell(f"{present} is not sent to {_address(other)}: --api-key-env {present} sends it there")
        return None
    return read_key(environ, names, file=file, is_required=is_named, tell=tell)


def _is_direct(provider: Provider, url: str) -> bool:
    """Say whether a base URL is the provider's own; one that is none is not (whoever sends refuses it)."""
    try:
        return provider.is_direct(url)
    except ValueError:
        return False


def _address(url: str) -> str:
    """Return a base URL as it may be shown: a user name, a password and what stands behind ``?`` can be secret."""
    return re.sub(r"(?<=//)[^/?#]*@", "", re.sub(r"[?#].*", "", url))


def read_key(
    environ: Mapping[str, str],
    names: Sequence[str],
    *,
    file: str | None = None,
    is_required: bool,
    tell: Callable[[str], object],
) -> str | None:
    """Return the key by the name of its variable, or from a file.

    Args:
        environ: The environment.
        names: Variables to look in, in order.
        file: A file whose first line is the key, instead.
        is_required: Whether a missing key is an error.
        tell: Told when white space was dropped.

    Raises:
        InputError: The name looks like a key, or no key is there, or it has characters that no header takes.
    """
    for name in names:
        if not _VARIABLE.fullmatch(name) or _LOOKS_LIKE_A_KEY.match(name):
            raise InputError(
                "--api-key-env takes the name of a variable, and this looks like a key",
                hint="give the name that it is exported under; and change the key: your shell keeps a history",
            )
    where = file or " or ".join(names)
    raw = _from_file(file) if file else next((environ[name] for name in names if environ.get(name, "").strip()), None)
    if raw is None:
        if is_required:
            raise InputError(
                f"no API key: {where} is not set",
                hint=f"export {names[0] if names else 'KEY'}=…, or name another variable with --api-key-env",
            )
        return None
    return _cleaned(raw, where, tell)


def _cleaned(raw: str, where: str, tell: Callable[[str], object]) -> str:
    """Return a key as a header takes it."""
    key = raw.strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(
            f"the key in {where} has characters that no header takes", hint="copy it anew; only its place is named here"
        )
    if key != raw:
        tell(f"white space around the key in {where} was dropped")
    return key


def _from_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline()
    except OSError as error:
        raise cannot_read(f"--api-key-file {path}", error) from None
    except UnicodeDecodeError:
        raise InputError(f"--api-key-file {path}: cannot be read (not UTF-8)", hint="check the path") from None

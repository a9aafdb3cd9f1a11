"""``$VARIABLES`` of a pipeline file: looked up in a mapping that the door hands in, never in the environment itself.

Only paths and names may hold them, and the numbers that divide a run; nothing that stands in a frozen request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vlmbatch.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_HOME = re.compile(r"~(?=/|$)")


def expand(text: str, env: Mapping[str, str]) -> str:
    """Return a path or a name with its ``$VARIABLES``, and a leading ``~``, replaced.

    Raises:
        InputError: A variable is not set.
    """
    full = _HOME.sub("${HOME}", text, count=1) if _HOME.match(text) else text
    unset = [name for match in VARIABLE.finditer(full) if (name := match[1] or match[2]) not in env]
    if unset:
        raise InputError(
            f"{text}: {', '.join(dict.fromkeys(unset))} is not set", hint="set the variable, or write the value out"
        )
    return VARIABLE.sub(lambda match: env[match[1] or match[2]], full)


def parse_shard(num_shards: int | str, shard_id: int | str, env: Mapping[str, str]) -> tuple[int, int]:
    """Return (shard_id, num_shards) as numbers.

    Args:
        num_shards: Parts that the run is divided into, or the variable that says it.
        shard_id: Which part this is, from 0, or the variable that says it.
        env: Where variables are looked up.

    Raises:
        InputError: A variable is not set or holds no number, or there is no such part; all are listed.
    """
    problems: list[Problem] = []
    count, part = (
        _number(name, value, env, problems) for name, value in (("num_shards", num_shards), ("shard_id", shard_id))
    )
    if count is not None and count < 1:
        problems.append(Problem("shard", f"{count}: a run has at least one part", "num_shards"))
    elif count is not None and part is not None and not 0 <= part < count:
        problems.append(Problem("shard", f"{part}: parts are numbered 0 to {count - 1}", "shard_id"))
    if problems or count is None or part is None:
        raise InputError("the pipeline file names no part of this run", hint="check the variables", problems=problems)
    return part, count


def _number(name: str, value: int | str, env: Mapping[str, str], problems: list[Problem]) -> int | None:
    if isinstance(value, int):
        return value
    try:
        return int(expand(value, env))
    except InputError as error:
        problems.append(Problem("shard", error.message, name))
    except ValueError:
        problems.append(Problem("shard", f"{value} is {expand(value, env)!r}, not a number", name))
    return None

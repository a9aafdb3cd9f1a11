"""Values of tables whose rows have no JSON of their own: which of them are images, and what of those the row keeps."""

from __future__ import annotations

import base64
from typing import Any


def is_image(value: Any) -> bool:
    """Tell whether a value is an image as Hugging Face datasets store it: {bytes, path}, either may be null."""
    return (
        isinstance(value, dict)
        and value.keys() == {"bytes", "path"}
        and isinstance(value["bytes"], bytes | None)
        and isinstance(value["path"], str | None)
    )


def carried(value: Any, *, in_image_column: bool) -> Any:
    """Return a value as it stands in ``row``: of an image its path alone, of other bytes base64.

    Args:
        value: A value of JSON's types, and bytes among them.
        in_image_column: Whether bytes are images even without the {bytes, path} form.
    """
    if is_image(value):
        return {"path": value["path"]}
    if isinstance(value, bytes):
        return {"path": None} if in_image_column else base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: carried(inner, in_image_column=False) for key, inner in value.items()}
    if isinstance(value, list):
        return [carried(inner, in_image_column=in_image_column) for inner in value]
    return value

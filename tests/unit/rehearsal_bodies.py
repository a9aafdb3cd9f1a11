"""Request bodies in the four wire formats, for the tests of the rehearsal provider."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

from PIL import Image

MODEL = "test-vlm-1"


def picture(width: int = 640, height: int = 480, colour: str = "#d22828", form: str = "JPEG") -> bytes:
    """Return an image of one colour."""
    out = BytesIO()
    Image.new("RGB", (width, height), colour).save(out, form)
    return out.getvalue()


def chat(
    images: list[bytes], question: str = "What is this?", media_type: str = "image/jpeg", **more: Any
) -> dict[str, Any]:
    """Return a chat completions body."""
    parts = [{"type": "image_url", "image_url": {"url": _uri(data, media_type)}} for data in images]
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": [{"type": "text", "text": question}, *parts]}],
        **more,
    }


def responses(
    images: list[bytes], question: str = "What is this?", media_type: str = "image/jpeg", **more: Any
) -> dict[str, Any]:
    """Return a responses body."""
    parts = [{"type": "input_image", "image_url": _uri(data, media_type), "detail": "high"} for data in images]
    return {
        "model": MODEL,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": question}, *parts]}],
        **more,
    }


def messages(
    images: list[bytes], question: str = "What is this?", media_type: str = "image/jpeg", **more: Any
) -> dict[str, Any]:
    """Return a messages body."""
    parts = [
        {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": _base64(data)}}
        for data in images
    ]
    content = [*parts, {"type": "text", "text": question}]
    return {"model": MODEL, "max_tokens": 4096, "messages": [{"role": "user", "content": content}], **more}


def generate_content(
    images: list[bytes], question: str = "What is this?", media_type: str = "image/jpeg", **more: Any
) -> dict[str, Any]:
    """Return a generateContent body."""
    parts = [{"inlineData": {"mimeType": media_type, "data": _base64(data)}} for data in images]
    return {"contents": [{"role": "user", "parts": [*parts, {"text": question}]}], **more}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _uri(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{_base64(data)}"

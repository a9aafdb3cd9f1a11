"""Pictures made in memory for the image tests: every mode and format that Pillow writes, and PNGs chunk by chunk."""

from __future__ import annotations

import io
import struct
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterable

DATA = Path(__file__).resolve().parents[1] / "data" / "images"

EVERYTHING = frozenset(
    f"image/{name}" for name in ("jpeg", "png", "webp", "gif", "tiff", "bmp", "jp2", "j2c", "avif", "heic", "heif")
)
USUAL = frozenset({"image/jpeg", "image/png", "image/webp", "image/gif"})

_MODES = {
    "JPEG": ("L", "RGB", "CMYK"),
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "GIF": ("L", "P"),
    "WEBP": ("RGB", "RGBA"),
    "TIFF": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"),
    "BMP": ("1", "L", "P", "RGB", "RGBA"),
    "JPEG2000": ("L", "RGB"),
    "AVIF": ("RGB", "RGBA"),
}
_OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "JPEG": ({}, {"progressive": True}, {"restart_marker_blocks": 2}, {"subsampling": 0, "optimize": True}),
    "TIFF": ({}, {"compression": "tiff_lzw"}, {"compression": "tiff_adobe_deflate"}, {"compression": "packbits"}),
    "WEBP": ({}, {"lossless": True}),
}


def scene(width: int = 50, height: int = 41, mode: str = "RGB") -> Image.Image:
    """Return a picture that is nowhere flat, the same at every call: each pixel tells its place."""
    ramp = bytes(
        value
        for y in range(height)
        for x in range(width)
        for value in (x * 255 // max(1, width - 1), y * 255 // max(1, height - 1), 255 * (x + y) // (width + height))
    )
    image = Image.frombytes("RGB", (width, height), ramp)
    if mode == "I;16":
        wide = b"".join(struct.pack("<H", value * 257) for value in image.convert("L").tobytes())
        return Image.frombytes("I;16", (width, height), wide)
    if mode == "P":
        return image.quantize(250, dither=Image.Dither.NONE)
    if mode == "1":
        return image.convert("L").point(lambda value: 255 * (value > 127)).convert("1")
    if mode in {"LA", "RGBA"}:
        image.putalpha(image.getchannel("R"))
    return image if image.mode == mode else image.convert(mode)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return the picture as Pillow writes it."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def opened(data: bytes) -> Image.Image:
    """Return the picture as Pillow reads it, loaded."""
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def difference(one: Image.Image, other: Image.Image) -> float:
    """Return the mean difference of two pictures over white, 0 to 255."""
    flat = []
    for image in (one, other):
        eight = Image.frombytes("L", image.size, image.tobytes()[1::2]) if image.mode == "I;16" else image
        ground = Image.new("RGBA", image.size, "white")
        flat.append(Image.alpha_composite(ground, eight.convert("RGBA")).convert("RGB").tobytes())
    assert len(flat[0]) == len(flat[1])
    return sum(abs(a - b) for a, b in zip(*flat, strict=True)) / len(flat[0])


@cache
def samples() -> dict[str, bytes]:
    """Return one file of each format, mode and encoder option, by name."""
    made = {
        f"{kind} {mode} {options}".strip(): saved(scene(mode=mode), kind, **options)
        for kind, modes in _MODES.items()
        for mode in modes
        for options in _OPTIONS.get(kind, ({},))
    }
    frames = [scene(32, 30), scene(32, 30).rotate(180), scene(32, 30).rotate(90)]
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        made[f"{kind} frames"] = saved(frames[0], kind, save_all=True, append_images=frames[1:])
    return made


def chunk(kind: bytes, body: bytes) -> bytes:
    """Return one PNG chunk."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def header_chunk(width: int, height: int, depth: int = 8, colour: int = 0, interlaced: int = 0) -> bytes:
    """Return a PNG header chunk."""
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced))


def png_of(*chunks: bytes) -> bytes:
    """Return a PNG of these chunks and an end chunk."""
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + chunk(b"IEND", b"")


def grey_png(*extra: bytes, rows: int = 8, packed: bytes | None = None) -> bytes:
    """Return an 8 x 8 grey PNG with extra chunks before the pixels, and as many rows as wanted."""
    raw = b"".join(b"\x00" + bytes(range(y, y + 8)) for y in range(rows))
    pixels = zlib.compress(raw) if packed is None else packed
    return png_of(header_chunk(8, 8), *extra, chunk(b"IDAT", pixels))


def exif_block(entries: Iterable[tuple[int, int, int, bytes]], *, order: str = ">", gps: bytes = b"") -> bytes:
    """Return an EXIF block with these entries (tag, type, count, four bytes), and a GPS directory behind them."""
    listed = sorted(entries)
    mark = b"MM" if order == ">" else b"II"
    body = struct.pack(f"{order}H", len(listed))
    body += b"".join(struct.pack(f"{order}HHI", tag, kind, count) + value for tag, kind, count, value in listed)
    return mark + struct.pack(f"{order}HI", 42, 8) + body + bytes(4) + gps


def with_exif(data: bytes, block: bytes) -> bytes:
    """Return a JPEG with an EXIF segment right behind its start."""
    payload = b"Exif\x00\x00" + block
    return data[:2] + struct.pack(">BBH", 0xFF, 0xE1, len(payload) + 2) + payload + data[2:]

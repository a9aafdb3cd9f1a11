"""Folders made at test time from tests/data/trees/trees.json: names too odd for git, links, pipes, big files.

A tree is a list of steps. Paths are relative to ``DEST/root``; one that starts with ``../`` lands beside it. A name is
``{"text": ...}`` or ``{"hex": ...}`` for raw bytes.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent / "data" / "trees"
TREES: dict[str, list[dict[str, Any]]] = json.loads((DATA / "trees.json").read_text(encoding="utf-8"))


def make_tree(name: str, dest: Path) -> Path:
    """Make one tree below ``dest`` and return its root; modes are set last, so that locked folders can be filled."""
    root = dest / "root"
    root.mkdir(parents=True)
    modes: list[tuple[bytes, int]] = []
    for step in TREES[name]:
        to = os.path.normpath(os.path.join(os.fsencode(root), _name(step["to"])))
        os.makedirs(os.path.dirname(to), exist_ok=True)
        match step["op"]:
            case "mkdir":
                os.makedirs(to, exist_ok=True)
            case "symlink":
                os.symlink(os.fsencode(step["target"]), to)
            case "hardlink":
                os.link(os.path.join(os.fsencode(root), os.fsencode(step["target"])), to)
            case "fifo":
                os.mkfifo(to)
            case "chmod":
                modes.append((to, int(step["mode"], 8)))
            case _:
                with open(to, "xb") as file:
                    file.write(_content(step))
    for to, mode in modes:
        os.chmod(to, mode)
    return root


def _name(name: dict[str, str]) -> bytes:
    return bytes.fromhex(name["hex"]) if "hex" in name else name["text"].encode("utf-8")


def _content(step: dict[str, Any]) -> bytes:
    source = (DATA / step["from"]).read_bytes() if "from" in step else b""
    match step["op"]:
        case "copy":
            return source
        case "pad_jpeg":
            return _padded_jpeg(source, step["bytes"])
        case "png_zero":
            return black_png(step["width"], step["height"])
        case "jsonl_big":
            head = b'{"image": "a.jpg", "question": "what is it?", "note": "'
            return head + b"n" * (step["bytes"] - len(head) - 3) + b'"}\n'
        case "write":
            return step["text"].encode("utf-8") if "text" in step else base64.b64decode(step["b64"])
    raise ValueError(step["op"])


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def black_png(width: int, height: int) -> bytes:
    """Return a one-bit PNG, all black: a few kilobytes that unfold to any number of pixels."""
    packer = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    packed = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", packed) + _chunk(b"IEND", b"")


def _padded_jpeg(data: bytes, size: int) -> bytes:
    """Return a JPEG of exactly ``size`` bytes: comment segments stand behind its start."""
    missing = size - len(data)
    segments = b""
    while missing:
        length = min(missing, 0xFFFF + 2)
        if 0 < missing - length < 4:
            length -= 4
        segments += b"\xff\xfe" + struct.pack(">H", length - 2) + b"x" * (length - 4)
        missing -= length
    return data[:2] + segments + data[2:]

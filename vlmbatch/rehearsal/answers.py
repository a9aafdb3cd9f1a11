"""What the rehearsal provider sees in a picture, what it answers, and what it bills for it.

The answer comes from the decoded pixels (size, format, dominant colour), so that answers differ by image and a
picture that did not arrive shows. Image tokens are billed by the published formula (tokens.py); text is billed by a
stated rule: one token for every four UTF-8 bytes, rounded up.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, Literal

from vlmbatch import jsonl
from vlmbatch.rehearsal.instances import instance
from vlmbatch.rehearsal.wires.base import Answer, Asked, BadImage, Picture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL import Image

AnswerFault = Literal["refusal", "truncated", "empty", "empty_at_cap", "invalid_json"]

_COLOURS: Final[dict[str, tuple[int, int, int]]] = {
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "grey": (128, 128, 128),
    "light grey": (200, 200, 200),
    "dark grey": (64, 64, 64),
    "red": (210, 40, 40),
    "orange": (240, 140, 30),
    "yellow": (245, 215, 60),
    "green": (50, 150, 60),
    "light green": (160, 210, 140),
    "teal": (30, 140, 140),
    "blue": (40, 80, 190),
    "light blue": (150, 195, 235),
    "navy": (20, 30, 80),
    "purple": (120, 60, 160),
    "pink": (240, 150, 180),
    "brown": (120, 75, 40),
    "beige": (235, 215, 180),
}
_CAP_FAULTS: Final = frozenset({"truncated", "empty_at_cap"})
_SAMPLE_PX = 24
_DRAFT_PX = 96


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen in one picture: Pillow's format name, stored size in pixels, the name of its commonest colour."""

    format: str
    width: int
    height: int
    colour: str
    sha256: str

    def as_facts(self) -> dict[str, Any]:
        """Return the values that answers are made of."""
        return {"format": self.format, "width": self.width, "height": self.height, "colour": self.colour}


def look(picture: Picture, *, checks_media_type: bool = False) -> Look:
    """Decode a picture and say what is in it.

    A JPEG is decoded at an eighth of its size where that is enough; every byte is read either way.

    Raises:
        BadImage: It cannot be decoded, or (where the format checks it) its type is not the declared one.
    """
    from PIL import Image

    try:
        with Image.open(BytesIO(picture.data)) as image:
            form, (width, height) = image.format or "?", image.size
            media_type = Image.MIME.get(form, "")
            image.draft("RGB", (_DRAFT_PX, _DRAFT_PX))
            colour = _dominant_colour(image)
    except Image.DecompressionBombError:
        raise BadImage("The image has too many pixels.") from None
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError, struct.error) as error:
        raise BadImage from error
    if checks_media_type and picture.media_type != media_type:
        raise BadImage(f"Image does not match the provided media type {picture.media_type}")
    return Look(form, width, height, colour, jsonl.sha256(picture.data))


def _dominant_colour(image: Image.Image) -> str:
    """Return the name of the palette colour that most of the (shrunk) picture is nearest to."""
    from PIL import Image as Pillow

    opaque = image.convert("RGBA")
    flat = Pillow.new("RGB", opaque.size, "white")
    flat.paste(opaque, mask=opaque.getchannel("A"))
    small = flat.resize((_SAMPLE_PX, _SAMPLE_PX), Pillow.Resampling.BOX, reducing_gap=2.0)
    palette = Pillow.new("P", (1, 1))
    palette.putpalette([channel for colour in _COLOURS.values() for channel in colour])
    counts = small.quantize(palette=palette, dither=Pillow.Dither.NONE).histogram()[: len(_COLOURS)]
    return list(_COLOURS)[counts.index(max(counts))]


def text_tokens(text: str) -> int:
    """Return what a text is billed: one token for every four UTF-8 bytes, rounded up."""
    return -(-len(text.encode("utf-8", "replace")) // 4)


def compose(asked: Asked, looks: Sequence[Look], digest: str, *, bill: int, fault: AnswerFault | None = None) -> Answer:
    """Answer one request.

    Args:
        asked: The request.
        looks: What its pictures show, in order.
        digest: SHA-256 of the request body; the answer's id is made of it.
        bill: Tokens of the pictures, by the published formula.
        fault: How this answer goes wrong, None where it does not.
    """
    answer = Answer(
        id=digest[:24], text=None, input_tokens=text_tokens(asked.text) + bill, image_tokens=bill, output_tokens=0
    )
    if fault == "refusal":
        return replace(answer, refused=True)
    text = "" if fault == "empty" else _answer_text(asked, looks)
    if fault == "invalid_json" and asked.json:
        text = f"Here is the JSON you asked for:\n{text}"
    wanted, thought = text_tokens(text), asked.reasoning_tokens
    room = wanted if asked.max_tokens is None else max(asked.max_tokens - thought, 0)
    room = 0 if fault == "empty_at_cap" else min(room, wanted // 2) if fault == "truncated" else room
    if room >= wanted and fault not in _CAP_FAULTS:
        return replace(answer, text=text, output_tokens=thought + wanted, reasoning_tokens=thought)
    # Whoever stops at the limit is billed the limit; where nothing was said, all of it was reasoning.
    text = _cut(text, room)
    spent = thought + room if asked.max_tokens is None else asked.max_tokens
    return replace(answer, text=text, at_cap=True, output_tokens=spent, reasoning_tokens=thought if room else spent)


def _answer_text(asked: Asked, looks: Sequence[Look]) -> str:
    if asked.json:
        seed = jsonl.sha256("".join(one.sha256 for one in looks).encode())
        facts = looks[0].as_facts() if looks else {}
        value = facts if asked.schema is None else instance(asked.schema, facts, seed)
        return jsonl.dumps(value).decode()
    if not looks:
        return "Rehearsal answer: no picture came with this request."
    seen = [f"a {one.format} of {one.width} x {one.height} pixels, mostly {one.colour}" for one in looks]
    return f"Rehearsal answer: the picture is {', then '.join(seen)}."


def _cut(text: str, tokens: int) -> str:
    """Return the start of a text that costs at most ``tokens``."""
    return text.encode()[: 4 * tokens].decode("utf-8", "ignore")

"""What the user wants done to the images before they are sent; by default nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal

from vlmbatch.errors import InputError, Problem, flag_of

if TYPE_CHECKING:
    from vlmbatch.images.facts import Check

_GROUNDS: Final = {"white": (255, 255, 255), "black": (0, 0, 0)}
_HEX: Final = re.compile(r"#[0-9a-fA-F]{6}")


def _is_ground(name: object) -> bool:
    return isinstance(name, str) and (name in _GROUNDS or _HEX.fullmatch(name) is not None)


def _is_whole(value: object, high: float = inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= high


@dataclass(frozen=True, slots=True)
class ImagePolicy:
    """How images are checked and what is made of them.

    Attributes:
        check: ``full`` decodes every image, ``quick`` reads the container only.
        orient: ``keep`` leaves pixels and EXIF orientation as they are; ``apply`` turns the pixels and drops the tag.
        max_side: The longer side in pixels that is sent at most; larger images are shrunk, none is enlarged.
        max_pixels: Width times height that is sent at most, likewise.
        format: What every image is sent as; images of that format already are not re-encoded for it.
        quality: 1 to 100, for JPEG and WebP that are written anew.
        strip_metadata: Whether EXIF, XMP, comments and whatever stands behind the picture stay here.
        convert_unsupported: Whether images that the provider does not take are re-encoded: by type, by colour model
            (CMYK), and of animations and pages the first.
        background: What stands behind transparent pixels where the new format has no transparency: ``white``,
            ``black`` or ``#rrggbb``.

    Raises:
        InputError: A value is out of its range; all such are named.
    """

    check: Check = "full"
    orient: Literal["keep", "apply"] = "keep"
    max_side: int | None = None
    max_pixels: int | None = None
    format: Literal["jpeg", "png", "webp"] | None = None
    quality: int = 90
    strip_metadata: bool = False
    convert_unsupported: bool = False
    background: str = "white"

    def __post_init__(self) -> None:
        checks = (
            ("check", self.check in {"full", "quick"}, "full or quick"),
            ("orient", self.orient in {"keep", "apply"}, "keep or apply"),
            ("max_side", self.max_side is None or _is_whole(self.max_side), "at least 1"),
            ("max_pixels", self.max_pixels is None or _is_whole(self.max_pixels), "at least 1"),
            ("format", self.format in {None, "jpeg", "png", "webp"}, "jpeg, png or webp"),
            ("quality", _is_whole(self.quality, 100), "1 to 100"),
            ("background", _is_ground(self.background), "white, black or #rrggbb"),
        )
        problems = [
            Problem("bad_option", f"{getattr(self, name)!r}; allowed: {allowed}", where=flag_of(name))
            for name, is_good, allowed in checks
            if not is_good
        ]
        if problems:
            raise InputError(
                f"{len(problems)} image option(s) are wrong", hint="change or drop them", problems=problems
            )

    @classmethod
    def make(cls, **words: Any) -> ImagePolicy:
        """Return the policy that a user's words (flags, or keys of a file) ask for; None = not said.

        Raises:
            InputError: A value that is not allowed, or one that acts on new images where none is ever written.
        """
        said = {name: value for name, value in words.items() if value is not None}
        policy = cls(**said)
        idle = [flag_of(name) for name in ("quality", "background") if name in said]
        if idle and not policy.changes_bytes:
            raise InputError(
                f"{' and '.join(idle)} given, but no image is to be written anew",
                hint="this acts together with --format, --max-side, --max-pixels, --orient apply or "
                "--convert-unsupported",
            )
        return policy

    @property
    def changes_bytes(self) -> bool:
        """Whether any image could be sent as other bytes than its file's."""
        return (
            self.orient == "apply"
            or self.max_side is not None
            or self.max_pixels is not None
            or self.format is not None
            or self.strip_metadata
            or self.convert_unsupported
        )

    @property
    def ground(self) -> tuple[int, int, int]:
        """The background as red, green and blue, 0 to 255."""
        if self.background in _GROUNDS:
            return _GROUNDS[self.background]
        red, green, blue = bytes.fromhex(self.background[1:])
        return red, green, blue

    def as_record(self) -> dict[str, Any]:
        """Return what was asked, for ``image_policy`` of run.json: nothing that could have had no effect."""
        record: dict[str, Any] = {"check": self.check, "orient": self.orient}
        if not self.changes_bytes:
            return record
        asked = {
            "max_side": self.max_side,
            "max_pixels": self.max_pixels,
            "format": self.format,
            "strip_metadata": self.strip_metadata or None,
            "convert_unsupported": self.convert_unsupported or None,
            "quality": self.quality,
            "background": self.background,
        }
        return record | {name: value for name, value in asked.items() if value is not None}

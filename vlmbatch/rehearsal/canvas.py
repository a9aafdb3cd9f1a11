"""A sheet to draw the sample images on: coordinates in pixels of the finished picture, edges smoothed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCALE = 2

INK = "#1f2933"
FAINT = "#9aa5b1"
PAPER = "#fdfcf8"

Point = tuple[float, float]


class Canvas:
    """A picture in the making, drawn at twice its size and shrunk at the end."""

    def __init__(self, width: int, height: int, background: str = PAPER) -> None:
        self.width = width
        self.height = height
        self._image = Image.new("RGB", (width * _SCALE, height * _SCALE), background)
        self._draw = ImageDraw.Draw(self._image)

    def finish(self) -> Image.Image:
        """Return the picture."""
        return self._image.resize((self.width, self.height), Image.Resampling.LANCZOS)

    def text(self, at: Point, text: str, size: float = 16, fill: str = INK, anchor: str = "la") -> None:
        """Write a line; ``anchor`` is Pillow's (``la`` = top left, ``mm`` = middle, ``ra`` = top right)."""
        font = ImageFont.load_default(size * _SCALE)
        self._draw.text(_scaled(at), text, fill=fill, font=font, anchor=anchor)

    def line(self, points: Sequence[Point], fill: str = INK, width: float = 1) -> None:
        """Draw a line through some points."""
        self._draw.line([_scaled(p) for p in points], fill=fill, width=round(width * _SCALE), joint="curve")

    def dashes(self, y: float, left: float, right: float) -> None:
        """Draw a dashed horizontal line."""
        x = left
        while x < right:
            self.line([(x, y), (min(x + 6, right), y)], FAINT)
            x += 11

    def box(
        self,
        left: float,
        top: float,
        right: float,
        bottom: float,
        fill: str | None = None,
        outline: str | None = None,
        width: float = 1,
        radius: float = 0,
    ) -> None:
        """Draw a rectangle, with round corners where a radius is given."""
        corners = (*_scaled((left, top)), *_scaled((right, bottom)))
        self._draw.rounded_rectangle(corners, radius * _SCALE, fill, outline, round(width * _SCALE))

    def circle(
        self, at: Point, radius: float, fill: str | None = None, outline: str | None = None, width: float = 1
    ) -> None:
        """Draw a circle around a point."""
        x, y = at
        box = (*_scaled((x - radius, y - radius)), *_scaled((x + radius, y + radius)))
        self._draw.ellipse(box, fill, outline, round(width * _SCALE))

    def slice(self, at: Point, radius: float, start: float, end: float, fill: str) -> None:
        """Draw a slice of a pie; angles in degrees clockwise from twelve o'clock."""
        x, y = at
        box = (*_scaled((x - radius, y - radius)), *_scaled((x + radius, y + radius)))
        self._draw.pieslice(box, start - 90, end - 90, fill, PAPER, 2 * _SCALE)

    def shape(self, points: Sequence[Point], fill: str) -> None:
        """Draw a filled polygon."""
        self._draw.polygon([_scaled(p) for p in points], fill)

    def fade(self, top: float, bottom: float, first: tuple[int, int, int], last: tuple[int, int, int]) -> None:
        """Fill a band from edge to edge with a colour that turns into another."""
        rows = round((bottom - top) * _SCALE)
        for row in range(rows):
            share = row / max(rows - 1, 1)
            colour = tuple(round(a + (b - a) * share) for a, b in zip(first, last, strict=True))
            y = round(top * _SCALE) + row
            self._draw.line([(0, y), (self.width * _SCALE, y)], fill=colour)


def _scaled(point: Point) -> tuple[float, float]:
    return point[0] * _SCALE, point[1] * _SCALE


def on_circle(centre: Point, radius: float, degrees: float) -> Point:
    """Return the point of a circle at an angle clockwise from twelve o'clock."""
    turn = math.radians(degrees)
    return centre[0] + radius * math.sin(turn), centre[1] - radius * math.cos(turn)

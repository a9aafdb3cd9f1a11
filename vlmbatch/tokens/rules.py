"""The rules: pixels of the image as it is sent → tokens. Arithmetic only; every constant comes from the table.

Each rule was written from the published description (references/image-tokens.md names page or code) and agrees with
the vectors in tests/data/tokens.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Seen(NamedTuple):
    """What a rule says: tokens, the picture as the model sees it, or why it is refused."""

    tokens: int
    width: int | None = None
    height: int | None = None
    refused: str = ""


def _fixed(_width: int, _height: int, *, tokens: int) -> Seen:
    """Count the same for every size."""
    return Seen(tokens)


def _tiles(
    width: int,
    height: int,
    *,
    base: int,
    tile: int,
    box: int = 2048,
    short: int = 768,
    cell: int = 512,
    base_only: bool = False,
) -> Seen:
    """Fit into a box, bring the shorter side down, count square tiles; sides round down as in the worked example."""
    if base_only:
        return Seen(base)
    width, height = _fit(width, height, box)
    if min(width, height) > short:
        least = min(width, height)
        width, height = width * short // least, height * short // least
    return Seen(base + tile * _cells(width, height, cell), width, height)


def _patches(
    width: int,
    height: int,
    *,
    multiplier: float,
    patch: int = 32,
    max_dim: int | None = None,
    patch_budget: int | None = None,
    max_patches: int | None = None,
) -> Seen:
    """Fit into a box, then into a budget of patches so that one side is a whole number of them; then multiply."""
    if max_dim:
        width, height = _fit(width, height, max_dim)
    count = _cells(width, height, patch)
    if patch_budget and count > patch_budget:
        width, height = _fit_budget(width, height, patch, patch_budget)
        count = min(_cells(width, height, patch), patch_budget)
    if max_patches and count > max_patches:
        return Seen(0, width, height, f"{count:,} patches are more than {max_patches:,}")
    # A fraction, because 1.2 as a float pushes some products over a whole number.
    return Seen(math.ceil(count * Fraction(str(multiplier))), width, height)


def _fit_budget(width: int, height: int, patch: int, budget: int) -> tuple[int, int]:
    scale = math.sqrt(patch * patch * budget / (width * height))
    across, down = width * scale / patch, height * scale / patch
    scale *= min(max(1, math.floor(across)) / across, max(1, math.floor(down)) / down)
    return max(1, math.floor(width * scale)), max(1, math.floor(height * scale))


def _patch_search(width: int, height: int, *, patch: int, max_edge: int, max_tokens: int) -> Seen:
    """Shrink along the longer side, by bisection, until both the edge and the patches are within their limits."""

    def fits(across: int, down: int) -> bool:
        return max(across, down) <= max_edge and _cells(across, down, patch) <= max_tokens

    if not fits(width, height):
        long, short = max(width, height), min(width, height)
        ratio = long / short
        low, high = 1, long
        while low + 1 < high:
            middle = (low + high) // 2
            if fits(middle, max(round(middle / ratio), 1)):
                low = middle
            else:
                high = middle
        sides = low, max(round(low / ratio), 1)
        width, height = sides if width >= height else sides[::-1]
    return Seen(_cells(width, height, patch), width, height)


def _unit_tiles(
    width: int,
    height: int,
    *,
    tokens: int,
    small: int,
    divisor: float,
    max_tiles: int,
    min_unit: int = 1,
    max_unit: int | None = None,
) -> Seen:
    """Count tiles whose side is a part of the shorter side; small images are one tile."""
    if width <= small and height <= small:
        return Seen(tokens)
    unit = max(min_unit, math.floor(min(width, height) / divisor))
    if max_unit:
        unit = min(unit, max_unit)
    return Seen(tokens * min(_cells(width, height, unit), max_tiles))


def _smart_resize(
    width: int,
    height: int,
    *,
    patch_size: int,
    merge_size: int,
    min_pixels: int,
    max_pixels: int,
    frames: int = 1,
    max_ratio: int = 200,
) -> Seen:
    """Round both sides to whole merged patches and keep the area within two bounds; a still may count as frames."""
    if max(width, height) > max_ratio * min(width, height):
        return Seen(0, refused=f"one side is over {max_ratio} times the other")
    factor = patch_size * merge_size
    across, down = round(width / factor) * factor, round(height / factor) * factor
    if frames * across * down > max_pixels:
        scale = math.sqrt(frames * width * height / max_pixels)
        across, down = (max(factor, math.floor(side / scale / factor) * factor) for side in (width, height))
    elif frames * across * down < min_pixels:
        scale = math.sqrt(min_pixels / (frames * width * height))
        across, down = (math.ceil(side * scale / factor) * factor for side in (width, height))
    return Seen((across // factor) * (down // factor), across, down)


def _tile_grid(
    width: int, height: int, *, tile: int, tokens_per_tile: int, min_tiles: int, max_tiles: int, thumbnail: bool
) -> Seen:
    """Stretch to the grid whose shape is nearest; on a tie to the larger one, if the image is large enough for it."""
    best, nearest = (1, 1), math.inf
    for across, down in _grids(min_tiles, max_tiles):
        distance = abs(width / height - across / down)
        is_tie = distance == nearest and width * height > 0.5 * tile * tile * across * down
        if distance < nearest or is_tie:
            best, nearest = (across, down), distance
    tiles = best[0] * best[1]
    return Seen(tokens_per_tile * (tiles + (thumbnail and tiles > 1)), best[0] * tile, best[1] * tile)


@functools.cache
def _grids(least: int, most: int) -> list[tuple[int, int]]:
    sides = range(1, most + 1)
    grids = [(across, down) for across in sides for down in sides if least <= across * down <= most]
    return sorted(grids, key=lambda grid: grid[0] * grid[1])


def _patch_rows(width: int, height: int, *, longest_edge: int, patch_size: int, merge: int) -> Seen:
    """Fit the longer side, count patches, and one more token to end each row."""
    ratio = max(width / longest_edge, height / longest_edge)
    if ratio > 1:
        width, height = max(1, math.floor(width / ratio)), max(1, math.floor(height / ratio))
    cell = patch_size * merge
    return Seen(_up(height, cell) * (_up(width, cell) + 1), width, height)


def _soft_budget(width: int, height: int, *, max_soft_tokens: int, patch_size: int, pooling: int) -> Seen:
    """Scale up or down to a budget of pooled patches and floor both sides to whole ones."""
    cell = patch_size * pooling
    scale = math.sqrt(max_soft_tokens * cell * cell / (width * height))
    across, down = (max(1, math.floor(side * scale / cell)) for side in (width, height))
    return Seen(min(max_soft_tokens, across * down), across * cell, down * cell)


def _pinpoints(
    width: int,
    height: int,
    *,
    side: int,
    patch_size: int,
    pinpoints: Sequence[Sequence[int]] = (),
    max_grid: int = 0,
    max_crops: int = 0,
) -> Seen:
    """Count a whole view, plus the unpadded part of the best-fitting grid of views with one token to end each row.

    ``pinpoints`` lists the grids as pixels (height, width); ``max_grid`` stands for all from 1 x 1 to that.
    ``max_crops`` shrinks a larger grid, 0 = never.
    """
    grids = pinpoints or [(side * i, side * j) for i in range(1, max_grid + 1) for j in range(1, max_grid + 1)]
    best_height, best_width = _best_grid(width, height, grids)
    view = side // patch_size
    rows, columns = view * (best_height // side), view * (best_width // side)
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    shrink = math.sqrt(rows * columns / (max_crops * view * view)) if max_crops else 0
    if shrink > 1.1:
        rows, columns = int(rows // shrink), int(columns // shrink)
    return Seen(view * view + rows * columns + rows)


def _best_grid(width: int, height: int, grids: Iterable[Sequence[int]]) -> tuple[int, int]:
    """Return the grid (height, width) that keeps most pixels, of several the one that wastes least."""
    best, rank = (0, 0), (-1, 0)
    for grid_height, grid_width in grids:
        scale = min(grid_width / width, grid_height / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        this = kept, kept - grid_width * grid_height
        if this > rank:
            best, rank = (grid_height, grid_width), this
    return best


def _fit(width: int, height: int, box: int) -> tuple[int, int]:
    """Scale down so that the longer side fits; the other side rounds down. Never up."""
    longest = max(width, height)
    if longest <= box:
        return width, height
    return max(1, width * box // longest), max(1, height * box // longest)


def _up(side: int, cell: int) -> int:
    return -(-side // cell)


def _cells(width: int, height: int, cell: int) -> int:
    return _up(width, cell) * _up(height, cell)


RULES: dict[str, Callable[..., Seen]] = {
    "fixed": _fixed,
    "tiles": _tiles,
    "patches": _patches,
    "patch-search": _patch_search,
    "unit-tiles": _unit_tiles,
    "smart-resize": _smart_resize,
    "tile-grid": _tile_grid,
    "patch-rows": _patch_rows,
    "soft-budget": _soft_budget,
    "pinpoints": _pinpoints,
}
"""Rule names, as data/image_tokens.toml uses them."""

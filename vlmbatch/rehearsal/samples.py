"""``python -m vlmbatch.rehearsal.samples DIR``: a dozen drawn images with known content, and questions about them.

The folder is a source for build as it is; ``samples.jsonl`` in it is a table of the same images with a question and
the expected answer for each.
"""

from __future__ import annotations

import argparse
import os
import sys
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

from vlmbatch import jsonl
from vlmbatch.errors import InputError
from vlmbatch.rehearsal import drawings

if TYPE_CHECKING:
    from collections.abc import Callable

    from PIL import Image

TABLE = "samples.jsonl"
_FORMATS = {".png": ("PNG", {}), ".jpg": ("JPEG", {"quality": 90}), ".webp": ("WEBP", {"quality": 85, "method": 4})}


class Sample(NamedTuple):
    """One sample image: its path relative to the folder, a question, the answer, and how it is drawn."""

    path: str
    question: str
    expected: str
    draw: Callable[[], Image.Image]


def _cafe() -> Image.Image:
    lines = [("2 Espresso", "5.20"), ("1 Croissant", "2.40"), ("1 Orange juice", "3.90"), ("1 Tap water", "0.00")]
    return drawings.receipt("Cafe Meridian", "12 Harbour Street", "2026-03-14  09:42", lines, "EUR 11.50", 420)


def _market() -> Image.Image:
    lines = [
        ("Apples 1.2 kg", "3.48"),
        ("Bread", "2.95"),
        ("Olive oil 0.5 l", "7.90"),
        ("Tomatoes 0.8 kg", "2.72"),
        ("Coffee 250 g", "5.45"),
        ("Bag", "0.20"),
        ("Voucher", "-2.00"),
    ]
    return drawings.receipt("NORTH MARKET", "Unit 4, Old Depot", "2026-05-02  18:05", lines, "EUR 20.70", 620)


SAMPLES: tuple[Sample, ...] = (
    Sample("receipts/cafe.png", "What is the total?", "EUR 11.50", _cafe),
    Sample("receipts/market.jpg", "How much was the olive oil?", "7.90", _market),
    Sample(
        "charts/bars.png",
        "Which month sold the most bicycles?",
        "May",
        lambda: drawings.bars(
            "Bicycles sold", [("Jan", 24), ("Feb", 31), ("Mar", 58), ("Apr", 83), ("May", 112)], 1000, 640
        ),
    ),
    Sample(
        "charts/line.webp",
        "What was the temperature at 15:00?",
        "24",
        lambda: drawings.curve(
            "Temperature, degrees C",
            [11, 10, 14, 19, 22, 24, 21, 16],
            ["00", "03", "06", "09", "12", "15", "18", "21"],
            900,
            520,
        ),
    ),
    Sample(
        "charts/pie.jpg",
        "Which way of travelling has 22 %?",
        "Train",
        lambda: drawings.pie("How we travel", [("Bus", 41), ("Train", 22), ("Bicycle", 19), ("Car", 18)], 760, 540),
    ),
    Sample(
        "scenes/shop.jpg",
        "What is the name of the shop?",
        "Blue Heron Books",
        lambda: drawings.shop_front("Blue Heron Books", "OPEN 9-18"),
    ),
    Sample(
        "scenes/road-sign.webp",
        "How far is it to Larkfield?",
        "27 km",
        lambda: drawings.road_sign([("Ashby", "8 km"), ("Larkfield", "27 km"), ("Port Elm", "64 km")]),
    ),
    Sample("scenes/night.png", "What does the neon sign say?", "OPEN LATE", lambda: drawings.night_window("OPEN LATE")),
    Sample(
        "pages/table.png",
        "How many visitors came to the gallery in April?",
        "2,310",
        lambda: drawings.table_page(
            "Visitors by month",
            ["Place", "February", "March", "April"],
            [
                ["Museum", "4,120", "4,865", "5,240"],
                ["Gallery", "1,790", "2,045", "2,310"],
                ["Library", "8,415", "8,102", "7,977"],
                ["Tower", "640", "905", "1,380"],
            ],
        ),
    ),
    Sample(
        "pages/form.webp",
        "Is the box for the newsletter ticked?",
        "no",
        lambda: drawings.form(
            "Library membership",
            [("Name", "R. Example"), ("Street", "5 Lindengasse"), ("Town", "Altdorf"), ("Date", "2026-02-17")],
            [("Adult", True), ("Newsletter", False), ("Audio books", True)],
        ),
    ),
    Sample(
        "map.jpg",
        "Which place lies south of the river?",
        "Station",
        lambda: drawings.town_map([("Town Hall", 300.0, 180.0), ("School", 600.0, 400.0), ("Station", 330.0, 600.0)]),
    ),
    Sample("clock.png", "What time is it?", "10:10", lambda: drawings.clock(10, 10)),
)


def draw(folder: str) -> list[str]:
    """Draw the sample images and write their table; the same Pillow writes the same bytes.

    Args:
        folder: Where to; it is made, and must be empty where it exists.

    Returns:
        The paths of the images relative to the folder, in the order of the table.

    Raises:
        InputError: The folder holds something already, or cannot be written.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        if os.listdir(folder):
            raise InputError(f"{folder}: not empty", hint="name a new folder for the sample images")
        for sample in SAMPLES:
            path = os.path.join(folder, *sample.path.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            jsonl.write_atomic(path, _encode(sample), durable=False)
        rows = [{"image_path": s.path, "question_string": s.question, "expected": s.expected} for s in SAMPLES]
        table = b"".join(jsonl.dumps(row) + b"\n" for row in rows)
        jsonl.write_atomic(os.path.join(folder, TABLE), table, durable=False)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from None
    return [sample.path for sample in SAMPLES]


def _encode(sample: Sample) -> bytes:
    form, options = _FORMATS[os.path.splitext(sample.path)[1]]
    out = BytesIO()
    sample.draw().save(out, form, **options)
    return out.getvalue()


def main(arguments: list[str] | None = None) -> int:
    """Draw into the folder that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m vlmbatch.rehearsal.samples", description="Draw sample images.")
    parser.add_argument("folder", help="a new folder")
    options = parser.parse_args(arguments)
    try:
        paths = draw(options.folder)
    except InputError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    sys.stdout.write(f"{len(paths)} images and {TABLE} in {options.folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

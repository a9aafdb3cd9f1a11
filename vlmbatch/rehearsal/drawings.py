"""The pictures among the sample images, each a function that draws one; their content is known to the pixel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlmbatch.rehearsal.canvas import FAINT, INK, Canvas, on_circle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL import Image

    from vlmbatch.rehearsal.canvas import Point

SHADES = ("#2f6f9f", "#e08a2e", "#4c9a64", "#b5485d", "#7b61a8")


def receipt(shop: str, place: str, when: str, lines: Sequence[tuple[str, str]], total: str, width: int) -> Image.Image:
    """A till receipt: head, lines with prices, total, a bar code."""
    height = 330 + 30 * len(lines)
    sheet = Canvas(width, height)
    middle, left, right = width / 2, 30, width - 30
    sheet.text((middle, 34), shop, 26, anchor="ma")
    sheet.text((middle, 70), place, 14, FAINT, anchor="ma")
    sheet.text((middle, 92), when, 14, FAINT, anchor="ma")
    sheet.dashes(124, left, right)
    y = 138.0
    for name, price in lines:
        sheet.text((left, y), name, 17)
        sheet.text((right, y), price, 17, anchor="ra")
        y += 30
    sheet.dashes(y + 6, left, right)
    sheet.text((left, y + 20), "TOTAL", 24)
    sheet.text((right, y + 20), total, 24, anchor="ra")
    sheet.text((left, y + 58), "Card ending 0000", 14, FAINT)
    x, number = left, 7
    while x < right - 4:
        number = number * 37 % 101
        bar = 1 + number % 4
        sheet.box(x, y + 96, x + bar, y + 146, fill=INK)
        x += bar + 2 + number % 3
    sheet.text((middle, y + 154), "Thank you", 14, FAINT, anchor="ma")
    return sheet.finish()


def bars(title: str, values: Sequence[tuple[str, int]], width: int, height: int) -> Image.Image:
    """A bar chart with a scale on the left and a value above each bar."""
    sheet = Canvas(width, height, "#ffffff")
    sheet.text((40, 24), title, 26)
    left, right, top, floor = 80, width - 40, 90, height - 70
    most = max(value for _, value in values)
    for step in range(5):
        y = floor - (floor - top) * step / 4
        sheet.line([(left, y), (right, y)], "#e4e7eb")
        sheet.text((left - 12, y), f"{most * step // 4}", 14, FAINT, anchor="rm")
    slot = (right - left) / len(values)
    for number, (name, value) in enumerate(values):
        x = left + slot * number
        peak = floor - (floor - top) * value / most
        sheet.box(x + slot * 0.18, peak, x + slot * 0.82, floor, fill=SHADES[number % len(SHADES)])
        sheet.text((x + slot / 2, peak - 8), str(value), 16, anchor="mb")
        sheet.text((x + slot / 2, floor + 14), name, 17, anchor="ma")
    sheet.line([(left, floor), (right, floor)], INK, 2)
    return sheet.finish()


def curve(title: str, values: Sequence[int], names: Sequence[str], width: int, height: int) -> Image.Image:
    """A line chart with a dot at each value."""
    sheet = Canvas(width, height, "#f4f7fa")
    sheet.text((40, 24), title, 24)
    left, right, top, floor = 70, width - 40, 90, height - 60
    low, high = min(values), max(values)
    points: list[Point] = []
    for number, value in enumerate(values):
        x = left + (right - left) * number / (len(values) - 1)
        points.append((x, floor - (floor - top) * (value - low) / (high - low)))
        sheet.line([(x, top), (x, floor)], "#dde3ea")
        sheet.text((x, floor + 14), names[number], 15, FAINT, anchor="ma")
    sheet.shape([(left, floor), *points, (right, floor)], "#d5e6f1")
    sheet.line(points, SHADES[0], 3)
    for point, value in zip(points, values, strict=True):
        sheet.circle(point, 5, "#ffffff", SHADES[0], 2)
        sheet.text((point[0], point[1] - 12), str(value), 15, anchor="mb")
    return sheet.finish()


def pie(title: str, shares: Sequence[tuple[str, int]], width: int, height: int) -> Image.Image:
    """A pie chart with a legend; the shares are percent."""
    sheet = Canvas(width, height)
    sheet.text((36, 26), title, 24)
    centre, radius = (height * 0.5, height * 0.56), height * 0.34
    start = 0.0
    for number, (name, share) in enumerate(shares):
        end = start + 3.6 * share
        sheet.slice(centre, radius, start, end, SHADES[number])
        x, y = on_circle(centre, radius * 0.62, (start + end) / 2)
        sheet.text((x, y), f"{share}%", 17, "#ffffff", anchor="mm")
        row = height * 0.36 + 38 * number
        sheet.box(width * 0.66, row, width * 0.66 + 20, row + 20, fill=SHADES[number], radius=4)
        sheet.text((width * 0.66 + 32, row + 10), name, 18, anchor="lm")
        start = end
    return sheet.finish()


def shop_front(name: str, hours: str) -> Image.Image:
    """A shop in a street by day, its name over the window."""
    scene = Canvas(1280, 853)
    scene.fade(0, 620, (142, 197, 236), (226, 240, 248))
    scene.circle((1080, 130), 54, "#fff3bf")
    for x, top, shade in ((0, 190, "#c9a487"), (940, 140, "#a9b7a6")):
        scene.box(x, top, x + 340, 690, fill=shade)
        for column in range(3):
            for row in range(3):
                corner = (x + 40 + 95 * column, top + 50 + 130 * row)
                scene.box(*corner, corner[0] + 60, corner[1] + 84, fill="#6d8496", outline="#f2efe8", width=4)
    scene.box(300, 110, 960, 700, fill="#e7d3b1")
    scene.box(300, 110, 960, 150, fill="#8d5b3a")
    scene.box(340, 250, 920, 350, fill="#24513f", radius=8)
    scene.text((630, 300), name, 56, "#f6e7bd", anchor="mm")
    for stripe in range(10):
        x = 340 + 58 * stripe
        shade = "#b5485d" if stripe % 2 else "#fbf6ec"
        scene.shape([(x, 362), (x + 58, 362), (x + 58, 420), (x, 420)], shade)
        scene.circle((x + 29, 420), 29, shade)
    scene.box(370, 440, 660, 690, fill="#b9d8e4", outline="#5b4030", width=8)
    scene.line([(400, 660), (560, 460)], "#d8ebf2", 10)
    scene.box(710, 440, 880, 700, fill="#5b4030")
    scene.box(732, 466, 858, 600, fill="#b9d8e4")
    scene.box(738, 614, 852, 662, fill="#fdfcf8", radius=4)
    scene.text((795, 638), hours, 22, anchor="mm")
    scene.circle((866, 640), 6, "#e9c46a")
    scene.box(0, 690, 1280, 760, fill="#b8b4ad")
    scene.box(0, 760, 1280, 853, fill="#5c6167")
    for x in range(40, 1280, 220):
        scene.box(x, 802, x + 110, 814, fill="#e9e6dd")
    return scene.finish()


def road_sign(lines: Sequence[tuple[str, str]]) -> Image.Image:
    """A blue road sign with places and distances, in front of hills."""
    scene = Canvas(960, 720)
    scene.fade(0, 500, (250, 214, 165), (252, 240, 220))
    scene.shape([(0, 470), (220, 330), (460, 480), (700, 340), (960, 470), (960, 720), (0, 720)], "#7f9c7a")
    scene.shape([(0, 560), (300, 500), (640, 560), (960, 510), (960, 720), (0, 720)], "#5f8360")
    scene.shape([(430, 720), (520, 545), (560, 545), (760, 720)], "#6a6e73")
    scene.shape([(585, 720), (538, 560), (543, 560), (612, 720)], "#f3efe2")
    for x in (240, 560):
        scene.box(x, 330, x + 16, 640, fill="#8b9299")
    scene.box(130, 90, 690, 400, fill="#1d4f8f", outline="#ffffff", width=7, radius=18)
    for number, (place, distance) in enumerate(lines):
        y = 150 + 78 * number
        scene.text((170, y), place, 42, "#ffffff", anchor="lm")
        scene.text((650, y), distance, 42, "#ffffff", anchor="rm")
    return scene.finish()


def night_window(neon: str) -> Image.Image:
    """A dark street with one lit sign and a moon."""
    scene = Canvas(800, 1000, "#141a33")
    scene.fade(0, 880, (12, 16, 38), (38, 44, 84))
    for number in range(60):
        x, y = number * number * 37 % 797, number * number * number * 11 % 431
        scene.circle((x, y), 1 + number % 2, "#cfd6f2")
    scene.circle((620, 170), 62, "#f4efd9")
    scene.circle((596, 154), 56, "#11152e")
    for x, top, width in ((0, 430, 210), (190, 330, 180), (560, 380, 260)):
        scene.box(x, top, x + width, 1000, fill="#0b0f22")
        for row in range(6):
            for column in range(width // 60):
                lit = (x + row * 3 + column * 5) % 4 == 0
                corner = (x + 22 + column * 58, top + 34 + row * 74)
                scene.box(*corner, corner[0] + 28, corner[1] + 40, fill="#f1c453" if lit else "#1a2142")
    scene.box(300, 520, 640, 660, fill="#1c0f2b", outline="#ff4fa3", width=6, radius=20)
    scene.text((470, 590), neon, 54, "#ff8cc6", anchor="mm")
    scene.box(0, 880, 800, 1000, fill="#0e1020")
    scene.box(300, 886, 640, 892, fill="#7a2c5c")
    return scene.finish()


def table_page(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Image.Image:
    """A printed page with a table and a line of text under it."""
    width = 1240
    page = Canvas(width, 720, "#ffffff")
    page.text((80, 70), title, 34)
    left, right, top, step = 80, width - 80, 150, 62
    column = (right - left) / len(heads)
    page.box(left, top, right, top + step, fill="#e6edf3")
    for number, row in enumerate([heads, *rows]):
        y = top + step * number
        for place, cell in enumerate(row):
            at = left + column * place + 18 if place == 0 else left + column * (place + 1) - 18
            page.text((at, y + step / 2), cell, 22, anchor="lm" if place == 0 else "rm")
        page.line([(left, y + step), (right, y + step)], "#c6d0da", 1)
    page.box(left, top, right, top + step * (len(rows) + 1), outline=INK, width=2)
    page.text((left, top + step * (len(rows) + 1) + 40), "Figures are invented.", 18, FAINT)
    return page.finish()


def town_map(places: Sequence[tuple[str, float, float]]) -> Image.Image:
    """A map with a river, roads, a park and named places."""
    sheet = Canvas(1024, 768, "#f0ebdd")
    sheet.shape([(640, 60), (930, 90), (900, 330), (690, 300)], "#bfd8a6")
    sheet.text((790, 200), "Mill Park", 22, "#4d6b3a", anchor="mm")
    river = [(0, 520), (180, 470), (360, 520), (540, 470), (720, 540), (900, 500), (1024, 560)]
    sheet.line(river, "#9cc6df", 46)
    sheet.text((250, 520), "River Aln", 20, "#33658a", anchor="mm")
    for road in ([(120, 0), (170, 768)], [(0, 250), (1024, 360)], [(520, 0), (560, 768)], [(0, 680), (1024, 640)]):
        sheet.line(road, "#ffffff", 22)
        sheet.line(road, "#f3c969", 12)
    for name, x, y in places:
        sheet.circle((x, y), 12, "#b5485d", "#ffffff", 4)
        sheet.box(x + 20, y - 17, x + 34 + 11 * len(name), y + 17, fill="#ffffff", outline="#c9c2b2", radius=6)
        sheet.text((x + 28, y), name, 20, anchor="lm")
    sheet.shape([(950, 690), (966, 740), (950, 728), (934, 740)], INK)
    sheet.text((950, 672), "N", 22, anchor="mm")
    sheet.line([(60, 726), (60, 738), (220, 738), (220, 726)], INK, 2)
    sheet.text((140, 720), "500 m", 17, anchor="mb")
    return sheet.finish()


def clock(hour: int, minute: int) -> Image.Image:
    """A round station clock."""
    face = Canvas(480, 480, "#3d5a73")
    centre = (240.0, 240.0)
    face.circle(centre, 204, "#fdfcf8", INK, 12)
    for number in range(60):
        inner = 168 if number % 5 == 0 else 180
        face.line(
            [on_circle(centre, inner, 6 * number), on_circle(centre, 190, 6 * number)], INK, 2 + 3 * (inner < 170)
        )
    for number in range(1, 13):
        face.text(on_circle(centre, 142, 30 * number), str(number), 32, anchor="mm")
    face.line([centre, on_circle(centre, 100, 30 * hour + minute / 2)], INK, 12)
    face.line([centre, on_circle(centre, 158, 6 * minute)], INK, 7)
    face.circle(centre, 12, "#b5485d")
    return face.finish()


def form(title: str, fields: Sequence[tuple[str, str]], boxes: Sequence[tuple[str, bool]]) -> Image.Image:
    """A filled-in form with fields and tick boxes."""
    sheet = Canvas(900, 1200, "#ffffff")
    sheet.box(0, 0, 900, 120, fill="#24513f")
    sheet.text((60, 60), title, 36, "#ffffff", anchor="lm")
    y = 170.0
    for name, value in fields:
        sheet.text((60, y), name, 18, FAINT)
        sheet.box(60, y + 28, 840, y + 86, fill="#f7f9fb", outline="#c6d0da", radius=6)
        sheet.text((80, y + 57), value, 26, "#1d3f8f", anchor="lm")
        y += 122
    for name, ticked in boxes:
        sheet.box(60, y + 8, 92, y + 40, fill="#ffffff", outline=INK, width=2, radius=4)
        if ticked:
            sheet.line([(66, y + 24), (75, y + 34), (88, y + 12)], "#1d3f8f", 5)
        sheet.text((112, y + 24), name, 22, anchor="lm")
        y += 58
    sheet.line([(60, 1120), (440, 1120)], INK, 2)
    sheet.text((60, 1132), "Signature", 16, FAINT)
    scrawl = [(90, 1105), (120, 1060), (138, 1108), (170, 1070), (190, 1104), (240, 1080), (300, 1098), (360, 1076)]
    sheet.line(scrawl, "#1d3f8f", 4)
    return sheet.finish()

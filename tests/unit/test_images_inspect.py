"""Facts of images, format by format; Pillow is the second opinion wherever it has one."""

from __future__ import annotations

import dataclasses
import io
import re
import struct
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.unit.images_made import (
    DATA,
    chunk,
    exif_block,
    grey_png,
    header_chunk,
    opened,
    png_of,
    samples,
    saved,
    scene,
    with_exif,
)
from vlmbatch.images import MAX_PIXELS, ImageError, decode, inspect
from vlmbatch.images import exif as exif_module

if TYPE_CHECKING:
    from vlmbatch.records import ImageFacts

SAMPLES = sorted(samples())
BY_NAME = [pytest.param(name, id=name) for name in SAMPLES]
FRAMES = {"GIF frames", "WEBP frames", "PNG frames", "TIFF frames"}


def code_of(data: bytes, check: Any = "full") -> str:
    """Return the code with which bytes are refused, or ``ok``."""
    try:
        inspect(data, check=check)
    except ImageError as error:
        return error.code
    return "ok"


def frozen_facts(facts: ImageFacts) -> dict[str, Any]:
    """Return the facts that must not depend on how deep one looked, nor on what is installed."""
    unlike = {"mode": "", "notes": tuple(note for note in facts.notes if note != "pixels_unchecked")}
    return dataclasses.asdict(dataclasses.replace(facts, **unlike))


# --- all formats ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BY_NAME)
def test_inspect_any_format_agrees_with_pillow(name: str) -> None:
    """Size, frames and colour model are what Pillow finds; the digest is that of the bytes."""
    data = samples()[name]
    image = Image.open(io.BytesIO(data))
    facts = inspect(data)
    assert (facts.width, facts.height) == image.size
    assert facts.frames == getattr(image, "n_frames", 1)
    assert facts.media_type == Image.MIME[image.format or ""]
    assert facts.mode == ("P" if facts.media_type == "image/gif" else image.mode)
    assert facts.bytes == len(data)
    assert facts.orientation is None
    assert not facts.has_gps
    assert facts.notes == ()


@pytest.mark.parametrize("name", BY_NAME)
def test_inspect_quick_and_full_give_the_same_frozen_facts(name: str) -> None:
    """What goes into the manifest does not depend on --check."""
    data = samples()[name]
    assert frozen_facts(inspect(data, check="quick")) == frozen_facts(inspect(data))


@pytest.mark.parametrize("check", ["full", "quick"])
@pytest.mark.parametrize("name", [name for name in SAMPLES if not name.startswith("TIFF")])
def test_inspect_cut_anywhere_is_refused(name: str, check: Any) -> None:
    """No file that lost its end passes, at either depth."""
    data = samples()[name]
    step = 1 if check == "quick" or len(data) < 1200 else 41
    for length in [*range(0, len(data), step), len(data) - 1]:
        assert code_of(data[:length], check) != "ok", length


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.startswith("TIFF")])
def test_inspect_tiff_that_lost_pixels_is_refused(name: str) -> None:
    """A TIFF may keep what nobody needs at its end, but without a byte of its first page it does not pass."""
    data = samples()[name]
    for length in range(0, len(data), 29):
        if code_of(data[:length]) == "ok":
            assert opened(data[:length]).tobytes() == opened(data).tobytes()


@pytest.mark.parametrize("name", [name for name in SAMPLES if not name.startswith(("TIFF", "BMP", "JPEG2000", "AVIF"))])
def test_inspect_with_bytes_behind_the_end_is_accepted_with_a_note(name: str) -> None:
    """Stray bytes are counted and hashed with the file, and said."""
    data = samples()[name] + b"PK\x03\x04 and more"
    for check in ("quick", "full"):
        facts = inspect(data, check=check)  # type: ignore[arg-type]
        assert facts.bytes == len(data)
        assert "trailing_bytes" in facts.notes


def test_inspect_many_threads_at_once_agree_with_one() -> None:
    """Nothing global is touched: a pool finds what a single thread finds."""
    files = [*samples().values(), *(path.read_bytes() for path in sorted(DATA.iterdir()) if path.suffix != ".json")]

    def outcome(data: bytes) -> object:
        try:
            return inspect(data)
        except ImageError as error:
            return error.code, error.message

    alone = [outcome(data) for data in files]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(outcome, files * 4)) == alone * 4


def test_importing_images_loads_no_pillow() -> None:
    """The first sign of life does not wait for it; a quick check never needs it."""
    program = (
        "import sys, vlmbatch.images as i;"
        "i.inspect(open(sys.argv[1], 'rb').read(), check='quick');"
        "i.prepare(b'', None, i.ImagePolicy(), frozenset(), animated_ok=False);"
        "sys.exit(any(name.split('.')[0] in {'PIL', 'pillow_heif'} for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program, str(DATA / "base.jpg")], check=False).returncode == 0


# --- what is no image -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"", "empty_file", "0 bytes"),
        (b"\xff\xd8", "truncated", "signature"),
        (b"\x89PNG", "truncated", "signature"),
        (b"hello\n", "not_an_image", "text"),
        ("Größe und 漢字".encode(), "not_an_image", "text"),
        (b'\xef\xbb\xbf{"a": 1}', "not_an_image", "JSON"),
        (b"\n<!DOCTYPE html><html>", "not_an_image", "HTML"),
        (b"<html><body>404</body></html>", "not_an_image", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "not_an_image", "Git LFS pointer"),
        (b"\xff\xfeh\x00i\x00", "not_an_image", "UTF-16"),
        (b"PK\x03\x04rest", "not_an_image", "ZIP"),
        (b"%PDF-1.7", "not_an_image", "PDF"),
        (b"\x1f\x8b\x08", "not_an_image", "gzip"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt ", "not_an_image", "RIFF"),
        (b"\x00\x00\x00\x20ftypisom\x00\x00\x02\x00isomiso2avc1mp41", "not_an_image", "video"),
        (b"\x00\x05\x16\x07\x00\x02\x00\x00", "not_an_image", "AppleDouble"),
        (bytes(5000), "not_an_image", "zero bytes"),
        (b"\x93\x01\x02\x03\x04\x05\x06\x07\x08", "not_an_image", "93 01 02 03"),
        (b"8BPS\x00\x01", "unsupported_type", "Photoshop"),
        (b"\x00\x00\x01\x00\x01\x00", "unsupported_type", "icon"),
        (b"\xff\x0a\xfa\x1f", "unsupported_type", "JPEG XL"),
        (b"\x00\x00\x00\x18ftypcrx \x00\x00\x00\x01crx isom", "unsupported_type", "CR3"),
        (b'<?xml version="1.0"?>\n<!-- x -->\n<svg xmlns="a">', "unsupported_type", "SVG"),
        (b"<svg>" + b" " * 9000, "unsupported_type", "SVG"),
    ],
)
def test_inspect_other_bytes_says_what_they_look_like(data: bytes, code: str, words: str) -> None:
    """The reason tells people what lies there instead of a picture."""
    for check in ("quick", "full"):
        with pytest.raises(ImageError) as caught:
            inspect(data, check=check)  # type: ignore[arg-type]
        assert caught.value.code == code
        assert words in caught.value.message


# --- bombs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", ["full", "quick"])
def test_inspect_bomb_of_any_format_is_refused_by_its_header(check: Any) -> None:
    """Sides whose product is too large are never unfolded."""
    png = png_of(header_chunk(50_000, 50_000, 1), chunk(b"IDAT", zlib.compress(bytes(1000))))
    jpeg = bytearray(samples()["JPEG L {}"])
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 65_000, 65_000)
    gif = samples()["GIF L {}"]
    gif = gif[:6] + struct.pack("<HH", 65_535, 65_535) + gif[10:]
    for data in (png, bytes(jpeg), gif):
        assert code_of(data, check) == "bomb"
    assert MAX_PIXELS < 65_000 * 65_000


@pytest.mark.parametrize("check", ["full", "quick"])
def test_inspect_png_text_bomb_is_refused(check: Any) -> None:
    """A kilobyte that unfolds to megabytes is refused wherever a PNG can hold it, a small one is read."""
    for size, code in ((2 << 20, "bomb"), (1 << 19, "ok")):
        packed = zlib.compress(bytes(size))
        assert code_of(grey_png(chunk(b"zTXt", b"k\x00\x00" + packed)), check) == code
        assert code_of(grey_png(chunk(b"iTXt", b"k\x00\x01\x00\x00\x00" + packed)), check) == code
        assert code_of(grey_png(chunk(b"iCCP", b"k\x00\x00" + packed)), check) == code
    many = [chunk(b"zTXt", b"k\x00\x00" + zlib.compress(bytes(1 << 20)))] * 65
    assert code_of(grey_png(*many), check) == "bomb"


# --- JPEG -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"restart_marker_blocks": 3}, {"subsampling": 0}, {"subsampling": 1}])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_jpeg_cut_in_its_pixels_but_properly_ended_is_refused_by_full(mode: str, options: dict[str, Any]) -> None:
    """The decoder paints the missing part grey without a word; we notice."""
    options = options if mode == "RGB" or "subsampling" not in options else {}
    data = saved(scene(120, 90, mode), "JPEG", **options)
    start = data.rindex(b"\xff\xda") + 14
    for length in range(start + 20, start + (len(data) - start) * 9 // 10, 97):
        cut = data[: length - 1 if data[length - 1] == 0xFF else length]
        assert code_of(cut + b"\xff\xd9") == "truncated", length


@given(
    width=st.integers(1, 60),
    height=st.integers(1, 60),
    mode=st.sampled_from(["L", "RGB", "CMYK"]),
    restarts=st.integers(0, 4),
    progressive=st.booleans(),
)
def test_jpeg_that_is_grey_by_nature_is_accepted(
    width: int, height: int, mode: str, restarts: int, progressive: bool
) -> None:
    """A picture that ends in the very grey of missing pixels is not taken for a damaged one."""
    image = Image.new("L", (width, height), 128).convert(mode)
    if mode == "CMYK":
        image = Image.new("CMYK", (width, height), (127, 127, 127, 127))
    data = saved(image, "JPEG", restart_marker_blocks=restarts, progressive=progressive, quality=100)
    assert code_of(data) == "ok"


def test_jpeg_with_a_foreign_marker_amid_its_pixels_is_damaged() -> None:
    """A marker that cannot be there means that bytes were lost or overwritten."""
    data = samples()["JPEG RGB {}"]
    middle = data.rindex(b"\xff\xda") + 200
    assert code_of(data[:middle] + b"\xff\xd8" + data[middle:]) == "damaged"
    assert code_of(data[:middle] + b"\xff\xc0\x00\x11" + data[middle:]) == "damaged"


def test_jpeg_kinds_that_programs_do_not_read_are_unsupported() -> None:
    """Twelve bits, two channels, lossless: named, not called damaged."""
    data = samples()["JPEG RGB {}"]
    frame = data.index(b"\xff\xc0")
    for position, value in ((frame + 1, 0xC3), (frame + 4, 12), (frame + 9, 2)):
        changed = bytearray(data)
        changed[position] = value
        assert code_of(bytes(changed), "quick") == "unsupported_type"


@pytest.mark.parametrize("order", [">", "<"])
@pytest.mark.parametrize("value", [0, 1, 6, 8, 9, 65535])
def test_exif_orientation_is_reported_as_stored(order: str, value: int) -> None:
    """Either byte order, and values that no table has as they are."""
    block = exif_block([(0x0112, 3, 1, struct.pack(f"{order}HH", value, 0))], order=order)
    facts = inspect(with_exif(samples()["JPEG RGB {}"], block), check="quick")
    assert facts.orientation == value
    assert "broken_exif" not in facts.notes


def test_exif_with_a_latitude_has_a_position_an_empty_gps_directory_has_none() -> None:
    """The mere presence of a GPS directory tells nobody where."""
    base = samples()["JPEG RGB {}"]
    for tag, has_gps in ((2, True), (4, True), (0, False)):
        gps = struct.pack(">HHHI4sI", 1, tag, 5, 3, bytes(4), 0)
        block = exif_block([(0x8825, 4, 1, struct.pack(">I", 26))], gps=gps)
        assert inspect(with_exif(base, block), check="quick").has_gps is has_gps


@given(st.binary(max_size=300))
def test_exif_of_any_bytes_never_raises(block: bytes) -> None:
    """Broken metadata are a remark, whatever they hold."""
    for start in (b"", b"MM\x00*\x00\x00\x00\x08", b"II*\x00\x08\x00\x00\x00", b"Exif\x00\x00"):
        told = exif_module.read(start + block)
        assert told.orientation is None or 0 <= told.orientation < 1 << 32


def test_exif_broken_beside_good_pixels_is_a_note_at_both_depths() -> None:
    """Neither depth warns, raises or loses the picture."""
    for block in (
        b"",
        b"MM",
        b"XX\x00*\x00\x00\x00\x08",
        b"MM\x00*\xff\xff\xff\xff",
        b"MM\x00*\x00\x00\x00\x08\xff\xff",
    ):
        for check in ("quick", "full"):
            facts = inspect(with_exif(samples()["JPEG RGB {}"], block), check=check)  # type: ignore[arg-type]
            assert facts.notes == ("broken_exif",)


def test_position_in_xmp_is_noticed() -> None:
    """Some programs write it nowhere else."""
    packet = b'<x:xmpmeta><rdf:Description exif:GPSLatitude="48,51.5N"/></x:xmpmeta>'
    payload = b"http://ns.adobe.com/xap/1.0/\x00" + packet
    jpeg = samples()["JPEG RGB {}"]
    jpeg = jpeg[:2] + struct.pack(">BBH", 0xFF, 0xE1, len(payload) + 2) + payload + jpeg[2:]
    png = grey_png(chunk(b"iTXt", b"XML:com.adobe.xmp\x00\x00\x00\x00\x00" + packet))
    webp = saved(scene(), "WEBP", xmp=packet)
    for data in (jpeg, png, webp):
        assert inspect(data, check="quick").has_gps


def test_mpo_is_a_jpeg_of_one_frame_with_a_note() -> None:
    """What phones write behind the first picture does not count."""
    data = saved(scene(), "MPO", save_all=True, append_images=[scene(20, 10)])
    facts = inspect(data)
    assert (facts.media_type, facts.frames, facts.width, facts.height) == ("image/jpeg", 1, 50, 41)
    assert facts.notes == ("second_picture",)


# --- PNG --------------------------------------------------------------------------------------------------

DEPTHS = [
    *((0, depth) for depth in (1, 2, 4, 8, 16)),
    *((3, depth) for depth in (1, 2, 4, 8)),
    *((colour, depth) for colour in (2, 4, 6) for depth in (8, 16)),
]
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def rows_of(width: int, height: int, bits: int, *, interlaced: bool, filter_byte: int = 0) -> list[bytes]:
    """Return all rows of a PNG, pass by pass, as the specification's own loop writes them."""
    starts = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    rows = []
    for left, top, across, down in starts if interlaced else [(0, 0, 1, 1)]:
        columns = len(range(left, width, across))
        if columns:
            rows += [bytes([filter_byte]) + bytes((columns * bits + 7) // 8) for _ in range(top, height, down)]
    return rows


@pytest.mark.parametrize(("colour", "depth"), DEPTHS)
@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (3, 2), (5, 5), (13, 9), (1, 20)])
def test_png_lacking_its_last_row_is_refused_by_full(
    colour: int, depth: int, interlaced: bool, size: tuple[int, int]
) -> None:
    """Every colour type, depth and interlacing: all rows pass, one fewer does not (Pillow leaves it black)."""
    rows = rows_of(*size, depth * CHANNELS[colour], interlaced=interlaced)
    head = [header_chunk(*size, depth, colour, int(interlaced))]
    head += [chunk(b"PLTE", bytes(3 * 2**depth))] if colour == 3 else []
    whole = png_of(*head, chunk(b"IDAT", zlib.compress(b"".join(rows))))
    short = png_of(*head, chunk(b"IDAT", zlib.compress(b"".join(rows[:-1]))))
    assert code_of(whole) == "ok"
    assert inspect(whole).mode == opened(whole).mode
    assert code_of(short) == "truncated"
    assert code_of(short, "quick") == "ok"


@pytest.mark.parametrize("interlaced", [False, True])
def test_png_with_an_unknown_row_filter_is_damaged(interlaced: bool) -> None:
    """Filters 0 to 4 exist; a fifth in any row is found, even over several pieces of data."""
    rows = rows_of(600, 700, 24, interlaced=interlaced, filter_byte=4)
    head = header_chunk(600, 700, 8, 2, int(interlaced))
    assert code_of(png_of(head, chunk(b"IDAT", zlib.compress(b"".join(rows))))) == "ok"
    for number in (0, len(rows) // 2, len(rows) - 1):
        changed = [*rows[:number], b"\x05" + rows[number][1:], *rows[number + 1 :]]
        assert code_of(png_of(head, chunk(b"IDAT", zlib.compress(b"".join(changed))))) == "damaged"


def test_png_pixels_in_many_small_chunks_are_one_stream() -> None:
    """Cuts between chunks fall anywhere."""
    packed = zlib.compress(b"".join(rows_of(40, 40, 8, interlaced=False)))
    pieces = [chunk(b"IDAT", packed[start : start + 3]) for start in range(0, len(packed), 3)]
    assert code_of(png_of(header_chunk(40, 40), *pieces)) == "ok"
    assert code_of(png_of(header_chunk(40, 40), *pieces[:-4])) == "truncated"


@pytest.mark.parametrize("check", ["full", "quick"])
def test_png_with_a_flipped_bit_anywhere_is_refused(check: Any) -> None:
    """Checksums cover all but the signature and the lengths, and those have to fit."""
    data = grey_png(chunk(b"tEXt", b"k\x00v"))
    for position in range(8, len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x10
        assert code_of(bytes(changed), check) != "ok", position


def test_png_exif_is_read_from_its_chunk_or_from_older_text() -> None:
    """ImageMagick used to hide EXIF in compressed text; the chunk of its own goes first."""
    block = exif_block([(0x0112, 3, 1, struct.pack(">HH", 6, 0))])
    other = exif_block([(0x0112, 3, 1, struct.pack(">HH", 3, 0))])
    hexed = (b"Exif\x00\x00" + other).hex().encode()
    raw = b"\nexif\n%8d\n" % (len(other) + 6) + b"\n".join(hexed[i : i + 72] for i in range(0, len(hexed), 72)) + b"\n"
    text = chunk(b"zTXt", b"Raw profile type exif\x00\x00" + zlib.compress(raw))
    assert inspect(grey_png(chunk(b"eXIf", block)), check="quick").orientation == 6
    assert inspect(grey_png(text), check="quick").orientation == 3
    assert Image.open(io.BytesIO(grey_png(text))).getexif()[0x0112] == 3
    assert inspect(grey_png(chunk(b"eXIf", block), text), check="quick").orientation == 6


def test_png_animation_counts_its_frames_as_pillow_does() -> None:
    """With and without a separate still picture before the animation."""
    frames = [scene(20, 20).rotate(angle) for angle in (0, 90, 180)]
    for default in (False, True):
        data = saved(frames[0], "PNG", save_all=True, append_images=frames[1:], default_image=default)
        assert inspect(data).frames == opened(data).n_frames == 3  # type: ignore[attr-defined]


# --- WebP, GIF, BMP ---------------------------------------------------------------------------------------


def test_webp_missing_pixels_in_a_container_that_fits_is_refused_by_full() -> None:
    """The container was repaired, the pixels were not."""
    for lossless in (False, True):
        data = saved(scene(), "WEBP", lossless=lossless)
        cut = data[12 : len(data) // 2 * 2 // 3]
        cut = cut[:4] + struct.pack("<I", len(cut) - 8) + cut[8:] + b"\x00" * (len(cut) % 2)
        assert code_of(b"RIFF" + struct.pack("<I", 4 + len(cut)) + b"WEBP" + cut) in {"truncated", "undecodable"}


def test_gif_frame_larger_than_its_screen_grows_the_screen() -> None:
    """So decoders and browsers show it, and so it is counted."""
    data = samples()["GIF L {}"]
    small = data[:6] + struct.pack("<HH", 4, 3) + data[10:]
    facts = inspect(small)
    assert (facts.width, facts.height) == opened(small).size == (50, 41)


def test_bmp_of_negative_height_is_read_from_the_top() -> None:
    """A sign is no size."""
    data = bytearray(samples()["BMP RGB {}"])
    data[22:26] = struct.pack("<i", -41)
    assert inspect(bytes(data)).height == 41


# --- TIFF -------------------------------------------------------------------------------------------------


def test_tiff_camera_raw_is_unsupported_because_only_a_thumbnail_shows() -> None:
    """A DNG's first page is a small preview: sending that in silence would be wrong."""
    raw = saved(scene(), "TIFF", tiffinfo={50706: b"\x01\x04\x00\x00"})
    assert code_of(raw, "quick") == "unsupported_type"


@pytest.mark.parametrize("name", ["TIFF L {}", "TIFF RGB {'compression': 'tiff_lzw'}"])
def test_tiff_header_that_promises_more_rows_than_there_are_is_refused(name: str) -> None:
    """Decoders leave missing strips black without a word."""
    data = bytearray(samples()[name])
    (start,) = struct.unpack_from("<I", data, 4)
    for entry in range(start + 2, start + 2 + 12 * data[start], 12):
        if struct.unpack_from("<H", data, entry)[0] == 257:
            struct.pack_into("<HII", data, entry + 2, 4, 1, 900)
    assert code_of(bytes(data)) == "truncated"


def test_tiff_with_odd_tags_is_accepted_without_a_warning() -> None:
    """Pillow warns of each through the whole process; it is not given any."""
    data = saved(scene(), "TIFF", tiffinfo={270: "a description", 305: "a program", 33432: "someone"})
    (start,) = struct.unpack_from("<I", data, 4)
    changed = bytearray(data)
    for entry in range(start + 2, start + 2 + 12 * data[start], 12):
        if struct.unpack_from("<H", data, entry)[0] in {270, 305, 33432}:
            struct.pack_into("<I", changed, entry + 8, 1 << 30)
    assert code_of(bytes(changed)) == "ok"


# --- HEIF -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
def test_avif_turned_by_its_container_has_the_size_it_is_shown_with(orientation: int) -> None:
    """The turn is part of decoding, no EXIF orientation that a server might or might not apply."""
    tag = Image.Exif()
    tag[0x0112] = orientation
    facts = inspect(saved(scene(60, 40), "AVIF", exif=tag.tobytes()))
    assert (facts.width, facts.height) == ((40, 60) if orientation >= 5 else (60, 40))
    assert facts.orientation is None


def test_avif_sequence_counts_its_frames() -> None:
    """An animation is noticed without a decoder."""
    frames = [scene(32, 32).rotate(angle) for angle in (0, 90, 180)]
    data = saved(frames[0], "AVIF", save_all=True, append_images=frames[1:])
    assert inspect(data, check="quick").frames == opened(data).n_frames == 3  # type: ignore[attr-defined]


def test_heic_without_a_decoder_is_read_from_its_boxes_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base install reads size and structure, and says that nobody looked at the pixels."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    facts = inspect((DATA / "phone.heic").read_bytes())
    assert (facts.media_type, facts.width, facts.height) == ("image/heic", 96, 64)
    assert "pixels_unchecked" in facts.notes


def test_heic_decoder_makes_no_difference_to_frozen_facts() -> None:
    """With or without the extra, the manifest is the same."""
    pytest.importorskip("pillow_heif")
    data = (DATA / "phone.heic").read_bytes()
    full = inspect(data)
    assert "pixels_unchecked" not in full.notes
    assert frozen_facts(full) == frozen_facts(inspect(data, check="quick"))


@pytest.mark.parametrize(
    ("brands", "media_type"),
    [
        ((b"heic", b"mif1", b"heic"), "image/heic"),
        ((b"mif1", b"mif1", b"heic"), "image/heic"),
        ((b"mif1", b"mif1", b"miaf"), "image/heif"),
        ((b"avif", b"mif1", b"miaf"), "image/avif"),
        ((b"mif1", b"avif", b"miaf"), "image/avif"),
    ],
)
def test_heif_media_type_follows_brands(brands: tuple[bytes, ...], media_type: str) -> None:
    """The first brand decides; a general one leaves it to those it is compatible with."""
    data = (DATA / "phone.heic").read_bytes()
    size = struct.unpack_from(">I", data)[0]
    names = brands[0] + bytes(4) + b"".join(brands[1:])
    names += b"miaf" * ((size - 8 - len(names)) // 4)
    facts = inspect(data[:8] + names + data[size:], check="quick")
    assert facts.media_type == media_type


# --- hostile bytes ----------------------------------------------------------------------------------------


def _box(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(body), kind) + body


def _heif(*inner: bytes) -> bytes:
    """Return a HEIF container of 10 x 10 pixels with more boxes in its description."""
    size = _box(b"ispe", bytes(4) + struct.pack(">II", 10, 10))
    owned = _box(b"ipma", bytes(4) + struct.pack(">IHBB", 1, 1, 1, 1))
    described = _box(b"pitm", bytes(5) + b"\x01") + _box(b"iprp", _box(b"ipco", size) + owned)
    meta = _box(b"meta", bytes(4) + described + b"".join(inner))
    return _box(b"ftyp", b"heic\x00\x00\x00\x00mif1heic") + meta + _box(b"mdat", bytes(200_000))


def _tiff(pages: int, *, shared: int) -> bytes:
    """Return a TIFF of many pages that all name the same list of strips."""
    place = 8 + pages * 66
    body = b""
    for number in range(pages):
        following = 8 + (number + 1) * 66 if number + 1 < pages else 0
        fields = ((256, 1, 10), (257, 1, 10), (273, shared, place), (278, 1, 10), (279, shared, place))
        body += struct.pack("<H", 5) + b"".join(struct.pack("<HHII", tag, 4, n, value) for tag, n, value in fields)
        body += struct.pack("<I", following)
    return b"II*\x00\x08\x00\x00\x00" + body + bytes(4 * shared)


def test_inspect_hostile_structures_end_soon() -> None:
    """Lists inside lists that are nowhere, or all in one place, would go on for minutes; here they are refused."""
    nowhere = struct.pack(">HH", 0, 60_000) + b"".join(struct.pack(">HHH", n, 0, 65_535) for n in range(60_000))
    assert code_of(_heif(_box(b"iloc", bytes(4) + nowhere)), "quick") == "damaged"
    assert code_of(_tiff(2000, shared=150_000), "quick") == "damaged"


def test_inspect_heif_items_all_over_each_other_are_not_read_again_and_again() -> None:
    """Ten thousand pieces of metadata that each are the whole file: the picture is read, they are let be."""
    number = 10_000
    kinds = b"".join(
        _box(b"infe", b"\x02\x00\x00\x00" + struct.pack(">HH4s", n, 0, b"mime") + b"\x00") for n in range(number)
    )
    places = b"".join(struct.pack(">HHHII", n, 0, 1, 0, 200_000) for n in range(number))
    listed = _box(b"iinf", bytes(4) + struct.pack(">H", number) + kinds)
    located = _box(b"iloc", bytes(4) + struct.pack(">HH", 0x4400, number) + places)
    assert inspect(_heif(listed, located), check="quick").width == 10


def test_inspect_webp_animation_on_a_huge_canvas_is_a_bomb() -> None:
    """Two hundred bytes must not become gigabytes of canvases."""
    data = bytearray(samples()["WEBP frames"])
    for width, height, code in ((16_000, 10_000, "bomb"), (32, 5_000_000, "damaged")):
        data[24:30] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
        assert code_of(bytes(data), "quick") == code


def test_inspect_jp2_whose_box_and_codestream_disagree_is_damaged() -> None:
    """Pillow would make room for what the box says before it looks any further."""
    data = samples()["JPEG2000 RGB {}"]
    place = data.index(b"ihdr") + 4
    assert code_of(data[:place] + struct.pack(">I", 1 << 30) + data[place + 4 :], "quick") == "damaged"


def test_orientation_in_xmp_alone_is_a_note_and_no_orientation() -> None:
    """Pillow turns by it, browsers do not, and it is often left over: said, not acted on."""
    for packet, notes in (
        (b'<rdf:Description tiff:Orientation="6"/>', ("xmp_orientation",)),
        (b"<tiff:Orientation>3</tiff:Orientation>", ("xmp_orientation",)),
        (b'<rdf:Description tiff:Orientation="1"/>', ()),
    ):
        facts = inspect(saved(scene(), "WEBP", xmp=packet), check="quick")
        assert facts.orientation is None
        assert facts.notes == notes
    tag = Image.Exif()
    tag[0x0112] = 1
    assert inspect(saved(scene(), "WEBP", exif=tag, xmp=b'<x tiff:Orientation="6"/>'), check="quick").notes == ()


def test_inspect_jpeg_whose_data_cannot_hold_its_size_is_refused_without_padding_it() -> None:
    """A size in the header that the data behind it could never fill is told by counting."""
    data = bytearray(samples()["JPEG L {}"])
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 12_000, 12_000)
    with pytest.raises(ImageError, match="cannot hold 12000 x 12000"):
        inspect(bytes(data))


def test_rejection_codes_of_images_are_all_documented() -> None:
    """Programs read the codes: each one that the source raises has its row in the reference."""
    root = Path(__file__).resolve().parents[2]
    sources = [path.read_text(encoding="utf-8") for path in (root / "vlmbatch" / "images").glob("*.py")]
    codes = {code for text in sources for code in re.findall(r"ImageError\(\s*\"(\w+)\"", text)}
    page = (root / "docs" / "reference" / "rejections.md").read_text(encoding="utf-8")
    section = page.partition("## Images")[2].partition("\n## ")[0]
    assert codes == set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE))


def test_large_pictures_are_decoded_one_at_a_time() -> None:
    """However many workers there are, the largest pictures never stand in memory side by side."""
    waiting = threading.Event()

    def second() -> bool:
        waiting.set()
        with decode.room_for(13_000, 13_000):
            return finished

    finished = False
    with ThreadPoolExecutor(1) as pool:
        with decode.room_for(12_000, 12_000):
            later = pool.submit(second)
            assert waiting.wait(10)
            with decode.room_for(4000, 4000):  # small ones do not wait
                finished = True
        assert later.result(10)

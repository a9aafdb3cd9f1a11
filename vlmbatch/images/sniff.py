"""What the bytes are, by their first bytes alone; the file's name has no say."""

from __future__ import annotations

import re
from typing import Final

from vlmbatch.images.base import ImageError, truncated

JPEG: Final = "image/jpeg"
PNG: Final = "image/png"
GIF: Final = "image/gif"
WEBP: Final = "image/webp"
HEIC: Final = "image/heic"
HEIF: Final = "image/heif"
AVIF: Final = "image/avif"
TIFF: Final = "image/tiff"
BMP: Final = "image/bmp"
JP2: Final = "image/jp2"
J2C: Final = "image/j2c"
SVG: Final = "image/svg+xml"

_MAGIC: Final = (
    (b"\xff\xd8\xff", JPEG),
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"GIF89a", GIF),
    (b"GIF87a", GIF),
    (b"II*\x00", TIFF),
    (b"MM\x00*", TIFF),
    (b"II+\x00", TIFF),
    (b"MM\x00+", TIFF),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", JP2),
    (b"\xff\x4f\xff\x51", J2C),
)

_DIB_SIZES: Final = frozenset({12, 16, 40, 52, 56, 64, 108, 124})

# Brands of ISO base media files (MP4RA registry; ISO/IEC 23008-12, AV1 Image File Format).
_AVIF_BRANDS: Final = frozenset({b"avif", b"avis"})
_HEIC_BRANDS: Final = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})
_HEIF_BRANDS: Final = frozenset({b"mif1", b"mif2", b"mif3", b"msf1", b"miaf"})

# Pictures that no provider takes and that are not converted here.
_FOREIGN: Final = (
    (b"8BPS", "image/vnd.adobe.photoshop", "a Photoshop file (PSD)"),
    (b"\xff\x0a", "image/jxl", "JPEG XL"),
    (b"\x00\x00\x00\x0cJXL \r\n\x87\n", "image/jxl", "JPEG XL"),
    (b"\x76\x2f\x31\x01", "image/x-exr", "OpenEXR"),
    (b"DDS ", "image/vnd.ms-dds", "a DDS texture"),
    (b"qoif", "image/x-qoi", "QOI"),
    (b"gimp xcf", "image/x-xcf", "a GIMP file (XCF)"),
    (b"II\xbc", "image/jxr", "JPEG XR"),
    (b"FUJIFILMCCD-RAW", "image/x-fuji-raf", "a camera raw file (RAF)"),
    (b"IIRO", "image/x-olympus-orf", "a camera raw file (ORF)"),
    (b"IIU\x00", "image/x-panasonic-rw2", "a camera raw file (RW2)"),
    (b"\x00\x00\x01\x00", "image/vnd.microsoft.icon", "an icon (ICO)"),
)

_OTHER: Final = (
    (b"PK\x03\x04", "a ZIP archive"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"%PDF", "a PDF document"),
    (b"%!PS", "PostScript"),
    (b"\x1f\x8b", "gzip-compressed data"),
    (b"BZh", "bzip2-compressed data"),
    (b"\xfd7zXZ\x00", "xz-compressed data"),
    (b"(\xb5/\xfd", "zstd-compressed data"),
    (b"7z\xbc\xaf'\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\x1aE\xdf\xa3", "a Matroska or WebM video"),
    (b"RIFF", "a RIFF file (sound or video)"),
    (b"ID3", "an MP3 sound file"),
    (b"OggS", "an Ogg file"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"PAR1", "a Parquet table"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an OLE file (old Office documents, Thumbs.db)"),
    (b"\x00\x05\x16\x07", "an AppleDouble file (macOS metadata of another file)"),
    (b"\x00\x00\x00\x01Bud1", "a .DS_Store file"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
)

_SVG_START: Final = re.compile(rb"<svg[\s>]|<\?xml|<!--|<!DOCTYPE\s+svg", re.IGNORECASE)
_HTML_START: Final = re.compile(rb"<(!doctype\s+html|html|head|body|title|script|meta)\b", re.IGNORECASE)
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def media_type(data: bytes) -> str:
    """Return the media type of an image.

    Raises:
        ImageError: ``empty_file``, ``truncated`` (less than a whole signature), ``unsupported_type`` (an image of a
            kind that is not read here) or ``not_an_image``, with what the bytes look like.
    """
    for magic, found in _MAGIC:
        if data.startswith(magic):
            return found
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return WEBP
    if data[4:8] == b"ftyp":
        return _by_brand(data)
    if data[:2] == b"BM" and int.from_bytes(data[14:18], "little") in _DIB_SIZES:
        return BMP
    raise _refusal(data)


def _by_brand(data: bytes) -> str:
    size = int.from_bytes(data[:4], "big")
    box = data[8 : min(size, 4096)]
    # The first brand says what the file is; where it is a general one, those it is compatible with tell more.
    brands = [box[0:4], *(box[i : i + 4] for i in range(8, len(box) - 3, 4))]
    for candidates in (brands[:1], brands):
        for known, found in ((_AVIF_BRANDS, AVIF), (_HEIC_BRANDS, HEIC)):
            if known.intersection(candidates):
                return found
    if _HEIF_BRANDS.intersection(brands):
        return HEIF
    if brands[0] == b"crx ":
        raise _unsupported("image/x-canon-cr3", "a camera raw file (CR3)")
    raise _not_an_image("an MP4, QuickTime or similar video")


def _refusal(data: bytes) -> ImageError:
    if not data:
        return ImageError("empty_file", "the file is empty (0 bytes)")
    if len(data) >= 2 and any(magic.startswith(data) for magic, _ in _MAGIC):
        return truncated(f"only the first {len(data)} bytes of a signature")
    for magic, found, what in _FOREIGN:
        if data.startswith(magic):
            return _unsupported(found, what)
    for magic, what in _OTHER:
        if data.startswith(magic):
            return _not_an_image(what)
    head = data[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()
    if _SVG_START.match(head) and re.search(rb"<svg[\s>]", head, re.IGNORECASE):
        return _unsupported(SVG, "SVG, which is text and has no pixels")
    return _not_an_image(_describe(data, head))


def _describe(data: bytes, head: bytes) -> str:
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer; the picture itself was not fetched (git lfs pull)"
    if _HTML_START.match(head):
        return "an HTML page"
    if data[:2] in {b"\xff\xfe", b"\xfe\xff"} and len(data) % 2 == 0:
        return "text in UTF-16"
    if not _CONTROL.search(head) and _is_utf8(head):
        return "JSON or similar text" if head[:1] in {b"{", b"["} else "text"
    if not data.strip(b"\x00"):
        return f"nothing but zero bytes ({len(data)} of them)"
    return f"unknown bytes, the first are {data[:8].hex(' ')}"


def _is_utf8(head: bytes) -> bool:
    try:
        head.decode()
    except UnicodeDecodeError as error:
        # The head may end inside a character; anything earlier is no UTF-8.
        return error.start >= len(head) - 3 and len(head) > 3
    return True


def _not_an_image(what: str) -> ImageError:
    return ImageError("not_an_image", f"not an image but {what}")


def _unsupported(found: str, what: str) -> ImageError:
    return ImageError("unsupported_type", f"{what}; such are neither sent nor converted", media_type=found)

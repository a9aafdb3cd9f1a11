"""What every source of inputs gives: items in a fixed order, and what could not become one.

An item is one request before it is frozen: its images (not yet read), the order of text and images, and the
row's own bytes. Sources stream: nothing is kept but what a report at the end needs.
"""

from __future__ import annotations

import difflib
import errno
import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vlmbatch.errors import Problem

DEFAULT_IMAGE_FIELD = "image_path"
COLUMNS_HINT = "name columns that exist: --image-field, --question-field, --id-fields"
_SHOWN_VALUE = 60
_SHOWN_NAMES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """How inputs become items: what the flags of build say about tables, prompts and paths.

    Attributes:
        prompt: Text for every request; in a table it stands before the row's question, a blank line between.
        prompt_template: A Jinja2 template over the row's fields, instead of ``prompt``.
        image_fields: Fields of a row that name images; each holds one image or a list of them.
        question_field: The field that holds the row's question.
        id_fields: Fields that together tell rows apart; two rows of one id stop the build.
        image_base_path: Where relative image paths of a table start; None = the table's own folder.
        image_order: ``first`` or ``last``: where the images stand if no template places them.
        allow_outside: Whether a path may be absolute, a ``file://`` URL, or lead out of the image root.
        allow_no_image: Whether a row may lack images.
        follow_links: Whether a folder scan follows symbolic links.
        encoding: Name of a table's character encoding; None = by its byte order mark, else UTF-8.
        delimiter: What separates the cells of a CSV; None = the rule of :func:`vlmbatch.inputs.tables.sniff`.
    """

    prompt: str | None = None
    prompt_template: str | None = None
    image_fields: tuple[str, ...] = (DEFAULT_IMAGE_FIELD,)
    question_field: str | None = None
    id_fields: tuple[str, ...] = ()
    image_base_path: str | None = None
    image_order: str = "first"
    allow_outside: bool = False
    allow_no_image: bool = False
    follow_links: bool = False
    encoding: str | None = None
    delimiter: str | None = None


@dataclass(frozen=True, slots=True)
class ImageSource:
    r"""One image of an item, named but not yet read.

    Attributes:
        path: Relative to the image root, ``/``-separated, never normalised; bytes that are not UTF-8 as ``\xNN``.
        path_bytes: The name's own bytes where they are not UTF-8, else None.
        location: Where the file stands (bytes, so that any name can be opened); empty where ``data`` is given.
        data: The bytes themselves, where the table holds them.
    """

    path: str
    path_bytes: bytes | None = None
    location: bytes = b""
    data: bytes | None = None

    def read(self, *, max_bytes: int | None = None) -> bytes:
        """Return the image's bytes, read once: hash, size and what is sent all come from this read.

        Args:
            max_bytes: A larger file is not read at all: a disk image in the folder would take all memory.

        Raises:
            OSError: The file cannot be read, or is too large.
        """
        if self.data is not None:
            return self.data
        fd = os.open(self.location, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(fd, "rb", buffering=0) as file:
            size = os.fstat(fd).st_size
            if max_bytes is not None and size > max_bytes:
                raise OSError(errno.EFBIG, f"{size:,} bytes; larger than any picture that is taken")
            return file.readall()


@dataclass(frozen=True, slots=True)
class Item:
    """One request before it is frozen.

    Attributes:
        index: 0-based place in the input (several outputs of a row count on); it stands in the custom_id, so that
            the ids of good rows do not depend on bad ones.
        parts: The user's message in order: text, or the number of an image in ``images``.
        images: The images, in the order in which the row names them.
        row: The input row's own JSON object, byte for byte, on one line; ``{}`` for files and folders.
        where: How messages name it: the path, or the table's name.
        source_line: 1-based line (row for binary tables) in the table, None for files and folders.
        output: Name of the pipeline output, else empty.
    """

    index: int
    parts: tuple[str | int, ...]
    images: tuple[ImageSource, ...]
    row: bytes = b"{}"
    where: str = ""
    source_line: int | None = None
    output: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """An input that cannot become a request.

    Attributes:
        index: As in :class:`Item`.
        code: Stable name of the reason; an open list, documented in docs/reference/rejections.md.
        message: What is wrong, without the place.
        where: As in :class:`Item`.
        source_line: Likewise.
        path: The image at fault, empty where there is none.
        aside: What helps to mend it; rows with the same fault may differ in it.
    """

    index: int
    code: str
    message: str
    where: str = ""
    source_line: int | None = None
    path: str = ""
    aside: str = ""

    @property
    def sentence(self) -> str:
        """The message with what helps to mend it."""
        return f"{self.message}; {self.aside}" if self.aside else self.message


class RowError(Exception):
    """Why one input cannot become a request; the source turns it into a :class:`Rejected` and goes on.

    Args:
        code: As in :class:`Rejected`.
        message: What is wrong, without the place; long values are shortened.
        path: As in :class:`Rejected`.
        aside: Likewise.
    """

    def __init__(self, code: str, message: str, *, path: str = "", aside: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path
        self.aside = aside


@dataclass(slots=True)
class SourceReport:
    """What a source knows once it has been read to its end.

    Attributes:
        left_out: Files that a folder scan left out, by reason (``hidden``, ``litter``, ``suffix``, ``link`` ...).
        warnings: Sentences for people.
        problems: Bad input that is no input of its own (a folder that cannot be read): build refuses it like a
            rejected input, or names it under --skip-bad.
        sha256: Digest of the input as a whole: of one table, the file's bytes; of several, that of their
            ``sha256sum`` lines; None for folders (build makes it from the images).
        encoded: Images that came as pixels and became files here: their bytes depend on the library that wrote them.
    """

    left_out: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    sha256: str | None = None
    encoded: int = 0


class Source(Protocol):
    """Somewhere that inputs come from. Iterate once; then ``report`` is complete."""

    kind: str
    """``folder``, ``files``, ``jsonl``, ``json``, ``csv``, ``tsv``, ``parquet``, ``arrow``, ``stdin``, ``rows``, or
    ``tables`` for several of different kinds."""
    path: str
    """Base name only: nothing absolute goes into a frozen file."""
    report: SourceReport
    total: int | None
    """Number of inputs, once iteration has begun; None where only reading to the end would tell (a stream)."""

    def __iter__(self) -> Iterator[Item | Rejected]:
        """Yield items and rejected inputs in input order.

        Raises:
            InputError: The input as a whole cannot be used; raised at the latest behind the last item.
        """
        ...


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A file that build copies into inputs/ as it is."""

    name: str
    data: bytes


def describe(value: Any) -> str:
    """Return a value shortened for a message: no message prints a whole base64 string."""
    text = repr(value)
    return text if len(text) <= _SHOWN_VALUE else f"{text[: _SHOWN_VALUE - 1]}… ({len(text)} characters)"


@lru_cache(maxsize=64)  # a million rows may lack the same field
def those_there(name: str, there: tuple[str, ...]) -> str:
    """Return what helps to mend a name that is not there: the near one, and all that there are."""
    near = difflib.get_close_matches(name, there, n=1)
    listed = ", ".join(map(repr, there)) or "none"
    listed = listed if len(listed) <= _SHOWN_NAMES else f"{listed[:_SHOWN_NAMES]}…"
    return f"{f'did you mean {near[0]!r}? ' if near else ''}there are: {listed}"

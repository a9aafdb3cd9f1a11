"""Tables of text as bytes on the disk: hashed while they are read, and turned into UTF-8 where they are not.

Only a line feed ends a line, so that lines are counted as editors count them and characters such as U+2028, which
JSON allows inside a string, split nothing.
"""

from __future__ import annotations

import codecs
import hashlib
import io
from typing import IO, TYPE_CHECKING

from vlmbatch.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_CHUNK = 1 << 20
_PIECE = 1 << 16
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_UTF8 = "utf-8"


class _Hashed(io.RawIOBase):
    """A stream that hashes what is read through it."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._raw.read(len(buffer))
        buffer[: len(data)] = data
        self.digest.update(data)
        return len(data)

    def close(self) -> None:
        self._raw.close()
        super().close()


class TextFile:
    """A table of text, opened once and read once.

    Args:
        stream: Its bytes.
        name: How messages name it.
        encoding: The name of its encoding; None = by its mark, else UTF-8. UTF-16 and UTF-32 are known by their mark
            alone.

    Raises:
        InputError: There is no such encoding.
    """

    def __init__(self, stream: IO[bytes], name: str, encoding: str | None = None) -> None:
        self.name = name
        self._hashed = _Hashed(stream)
        self._bytes = io.BufferedReader(self._hashed, _CHUNK)
        self._encoding = self._choose(encoding)

    def _choose(self, encoding: str | None) -> str:
        if encoding is None:
            start = self._bytes.peek(4)[:4]
            return next((name for mark, name in _MARKS if start.startswith(mark)), _UTF8)
        try:
            name = codecs.lookup(encoding).name
            "".encode(name)
        except (LookupError, ValueError, TypeError):
            raise InputError(
                f"--encoding {encoding}: no encoding of text is called so", hint="for example latin-1, cp1252 or utf-16"
            ) from None
        return _UTF8 if name == "utf-8-sig" else name

    def sha256(self) -> str:
        """Return the digest of the file's bytes, once it has been read to its end."""
        return self._hashed.digest.hexdigest()

    def close(self) -> None:
        """Close the file."""
        self._bytes.close()

    def lines(self) -> Iterator[bytes]:
        """Yield the lines in UTF-8, line ends included, the byte order mark not.

        A file that is in UTF-8 by itself is not checked: a broken line is that line's own matter.

        Raises:
            InputError: The file is not in its encoding.
        """
        if self._encoding != _UTF8:
            for line in self._decoded():
                yield line.encode("utf-8", "surrogatepass")
            return
        for number, raw in enumerate(self._bytes):
            yield raw.removeprefix(codecs.BOM_UTF8) if number == 0 else raw

    def pieces(self) -> Iterator[bytes]:
        """Yield the file in UTF-8, the byte order mark not, in pieces that may end anywhere between characters' bytes.

        Raises:
            InputError: The file is not in its encoding.
        """
        if self._encoding != _UTF8:
            yield from self.lines()
            return
        is_first = True
        while piece := self._bytes.read(_PIECE):
            yield piece.removeprefix(codecs.BOM_UTF8) if is_first else piece
            is_first = False

    def text_lines(self) -> Iterator[str]:
        """Yield the lines as text, line ends included, the byte order mark not.

        Raises:
            InputError: The file is not in its encoding; the line and the byte are named.
        """
        if self._encoding != _UTF8:
            yield from self._decoded()
            return
        for number, raw in enumerate(self.lines(), start=1):
            try:
                yield raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{self.name}: line {number} is not UTF-8 (byte {error.start + 1} of the line is "
                    f"0x{raw[error.start]:02x})",
                    hint="name the file's encoding, for example --encoding latin-1 or --encoding cp1252",
                ) from None

    def _decoded(self) -> Iterator[str]:
        text = io.TextIOWrapper(self._bytes, self._encoding, newline="\n")
        number = 1
        try:
            for number, line in enumerate(text, start=1):
                yield line.removeprefix("\ufeff") if number == 1 else line
        except UnicodeError as error:
            raise InputError(
                f"{self.name}: near line {number}: not {self._encoding} ({error})",
                hint="name the file's own encoding with --encoding",
            ) from None

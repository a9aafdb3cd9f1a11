r"""Names of images: as bytes on the disk, as text in the files that we write, and where they may lead.

A name is a string of bytes. In our files it stands as text: UTF-8 as it is, any other byte as ``\xNN`` with the
true bytes beside it. What a table names is looked up below the image root and may not leave it, neither by its
own words nor through a link.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes, urlsplit

from vlmbatch.inputs.base import ImageSource, RowError, describe

if TYPE_CHECKING:
    from vlmbatch.inputs.base import SourceReport

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BARE_BASE64 = re.compile(r"(?=/9j/|iVBORw0KGgo|R0lGOD|UklGR|SUkqA|TU0AK|Qk[0-3]|AAAA)[A-Za-z0-9+/\s]{64,}={0,2}\s*")
"""The first bytes of the usual image formats (JPEG, PNG, GIF, WebP, TIFF, BMP, HEIC) as base64, and nothing but it."""
_SHOWN = 120


def readable(name: bytes) -> tuple[str, bytes | None]:
    r"""Return a name as text, and its own bytes where the text is not simply their UTF-8."""
    try:
        return name.decode("utf-8"), None
    except UnicodeDecodeError:
        return name.decode("utf-8", "backslashreplace"), name


def image_file(name: bytes, location: bytes) -> ImageSource:
    """Return the image that stands at ``location`` and is called ``name``, relative to the image root."""
    path, path_bytes = readable(name)
    return ImageSource(path, path_bytes, location)


def is_below(path: bytes, folder: bytes) -> bool:
    """Tell whether an absolute path is a folder or stands inside it."""
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")


class ImageRoot:
    """The folder below which a table's images stand.

    Args:
        base: Where relative paths start.
        report: Where warnings go.
        record: The folder to which recorded paths are relative; None = ``base``.
        allow_outside: Whether a path may lead anywhere, and may be a ``file://`` URL.
        allow_absolute: Whether a path may be absolute (and then lead anywhere).
    """

    def __init__(
        self,
        base: bytes,
        report: SourceReport,
        *,
        record: bytes | None = None,
        allow_outside: bool = False,
        allow_absolute: bool = False,
    ) -> None:
        self._base = os.path.abspath(base)
        self._real = os.path.realpath(base)
        record = os.path.abspath(record) if record is not None else self._base
        self._record_real = os.path.realpath(record)
        self._prefix = os.path.relpath(self._base, record)
        self._report = report
        self._allow_outside = allow_outside
        self._allow_absolute = allow_absolute or allow_outside
        self._listing: tuple[bytes, dict[str, list[bytes]]] = (b"", {})
        self._has_warned = False

    def find(self, text: str) -> ImageSource:
        """Return the image that a table's path names; nothing is opened.

        Raises:
            RowError: It may not be used, or there is no such file.
        """
        raw = self._allowed(text)
        shown = text if len(text) <= _SHOWN else ""
        try:
            location, raw = self._locate(raw, shown)
        except OSError as error:
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                message = f"{describe(text)}: no such file below the image root"
                raise RowError("image_not_found", message, path=shown) from None
            raise RowError("unreadable", f"{describe(text)}: {error.strerror or error}", path=shown) from None
        return image_file(self._name(raw, location), location)

    def _allowed(self, text: str) -> bytes:
        """Return the path's bytes, if its own words are allowed."""
        scheme = _SCHEME.match(text)
        if scheme:
            return self._from_url(text, scheme[1].lower())
        if not text.strip() or "\0" in text:
            raise RowError("bad_path", f"{describe(text)} is no path")
        if _BARE_BASE64.fullmatch(text):
            raise RowError(
                "bare_base64", f"bare base64 ({len(text):,} characters) instead of a path; write it as a data: URI"
            )
        raw = text.encode("utf-8", "surrogatepass")
        if os.path.isabs(raw) and not self._allow_absolute:
            raise RowError(
                "outside_root", f"{describe(text)}: absolute paths are not taken (--allow-outside takes them)"
            )
        if os.path.normpath(raw).split(b"/", 1)[0] == b".." and not self._allow_outside:
            raise RowError("outside_root", f"{describe(text)}: leads out of the image root (--allow-outside lets it)")
        return raw

    def _from_url(self, text: str, scheme: str) -> bytes:
        if scheme != "file":
            raise RowError(
                "url",
                f"{describe(text)}: URLs are not taken: the provider would fetch it (unseen quota, no proof of what "
                "was seen); download it and name the file",
            )
        if not self._allow_outside:
            raise RowError("outside_root", f"{describe(text)}: file:// URLs are not taken (--allow-outside takes them)")
        try:
            parts = urlsplit(text)
        except ValueError:
            raise RowError("bad_path", f"{describe(text)} is no URL") from None
        path = unquote_to_bytes(parts.path)
        if parts.netloc not in {"", "localhost"} or not path or b"\0" in path:
            raise RowError("bad_path", f"{describe(text)} names no file of this machine")
        return path

    def _locate(self, raw: bytes, shown: str) -> tuple[bytes, bytes]:
        """Return where the file really stands, and the path under which it was found.

        Raises:
            OSError: There is no such file.
            RowError: It stands outside the root, or is no file.
        """
        try:
            return self._check(raw, shown), raw
        except (FileNotFoundError, NotADirectoryError):
            other = None if raw.isascii() else self._other_form(raw)
            if other is None:
                raise
        location = self._check(other, shown)
        self._warn_respelled(raw)
        return location, other

    def _check(self, raw: bytes, shown: str) -> bytes:
        location = os.path.realpath(os.path.join(self._base, raw))
        is_free = self._allow_outside or (self._allow_absolute and os.path.isabs(raw))
        if not is_free and not is_below(location, self._real):
            raise RowError(
                "outside_root",
                f"{describe(shown)}: leads out of the image root through a link (--allow-outside lets it)",
                path=shown,
            )
        mode = os.stat(location).st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a special file"
            raise RowError("not_a_file", f"{describe(shown)}: {kind}, not an image file", path=shown)
        return location

    def _name(self, raw: bytes, location: bytes) -> bytes:
        """Return the path to record: relative to the root where the file is in it, else below ``outside/``."""
        clean = os.path.normpath(raw)
        if not os.path.isabs(clean) and b".." not in raw.split(b"/"):
            return os.path.normpath(os.path.join(self._prefix, clean))
        if is_below(location, self._record_real):
            return os.path.relpath(location, self._record_real)
        steps = [b"up" if step == b".." else step for step in clean.split(b"/") if step]
        return b"/".join([b"outside", *steps])

    # --- one name in two Unicode forms ----------------------------------------------------------------------

    def _other_form(self, raw: bytes) -> bytes | None:
        """Return a path that exists and differs from ``raw`` in its Unicode normal form alone, or None."""
        folder = self._base
        found: list[bytes] = []
        for step in raw.split(b"/"):
            if not os.path.lexists(os.path.join(folder, step)):
                same = self._same_name(folder, step)
                if same is None:
                    return None
                step = same  # noqa: PLW2901  (the step as the disk spells it)
            found.append(step)
            folder = os.path.join(folder, step) if step else folder
        return b"/".join(found)

    def _same_name(self, folder: bytes, step: bytes) -> bytes | None:
        try:
            form = unicodedata.normalize("NFC", step.decode("utf-8"))
        except UnicodeDecodeError:
            return None
        if self._listing[0] != folder:
            names: dict[str, list[bytes]] = {}
            try:
                for name in os.listdir(folder):
                    if not name.isascii():
                        names.setdefault(unicodedata.normalize("NFC", readable(name)[0]), []).append(name)
            except OSError:
                names = {}
            self._listing = (folder, names)
        same = self._listing[1].get(form, [])
        return same[0] if len(same) == 1 else None

    def _warn_respelled(self, raw: bytes) -> None:
        """Warn once, however many paths it is about."""
        if not self._has_warned:
            self._report.warnings.append(
                f"{describe(readable(raw)[0])}: found under a name that differs in its Unicode form alone; the file's "
                "own name is recorded (said once, there may be more)"
            )
        self._has_warned = True

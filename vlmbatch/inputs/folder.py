"""Folders and single files as inputs: every file that is not known to be something else.

The order is that of the relative paths as bytes, so it is the same on every machine. A folder's entries are sorted
with a slash behind the names of folders; walking them in that order gives the paths in theirs, one folder at a time.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlmbatch.errors import InputError, Problem
from vlmbatch.inputs.base import Item, Rejected, RowError, SourceReport
from vlmbatch.inputs.names import image_file, is_below, readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vlmbatch.inputs.base import SourceOptions
    from vlmbatch.inputs.texts import Text

_LITTER = frozenset(
    {
        b".ds_store",
        b"thumbs.db",
        b"ehthumbs.db",
        b"desktop.ini",
        b"icon\r",
        b"__macosx",
        b"@eadir",
        b"#recycle",
        b"$recycle.bin",
        b"system volume information",
        b"lost+found",
    }
)
"""What systems leave in folders, in lower case."""

NOT_IMAGES = frozenset(
    (
        b"txt md rst rtf log pdf doc docx odt xls xlsx ods ppt pptx odp epub html htm css js json jsonl ndjson geojson "
        b"xml yaml yml toml ini cfg conf csv tsv parquet arrow feather npy npz mat h5 hdf5 pkl pickle pt pth ckpt onnx "
        b"safetensors tfrecord lmdb mdb db sqlite sqlite3 zip tar gz tgz bz2 xz zst 7z rar py pyc ipynb sh bat ps1 c "
        b"cc cpp h java rs go mp3 wav flac ogg m4a aac mp4 m4v mov avi mkv webm mpg mpeg wmv srt vtt exe dll so dylib "
        b"iso bak tmp part crdownload lock xmp aae thm md5 sha1 sha256 url lnk torrent"
    ).split()
)
"""Suffixes of files that are known to hold something else, in lower case. Any other name may hold an image."""

_LEFT_OUT_WORDS = {
    "litter": "litter of systems",
    "named_twice": "named twice",
    "not_in_metadata": "not in the metadata",
    "run_folder": "run folder(s)",
    "special": "special (pipe, socket or device)",
    "suffix": "by suffix (no image)",
}
"""Reasons for which a file is left out that do not explain themselves, in words."""

_LOOKED_FOR = "every file was looked for that is not hidden and has no suffix of another kind"

_RUN_FILES = (b"run.json", b"SHA256SUMS")
"""What a run folder holds: whoever builds from all of a project's folder does not mean the runs in it."""

_NAMED = 5

_Trail = tuple[tuple[int, int], ...]
"""Device and inode of the folders that led somewhere: a link into one of them leads round."""


def left_out_by_name(name: bytes, *, is_folder: bool) -> str | None:
    """Return why a name found in a folder is left out, or None: ``litter``, ``hidden`` or ``suffix``."""
    lower = name.lower()
    if lower in _LITTER:
        return "litter"
    if name.startswith(b"."):
        return "hidden"
    _, dot, suffix = lower.rpartition(b".")
    if not is_folder and dot and suffix in NOT_IMAGES:
        return "suffix"
    return None


def say_left_out(counts: Mapping[str, int]) -> str:
    """Return what a scan left out as people read it: ``1 hidden, 2 by suffix (no image)``."""
    return ", ".join(f"{count:,} {_LEFT_OUT_WORDS.get(reason, reason)}" for reason, count in sorted(counts.items()))


@dataclass(slots=True)
class Scan:
    """One walk over folders: yields relative paths in order, counts and names what it leaves out.

    Attributes:
        root: The image root, absolute.
        report: Where counts, warnings and problems go.
        follow_links: Whether links are followed that stay in the root.
        allow_outside: Whether links out of the root are followed too.
    """

    root: bytes
    report: SourceReport
    follow_links: bool = False
    allow_outside: bool = False
    _links: list[bytes] = field(default_factory=list)
    _special: list[bytes] = field(default_factory=list)

    def walk(self, folder: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield (path relative to the root, whether there is something at its end) of each input below a folder."""
        top = os.path.relpath(folder, self.root)
        open_folders = [self._open(b"" if top == b"." else top + b"/", ())]
        while open_folders:
            prefix, trail, entries = open_folders[-1]
            entry, is_there = next(entries, (None, True))
            if entry is None:
                open_folders.pop()
            elif entry.endswith(b"/"):
                open_folders.append(self._open(prefix + entry, trail))
            else:
                yield prefix + entry, is_there

    def _open(self, prefix: bytes, trail: _Trail) -> tuple[bytes, _Trail, Iterator[tuple[bytes, bool]]]:
        """Return a folder (relative, with a slash), the folders that led to it, itself included, and its entries."""
        folder = os.path.join(self.root, prefix)
        if all(os.path.lexists(os.path.join(folder, name)) for name in _RUN_FILES):
            self._count("run_folder")
            return prefix, trail, iter(())
        try:
            here = os.stat(folder)
            trail = (*trail, (here.st_dev, here.st_ino))
            return prefix, trail, iter(self._entries(folder, trail))
        except OSError as error:
            self._count("unreadable_folder")
            what = f"folder cannot be read: {error.strerror or error}"
            self.report.problems.append(Problem("unreadable_folder", what, readable(prefix)[0] or "."))
            return prefix, trail, iter(())

    def _entries(self, folder: bytes, trail: _Trail) -> list[tuple[bytes, bool]]:
        """Return the entries to take, sorted: names of folders end in a slash; False marks a link to nothing."""
        entries = []
        with os.scandir(folder) as found:
            for entry in found:
                mode, is_there = self._look(entry, trail)
                reason = left_out_by_name(entry.name, is_folder=stat.S_ISDIR(mode))
                if reason is None and not is_there:
                    entries.append((entry.name, False))
                elif reason is None and stat.S_ISDIR(mode):
                    entries.append((entry.name + b"/", True))
                elif reason is None and stat.S_ISREG(mode):
                    entries.append((entry.name, True))
                else:
                    self._leave_out(reason, mode, entry.path)
        entries.sort()
        return entries

    def _look(self, entry: os.DirEntry[bytes], trail: _Trail) -> tuple[int, bool]:
        """Return an entry's file type (that of a link where it is not followed) and whether something is there."""
        if not entry.is_symlink():
            # scandir knows these two without another look at the disk; what is neither is never opened.
            if entry.is_file(follow_symlinks=False):
                return stat.S_IFREG, True
            if entry.is_dir(follow_symlinks=False):
                return stat.S_IFDIR, True
            return stat.S_IFSOCK, True
        try:
            target = os.stat(entry.path)
        except FileNotFoundError:
            return stat.S_IFLNK, False
        except OSError:
            return stat.S_IFLNK, True
        leads_round = (target.st_dev, target.st_ino) in trail
        may_follow = self.follow_links and not leads_round and self._stays(entry.path)
        return (target.st_mode if may_follow else stat.S_IFLNK), True

    def _stays(self, path: bytes) -> bool:
        return self.allow_outside or is_below(os.path.realpath(path), os.path.realpath(self.root))

    def _leave_out(self, reason: str | None, mode: int, path: bytes) -> None:
        if reason is None:
            is_link = stat.S_ISLNK(mode)
            reason = "link" if is_link else "special"
            (self._links if is_link else self._special).append(path)
            if len(self._links) > _NAMED:
                self._links.pop()
            if len(self._special) > _NAMED:
                self._special.pop()
        self._count(reason)

    def _count(self, reason: str) -> None:
        self.report.left_out[reason] = self.report.left_out.get(reason, 0) + 1

    def finish(self) -> None:
        """Name in warnings what was left out though it looked like an input."""
        for reason, paths, what in (
            (
                "link",
                self._links,
                "symbolic link(s) not followed (--follow-links follows what stays in the root and leads not round)",
            ),
            ("special", self._special, "special file(s) (pipe, socket or device) not opened"),
        ):
            if paths:
                names = [readable(os.path.relpath(path, self.root))[0] for path in paths]
                count = self.report.left_out[reason]
                more = f" and {count - len(names):,} more" if count > len(names) else ""
                self.report.warnings.append(f"{count:,} {what}: {', '.join(names)}{more}")


class FolderSource:
    """Folders and single files, in the order of their paths below the common root.

    Files that are named one by one are taken whatever they are called; a path given twice, or inside a folder that
    is given too, is taken once and counted (``named_twice``).

    Args:
        paths: As given; each exists.
        options: What to follow.
        texts: What is asked of each image, one request each.
        image_name: The name under which templates know the image.
    """

    def __init__(
        self, paths: Sequence[bytes], options: SourceOptions, texts: Sequence[Text], image_name: str = "image"
    ) -> None:
        self.report = SourceReport()
        self.total: int | None = None
        self._options = options
        self._texts = texts
        self._groups = {image_name: (0,)}
        self._paths = self._distinct([os.path.abspath(path) for path in paths])
        folders = [path for path in self._paths if os.path.isdir(path)]
        self.kind = "folder" if folders else "files"
        tops = [path if os.path.isdir(path) else os.path.dirname(path) for path in self._paths]
        self._root = os.path.commonpath(tops)
        self.path = readable(os.path.basename(self._paths[0] if len(self._paths) == 1 else self._root))[0]

    def _distinct(self, paths: list[bytes]) -> list[bytes]:
        """Return the paths in the order of their bytes (a folder's with a slash), none twice or inside another."""
        kept: list[bytes] = []
        for path in sorted({p + b"/" if os.path.isdir(p) else p for p in paths}):
            if not (kept and kept[-1].endswith(b"/") and path.startswith(kept[-1])):
                kept.append(path)
        if len(kept) < len(paths):
            self.report.left_out["named_twice"] = len(paths) - len(kept)
        return [path.rstrip(b"/") or b"/" for path in kept]

    def __iter__(self) -> Iterator[Item | Rejected]:
        """Yield one item per file.

        Raises:
            InputError: There is no input at all.
        """
        self.total = sum(1 for _ in self._walk(self._scan(SourceReport())))  # a second look is cheap, a list is not
        scan = self._scan(self.report)
        self.total *= len(self._texts)
        index = 0
        for name, is_there in self._walk(scan):
            for text in self._texts:
                yield self._item(index, name, text, is_there=is_there)
                index += 1
        scan.finish()
        if not index and not self.report.problems:
            raise self._nothing()

    def _nothing(self) -> InputError:
        """Return the error of folders without an image: what was looked for, and what may be meant."""
        left_out = self.report.left_out
        counts = say_left_out(left_out)
        ways = {
            "check the path": not left_out,
            "a table is named itself, not its folder": "suffix" in left_out,
            "--follow-links follows links": "link" in left_out,
            "an image of another name is taken where it is named itself": bool({"suffix", "hidden"} & set(left_out)),
        }
        return InputError(
            f"{self.path}: nothing to build, no image found in this folder or below"
            + (f" (left out: {counts})" if counts else ""),
            hint="; ".join([_LOOKED_FOR, *filter(ways.get, ways)]),
        )

    def _scan(self, report: SourceReport) -> Scan:
        return Scan(self._root, report, self._options.follow_links, self._options.allow_outside)

    def _walk(self, scan: Scan) -> Iterator[tuple[bytes, bool]]:
        for path in self._paths:
            if os.path.isdir(path):
                yield from scan.walk(path)
            else:
                yield os.path.relpath(path, self._root), True

    def _item(self, index: int, name: bytes, text: Text, *, is_there: bool) -> Item | Rejected:
        image = image_file(name, os.path.join(self._root, name))
        if not is_there:
            return _rejected(index, RowError("dangling_link", "a link to nothing"), image.path)
        try:
            parts = text.parts({}, self._groups)
        except RowError as error:
            return _rejected(index, error, image.path)
        if all(isinstance(part, str) for part in parts):
            return _rejected(index, RowError("no_image", "the template places no image"), image.path)
        return Item(index, parts, (image,), where=image.path, output=text.output)


def _rejected(index: int, error: RowError, path: str) -> Rejected:
    return Rejected(index, error.code, error.message, where=path, path=path, aside=error.aside)

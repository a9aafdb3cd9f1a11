"""From paths to one source: folders and files are scanned, tables are read row by row."""

from __future__ import annotations

import os
from array import array
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from vlmbatch.errors import InputError, Problem, cannot_read
from vlmbatch.inputs.arrow import ArrowTable, digest_of
from vlmbatch.inputs.base import COLUMNS_HINT, DEFAULT_IMAGE_FIELD, Item, Rejected, SourceOptions, SourceReport
from vlmbatch.inputs.detect import FILE_NAME, Found, look
from vlmbatch.inputs.folder import FolderSource, Scan
from vlmbatch.inputs.ids import SeenIds
from vlmbatch.inputs.memory import KIND, Memory, MemoryRows, check_rows
from vlmbatch.inputs.names import ImageRoot, readable
from vlmbatch.inputs.rows import FlagRecipe, Recipe, RowMaker, text_of
from vlmbatch.inputs.tables import Delimited, JsonArray, JsonLines, Table, check_columns
from vlmbatch.inputs.textfile import TextFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from vlmbatch.inputs.base import Source
    from vlmbatch.inputs.memory import Encode

_STDIN = "-"
_PLACE_BITS = 48
"""A place is the number of the table and the line in it, in one integer."""
_LINE = (1 << _PLACE_BITS) - 1

_SHOWN_PROBLEMS = 1000

RecipeFor: TypeAlias = "Callable[[Table, Found], Recipe]"
"""Tells what to take from the rows of a table."""


def open_source(paths: Sequence[str], options: SourceOptions, *, stdin: IO[bytes] | None = None) -> Source:
    """Return the source that some paths make: one table, several, or folders and files.

    Args:
        paths: As the user gave them; ``-`` alone is JSON lines on ``stdin``.
        options: How inputs become items.
        stdin: The stream that ``-`` means.

    Raises:
        InputError: A path cannot be read, paths do not go together, or options contradict them; all are listed.
    """
    if _STDIN in paths:
        if len(paths) > 1:
            raise InputError("- (standard input) stands alone", hint="pipe one table into it, or name files")
        if stdin is None:
            raise InputError("- (standard input) is closed", hint="pipe a table into it")
        base = os.fsencode(options.image_base_path or ".")
        return TableSource([Found("stdin", (), _STDIN, base)], options, _flag_recipes(options), stdin=stdin)
    found = look([os.fsencode(path) for path in paths])
    tables = [one for one in found if one.is_table]
    if not tables:
        _check_folder_options(options)
        return FolderSource([one.files[0] for one in found], options, [text_of(options, ())])
    if len(tables) < len(found):
        listed = [Problem("mixed_sources", f"read as {one.kind}", one.name) for one in found]
        raise InputError("tables and images do not go together in one run", hint="build two runs", problems=listed)
    _check_table_options(options, tables)
    return TableSource(tables, options, _flag_recipes(options))


def open_rows(rows: Iterable[Mapping[str, Any]], options: SourceOptions, *, encode: Encode) -> Source:
    """Return the source that rows of a Python program make; relative image paths start where the program works.

    Args:
        rows: Objects with named fields; iterated once.
        options: How rows become items.
        encode: Makes a file of pixels that stand in an image field.

    Raises:
        InputError: They are no rows.
    """
    check_rows(rows)
    found = Found(KIND, (), KIND, os.fsencode(options.image_base_path or "."))
    return TableSource([found], options, _flag_recipes(options), memory=Memory(rows, encode))


def _check_folder_options(options: SourceOptions) -> None:
    """Refuse what speaks of rows where there are none."""
    rules = {
        "--image-field": options.image_fields != (DEFAULT_IMAGE_FIELD,),
        "--question-field": options.question_field is not None,
        "--id-fields": bool(options.id_fields),
        "--image-base-path": options.image_base_path is not None,
        "--encoding": options.encoding is not None,
        "--delimiter": options.delimiter is not None,
    }
    problems = [Problem("usage", f"{flag} speaks of a table's rows") for flag, is_given in rules.items() if is_given]
    if problems:
        raise InputError(
            "folders and images have no rows", hint="drop these options, or give a table", problems=problems
        )


def _check_table_options(options: SourceOptions, tables: Sequence[Found]) -> None:
    base = options.image_base_path
    if base is not None and not os.path.isdir(base):
        raise InputError(f"--image-base-path {base}: no such folder", hint="check the path")
    rules = {
        "--follow-links speaks of folders: links in a table's paths are followed inside the image root": (
            options.follow_links
        ),
        "--delimiter speaks of CSV and TSV": options.delimiter is not None
        and not any(one.kind in {"csv", "tsv"} for one in tables),
    }
    problems = [Problem("usage", message) for message, is_broken in rules.items() if is_broken]
    if problems:
        raise InputError("options that no table here heeds", hint="drop them", problems=problems)


def _flag_recipes(options: SourceOptions) -> RecipeFor:
    """Return what the flags take from the rows of each table."""

    def recipe(table: Table, found: Found) -> Recipe:
        return FlagRecipe(options, _image_fields(options, table, found))

    return recipe


def _image_fields(options: SourceOptions, table: Table, found: Found) -> tuple[str, ...]:
    """Return the image fields: those that were named; else what the table itself says, if it lacks the usual one."""
    if options.image_fields != (DEFAULT_IMAGE_FIELD,) or DEFAULT_IMAGE_FIELD in (table.columns() or ()):
        return options.image_fields
    if found.is_image_folder:
        return (FILE_NAME,)
    declared = table.declared_images() if isinstance(table, ArrowTable) else ()
    return declared if len(declared) == 1 else options.image_fields


class TableSource:
    """One table or several, row by row.

    Image paths start in each table's own folder, or all in ``options.image_base_path``; recorded paths are relative
    to that folder, and to the common parent where tables have several.

    Args:
        tables: What to read, in order.
        options: How rows become items.
        recipe_for: What to take from the rows of a table.
        stdin: The stream of a table of kind ``stdin``.
        memory: The rows of a table of kind ``rows``.
        allow_absolute: For each table, whether its image paths may be absolute.
    """

    def __init__(
        self,
        tables: Sequence[Found],
        options: SourceOptions,
        recipe_for: RecipeFor,
        *,
        stdin: IO[bytes] | None = None,
        memory: Memory | None = None,
        allow_absolute: Sequence[bool] = (),
    ) -> None:
        self.report = SourceReport()
        self.total: int | None = None
        self._tables = tables
        self._options = options
        self._recipe_for = recipe_for
        self._stdin = stdin
        self._memory = memory
        self._allow_absolute = allow_absolute or [False] * len(tables)
        self._bases = [os.path.abspath(os.fsencode(options.image_base_path or one.base)) for one in tables]
        self._record = os.path.commonpath(self._bases)
        self._repeats: dict[tuple[int, int], tuple[Problem, array[int]]] = {}
        self._repeated = 0
        kinds = {one.kind for one in tables}
        self.kind = kinds.pop() if len(kinds) == 1 else "tables"
        self.path = tables[0].name if len(tables) == 1 else readable(os.path.basename(self._record))[0]

    def __iter__(self) -> Iterator[Item | Rejected]:
        """Yield the items of all rows.

        Raises:
            InputError: A table cannot be read as a whole, has no rows, or two rows have one id.
        """
        ids = SeenIds()
        digests: list[tuple[str, bytes]] = []
        position = 0
        for number, found in enumerate(self._tables):
            table = self._open(found)
            try:
                maker = self._maker(table, number, ids)
                count = table.count() if len(self._tables) == 1 else None
                self.total = None if count is None else count * len(maker.recipe.texts)
                images = 0
                for row in table.rows():
                    self._note_repeat(maker, table, row.line, maker.repeats(row))
                    for one in maker.make(row, position):
                        images += len(one.images) if isinstance(one, Item) else 0
                        yield one
                    position += 1
                digests.append((table.sha256(), os.fsencode(found.name)))
            finally:
                table.close()
            self._count_unnamed(found, images)
        self._finish(position, digests)

    def _open(self, found: Found) -> Table:
        if found.kind in {"parquet", "arrow"}:
            return ArrowTable(found.files, found.name, found.kind, self.report)
        if self._memory is not None:
            return MemoryRows(self._memory, self.report)
        stream = self._stdin if found.kind == "stdin" else _open_bytes(found)
        if stream is None:
            raise AssertionError("a table of kind stdin comes with its stream")
        file = TextFile(stream, found.name, self._options.encoding)
        if found.kind in {"csv", "tsv"}:
            return Delimited(file, found.kind, self._options.delimiter)
        return JsonArray(file) if found.kind == "json" else JsonLines(file)

    def _maker(self, table: Table, number: int, ids: SeenIds) -> RowMaker:
        recipe = self._recipe_for(table, self._tables[number])
        problems = check_columns(table, recipe.columns)
        if problems:
            raise InputError(f"{table.name}: columns are missing", hint=COLUMNS_HINT, problems=problems)
        table.image_columns = recipe.image_columns
        root = ImageRoot(
            self._bases[number],
            self.report,
            record=self._record,
            allow_outside=self._options.allow_outside,
            allow_absolute=self._allow_absolute[number],
        )
        options = self._options
        place = number << _PLACE_BITS
        return RowMaker(recipe, root, table.name, options.id_fields, ids, place, options.allow_no_image)

    def _note_repeat(self, maker: RowMaker, table: Table, line: int, earlier: int | None) -> None:
        """Note a row that has the id of an earlier one; those of one id are told together, for each table."""
        if earlier is None:
            return
        self._repeated += 1
        kind = earlier, maker.place
        if kind in self._repeats:
            self._repeats[kind][1].append(line)
        elif len(self._repeats) < _SHOWN_PROBLEMS:
            first, fields = earlier & _LINE, ",".join(maker.id_fields)
            if earlier - first == maker.place:
                what = f"the same {fields} in more than one row"
                self._repeats[kind] = Problem("duplicate_id", what, table.name, first), array("Q", [line])
            else:
                what = f"the same {fields} as line {first} of {self._tables[earlier >> _PLACE_BITS].name}"
                self._repeats[kind] = Problem("duplicate_id", what, table.name, line), array("Q")

    def _count_unnamed(self, found: Found, images: int) -> None:
        """Count the files of an ImageFolder that its metadata does not name."""
        if found.is_image_folder:
            folder = os.path.abspath(found.base)
            files = sum(1 for _ in Scan(folder, SourceReport()).walk(folder))
            if files > images:
                known = self.report.left_out.get("not_in_metadata", 0)
                self.report.left_out["not_in_metadata"] = known + files - images

    def _finish(self, rows: int, digests: list[tuple[str, bytes]]) -> None:
        self.report.sha256 = digests[0][0] if len(digests) == 1 else digest_of(digests)
        if not rows:
            raise InputError(f"{self.path}: no rows", hint="check the path: the table is empty")
        if self._repeated:
            raise InputError(
                f"{self._repeated:,} row(s) repeat an id: answers could not be told apart",
                hint="make the ids unique, or name more fields with --id-fields",
                problems=[replace(first, again=tuple(again)) for first, again in self._repeats.values()],
            )


def _open_bytes(found: Found) -> IO[bytes]:
    try:
        return open(found.files[0], "rb", buffering=0)
    except OSError as error:
        raise cannot_read(found.name, error) from None

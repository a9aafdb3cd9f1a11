"""One row becomes one item per output, or a rejection: its id, its images, its text, in that order."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote_to_bytes

from vlmbatch.inputs.base import DEFAULT_IMAGE_FIELD, ImageSource, Item, Rejected, RowError, describe, those_there
from vlmbatch.inputs.texts import PlainText, field_of, question_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vlmbatch.inputs.base import SourceOptions
    from vlmbatch.inputs.ids import SeenIds
    from vlmbatch.inputs.names import ImageRoot
    from vlmbatch.inputs.tables import Row
    from vlmbatch.inputs.texts import Parts, Text


class Recipe(Protocol):
    """What is taken from each row of a table."""

    @property
    def texts(self) -> Sequence[Text]:
        """One for each output."""
        ...

    @property
    def columns(self) -> Sequence[str]:
        """Columns that a table with a header must have."""
        ...

    @property
    def image_columns(self) -> frozenset[str]:
        """Columns whose bytes are images."""
        ...

    def images(self, row: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return (name, value) of each image field or input, in order.

        Raises:
            RowError: The row lacks one that it must have.
        """
        ...

    def values(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the texts see of the row.

        Raises:
            RowError: The row lacks what every text needs.
        """
        ...


class FlagRecipe:
    """What the flags of build take from a row: image fields, a question, a prompt or a template.

    Args:
        options: The flags.
        image_fields: The image fields of this very table.
    """

    def __init__(self, options: SourceOptions, image_fields: Sequence[str]) -> None:
        self._image_fields = tuple(dict.fromkeys(image_fields))
        self._optional = options.allow_no_image
        self._question = options.question_field if options.prompt_template is not None else None
        self.texts: tuple[Text, ...] = (text_of(options, self._image_fields),)
        question = () if options.question_field is None else (options.question_field,)
        is_unasked = options.allow_no_image and self._image_fields == (DEFAULT_IMAGE_FIELD,)
        self.columns = (*(() if is_unasked else self._image_fields), *question, *options.id_fields)
        self.image_columns = frozenset(self._image_fields)

    def images(self, row: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return the image fields of a row (see :class:`Recipe`)."""
        if self._optional:
            return [(field, row.get(field)) for field in self._image_fields]
        return [(field, field_of(row, field, "no_image")) for field in self._image_fields]

    def values(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the row; ``question`` is the question field, whatever that is called."""
        if self._question is None:
            return row
        question = question_text(field_of(row, self._question, "no_question"), self._question)
        return {**row, "question": question}


def text_of(options: SourceOptions, image_names: Sequence[str]) -> Text:
    """Return the text that the flags ask for.

    Raises:
        InputError: The template is none.
    """
    images_first = options.image_order == "first"
    if options.prompt_template is None:
        return PlainText(options.prompt, options.question_field, images_first=images_first)
    from vlmbatch.inputs.template import TemplateText

    return TemplateText(options.prompt_template, image_names, "prompt template", images_first=images_first)


@dataclass(slots=True)
class RowMaker:
    """Turns the rows of one table into items.

    Attributes:
        recipe: What is taken from a row.
        root: Where its images stand.
        where: The table's name.
        id_fields: Fields that together tell rows apart.
        ids: The ids seen so far, in this table and in others.
        place: Added to a row's line to tell its table too, in ``ids``.
        allow_no_image: Whether a row may lack images.
    """

    recipe: Recipe
    root: ImageRoot
    where: str
    id_fields: Sequence[str]
    ids: SeenIds
    place: int
    allow_no_image: bool

    def make(self, row: Row, position: int) -> Iterator[Item | Rejected]:
        """Yield one item or rejection for each output.

        Args:
            row: The row.
            position: Its 0-based place in the input, bad rows counted.
        """
        index = position * len(self.recipe.texts)
        try:
            if row.fault is not None:
                raise row.fault
            self._check_id(row)
            images, groups = self._images(row)
            values = self.recipe.values(row.fields)
        except RowError as error:
            for at in range(len(self.recipe.texts)):
                yield self._rejected(index + at, row, error)
            return
        for at, text in enumerate(self.recipe.texts):
            try:
                parts, sent = self._sent(text.parts(values, groups), images)
            except RowError as error:
                yield self._rejected(index + at, row, error)
            else:
                yield Item(index + at, parts, sent, row.data, self.where, row.line, text.output)

    def _rejected(self, index: int, row: Row, error: RowError) -> Rejected:
        return Rejected(index, error.code, error.message, self.where, row.line, error.path, error.aside)

    def _check_id(self, row: Row) -> None:
        """Check that the row has an id."""
        for field in self.id_fields:
            value = field_of(row.fields, field, "no_id")
            if _is_nothing(value):
                raise RowError("no_id", f"the id field {field!r} is {'null' if value is None else 'blank'}")
            if not isinstance(value, str | int | float):
                raise RowError("bad_id", f"the id field {field!r} is {describe(value)}: neither text nor a number")

    def repeats(self, row: Row) -> int | None:
        """Note the row's id (7, 7.0 and "7" are three ids); return the place of an earlier row that has it."""
        values = [row.fields.get(field) for field in self.id_fields]
        if not values or not all(isinstance(v, str | int | float) and not _is_nothing(v) for v in values):
            return None
        return self.ids.add(repr(values).encode("utf-8", "surrogatepass"), self.place + row.line)

    def _images(self, row: Row) -> tuple[list[ImageSource], dict[str, list[int]]]:
        """Return the row's images, and their numbers by the name of their field."""
        images: list[ImageSource] = []
        groups: dict[str, list[int]] = {}
        for name, value in self.recipe.images(row.fields):
            group = groups.setdefault(name, [])
            for one in value if isinstance(value, list) else [] if _is_nothing(value) else [value]:
                group.append(len(images))
                images.append(_image_of(one, f"row-{row.line}-image-{len(images)}", self.root))
            if not group and not self.allow_no_image:
                message = f"{name!r} names no image ({describe(value)}); --allow-no-image lets it"
                is_there = name in row.fields or value is not None
                raise RowError("no_image", message, aside="" if is_there else those_there(name, tuple(row.fields)))
        return images, groups

    def _sent(self, parts: Parts, images: Sequence[ImageSource]) -> tuple[Parts, tuple[ImageSource, ...]]:
        """Return the parts with the images that they use, in row order, numbered anew."""
        used = sorted({part for part in parts if isinstance(part, int)})
        if not used and not self.allow_no_image:
            raise RowError("no_image", "the template places no image for this row")
        number = {old: new for new, old in enumerate(used)}
        return tuple(number[p] if isinstance(p, int) else p for p in parts), tuple(images[old] for old in used)


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _image_of(value: Any, label: str, root: ImageRoot) -> ImageSource:
    """Return the image that a value of a row is or names.

    Args:
        value: A path, a ``data:`` URI, bytes, or {bytes, path} of which one may be null or absent.
        label: The name of an image that has no path.
        root: Where paths start.

    Raises:
        RowError: It is no image, or one that may not be used.
    """
    if isinstance(value, str):
        if value[:5].lower() == "data:":
            return ImageSource(label, data=_data_uri(value, label))
        return root.find(value)
    if isinstance(value, bytes):
        return ImageSource(label, data=value)
    if isinstance(value, dict) and value.keys() <= {"bytes", "path"}:
        path, data = value.get("path"), value.get("bytes")
        if isinstance(data, bytes):
            return ImageSource(_own_name(path) or label, data=data)
        if data is None and isinstance(path, str):
            return root.find(path)
    raise RowError("bad_image", f"{describe(value)} is neither a path, a data: URI, nor {{bytes, path}}")


def _own_name(path: Any) -> str:
    """Return the name that a table gives to bytes of its own; where it leads anywhere, its last step alone."""
    if not isinstance(path, str):
        return ""
    return os.path.basename(path) if path.startswith("/") or ".." in path.split("/") else path


def _data_uri(uri: str, label: str) -> bytes:
    """Return the bytes of a ``data:`` URI; white space inside base64 is let be, nothing else is."""
    import binascii

    import pybase64

    head, comma, body = uri.partition(",")
    try:
        if head.lower().endswith(";base64"):
            data = pybase64.b64decode("".join(body.split()).encode("ascii"), validate=True)
        else:
            data = unquote_to_bytes(body)
    except (binascii.Error, ValueError):
        raise RowError("bad_data_uri", "a data: URI whose base64 is broken", path=label) from None
    if not comma or not data:
        raise RowError("bad_data_uri", "a data: URI without data", path=label)
    return data

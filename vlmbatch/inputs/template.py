r"""Jinja2 templates of prompts and of output fields: sandboxed, strict, and the same on every machine.

``{{ image }}`` marks where an image stands. While a template is rendered the place is a mark that no text can hold
by chance or by malice (it has 128 random bits); the marks are cut out again before anything is kept. What a template
writes follows one rule: text as it is, numbers, true and false and structures as JSON. Nothing is never written: null
(and a field that a row lacks) refuses the row, so that no prompt says "None".

This module needs Jinja2 and is loaded only where a template is used.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vlmbatch.errors import InputError
from vlmbatch.inputs.base import RowError
from vlmbatch.inputs.texts import around

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vlmbatch.inputs.texts import Parts

_NONCE = secrets.token_hex(16)
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}{_NONCE}:([0-9]+){_CLOSE}")
_TORN_MARK = f"{_OPEN}{_NONCE[:8]}"

_RENDER_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    MemoryError,
)
"""What an expression of a template can raise: its own errors, and Python's for what it does with a row's values."""

_ALL_IMAGES = ("image", "images")
"""Names that stand for all images of a row, unless an input has the name."""


class Null(jinja2.Undefined):
    """A null of a row: false, empty, caught by ``default``, but never written."""

    def __init__(self, name: str) -> None:
        super().__init__(hint=f"{name!r} is null", name=name)

    def __str__(self) -> str:
        return str(self._fail_with_undefined_error())


class ImagePlace:
    """One or more images as a template sees them: they can be placed, counted, chosen and looped over."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = tuple(numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[ImagePlace]:
        return (ImagePlace((number,)) for number in self._numbers)

    def __getitem__(self, index: int) -> ImagePlace:
        return ImagePlace((self._numbers[index],))

    def __str__(self) -> str:
        raise jinja2.TemplateRuntimeError("an image can be placed with {{ … }} alone, not changed or joined to text")

    def marks(self) -> str:
        """Return what stands for the images while the template is rendered."""
        return "".join(f"{_OPEN}{_NONCE}:{number}{_CLOSE}" for number in self._numbers)


def _refuse(value: Any) -> NoReturn:
    str(value)  # what is missing or null says so itself, with its name
    raise jinja2.TemplateRuntimeError(f"{type(value).__name__} has no written form")


def _json(value: Any, indent: int | None = None, *, default: Any = _refuse) -> str:
    separators = (",", ": ") if indent else (",", ":")
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators, default=default)


def _null_or_refuse(value: Any) -> None:
    return None if isinstance(value, Null) else _refuse(value)


def _tojson(value: Any, indent: int | None = None) -> str:
    """Write a value as JSON, nulls included, and without the escapes that web pages need."""
    return _json(value, indent, default=_null_or_refuse)


def _written(value: Any) -> str:
    """Return what ``{{ value }}`` writes."""
    if isinstance(value, ImagePlace):
        return value.marks()
    if isinstance(value, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise jinja2.TemplateRuntimeError(f"{value} is no number that JSON can write")
    if value is None:
        raise jinja2.TemplateRuntimeError("null has no written form")
    return _json(value)


def _is_none(value: Any) -> bool:
    return value is None or isinstance(value, Null)


@lru_cache(maxsize=1)
def environment() -> ImmutableSandboxedEnvironment:
    """Return the one environment of all our templates: nothing in it depends on chance, time or machine."""
    made = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, finalize=_written, autoescape=False)
    del made.filters["random"]
    del made.globals["lipsum"]
    made.filters["tojson"] = _tojson
    made.tests["none"] = _is_none
    return made


def without_null(value: Any, name: str) -> Any:
    """Return a row's value with every null in it replaced by :class:`Null`."""
    if value is None:
        return Null(name)
    if isinstance(value, dict):
        return {key: without_null(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_null(inner, name) for inner in value]
    return value


def compile_template(source: str, where: str) -> tuple[jinja2.Template, frozenset[str]]:
    """Compile a template; return it with the names that it takes from outside.

    Raises:
        InputError: It is no template, or it wants another file.
    """
    try:
        tree = environment().parse(source)
        names = meta.find_undeclared_variables(tree)
        wants_files = any(True for _ in meta.find_referenced_templates(tree))
        compiled = environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise InputError(
            f"{where}: line {error.lineno}: {error.message}", hint="the template's language is Jinja2"
        ) from None
    except (jinja2.TemplateError, RecursionError) as error:
        raise InputError(f"{where}: {error}", hint="the template's language is Jinja2") from None
    if wants_files:
        raise InputError(f"{where}: include, import and extends are not taken", hint="write the whole prompt out")
    return compiled, frozenset(names)


def render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """Render a template over a row's values.

    Raises:
        RowError: A field is missing or null, or an expression fails on this row.
    """
    try:
        return template.render(variables)
    except _RENDER_ERRORS as error:
        raise RowError("template", f"template: {str(error) or type(error).__name__}") from None


class TemplateText:
    """A prompt template: what it places is sent, in its order; if it places nothing, all images stand around the text.

    Args:
        source: The template.
        image_names: Names of image fields or inputs; each places its own images.
        where: How messages name it.
        text_names: Names of text inputs; a name of ours (``row``, ``image``, ``images``) gives way to them.
        images_first: Where the images stand if the template speaks of none.
        output: Name of the pipeline output.
    """

    def __init__(
        self,
        source: str,
        image_names: Sequence[str],
        where: str,
        *,
        text_names: Sequence[str] = (),
        images_first: bool = True,
        output: str = "",
    ) -> None:
        self.output = output
        self._template, self.names = compile_template(source, where)
        self._images_first = images_first
        self._ours = {"row", *_ALL_IMAGES} - {*text_names}
        self._places = bool(self.names & ({*image_names} | (self._ours - {"row"})))

    def parts(self, row: Mapping[str, Any], images: Mapping[str, Sequence[int]]) -> Parts:
        """Return text and images in the template's order (see :class:`~vlmbatch.inputs.texts.Text`)."""
        text = render(self._template, self._variables(row, images))
        if not self._places:
            return around(_not_blank(text), images, images_first=self._images_first)
        pieces = _MARK.split(text)  # text, number, text, number, ... text
        _not_blank("".join(pieces[::2]))
        found = (int(piece) if at % 2 else piece for at, piece in enumerate(pieces))
        return tuple(piece for piece in found if isinstance(piece, int) or piece.strip())

    def _variables(self, row: Mapping[str, Any], images: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        fields = without_null(dict(row), "row")
        everything = ImagePlace(sorted({number for group in images.values() for number in group}))
        ours = {name: fields if name == "row" else everything for name in self._ours}
        return {**fields, **ours, **{name: ImagePlace(group) for name, group in images.items()}}


# --- templates that give values, not prompts ------------------------------------------------------------------

_ALONE = re.compile(r"\s*\{\{[-+]?((?:(?!\{\{|\}\}|\{%).)*?)[-+]?\}\}\s*", re.DOTALL)


@lru_cache(maxsize=1024)
def _compiled_value(source: str) -> tuple[Any, jinja2.Template]:
    """Return the expression that a template is, if it is one and nothing else, and the template."""
    alone = _ALONE.fullmatch(source)
    expression = environment().compile_expression(alone[1], undefined_to_none=False) if alone else None
    return expression, environment().from_string(source)


def value_of(source: str, values: Mapping[str, Any]) -> Any:
    """Return what a template makes of some values; None where it needs one that is missing or null.

    Args:
        source: A template that has been checked by :func:`compile_template`.
        values: By name, as :func:`without_null` gives them.
    """
    expression, template = _compiled_value(source)
    try:
        return _with_null(expression(values)) if expression else template.render(values)
    except _RENDER_ERRORS:
        return None


def _with_null(value: Any) -> Any:
    """Return a value with null where :class:`Null`, or nothing at all, stands."""
    if isinstance(value, jinja2.Undefined):
        return None
    if isinstance(value, dict):
        return {key: _with_null(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_null(inner) for inner in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return _written(value)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise RowError("no_question", "the template gives no text for this row")
    if _TORN_MARK in text:
        raise RowError("template", "template: an image's place was cut or changed; place it with {{ image }} alone")
    return text

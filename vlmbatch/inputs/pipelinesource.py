"""The rows of a pipeline's datasets: named inputs by JMESPath, one request for each output."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlmbatch.errors import InputError, Problem
from vlmbatch.inputs.detect import Found, look, tables_in
from vlmbatch.inputs.folder import FolderSource
from vlmbatch.inputs.rendering import look_up
from vlmbatch.inputs.sources import TableSource
from vlmbatch.inputs.template import TemplateText

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vlmbatch.inputs.base import Source, SourceOptions
    from vlmbatch.inputs.pipeline import Dataset, Pipeline
    from vlmbatch.inputs.rows import Recipe
    from vlmbatch.inputs.tables import Table
    from vlmbatch.inputs.texts import Text


def open_pipeline(pipeline: Pipeline, options: SourceOptions) -> Source:
    """Return the source that a pipeline's datasets make.

    Args:
        pipeline: As :meth:`~vlmbatch.inputs.pipeline.Pipeline.expanded` gives it.
        options: What the file does not say: ids, links, encoding; ``image_base_path`` overrides the file's own.

    Raises:
        InputError: A dataset cannot be read, or datasets and inputs do not fit.
    """
    if not any(one.is_image for one in pipeline.inputs):
        options = replace(options, allow_no_image=True)
    recipe = PipelineRecipe(pipeline, images_first=options.image_order == "first")
    found, owners = _look(pipeline.datasets)
    folders = [one for one in found if not one.is_table]
    if folders:
        return _folders(pipeline, options, recipe, found, folders)
    free = [owner.image_base_path is None and options.image_base_path is None for owner in owners]
    based = [
        replace(one, base=os.fsencode(owner.image_base_path)) if owner.image_base_path is not None else one
        for one, owner in zip(found, owners, strict=True)
    ]

    def recipe_for(_table: Table, _found: Found) -> Recipe:
        return recipe

    return TableSource(based, options, recipe_for, allow_absolute=free)


def _look(datasets: Sequence[Dataset]) -> tuple[list[Found], list[Dataset]]:
    """Return what the datasets are, and the dataset of each."""
    found: list[Found] = []
    owners: list[Dataset] = []
    problems: list[Problem] = []
    for dataset in datasets:
        try:
            here = look([os.fsencode(dataset.path)])
        except InputError as error:
            problems += error.problems
            continue
        if not any(one.is_table for one in here):
            here = tables_in(os.fsencode(dataset.path)) or here
        if dataset.kind == "JSONL":
            here = [replace(one, kind="jsonl") for one in here]
            problems += [
                Problem("no_source", "a folder, not JSON lines", o.name) for o in here if os.path.isdir(o.files[0])
            ]
        base = dataset.image_base_path
        if base is not None and not os.path.isdir(base):
            problems.append(Problem("no_source", "image_base_path: no such folder", base))
        found += here
        owners += [dataset] * len(here)
    if problems:
        raise InputError("datasets cannot be read", hint="check the paths in the pipeline file", problems=problems)
    return found, owners


def _folders(
    pipeline: Pipeline, options: SourceOptions, recipe: PipelineRecipe, found: list[Found], folders: list[Found]
) -> Source:
    """Return the source of folders of images, which have no rows: they give one image input and nothing else."""
    images = [one.name for one in pipeline.inputs if one.is_image]
    rules = {
        "a folder of images and a table do not go together in one run": len(folders) < len(found),
        "a folder of images has no rows: the inputs are one image and nothing else": len(images) != 1
        or len(pipeline.inputs) != 1,
        "a folder of images has no rows: image_base_path says nothing": options.image_base_path is not None
        or any(one.image_base_path is not None for one in pipeline.datasets),
        "a folder of images has no rows: there are no id fields": bool(options.id_fields),
    }
    problems = [Problem("mixed_sources", message) for message, is_broken in rules.items() if is_broken]
    if problems:
        raise InputError(f"{pipeline.name}: datasets do not fit", hint="mend the pipeline file", problems=problems)
    return FolderSource([one.files[0] for one in found], options, recipe.texts, images[0])


class PipelineRecipe:
    """What a pipeline takes from each row: its image inputs, and the values that its prompts see."""

    columns: Sequence[str] = ()

    def __init__(self, pipeline: Pipeline, *, images_first: bool) -> None:
        self._images = [one for one in pipeline.inputs if one.is_image]
        self._values = [one for one in pipeline.inputs if not one.is_image]
        self.image_columns = frozenset(one.key for one in self._images)
        self.texts: list[Text] = [
            TemplateText(
                output.prompt,
                [one.name for one in self._images],
                f"prompt of {output.name}",
                text_names=[one.name for one in self._values],
                images_first=images_first,
                output=output.name,
            )
            for output in pipeline.outputs
        ]

    def images(self, row: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return the image inputs (see :class:`~vlmbatch.inputs.rows.Recipe`)."""
        return [(one.name, look_up(one.key, row)) for one in self._images]

    def values(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the row's fields, and over them the inputs."""
        return {**row, **{one.name: look_up(one.key, row) for one in self._values}}

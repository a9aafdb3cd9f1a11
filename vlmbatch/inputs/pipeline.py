"""A pipeline file as a value: what is read, what is asked, what comes of it, and what later commands want to know.

Nothing that changes a frozen byte comes from the environment. Paths and names may hold ``$VARIABLES``
(:meth:`Pipeline.expanded`); how a run is divided is kept as written and acts in run alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vlmbatch.errors import InputError, Problem, cannot_read
from vlmbatch.inputs.variables import VARIABLE, expand

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_JSON_TYPES = {
    "str": "string",
    "string": "string",
    "int": "integer",
    "integer": "integer",
    "float": "number",
    "number": "number",
    "bool": "boolean",
    "boolean": "boolean",
}
_SENT_AS_IT_IS = ("top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "seed", "stop")


@dataclass(frozen=True, slots=True)
class Dataset:
    """One dataset: ``kind`` is ``loadable`` or ``JSONL``; paths are as written until :meth:`Pipeline.expanded`."""

    path: str
    kind: str
    output_dir: str | None = None
    image_base_path: str | None = None


@dataclass(frozen=True, slots=True)
class NamedInput:
    """One value of a row: its name in templates, its JMESPath key, and whether it is images."""

    name: str
    key: str
    is_image: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """One question to the model: its name, its prompt template, and whether (and in which form) JSON is asked for."""

    name: str
    prompt: str
    is_json: bool = False
    schema: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the model samples; None = not said. ``extra`` goes into the body as it stands."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline file.

    Attributes:
        name: Base name of the file.
        data: Its bytes, for the verbatim copy.
        folder: Where it stands: relative paths in it start here.
        model: The model's name.
        sampling: How the model samples.
        datasets: What is read.
        inputs: Values of a row by name.
        outputs: What is asked of each row.
        output_schema: Templates of the merged rows' fields, None where there are none.
        keep_columns: Whether merged rows hold the row's own fields too.
        settings: What acts in run and collect alone, as written: ``num_shards``, ``shard_id``, ``batch_size``,
            ``state_dir``, ``output_dirs``, ``server_args``, ``chat_template``, ``execution``; absent = not said.
    """

    name: str
    data: bytes
    folder: str
    model: str
    sampling: Sampling
    datasets: tuple[Dataset, ...]
    inputs: tuple[NamedInput, ...]
    outputs: tuple[Output, ...]
    output_schema: dict[str, Any] | None
    keep_columns: bool
    settings: dict[str, Any]

    def expanded(self, env: Mapping[str, str]) -> Pipeline:
        """Return the pipeline with the paths of its datasets made whole: variables, ``~``, and the file's own folder.

        Raises:
            InputError: A variable is not set; all are listed.
        """
        problems: list[Problem] = []

        def whole(path: str | None, where: str) -> str | None:
            try:
                return None if path is None else os.path.join(self.folder, expand(path, env))
            except InputError as error:
                problems.append(Problem("variable", error.message, where))
                return None

        datasets = tuple(
            replace(
                one,
                path=whole(one.path, f"loading_params.datasets[{at}].path") or "",
                output_dir=whole(one.output_dir, f"loading_params.datasets[{at}].output_dir"),
                image_base_path=whole(one.image_base_path, f"loading_params.datasets[{at}].image_base_path"),
            )
            for at, one in enumerate(self.datasets)
        )
        if problems:
            raise InputError(f"{self.name}: variables are not set", hint="set them", problems=problems)
        return replace(self, datasets=datasets)

    def merged_rows(self) -> dict[str, Any] | None:
        """Return the plan that vlmbatch/inputs/rendering.py fills in, for run.json; None without an output schema."""
        if self.output_schema is None:
            return None
        inputs = [{"name": one.name, "key": one.key, "image": one.is_image} for one in self.inputs]
        return {"inputs": inputs, "keep_columns": self.keep_columns, "fields": self.output_schema}


def load_pipeline(path: str) -> Pipeline:
    """Read a pipeline file.

    Raises:
        InputError: It cannot be read, or is not what the schema and good sense allow; every fault is listed.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise cannot_read(path, error) from None
    return parse_pipeline(data, os.path.basename(path), os.path.dirname(os.path.abspath(path)))


def parse_pipeline(data: bytes, name: str, folder: str) -> Pipeline:
    """Parse the bytes of a pipeline file.

    Args:
        data: YAML, or JSON.
        name: Base name, for messages.
        folder: Where relative paths start.

    Raises:
        InputError: As for :func:`load_pipeline`.
    """
    from vlmbatch.inputs.pipelinefile import read

    raw = read(data, name)
    (processor,) = raw["processors"]
    loading, processing = raw["loading_params"], raw["processing_params"]
    pipeline = Pipeline(
        name=name,
        data=data,
        folder=folder,
        model=processor["server_args"]["model_path"],
        sampling=_sampling(processor.get("default_sampling_params", {})),
        datasets=tuple(
            Dataset(one["path"], one["type"], one.get("output_dir"), one.get("image_base_path"))
            for one in loading["datasets"]
        ),
        inputs=tuple(NamedInput(one["name"], one["key"], one.get("type") == "image") for one in processing["inputs"]),
        outputs=tuple(
            Output(one["name"], one["prompt"], one.get("output_type") == "JSON", _answer_schema(one))
            for one in processing["outputs"]
        ),
        output_schema=processing.get("output_schema"),
        keep_columns=not processing.get("remove_columns", False),
        settings=_settings(processor, loading, raw.get("execution_params")),
    )
    problems = [
        *_contradictions(pipeline, processor),
        *_output_faults(processing["outputs"]),
        *_bad_templates(pipeline),
    ]
    if problems:
        raise InputError(f"{name}: {len(problems)} fault(s) in the pipeline file", hint="mend them", problems=problems)
    return pipeline


def _sampling(raw: Mapping[str, Any]) -> Sampling:
    extra = {key: raw[key] for key in _SENT_AS_IT_IS if key in raw} | raw.get("custom_params", {})
    limit = raw.get("max_new_tokens")
    return Sampling(raw.get("temperature"), raw.get("top_p"), None if limit is None else int(limit), extra)


def _settings(processor: Mapping[str, Any], loading: Mapping[str, Any], execution: Any) -> dict[str, Any]:
    said = {key: loading[key] for key in ("num_shards", "shard_id", "batch_size", "state_dir") if key in loading}
    said["output_dirs"] = [one["output_dir"] for one in loading["datasets"] if "output_dir" in one]
    said["server_args"] = {key: value for key, value in processor["server_args"].items() if key != "model_path"}
    said["chat_template"] = processor.get("chat_template")
    said["execution"] = execution
    return {key: value for key, value in said.items() if value or value == 0}


def _answer_schema(output: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the JSON Schema of an answer: as given, or made from names or names with types."""
    fields = output.get("output_schema")
    if fields is None:
        given: dict[str, Any] | None = output.get("schema")
        return given
    typed = dict.fromkeys(fields, "str") if isinstance(fields, list) else fields
    return {
        "type": "object",
        "properties": {name: _field_schema(field) for name, field in typed.items()},
        "required": list(typed),
        "additionalProperties": False,
    }


def _field_schema(field: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(field, str):
        return {"type": _JSON_TYPES[field]}
    bounds = {theirs: field[ours] for ours, theirs in (("min", "minimum"), ("max", "maximum")) if ours in field}
    return {"type": _JSON_TYPES[field["type"]], **bounds}


# --- what a schema of single values cannot say ---------------------------------------------------------------


def _contradictions(pipeline: Pipeline, processor: Mapping[str, Any]) -> Iterator[Problem]:
    names = [one.name for one in pipeline.inputs] + [one.name for one in pipeline.outputs]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield Problem("same_name", f"{name!r} names two inputs or outputs", "processing_params")
    if VARIABLE.search(pipeline.model):
        what = f"{pipeline.model}: the model's name stands in frozen requests, so it is not taken from the environment"
        yield Problem("variable", what, "processors[0].server_args.model_path")
    if processor.get("chat_template") == "" and any(one.is_image for one in pipeline.inputs):
        what = "an empty chat template means text alone, but there are image inputs"
        yield Problem("text_only", what, "processors[0].chat_template")


def _output_faults(outputs: list[dict[str, Any]]) -> Iterator[Problem]:
    for at, one in enumerate(outputs):
        place = f"processing_params.outputs[{at}]"
        given = [key for key in ("schema", "output_schema") if key in one]
        if given and one.get("output_type") != "JSON":
            yield Problem("bad_value", f"{given[0]} goes with output_type: JSON", place)
        if len(given) > 1:
            yield Problem("bad_value", "schema and output_schema exclude each other", place)
        fields = one.get("output_schema")
        for name, field in fields.items() if isinstance(fields, dict) else ():
            if isinstance(field, dict) and (fault := _bad_bounds(field)):
                yield Problem("bad_value", fault, f"{place}.output_schema.{name}")


def _bad_bounds(field: Mapping[str, Any]) -> str | None:
    bounds = [field[key] for key in ("min", "max") if key in field]
    kind = _JSON_TYPES[field["type"]]
    if bounds and kind not in {"integer", "number"}:
        return f"a {kind} has no bounds"
    if kind == "integer" and any(bound != int(bound) for bound in bounds):
        return "the bounds of an integer are integers"
    return "min is above max" if len(bounds) == 2 and bounds[0] > bounds[1] else None


def _bad_templates(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield keys and templates that do not parse, and prompts that want an answer which is not there yet."""
    from vlmbatch.inputs.rendering import compile_key, templates_in
    from vlmbatch.inputs.template import compile_template

    for at, one in enumerate(pipeline.inputs):
        try:
            compile_key(one.key)
        except ValueError as error:
            what = str(error).splitlines()[0]
            yield Problem("bad_key", f"not JMESPath: {what}", f"processing_params.inputs[{at}].key")
    names = {one.name for one in pipeline.outputs}
    for at, output in enumerate(pipeline.outputs):
        place = f"processing_params.outputs[{at}].prompt"
        try:
            _, wanted = compile_template(output.prompt, place)
        except InputError as error:
            yield Problem("bad_template", error.message.removeprefix(f"{place}: "), place)
            continue
        for name in sorted(wanted & names):
            what = f"{{{{ {name} }}}} is an answer; all requests are frozen before the first is sent: make two runs"
            yield Problem("needs_answer", what, place)
    for place, source in templates_in(pipeline.output_schema, "processing_params.output_schema"):
        try:
            compile_template(source, place)
        except InputError as error:
            yield Problem("bad_template", error.message.removeprefix(f"{place}: "), place)

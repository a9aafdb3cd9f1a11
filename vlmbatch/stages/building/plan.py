"""What the user said, made whole: files read, sources opened, one ask per output. Nothing is built yet.

:class:`BuildOptions` holds the flags of build as they are typed (or given from Python); :func:`plan` turns them into a
:class:`Plan`, which holds everything that the press needs and nothing that it has to look up.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, Any

from vlmbatch import classify, images, inputs, jsonl, providers
from vlmbatch.errors import InputError, Problem, cannot_read, counted
from vlmbatch.inputs import strict
from vlmbatch.inputs.base import DEFAULT_IMAGE_FIELD, RowError, Verbatim
from vlmbatch.providers.base import Ask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from vlmbatch.images import ImagePolicy
    from vlmbatch.inputs.base import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """The flags of build, one field each (docs/reference/cli.md says what each one means).

    Attributes:
        sources: Folders, files or one table; empty where ``config`` names them.
        out: The run folder to make; it must not exist. (Empty for :class:`~vlmbatch.api.engine.Engine` alone.)
        model: The model's name; None where ``config`` names it.
        provider: Name in the registry; None = the default, or for a pipeline file that of a server of one's own.
        env: The variables that paths of a pipeline file may name; nothing else is taken from it.
        limits: The user's own values for the provider's dated limits, by name.
        carrier: ``inline``, or ``provider-file``: the images go into the provider's own file store first.
        base_url: Where that file store is; empty = the provider's own address.
        workers: Threads that read and encode; None = one per processor.
        stdin: The stream that the source ``-`` means.
        rows: Objects with the fields that the options name, instead of sources; iterated once. An image field may hold
            a path, bytes, a picture of Pillow's, an array of 8-bit pixels, or a list of such.
    """

    sources: Sequence[str] = ()
    out: str = ""
    model: str | None = None
    provider: str | None = None
    prompt: str | None = None
    prompt_file: str | None = None
    system_file: str | None = None
    config: str | None = None
    max_tokens: int | None = None
    max_tokens_field: str = ""
    temperature: float | None = None
    top_p: float | None = None
    detail: str | None = None
    reasoning_effort: str | None = None
    thinking_budget: int | None = None
    response_format: str | None = None
    json_schema: str | None = None
    extra_body: str | None = None
    url: str = ""
    id_prefix: str = ""
    image_field: Sequence[str] = ()
    question_field: str | None = None
    id_fields: Sequence[str] = ()
    prompt_template: str | None = None
    image_base_path: str | None = None
    image_order: str = "first"
    encoding: str | None = None
    delimiter: str | None = None
    allow_outside: bool = False
    allow_no_image: bool = False
    follow_links: bool = False
    image_policy: ImagePolicy = field(default_factory=images.ImagePolicy)
    limits: Mapping[str, Any] = field(default_factory=dict)
    shard_max_bytes: int | None = None
    shard_max_requests: int | None = None
    carrier: str = "inline"
    base_url: str = ""
    skip_bad: bool = False
    workers: int | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    stdin: IO[bytes] | None = None
    rows: Iterable[Mapping[str, Any]] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that the press needs.

    Attributes:
        options: What the user said.
        provider: Name of the provider, settled.
        source: Where the inputs come from, opened.
        asks: What is asked, by output name; ``""`` for runs with one output.
        verbatim: Files to copy into inputs/, by role: ``prompt``, ``template``, ``system``, ``schema``, ``extra_body``
            or ``config``.
        answer: What collect has to know of the answer: ``{json, schema, outputs, output_schema}``.
        settings: What the pipeline file says for later commands, kept in run.json.
    """

    options: BuildOptions
    provider: str
    source: Source
    asks: dict[str, Ask]
    verbatim: dict[str, Verbatim]
    answer: dict[str, Any]
    settings: dict[str, Any]

    @property
    def ask(self) -> Ask:
        """What the first output asks: model, endpoint and headers are those of all."""
        return next(iter(self.asks.values()))


DEFAULT_MAX_TOKENS = 4096


def plan(options: BuildOptions) -> Plan:
    """Read the files that the options name, and open the source.

    Raises:
        InputError: Options contradict one another, or a file cannot be read or is not what it should be.
    """
    if not options.out:
        raise InputError("--out is missing", hint="name the run folder to make")
    problems = _wrong_values(options) + ([] if options.config else _contradictions(options))
    if problems:
        wrong = counted(len(problems), "[option is|options are] wrong")
        raise InputError(wrong, hint="vlmbatch build --help lists the options", problems=problems)
    if options.config:
        return _plan_config(options)
    verbatim, ask = _read_ask(options, options.model or "")
    prompt = _text(verbatim["prompt"], options.prompt_file or "--prompt") if "prompt" in verbatim else None
    return Plan(
        options=options,
        provider=provider_name(options),
        source=_open(options, _source_options(options, prompt)),
        asks={"": ask},
        verbatim=_named_apart(verbatim),
        answer={"json": ask.json_answer, "schema": ask.json_schema},
        settings={},
    )


def _open(options: BuildOptions, how: inputs.SourceOptions) -> Source:
    if options.rows is not None:
        return inputs.open_rows(options.rows, how, encode=_as_file)
    return inputs.open_source(list(options.sources), how, stdin=options.stdin)


def _as_file(value: Any) -> bytes | None:
    """Return pixels as a file, None where a value is none."""
    try:
        return images.as_png(value)
    except images.ImageError as error:
        raise RowError(error.code, str(error)) from None


def provider_name(options: BuildOptions) -> str:
    """Return the provider that is asked: the named one, else the default for the kind of build."""
    return options.provider or (providers.LOCAL_DEFAULT if options.config else providers.DEFAULT)


def _plan_config(options: BuildOptions) -> Plan:
    """Plan from a pipeline file; flags that speak of what the file says are laid over it, or refused."""
    from vlmbatch.inputs.pipeline import load_pipeline
    from vlmbatch.inputs.pipelinesource import open_pipeline

    refused = {
        "SOURCE: the pipeline file names its datasets": bool(options.sources) or options.rows is not None,
        "--prompt, --prompt-file, --prompt-template: the file's outputs say it": any(
            one is not None for one in (options.prompt, options.prompt_file, options.prompt_template)
        ),
        "--response-format, --json-schema: the file's outputs say it": any(
            one is not None for one in (options.response_format, options.json_schema)
        ),
        "--image-field, --question-field: the file's inputs say it": bool(options.image_field)
        or options.question_field is not None,
    }
    problems = [Problem("usage", message) for message, holds in refused.items() if holds]
    if problems:
        raise InputError("options that --config excludes", hint="drop them, or change the file", problems=problems)
    pipeline = load_pipeline(options.config or "").expanded(options.env)
    verbatim, ask = _read_ask(options, options.model or pipeline.model)
    sampling = pipeline.sampling
    ask = replace(
        ask,
        max_tokens=options.max_tokens or sampling.max_tokens or DEFAULT_MAX_TOKENS,
        temperature=sampling.temperature if options.temperature is None else options.temperature,
        top_p=sampling.top_p if options.top_p is None else options.top_p,
        extra_body={**(sampling.extra or {}), **ask.extra_body},
    )
    outputs = {one.name: {"json": one.is_json, "schema": one.schema} for one in pipeline.outputs}
    return Plan(
        options=options,
        provider=provider_name(options),
        source=open_pipeline(pipeline, _source_options(options, None)),
        asks={one.name: replace(ask, json_answer=one.is_json, json_schema=one.schema) for one in pipeline.outputs},
        verbatim=_named_apart({**verbatim, "config": Verbatim(pipeline.name, pipeline.data)}),
        answer={
            "json": any(one.is_json for one in pipeline.outputs),
            "schema": None,
            "outputs": outputs,
            "output_schema": pipeline.merged_rows(),
        },
        settings=pipeline.settings,
    )


def _contradictions(options: BuildOptions) -> list[Problem]:
    """Return every contradiction among the options, at once."""
    no_text = not (options.prompt or options.prompt_file or options.prompt_template or options.question_field)
    rules = {
        "SOURCE is missing: give a folder, images or a table": not options.sources and options.rows is None,
        "sources and rows exclude each other": bool(options.sources) and options.rows is not None,
        "--model is missing": not (options.model or "").strip(),
        "no text to send: give --prompt, --prompt-file, --prompt-template or --question-field": no_text,
        "--prompt and --prompt-file exclude each other": options.prompt is not None and options.prompt_file is not None,
        "--prompt-template stands for the whole prompt: it excludes --prompt and --prompt-file": (
            options.prompt_template is not None and (options.prompt, options.prompt_file) != (None, None)
        ),
    }
    return [Problem("usage", message) for message, holds in rules.items() if holds]


def _wrong_values(options: BuildOptions) -> list[Problem]:
    """Return every option whose value is out of its range, whatever the others say."""
    counts = {
        "--max-tokens": options.max_tokens,
        "--shard-max-bytes": options.shard_max_bytes,
        "--shard-max-requests": options.shard_max_requests,
        "--workers": options.workers,
    }
    texts = {
        "--model": (options.model,),
        "--prompt": (options.prompt,),
        "--prompt-template": (options.prompt_template,),
        "--url": (options.url,),
        "--max-tokens-field": (options.max_tokens_field,),
        "--question-field": (options.question_field,),
        "--image-field": options.image_field,
        "--id-fields": options.id_fields,
    }
    numbers = {"--temperature": options.temperature, "--top-p": options.top_p}
    rules = {
        "--temperature must be 0 to 2": not 0 <= (options.temperature or 0) <= 2
        and not _is_unwritable(options.temperature),
        "--top-p must be above 0 and at most 1": options.top_p is not None
        and not 0 < options.top_p <= 1
        and not _is_unwritable(options.top_p),
        "--thinking-budget must not be below -1": (options.thinking_budget or 0) < -1,
        "--response-format takes json": options.response_format not in {None, "json"},
        "--carrier takes inline or provider-file": options.carrier not in {"inline", "provider-file"},
        "--image-order takes first or last": options.image_order not in {"first", "last"},
        **{f"{flag} must be positive": count is not None and count < 1 for flag, count in counts.items()},
        **{f"{flag} is not UTF-8": any(map(_has_half_character, words)) for flag, words in texts.items()},
        **{f"{flag} is {number}, which JSON cannot write": _is_unwritable(number) for flag, number in numbers.items()},
    }
    return [Problem("usage", message) for message, holds in rules.items() if holds]


def _is_unwritable(number: float | None) -> bool:
    return number is not None and not math.isfinite(number)


def _has_half_character(text: str | None) -> bool:
    """Return whether a text cannot be written: bytes of the command line that are not UTF-8 look like that."""
    return text is not None and strict.unwritable(text) is not None


def _read_ask(options: BuildOptions, model: str) -> tuple[dict[str, Verbatim], Ask]:
    """Return the files to keep and what is asked of the provider."""
    verbatim = {
        role: _read(path)
        for role, path in (
            ("prompt", options.prompt_file),
            ("system", options.system_file),
            ("schema", options.json_schema),
            ("extra_body", options.extra_body),
        )
        if path is not None
    }
    if options.prompt is not None:
        verbatim["prompt"] = Verbatim("prompt.txt", options.prompt.encode("utf-8", "surrogatepass"))
    if options.prompt_template is not None:
        verbatim["template"] = Verbatim("prompt-template.txt", options.prompt_template.encode("utf-8", "surrogatepass"))
    schema = _schema(verbatim["schema"], options.json_schema) if "schema" in verbatim else None
    ask = Ask(
        model=model,
        url=options.url,
        system=_text(verbatim["system"], options.system_file) if "system" in verbatim else None,
        max_tokens=options.max_tokens or DEFAULT_MAX_TOKENS,
        max_tokens_field=options.max_tokens_field,
        temperature=options.temperature,
        top_p=options.top_p,
        detail=options.detail,
        reasoning_effort=options.reasoning_effort,
        thinking_budget=options.thinking_budget,
        json_answer=options.response_format == "json" or schema is not None,
        json_schema=schema,
        extra_body=_object(verbatim["extra_body"], f"--extra-body {options.extra_body}")
        if "extra_body" in verbatim
        else {},
    )
    return verbatim, ask


_PLAIN_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\\\ud800-\udfff]{1,80}")
"""Names that SHA256SUMS holds as they stand, so that sha256sum finds the file, and that any file system takes."""


def _named_apart(verbatim: dict[str, Verbatim]) -> dict[str, Verbatim]:
    """Give each file a name of its own in inputs/: where two are alike, the role stands before the second one."""
    taken: set[str] = set()
    kept = {}
    for role, file in verbatim.items():
        name = file.name if _PLAIN_NAME.fullmatch(file.name) else role
        while name.casefold() in taken:
            name = f"{role}-{name}"
        taken.add(name.casefold())
        kept[role] = Verbatim(name, file.data)
    return kept


def _source_options(options: BuildOptions, prompt: str | None) -> inputs.SourceOptions:
    return inputs.SourceOptions(
        prompt=prompt,
        image_fields=tuple(options.image_field) or (DEFAULT_IMAGE_FIELD,),
        question_field=options.question_field,
        id_fields=tuple(options.id_fields),
        prompt_template=options.prompt_template,
        image_base_path=options.image_base_path,
        image_order=options.image_order,
        encoding=options.encoding,
        delimiter=options.delimiter,
        allow_outside=options.allow_outside,
        allow_no_image=options.allow_no_image,
        follow_links=options.follow_links,
    )


def _read(path: str) -> Verbatim:
    """Read a file that is to be copied into inputs/."""
    try:
        with open(path, "rb") as file:
            return Verbatim(os.path.basename(path), file.read())
    except OSError as error:
        raise cannot_read(path, error) from None


def _text(file: Verbatim, where: str | None) -> str:
    """Return a text file's words: a byte order mark and one line break at the end are no part of them."""
    try:
        text = file.data.removeprefix(jsonl.BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 (byte {error.start})", hint="save it as UTF-8") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text.strip():
        raise InputError(f"{where}: empty", hint="write the prompt into it")
    return text


def _schema(file: Verbatim, where: str | None) -> dict[str, Any]:
    schema = _object(file, f"--json-schema {where}")
    problem = classify.schema_problem(schema)
    if problem:
        raise InputError(f"--json-schema {where}: {problem}", hint="mend the schema")
    return schema


def _object(file: Verbatim, where: str) -> dict[str, Any]:
    """Return the JSON object that a file holds; what would not come out as it went in is refused."""
    try:
        value = strict.parse_row(file.data.removeprefix(jsonl.BOM), what="file")
    except RowError as error:
        raise InputError(f"{where}: {error.message}", hint="mend the file") from None
    faults = [fault for one in strict.scalars(value) if (fault := strict.unwritable(one))]
    if faults:
        raise InputError(f"{where}: {faults[0]}", hint="mend the file")
    return value


def parse_limits(pairs: Sequence[str]) -> dict[str, int]:
    """Parse ``NAME=N`` pairs, the user's own values for dated limits.

    Raises:
        InputError: A pair is not of that form.
    """
    limits = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not value.strip().isdigit():
            raise InputError(f"--limit-override {pair}: not NAME=N", hint="for example image_bytes=5000000")
        limits[name.strip()] = int(value)
    return limits

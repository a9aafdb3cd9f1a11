"""Pipeline files: the example unchanged, every key honoured or refused by name, rows, outputs and merged rows."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmbatch.errors import InputError
from vlmbatch.inputs import SourceOptions
from vlmbatch.inputs.base import Item, Rejected
from vlmbatch.inputs.pipeline import NamedInput, Output, Pipeline, load_pipeline, parse_pipeline
from vlmbatch.inputs.pipelinesource import open_pipeline
from vlmbatch.inputs.rendering import render_output
from vlmbatch.inputs.variables import expand, parse_shard

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "tests" / "data" / "pipelines" / "example.yaml"
SCHEMA = json.loads((ROOT / "vlmbatch" / "data" / "schemas" / "pipeline.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def _example() -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    return value


def _parse(value: Any, folder: str = "/f") -> Pipeline:
    return parse_pipeline(yaml.safe_dump(value, allow_unicode=True, sort_keys=False).encode(), "p.yaml", folder)


def _faults(value: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        _parse(value)
    return [str(problem) for problem in caught.value.problems] or [str(caught.value)]


def _set(value: dict[str, Any], path: str, new: Any) -> dict[str, Any]:
    """Return a copy with the value at a dotted path replaced, or removed where ``new`` is ``...``."""
    made = copy.deepcopy(value)
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
    place: Any = made
    for step in steps:
        place = place[step]
    if new is ...:
        del place[last]
    else:
        place[last] = new
    return made


# --- the file ------------------------------------------------------------------------------------------------


def test_example_loads_unchanged_and_every_key_arrives() -> None:
    """The example means what it says, key by key."""
    pipeline = load_pipeline(str(EXAMPLE))
    assert (pipeline.name, pipeline.data, pipeline.folder) == (
        "example.yaml",
        EXAMPLE.read_bytes(),
        str(EXAMPLE.parent),
    )
    assert pipeline.model == "Qwen/Qwen2-VL-7B-Instruct"
    assert (pipeline.sampling.temperature, pipeline.sampling.top_p, pipeline.sampling.max_tokens) == (0.1, 0.95, 768)
    assert pipeline.sampling.extra == {}
    (dataset,) = pipeline.datasets
    assert (dataset.path, dataset.kind) == ("/path/to/image_dataset", "loadable")
    assert (dataset.output_dir, dataset.image_base_path) == ("/path/to/output/shards", "/path/to/images")
    assert pipeline.inputs == (NamedInput("image", "image_path", is_image=True), NamedInput("question", "question"))
    prompt = "{{ image }}\nAnswer this question about the image:\n{{ question }}\n"
    assert pipeline.outputs == (Output("answer", prompt),)
    assert pipeline.output_schema == {
        "question": "{{ question }}",
        "answer": "{{ answer }}",
        "image_path": "{{ image }}",
    }
    assert pipeline.keep_columns
    assert pipeline.settings == {
        "num_shards": 8,
        "shard_id": "$SLURM_ARRAY_TASK_ID",
        "batch_size": 8,
        "state_dir": "/path/to/state",
        "output_dirs": ["/path/to/output/shards"],
        "server_args": {"tp_size": 4, "trust_remote_code": True},
        "chat_template": "qwen2-vl",
        "execution": _example()["execution_params"],
    }


def test_schema_is_published_as_it_is_used() -> None:
    """docs/ holds the same bytes; it is a schema, the example fits, and every property says what it is."""
    used = ROOT / "vlmbatch" / "data" / "schemas" / "pipeline.schema.json"
    assert used.read_bytes() == (ROOT / "docs" / "schemas" / "pipeline.schema.json").read_bytes()
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    VALIDATOR.validate(_example())
    for name, rule in SCHEMA["$defs"].items():
        for key, inner in rule.get("properties", {}).items():
            assert "description" in inner or "$ref" in inner, f"{name}.{key}"


def _objects(value: Any, path: str = "") -> list[str]:
    found = []
    if isinstance(value, dict):
        found.append(path)
        for key, inner in value.items():
            found += _objects(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            found += _objects(inner, f"{path}.{at}")
    return found


@pytest.mark.parametrize("place", [p for p in _objects(_example()) if not p.endswith("output_schema")])
def test_unknown_key_anywhere_is_refused(place: str) -> None:
    """Wherever it stands, a key that nobody knows fails the loader and the schema, and is named with its place."""
    value = _set(_example(), f"{place}.surprise" if place else "surprise", 1)
    assert not VALIDATOR.is_valid(value)
    (fault,) = _faults(value)
    assert "surprise: unknown key" in fault


@pytest.mark.parametrize(
    ("path", "new", "said"),
    [
        ("processors.0.server_args.tp_sise", 4, "did you mean 'tp_size'?"),
        ("loading_params.num_shard", 4, "did you mean 'num_shards'?"),
        ("execution_param", {}, "did you mean 'execution_params'?"),
        ("processors.0.default_sampling_params.max_tokens", 9, "called max_new_tokens"),
        ("processors.0.default_sampling_params.n", 2, "several outputs"),
        ("processors.0.local", {}, "directly under the processor"),
        ("processors.0.provider", "openai", "--provider"),
        ("processing_params.cast_images", True, "makes no images"),
        ("processing_params.inputs.0.image_base_path", "/x", "loading_params.datasets"),
        ("processors.0.type", "batch_api", "--channel batch"),
        ("processing_params.outputs.0.type", "custom", "no code"),
        ("processing_params.outputs.0.output_type", "json", "did you mean 'JSON'?"),
        ("loading_params.datasets.0.type", "jsonl", "did you mean 'JSONL'?"),
        ("processing_params.inputs.0.type", "audio", "known here: text, image"),
        ("loading_params.num_shards", "eight", "$VARIABLE"),
        ("loading_params.shard_id", -1, "$VARIABLE"),
        ("loading_params.batch_size", 0, "less than the minimum"),
        ("loading_params.datasets", [], "datasets"),
        ("loading_params.datasets.0.path", ..., "lacks 'path'"),
        ("processors", [], "processors"),
        ("processors.0.default_sampling_params.temperature", "0.1", "not of type 'number'"),
        ("processors.0.default_sampling_params.temperature", float("nan"), "no number"),
        ("processors.0.server_args.model_path", "${MODEL}", "not taken from the environment"),
        ("processors.0.chat_template", "", "text alone"),
        ("execution_params.time_limit", 43199, "not of type 'string'"),
        ("execution_params.mode", "cloud", "known here: local, slurm"),
        ("processing_params.inputs.0.key", "a[", "JMESPath"),
        ("processing_params.inputs.1.name", "image", "names two"),
        ("processing_params.outputs.0.name", "question", "names two"),
        ("processing_params.inputs.1.name", "my question", "does not match"),
        ("processing_params.outputs.0.prompt", "{{ question", "end of"),
        ("processing_params.outputs.0.prompt", "{% include 'x' %}", "include"),
        ("processing_params.outputs.0.prompt", "{{ image }} {{ answer }}", "two runs"),
        ("processing_params.output_schema.deep", [{"x": "{{ y"}], "output_schema.deep[0].x"),
        ("processing_params.outputs.0.schema", {}, "output_type: JSON"),
        ("", [], "not of type 'object'"),
    ],
)
def test_fault_is_named_with_its_place_and_the_way_out(path: str, new: Any, said: str) -> None:
    """Near names, refused keys and values with their reason, wrong types, and what contradicts itself."""
    faults = _faults(_set(_example(), path, new) if path else new)
    assert said in " ".join(faults)
    assert all(len(fault) < 400 for fault in faults)


def test_all_faults_are_told_at_once() -> None:
    """One run of build is enough to mend a file."""
    value = _set(_example(), "processors.0.server_args.tp_sise", 4)
    value = _set(value, "loading_params.shards", 4)
    value = _set(value, "processing_params.outputs.0.prompt", ...)
    assert len(_faults(value)) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("processors: [", "line"),
        ("a: 1\nb: 2\na: 3\n", "'a' stands twice"),
        ("!!python/object/apply:os.system ['true']", "not determine a constructor|could not determine"),
        ("- &a [*a]\n", "fault"),
        ("1: 2\n", "no text"),
        ("", "fault"),
        ("\x00", "not YAML"),
        ("a: 2024-13-45\n", "not YAML"),
        ("a: 2024-12-24\n", "put it in quotes"),
        ("a: 2024-12-24 10:00:00\n", "put it in quotes"),
        ("a: !!binary aGk=\n", "put it in quotes"),
        ("a: !!set {b: null}\n", "put it in quotes"),
        ("a: 123456789012345678901\n", "more than 64 bits"),
        ('a: "\\ud800"\n', "half a character"),
        ("a: .inf\n", "inf is no number"),
        ("[" * 3000, "not YAML|line"),
        (
            "&a a: " + "\n".join(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}' if n else '1'] * 9)}]" for n in range(9)),
            "line|fault",
        ),
        ("\n".join(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}' if n else '1'] * 9)}]" for n in range(9)), "fault"),
    ],
)
def test_text_that_is_no_strict_yaml_is_refused(text: str, said: str) -> None:
    """Broken YAML, double keys, tags, loops of aliases, bombs, keys that are no text, values that JSON lacks."""
    with pytest.raises(InputError) as caught:
        parse_pipeline(text.encode(), "p.yaml", "/f")
    everything = " ".join([str(caught.value), *map(str, caught.value.problems)])
    assert any(part in everything for part in said.split("|")), everything


def test_file_that_cannot_be_read_is_wrong_usage(tmp_path: Path) -> None:
    """No file, no traceback."""
    with pytest.raises(InputError, match="cannot be read"):
        load_pipeline(str(tmp_path / "none.yaml"))
    with pytest.raises(InputError, match="not YAML"):
        parse_pipeline(b"a: \xff\xfe\xfd", "p.yaml", "/f")


@pytest.mark.parametrize(
    ("fields", "schema"),
    [
        (["a", "b"], {"a": {"type": "string"}, "b": {"type": "string"}}),
        (
            {"s": "str", "n": "int", "x": "float", "y": "boolean"},
            {"s": {"type": "string"}, "n": {"type": "integer"}, "x": {"type": "number"}, "y": {"type": "boolean"}},
        ),
        (
            {"n": {"type": "int", "min": 0, "max": 3}, "t": {"type": "str"}},
            {"n": {"type": "integer", "minimum": 0, "maximum": 3}, "t": {"type": "string"}},
        ),
    ],
)
def test_answer_fields_become_a_schema(fields: Any, schema: dict[str, Any]) -> None:
    """Names, names with types, and bounds: all required, none besides."""
    value = _set(_example(), "processing_params.outputs.0.output_type", "JSON")
    (output,) = _parse(_set(value, "processing_params.outputs.0.output_schema", fields)).outputs
    wanted = {"type": "object", "properties": schema, "required": list(schema), "additionalProperties": False}
    assert (output.is_json, output.schema) == (True, wanted)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"n": {"type": "int", "min": 3, "max": 0}}, "min is above max"),
        ({"n": {"type": "int", "min": 0.5}}, "integers"),
        ({"n": {"type": "str", "max": 1}}, "no bounds"),
        ({"n": {"type": "list"}}, "output_schema"),
        ({"n": {"type": "int", "maximum": 1}}, "output_schema"),
        ([], "output_schema"),
    ],
)
def test_answer_fields_that_make_no_sense_are_refused(fields: Any, said: str) -> None:
    """Bounds that no number meets, and types that there are not."""
    value = _set(_example(), "processing_params.outputs.0.output_type", "JSON")
    assert said in " ".join(_faults(_set(value, "processing_params.outputs.0.output_schema", fields)))


def test_sampling_params_that_servers_share_are_sent_as_they_are() -> None:
    """What has no name of ours goes into the body under its own."""
    more = {"top_k": 5, "seed": 7, "stop": ["x"], "custom_params": {"chat_template_kwargs": {"enable_thinking": False}}}
    value = _set(_example(), "processors.0.default_sampling_params", more)
    sampling = _parse(value).sampling
    assert (sampling.temperature, sampling.max_tokens) == (None, None)
    assert sampling.extra == {"top_k": 5, "seed": 7, "stop": ["x"], "chat_template_kwargs": {"enable_thinking": False}}


_JUNK = (
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.floats(-2, 3)
    | st.text(max_size=4)
    | st.just("$X")
    | st.builds(list)
    | st.builds(dict)
)


@st.composite
def _configs(draw: st.DrawFn) -> Any:
    """Draw the example with up to three places changed, removed or added."""
    value = _example()
    for _ in range(draw(st.integers(1, 3))):
        places = _objects(value)
        place: Any = value
        for step in draw(st.sampled_from(places)).split("."):
            if step:
                place = place[int(step) if step.isdigit() else step]
        key = draw(st.sampled_from([*place, "seed", "stop", "schema", "gpus", "type", "n", "zz"]))
        if draw(st.booleans()):
            place.pop(key, None)
        else:
            place[key] = draw(_JUNK)
    return value


@settings(max_examples=200)
@given(_configs())
def test_loader_and_schema_agree(value: Any) -> None:
    """What the schema refuses the loader refuses; what it takes fails only for what a schema cannot say."""
    try:
        _parse(value)
    except InputError as error:
        beyond = {"same_name", "variable", "text_only", "bad_template", "bad_key", "needs_answer"}
        codes = {problem.code for problem in error.problems}
        said = {problem.message for problem in error.problems}
        if VALIDATOR.is_valid(value):
            assert codes <= beyond or said <= {"schema goes with output_type: JSON"}
    else:
        VALIDATOR.validate(value)


# --- variables -----------------------------------------------------------------------------------------------


def test_variables_are_expanded_in_paths_alone() -> None:
    """Paths take variables, ~ and the file's own folder; prompts and sampling stay as written."""
    value = _set(
        _example(), "loading_params.datasets.0", {"path": "${D}/t.jsonl", "type": "JSONL", "output_dir": "~/out"}
    )
    value = _set(value, "processing_params.outputs.0.prompt", "{{ image }} costs ${D} or $D")
    pipeline = _parse(value, "/f").expanded({"D": "data", "HOME": "/home/u"})
    assert (pipeline.datasets[0].path, pipeline.datasets[0].output_dir) == ("/f/data/t.jsonl", "/home/u/out")
    assert pipeline.outputs[0].prompt == "{{ image }} costs ${D} or $D"
    with pytest.raises(InputError) as caught:
        _parse(value).expanded({})
    assert [p.where for p in caught.value.problems] == [
        f"loading_params.datasets[0].{k}" for k in ("path", "output_dir")
    ]


@pytest.mark.parametrize(
    ("text", "expanded"),
    [("a$X/b", "a1/b"), ("${X}${X}", "11"), ("$", "$"), ("$1", "$1"), ("~", "/h"), ("~x", "~x"), ("a~/b", "a~/b")],
)
def test_expand_replaces_variables_and_home(text: str, expanded: str) -> None:
    """The shell's two forms, and a leading ~ alone."""
    assert expand(text, {"X": "1", "HOME": "/h"}) == expanded


@pytest.mark.parametrize(
    ("count", "part", "env", "wanted"),
    [
        (8, 3, {}, (3, 8)),
        ("$N", "${I}", {"N": "4", "I": "0"}, (0, 4)),
        (8, "$I", {}, None),
        (8, "$I", {"I": "x"}, None),
        (8, 8, {}, None),
        ("$N", 0, {"N": "0"}, None),
    ],
)
def test_shard_numbers_come_from_numbers_or_variables(
    count: int | str, part: int | str, env: dict[str, str], wanted: tuple[int, int] | None
) -> None:
    """Part and count as numbers, or an error that names the variable."""
    if wanted is None:
        with pytest.raises(InputError):
            parse_shard(count, part, env)
    else:
        assert parse_shard(count, part, env) == wanted


# --- rows ----------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with images and a table for the example."""
    (tmp_path / "images").mkdir()
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / "images" / name).write_bytes(name.encode())
    rows = [
        {"image_path": "a.jpg", "question": "one?", "id": 1},
        {"image_path": ["a.jpg", "b.jpg"], "question": "two?", "id": 2},
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def _read(place: Path, value: dict[str, Any], **options: Any) -> list[Item | Rejected]:
    return list(open_pipeline(_parse(value, str(place)).expanded({}), SourceOptions(**options)))


def _at(value: dict[str, Any], **dataset: str) -> dict[str, Any]:
    return _set(value, "loading_params.datasets.0", {"path": "t.jsonl", "type": "loadable", **dataset})


def test_pipeline_rows_place_the_image_where_the_prompt_says(place: Path) -> None:
    """The example's own prompt over a table: image, then text, for one image and for two."""
    made = _read(place, _at(_example(), image_base_path="images"), id_fields=("id",))
    text = "\nAnswer this question about the image:\n"
    assert [one.parts for one in made if isinstance(one, Item)] == [(0, f"{text}one?"), (0, 1, f"{text}two?")]
    assert [one.output for one in made] == ["answer", "answer"]
    assert [one.images[0].read() for one in made if isinstance(one, Item)] == [b"a.jpg", b"a.jpg"]


def test_pipeline_with_several_outputs_asks_each_of_every_row(place: Path) -> None:
    """Indices go on over outputs; a row that only one prompt refuses is refused for that one."""
    value = _at(_example(), image_base_path="images")
    outputs = [
        {"name": "one", "type": "llm", "prompt": "{{ image }} {{ question }}"},
        {"name": "two", "type": "llm", "prompt": "{% if row.id == 2 %}{{ missing }}{% endif %}text {{ id }}"},
    ]
    made = _read(place, _set(_set(value, "processing_params.outputs", outputs), "processing_params.output_schema", ...))
    assert [(one.index, one.output if isinstance(one, Item) else one.code) for one in made] == [
        (0, "one"),
        (1, "two"),
        (2, "one"),
        (3, "template"),
    ]
    assert isinstance(made[1], Item)
    assert made[1].parts == (0, "text 1")


def test_pipeline_outputs_send_the_images_that_they_place(place: Path) -> None:
    """Two image inputs, one asked about in each output: each request holds its own image, numbered from 0."""
    (place / "t.jsonl").write_text('{"x": "a.jpg", "y": {"deep": ["b.jpg"]}}\n')
    inputs = [{"name": "x", "key": "x", "type": "image"}, {"name": "y", "key": "y.deep[0]", "type": "image"}]
    outputs = [{"name": n, "type": "llm", "prompt": p} for n, p in (("p", "{{ y }}?"), ("q", "{{ y }} or {{ x }}?"))]
    value = _set(_at(_example(), image_base_path="images"), "processing_params", {"inputs": inputs, "outputs": outputs})
    made = [one for one in _read(place, value) if isinstance(one, Item)]
    assert [[image.path for image in one.images] for one in made] == [["b.jpg"], ["a.jpg", "b.jpg"]]
    assert [one.parts for one in made] == [(0, "?"), (1, " or ", 0, "?")]


@pytest.mark.parametrize("based", [True, False])
def test_pipeline_absolute_paths_are_allowed_without_a_base(place: Path, based: bool) -> None:
    """Where image_base_path is set nothing leaves it; without it absolute paths are taken, climbing ones are not."""
    rows = [str(place / "images" / "a.jpg"), "/etc/../" + str(place / "images" / "b.jpg"), "../x.jpg"]
    (place / "t.jsonl").write_text("".join(json.dumps({"image_path": row, "question": "q"}) + "\n" for row in rows))
    made = _read(place, _at(_example(), **({"image_base_path": "images"} if based else {})))
    codes = [one.code if isinstance(one, Rejected) else one.images[0].path for one in made]
    assert codes == (["outside_root"] * 3 if based else ["images/a.jpg", "images/b.jpg", "outside_root"])


def test_pipeline_null_inputs_refuse_the_rows_that_need_them(place: Path) -> None:
    """A question that is null, and an image that is not there."""
    (place / "t.jsonl").write_text(
        '{"image_path": "a.jpg", "question": null}\n{"question": "x"}\n{"image_path": 1, "question": "x"}\n'
    )
    made = _read(place, _at(_example(), image_base_path="images"))
    assert [one.code for one in made if isinstance(one, Rejected)] == ["template", "no_image", "bad_image"]
    assert "'question' is null" in made[0].message if isinstance(made[0], Rejected) else False


def test_pipeline_over_a_folder_asks_each_image(place: Path) -> None:
    """A folder of images has no rows: one image input is what it gives, and nothing else can be had."""
    value = _set(_at(_example(), path="images"), "processing_params.outputs.0.prompt", "What? {{ image }}")
    with pytest.raises(InputError):
        _read(place, value)
    value = _set(value, "processing_params.inputs", [{"name": "image", "key": "image_path", "type": "image"}])
    made = _read(place, value)
    assert [(one.index, one.output, one.parts) for one in made if isinstance(one, Item)] == [
        (0, "answer", ("What? ", 0)),
        (1, "answer", ("What? ", 0)),
    ]


def test_pipeline_without_images_asks_in_text_alone(place: Path) -> None:
    """No image input, no image: then an empty chat template is no contradiction either."""
    value = _set(_at(_example()), "processing_params.inputs", [{"name": "question", "key": "question"}])
    value = _set(
        _set(value, "processing_params.outputs.0.prompt", "Q: {{ question }}"), "processors.0.chat_template", ""
    )
    made = _read(place, value)
    assert [one.parts for one in made if isinstance(one, Item)] == [("Q: one?",), ("Q: two?",)]


def test_pipeline_datasets_that_cannot_be_read_are_all_named(place: Path) -> None:
    """Paths, and the folder of the images."""
    datasets = [{"path": "none", "type": "loadable"}, {"path": "images", "type": "JSONL"}]
    datasets.append({"path": "t.jsonl", "type": "loadable", "image_base_path": "nowhere"})
    datasets.append({"path": "a\0b", "type": "loadable"})
    with pytest.raises(InputError) as caught:
        _read(place, _set(_example(), "loading_params.datasets", datasets))
    assert len(caught.value.problems) == 4


def test_jsonl_datasets_are_lines_whatever_their_name(place: Path) -> None:
    """type: JSONL says how to read, so the suffix does not matter."""
    (place / "t.jsonl").rename(place / "rows.txt")
    made = _read(place, _at(_example(), path="rows.txt", type="JSONL", image_base_path="images"))
    assert [type(one) for one in made] == [Item, Item]


# --- merged rows -----------------------------------------------------------------------------------------------


def _merged(fields: dict[str, Any], row: bytes, answers: dict[str, Any], **more: Any) -> dict[str, Any]:
    value = _set(_example(), "processing_params.output_schema", fields)
    for key, new in more.items():
        value = _set(value, f"processing_params.{key}", new)
    plan = _parse(value).merged_rows()
    assert plan is not None
    return render_output(json.loads(json.dumps(plan)), row, answers)


def test_merged_row_of_the_example() -> None:
    """The row's own fields stay, the question and the image's path pass through, the answer is added."""
    plan = load_pipeline(str(EXAMPLE)).merged_rows()
    assert plan is not None
    row = {"image_path": "a.jpg", "question": "how many?", "id": 7}
    assert render_output(plan, json.dumps(row).encode(), {"answer": "two"}) == {**row, "answer": "two"}


def test_merged_row_keeps_types_and_nesting() -> None:
    """Lists and objects of templates are filled; single names keep numbers and JSON answers as they are."""
    fields = {
        "conv": [{"role": "user", "content": "{{ question }}?"}, {"n": "{{ row_n }}", "fixed": 1}],
        "a": "{{ answer }}",
    }
    row = b'{"image_path": ["a.jpg"], "question": "q", "row_n": 18528528433540659662}'
    made = _merged(fields, row, {"answer": {"x": [1, None]}}, remove_columns=True)
    assert made == {
        "conv": [{"role": "user", "content": "q?"}, {"n": 18528528433540659662, "fixed": 1}],
        "a": {"x": [1, None]},
    }


def test_merged_row_has_null_for_what_is_not_there() -> None:
    """A missing answer or field makes a null, in text around it too, never the word None."""
    fields = {"a": "{{ answer }}", "b": "Answer: {{ answer }}", "c": "{{ nothing }}", "d": "{{ image }}"}
    assert _merged(fields, b'{"question": "q"}', {"answer": None}, remove_columns=True) == dict.fromkeys("abcd")


def test_pipeline_without_output_schema_has_no_merged_rows() -> None:
    """Then collect writes what it always writes."""
    assert _parse(_set(_example(), "processing_params.output_schema", ...)).merged_rows() is None

"""Parquet, Arrow, saved datasets and ImageFolders: rows with a stated JSON form, images from their bytes."""

from __future__ import annotations

import builtins
import datetime as dt
import decimal
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmbatch.errors import InputError
from vlmbatch.inputs import SourceOptions, open_source
from vlmbatch.inputs.base import Item, Rejected, Source

if TYPE_CHECKING:
    from pathlib import Path

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def _source(*paths: Path, **options: Any) -> Source:
    return open_source(
        [str(path) for path in paths], SourceOptions(**{"prompt": "what?", "image_fields": ("image",), **options})
    )


def _items(source: Source) -> list[Item]:
    made = list(source)
    assert all(isinstance(one, Item) for one in made), made
    return [one for one in made if isinstance(one, Item)]


def _stream(path: Path, table: Any, chunk: int = 2) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return path.read_bytes()


def _images(*values: Any) -> Any:
    return pa.table({"id": [f"q{n}" for n in range(len(values))], "image": pa.array(list(values), IMAGE)})


def test_every_type_has_a_stated_json_form(tmp_path: Path) -> None:
    """What JSON lacks is written by one rule per type, and NaN is null with a warning that counts."""
    berlin = pa.timestamp("us", "Europe/Berlin")
    noon = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    columns = {
        "image": pa.array([b"x"]),
        "time": pa.array([noon], berlin),
        "nanos": pa.array([1], pa.timestamp("ns")),
        "date": pa.array([dt.date(2024, 2, 29)]),
        "clock": pa.array([1], pa.time64("ns")),
        "decimal": pa.array([decimal.Decimal("1.10")]),
        "big": pa.array([2**64 - 1], pa.uint64()),
        "single": pa.array([0.1], pa.float32()),
        "nan": pa.array([float("nan")]),
        "list": pa.array([[noon, None]], pa.list_(berlin)),
        "nested": pa.array([{"when": noon, "raw": b"\xff"}], pa.struct([("when", berlin), ("raw", pa.binary())])),
        "map": pa.array([[("k", float("inf"))]], pa.map_(pa.string(), pa.float64())),
        "kind": pa.array(["cat"]).dictionary_encode(),
        "other": pa.array([{"bytes": b"123", "path": "o.png"}], IMAGE),
        "nothing": pa.nulls(1),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    source = _source(tmp_path / "t.parquet")
    (item,) = _items(source)
    assert json.loads(item.row) == {
        "image": {"path": None},
        "time": "2024-07-01 12:00:00.000000Z",
        "nanos": "1970-01-01 00:00:00.000000001",
        "date": "2024-02-29",
        "clock": "00:00:00.000000001",
        "decimal": "1.10",
        "big": 2**64 - 1,
        "single": 0.10000000149011612,
        "nan": None,
        "list": ["2024-07-01 12:00:00.000000Z", None],
        "nested": {"when": "2024-07-01 12:00:00.000000Z", "raw": "/w=="},
        "map": [["k", None]],
        "kind": "cat",
        "other": {"path": "o.png"},
        "nothing": None,
    }
    assert item.images[0].read() == b"x"
    assert [w.split(":")[1].split(" NaN")[0].strip() for w in source.report.warnings] == ["1", "1"]


def test_embedded_images_keep_names_that_lead_nowhere(tmp_path: Path) -> None:
    """Bytes are sent; a name that is absolute or climbs is cut to its last step, a missing one is stated."""
    table = _images(*({"bytes": b"x", "path": path} for path in ("d/a.png", "/home/u/b.png", "../c.png", "", None)))
    pq.write_table(table, tmp_path / "t.parquet")
    items = _items(_source(tmp_path / "t.parquet"))
    assert [item.images[0].path for item in items] == ["d/a.png", "b.png", "c.png", "row-4-image-0", "row-5-image-0"]
    assert [item.source_line for item in items] == [1, 2, 3, 4, 5]


def test_declared_image_column_is_used_where_none_is_named(tmp_path: Path) -> None:
    """A dataset that declares one image column needs no --image-field."""
    features = json.dumps({"info": {"features": {"photo": {"_type": "Image"}, "id": {"_type": "Value"}}}})
    table = pa.table({"photo": pa.array([{"bytes": b"x", "path": None}], IMAGE)})
    pq.write_table(table.replace_schema_metadata({"huggingface": features}), tmp_path / "t.parquet")
    (item,) = _items(_source(tmp_path / "t.parquet", image_fields=("image_path",)))
    assert item.images[0].read() == b"x"


def test_parquet_tells_its_total_before_it_is_read(tmp_path: Path) -> None:
    """The footer knows the number of rows."""
    pq.write_table(_images(*[{"bytes": b"x", "path": None}] * 70), tmp_path / "t.parquet")
    source = _source(tmp_path / "t.parquet")
    next(iter(source))
    assert source.total == 70


@pytest.mark.parametrize("form", ["stream", "file"])
def test_arrow_files_of_both_formats_are_read(tmp_path: Path, form: str) -> None:
    """The format is found by its first bytes."""
    table = _images({"bytes": b"x", "path": None}, {"bytes": b"y", "path": None}, {"bytes": b"z", "path": None})
    path = tmp_path / "t.arrow"
    new = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    source = _source(path)
    assert [item.images[0].read() for item in _items(source)] == [b"x", b"y", b"z"]
    assert source.report.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def _saved(folder: Path, *parts: Any) -> None:
    files = []
    for number, table in enumerate(parts):
        name = f"data-{number:05d}-of-{len(parts):05d}.arrow"
        _stream(folder / name, table)
        files.append({"filename": name})
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_split": None}))
    (folder / "dataset_info.json").write_text("{}")


def test_saved_dataset_is_one_table_over_its_files(tmp_path: Path) -> None:
    """Rows are numbered through; paths start in the dataset's folder."""
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "p.png").write_bytes(b"p")
    _saved(tmp_path / "ds", _images({"bytes": b"a", "path": None}), _images({"bytes": None, "path": "p.png"}))
    source = _source(tmp_path / "ds")
    items = _items(source)
    assert [(item.source_line, item.where, item.images[0].read()) for item in items] == [
        (1, "ds", b"a"),
        (2, "ds", b"p"),
    ]
    assert (source.kind, source.path) == ("arrow", "ds")
    lines = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted((tmp_path / "ds").glob("*.arrow"))
    )
    assert source.report.sha256 == hashlib.sha256(lines.encode()).hexdigest()


def test_saved_splits_are_read_in_their_own_order(tmp_path: Path) -> None:
    """A dictionary of datasets is its splits, one table each."""
    for split in ("train", "test"):
        _saved(tmp_path / "ds" / split, _images({"bytes": split.encode(), "path": None}))
    (tmp_path / "ds" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    items = _items(_source(tmp_path / "ds"))
    assert [(item.index, item.where, item.images[0].read()) for item in items] == [
        (0, "ds/train", b"train"),
        (1, "ds/test", b"test"),
    ]
    (tmp_path / "ds" / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    with pytest.raises(InputError) as caught:
        _source(tmp_path / "ds")
    assert "validation" in str(caught.value.problems[0])


def test_saved_dataset_with_an_index_mapping_is_refused(tmp_path: Path) -> None:
    """Its files are not its rows; the way out is told."""
    _saved(tmp_path / "ds", _images({"bytes": b"a", "path": None}))
    state = {
        "_data_files": [{"filename": "data-00000-of-00001.arrow"}],
        "_indices_data_files": [{"filename": "i.arrow"}],
    }
    (tmp_path / "ds" / "state.json").write_text(json.dumps(state))
    with pytest.raises(InputError) as caught:
        _source(tmp_path / "ds")
    assert "flatten_indices" in str(caught.value.problems[0])


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_image_folder_metadata_is_a_table(tmp_path: Path, kind: str) -> None:
    """metadata.* with file_name makes a folder a table; its column names the images; the rest are counted."""
    for name in ("a.png", "b.png", "c.png"):
        (tmp_path / name).write_bytes(name.encode())
    rows = [{"file_name": "b.png", "text": "B"}, {"file_name": "a.png", "text": "A"}]
    path = tmp_path / f"metadata.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "csv":
        path.write_text("file_name,text\nb.png,B\na.png,A\n")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    source = _source(tmp_path, image_fields=("image_path",), prompt=None, question_field="text")
    items = _items(source)
    assert [item.parts for item in items] == [(0, "B"), (0, "A")]
    assert [item.images[0].path for item in items] == ["b.png", "a.png"]
    assert [json.loads(item.row) for item in items] == rows
    assert source.report.left_out == {"not_in_metadata": 1}


def test_image_folder_splits_are_tables_of_one_root(tmp_path: Path) -> None:
    """Metadata one folder down is read split by split; recorded paths start in the common parent."""
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "a.png").write_bytes(split.encode())
        (tmp_path / split / "metadata.jsonl").write_text('{"file_name": "a.png"}\n')
    items = _items(_source(tmp_path, image_fields=("image_path",)))
    assert [item.images[0].path for item in items] == ["test/a.png", "train/a.png"]
    assert [item.where for item in items] == [f"{tmp_path.name}/{s}/metadata.jsonl" for s in ("test", "train")]


def test_folder_with_other_metadata_stays_a_folder(tmp_path: Path) -> None:
    """A metadata.csv about something else is a file that is left out."""
    (tmp_path / "a.png").write_bytes(b"x")
    (tmp_path / "metadata.csv").write_text("key,value\nauthor,me\n")
    source = open_source([str(tmp_path)], SourceOptions(prompt="what?"))
    assert [item.images[0].path for item in _items(source)] == ["a.png"]


def test_missing_pyarrow_is_told_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the table is refused, with the command that installs it."""
    pq.write_table(_images({"bytes": b"x", "path": None}), tmp_path / "t.parquet")
    real = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError) as caught:
        list(_source(tmp_path / "t.parquet"))
    assert caught.value.hint == "pip install 'vlmbatch[parquet]'"


def test_text_that_is_not_utf8_is_a_bad_row(tmp_path: Path) -> None:
    """One row's broken text is that row's fault, and the column is named."""
    text = pa.array([b"ok", b"\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"image": pa.array([b"x", b"y"]), "text": text}), tmp_path / "t.parquet")
    good, bad = list(_source(tmp_path / "t.parquet"))
    assert isinstance(good, Item)
    assert isinstance(bad, Rejected)
    assert (bad.code, bad.source_line) == ("not_utf8", 2)
    assert "'text'" in bad.message


def test_column_without_a_json_form_is_refused_by_name(tmp_path: Path) -> None:
    """A type that JSON has nothing for stops the table and names the column."""
    column = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
    _stream(tmp_path / "t.arrow", pa.table({"image": pa.array([b"x"]), "span": column}))
    with pytest.raises(InputError, match="'span'"):
        list(_source(tmp_path / "t.arrow"))


@settings(max_examples=150)
@given(st.data(), st.sampled_from(["parquet", "arrow"]))
def test_damaged_files_give_rows_or_our_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str
) -> None:
    """Cut anywhere, or with bytes changed anywhere, a file is read or refused, never a crash of ours."""
    folder = tmp_path_factory.getbasetemp() / "damage"
    folder.mkdir(exist_ok=True)
    path = folder / f"t.{kind}"
    table = _images(*({"bytes": b"x" * 50, "path": f"{n}.png"} for n in range(5)))
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        _stream(path, table)
    whole = bytearray(path.read_bytes())
    cut = data.draw(st.integers(0, len(whole)))
    if data.draw(st.booleans()):
        whole = whole[:cut]
    elif cut < len(whole):
        whole[cut] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    try:
        made = list(_source(path))
    except InputError:
        return
    assert [one.index for one in made] == list(range(len(made)))

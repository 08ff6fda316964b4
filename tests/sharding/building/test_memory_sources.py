"""Sources in memory (also `in_memory.py`, `content_hash.py` and `tables/memory.py` of `sharding/sources`)."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import (
    AppendOptions,
    BuildOptions,
    ConfigError,
    DestinationError,
    ExportOptions,
    Original,
    Progress,
    SourceError,
    append,
    build,
    open_dataset,
    plan_append,
    plan_build,
    read_records,
    verify,
)
from ringfeed.sharding.common.argument_names import field_names
from ringfeed.sharding.sources.tables import table_files
from ringfeed.tools.shard_dataset.parser import build_parser
from ringfeed.tools.shard_dataset.prepare_arguments import add_prepare_flags
from ringfeed.tools.tune import tune
from tests.helpers.files import contents
from tests.helpers.pictures import noise_image

HOW: dict[str, Any] = {"label": "label", "split": {"train": 0.9, "test": 0.1}, "shards": 5}


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """As a program would yield them: NumPy values of the table's types."""
    columns = {name: table.column(name).to_pandas().to_numpy() for name in table.column_names}
    return [{name: values[i] for name, values in columns.items()} for i in range(table.num_rows)]


SOURCES: dict[str, Callable[[pa.Table], Any]] = {
    "a table": lambda table: table,
    "a table in pieces": lambda table: pa.concat_tables([table.slice(0, 123), table.slice(123)]),
    "a reader": lambda table: table.to_reader(77),
    "a batch": lambda table: table.combine_chunks().to_batches()[0],
    "batches": lambda table: iter(table.to_batches(max_chunksize=50)),
    "dicts": rows_of,
    "a generator": lambda table: (row for row in rows_of(table)),
    "pandas": lambda table: table.drop_columns(["vector"]).to_pandas(),
    "polars": lambda table: pl.from_arrow(table),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_equal_records_give_equal_bytes_whatever_holds_them(
    kind: str, table: pa.Table, tmp_path: Path, spill_folder: Path
) -> None:
    expected = table.drop_columns(["vector"]) if kind == "pandas" else table
    manifest = build(source=SOURCES[kind](table), destination=tmp_path / "out", **HOW)
    assert manifest.source["url"] == "data in memory"
    dataset = open_dataset(str(tmp_path / "out"))
    found = [row for split in ("train", "test") for row in read_records(dataset, split, 1000)]
    assert sorted(found, key=lambda row: row["id"]) == expected.to_pylist()
    assert verify(str(tmp_path / "out")) == []
    build(source=expected, destination=tmp_path / "again", **HOW)
    assert contents(tmp_path / "out") == contents(tmp_path / "again")
    assert list(spill_folder.iterdir()) == []


def test_a_build_of_several_processes_gives_the_shards_of_a_file(parquet: str, table: pa.Table, tmp_path: Path) -> None:
    build(source=table, destination=tmp_path / "memory", workers=2, **HOW)
    build(source=parquet, destination=tmp_path / "file", **HOW)
    memory, file = (
        {name: data for name, data in contents(tmp_path / place).items() if name.endswith(".tfrecord")}
        for place in ("memory", "file")
    )
    assert memory == file
    assert memory


def test_values_of_any_shape_and_nesting_are_read(tmp_path: Path) -> None:
    buffer = np.zeros((2, 3), np.float32)

    def records() -> Iterator[dict[str, Any]]:
        for i in range(20):
            buffer[:] = i  # used again, as loops over files do
            yield {"id": i, "x": buffer, "list": [i] * (i % 3), "in": {"text": "ü" * i}, "none": None if i else 1.5}

    build(source=records(), destination=tmp_path / "dicts", shards=1)
    dataset = open_dataset(str(tmp_path / "dicts"))
    assert dataset.manifest.schema["x"].shape == (2, 3)
    assert sorted(read_records(dataset, "train", 20), key=lambda row: row["id"]) == [
        {"id": i, "x": [[i] * 3] * 2, "list": [i] * (i % 3), "in.text": "ü" * i, "none": None if i else 1.5}
        for i in range(20)
    ]
    frame = pd.DataFrame(
        {"kind": pd.Categorical(["a", "b"] * 9), "boxes": [[{"x": i}] * (i % 3) for i in range(18)]},
        index=pd.Index(range(100, 118), name="key"),
    )
    build(source=frame, destination=tmp_path / "frame", label="kind", shards=1)
    assert sorted(read_records(open_dataset(str(tmp_path / "frame")), "train", 20), key=lambda row: row["key"]) == [
        {"key": 100 + i, "kind": "ab"[i % 2], "boxes.x": [i] * (i % 3)} for i in range(18)
    ]
    unnamed = frame.rename_axis(index=None)
    assert plan_build(source=unnamed, destination="x").source.schema.names == ("kind", "boxes.x")


def test_a_killed_build_resumes_with_the_same_records_however_they_are_cut(
    table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "_PART_BYTES", 4000)  # many parts, whose ends follow from those of the batches
    build(source=table, destination=tmp_path / "whole", **HOW)

    def interrupt(progress: Progress) -> None:
        if progress.stage == "write" and progress.done >= 2:
            raise KeyboardInterrupt

    seen: list[Progress] = []
    for pieces in (30, 41):
        with pytest.raises(KeyboardInterrupt, match="start the same command again"):
            build(source=table.to_reader(pieces), destination=tmp_path / "out", report=interrupt, **HOW)
    build(source=table.to_reader(77), destination=tmp_path / "out", report=seen.append, **HOW)
    assert next(progress for progress in seen if progress.stage == "write").resumed >= 2
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_records_are_not_appended_twice(table: pa.Table, tmp_path: Path) -> None:
    build(source=rows_of(table), destination=tmp_path / "out", **HOW)
    for same in (table, pl.from_arrow(table), table.to_reader(10)):
        with pytest.raises(DestinationError, match="out holds the records of data in memory already"):
            append(source=same, destination=tmp_path / "out")
    changed = table.set_column(0, "id", pa.array(np.arange(len(table)) + 1))
    assert plan_append(source=changed, destination=tmp_path / "out").assignment.generation == 1
    assert append(source=changed, destination=tmp_path / "out").records == 2 * len(table)
    assert append(source=(row for row in rows_of(table)), destination=tmp_path / "out", again=True).records == 1800


@pytest.mark.parametrize(
    ("source", "error", "match"),
    [
        ([], SourceError, "data in memory holds no records; a generator can be read only once, so make a new one"),
        (pa.table({"x": pa.array([], pa.int64())}), SourceError, "data in memory holds no records"),
        ({"x": [1]}, ConfigError, r"source must be a URL, a path or records, got a dict; .* pyarrow\.table"),
        ([{"x": 1}, [2]], SourceError, "data in memory: record 1 is of type list; give dicts, or Arrow batches"),
        ([{"x": 1}, {"x": {1}}], SourceError, "data in memory: record 1: the column 'x' has a value of type set"),
        ([{"x": "a"}, {"x": 1}], SourceError, "data in memory: the column 'x' has string values in record 0 and int64"),
        (pd.DataFrame({"x": [1, "a"]}), SourceError, "data in memory: .*; fix it"),
        (pd.DataFrame([[1, 2]], columns=["x", "x"]), SourceError, "data in memory: .*x.*; fix it"),
        (pa.table([[1], [2]], ["x", "x"]), SourceError, "data in memory: column names must differ, got 'x' more than"),
    ],
)
def test_what_is_no_records_is_refused(
    source: Any, error: type[Exception], match: str, nothing_left: Path, spill_folder: Path
) -> None:
    with pytest.raises(error, match=match):
        build(source=source, destination=nothing_left)
    assert list(spill_folder.iterdir()) == []


def test_options_are_checked_before_records_are_read(parquet: str, tmp_path: Path) -> None:
    def records() -> Iterator[dict[str, Any]]:
        raise AssertionError("the records were read")
        yield {}

    build(source=parquet, destination=tmp_path / "out", shards=1)
    with pytest.raises(DestinationError, match="already holds a dataset"):
        build(source=records(), destination=tmp_path / "out")
    with pytest.raises(ConfigError, match="split_files names files, and the source is in memory"):
        build(source=records(), destination=tmp_path / "new", split_files={"train": "a"})
    with pytest.raises(ConfigError, match="there is no option 'lable'; did you mean 'label'"):
        build(source=records(), destination=tmp_path / "new", lable="x")
    with pytest.raises(RuntimeError, match="of the user"):
        build(source=(_fail() for _ in range(3)), destination=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def _fail() -> dict[str, Any]:
    raise RuntimeError("of the user")


@pytest.mark.parametrize(
    ("kind", "command", "others", "elsewhere"),
    [
        (BuildOptions, "build", {"destination", "prepare"}, set()),
        (AppendOptions, "append", {"destination", "prepare", "source", "folder"}, set()),
        (ExportOptions, "export", {"url", "destination"}, set()),
        (Original, "repair", {"url", "folder", "images_from", "trust_code"}, {"source", "spill"}),
    ],
)
def test_arguments_are_named_as_their_flags(kind: type, command: str, others: set[str], elsewhere: set[str]) -> None:
    """Flags that prepare records are steps of `PrepareOptions`; those elsewhere are arguments of the function."""
    (commands,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    preparing = argparse.ArgumentParser()
    add_prepare_flags(preparing)
    flags, of_steps = (
        {word[2:].replace("-", "_") for action in parser._actions for word in action.option_strings if len(word) > 2}
        for parser in (commands.choices[command], preparing)
    )
    of_consoles = {"help", "debug", "dry_run", "json", "quiet", "verbose"}
    assert set(field_names(kind)) == (flags - of_steps - of_consoles - elsewhere) | others


def test_former_names_of_arguments_give_a_warning(table: pa.Table) -> None:
    old = {"splits": {"train": 0.5, "test": 0.5}, "shard_bytes": 4000, "memory_bytes": 3 << 30}
    new = {"split": {"train": 0.5, "test": 0.5}, "shard_size": 4000, "memory": 3 << 30}
    with pytest.warns(DeprecationWarning, match=r"is called .* now, as its flag is") as warned:
        options = plan_build(source=table, destination="x", shard_format="parquet", **old).options
    same = plan_build(source=table, destination="x", format="parquet", **new).options
    assert options == replace(same, source=options.source)  # each has a file of its own
    assert {warning.filename for warning in warned} == {__file__}
    assert len(warned) == 4
    with pytest.raises(ConfigError, match="format and shard_format are the same option; give format"):
        plan_build(source=table, destination="x", format="parquet", shard_format="parquet")
    with pytest.warns(
        DeprecationWarning, match=r"kind is called source_kind now|memory_bytes is called memory"
    ) as warned:
        assert Original(url="x", kind="csv", memory_bytes=7) == Original(url="x", source_kind="csv", memory=7)
    assert [warning.filename for warning in warned] == [__file__] * 2
    with pytest.raises(TypeError, match="memory and memory_bytes are the same argument; give memory"), pytest.warns():
        tune("x", memory_bytes=7, memory=8)


def test_bad_records_are_named_by_their_numbers(tmp_path: Path) -> None:
    records = [{"id": i, "label": None if i == 7 else "ab"[i % 2]} for i in range(20)]
    manifest = build(source=records, destination=tmp_path / "out", label="label", on_bad_record="skip:1", shards=1)
    assert manifest.records == 19
    assert '"data in memory", "position": "record 7"' in (tmp_path / "out" / "_ringfeed" / "rejected.jsonl").read_text()


def test_an_image_of_hugging_face_is_an_image(tmp_path: Path) -> None:
    images = pa.array([{"bytes": noise_image(0), "path": None}] * 4)
    metadata = {"huggingface": '{"info": {"features": {"img": {"_type": "Image"}}}}'}
    table = pa.table({"img": images}).replace_schema_metadata(metadata)
    pq.write_table(table, tmp_path / "x.parquet")
    ours, files = (plan_build(source=each, destination="x").source for each in (table, str(tmp_path / "x.parquet")))
    assert ours.schema == files.schema
    assert ours.schema["img"].is_image

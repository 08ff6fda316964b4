"""Ordered categories of pandas, Polars and Arrow keep their order in shards, exports and other programs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import (
    ExportOptions,
    SourceError,
    append,
    build,
    check_dataset,
    export,
    open_dataset,
)
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.prepare import PrepareOptions, parse_step

SIZES, RISKS = ("small", "medium", "large", "huge"), ("low", "mid", "high")
VALUES = ["large", None, "small", "medium", "large", "small"] * 4
OPTIONS: dict[str, Any] = {"label": "risk", "shards": 2}


def frame(sizes: tuple[str, ...] = SIZES, *, ordered: bool = True) -> pd.DataFrame:
    """24 rows; `huge` has no record."""
    return pd.DataFrame({
        "id": range(24),
        "size": pd.Categorical(VALUES, categories=sizes, ordered=ordered),
        "risk": pd.Categorical(["mid", "low", "high"] * 8, categories=RISKS, ordered=ordered),
    })  # fmt: skip


def parquet(folder: Path, **options: Any) -> str:
    """Two files, the second of several row groups."""
    frame()[:9].to_parquet(folder / "rows-0.parquet", **options)
    frame()[9:].to_parquet(folder / "rows-1.parquet", row_group_size=4, **options)
    return f"{folder}/rows-*.parquet"


def polars(folder: Path) -> str:
    rows = pl.from_pandas(frame().astype({"size": object, "risk": object}))
    kinds = {"size": pl.Enum(SIZES), "risk": pl.Enum(RISKS)}
    rows.cast(kinds).write_parquet(folder / "rows.parquet")  # type: ignore[arg-type]
    return str(folder / "rows.parquet")


def ipc(folder: Path, stream: bool) -> str:
    table = pa.Table.from_pandas(frame())
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(folder / "rows.arrow", table.schema) as writer:
        writer.write_table(table, 7)
    return str(folder / "rows.arrow")


SOURCES: dict[str, Callable[[Path], Any]] = {
    "DataFrame": lambda folder: frame(),
    "Arrow batches": lambda folder: pa.Table.from_pandas(frame()).to_batches(7),
    "Parquet": parquet,
    "Polars' Parquet": polars,
    "Arrow file": lambda folder: ipc(folder, stream=False),
    "Arrow stream": lambda folder: ipc(folder, stream=True),
}
WITHOUT: dict[str, Callable[[Path], Any]] = {  # which have no order, or do not tell it
    "unordered": lambda folder: frame(ordered=False),
    "Parquet without dictionaries": lambda folder: parquet(folder, use_dictionary=False),
}


def meaning(url: Path) -> tuple[list[tuple[str, ...]], tuple[str, ...], str]:
    """Categories of each feature, classes, and the version of the format."""
    manifest = open_dataset(str(url)).manifest
    version = json.loads((url / "_ringfeed" / "dataset.json").read_text())["format_version"]
    return [feature.categories for feature in manifest.schema.features], manifest.classes, version


@pytest.mark.parametrize("name", SOURCES)
def test_they_keep_their_order_and_order_the_classes(tmp_path: Path, name: str) -> None:
    build(source=SOURCES[name](tmp_path), destination=str(tmp_path / "out"), format="parquet", **OPTIONS)
    assert meaning(tmp_path / "out") == ([(), SIZES, RISKS], RISKS, "2.0")
    shards = sorted(tmp_path.glob("out/*.parquet"))
    pandas = pd.read_parquet(shards).set_index("id").sort_index()
    assert pandas["size"].cat.ordered
    assert tuple(pandas["size"].cat.categories) == SIZES
    assert pandas["size"].cat.codes.tolist() == frame()["size"].cat.codes.tolist()
    assert pl.read_parquet(shards).schema["size"] == pl.Enum(SIZES)


@pytest.mark.parametrize("name", WITHOUT)
def test_those_without_an_order_stay_strings(tmp_path: Path, name: str) -> None:
    build(source=WITHOUT[name](tmp_path), destination=str(tmp_path / "out"), format="parquet", **OPTIONS)
    assert meaning(tmp_path / "out") == ([(), (), ()], tuple(sorted(RISKS)), "1.0")
    assert pq.read_schema(next(tmp_path.glob("out/*.parquet"))).field("size").type == pa.string()


@pytest.mark.parametrize(("format_", "version"), [("tfrecord", "1.0"), ("parquet", "2.0")])
def test_copies_appends_and_exports_have_them(tmp_path: Path, format_: str, version: str) -> None:
    one, copy, other = tmp_path / "one", tmp_path / "copy", {"tfrecord": "parquet", "parquet": "tfrecord"}[format_]
    build(source=frame(), destination=str(one), format=format_, **OPTIONS)
    frame(ordered=False)[5:9].to_parquet(tmp_path / "more.parquet")
    append(source=str(tmp_path / "more.parquet"), destination=str(one))
    assert meaning(one) == ([(), SIZES, RISKS], RISKS, version)
    assert check_dataset(str(one)).damages == ()
    build(source=str(one), destination=str(copy), format=other)
    assert meaning(copy)[:2] == ([(), SIZES, RISKS], RISKS)
    export(ExportOptions(url=str(one), destination=str(tmp_path / "hf"), to="hf"))
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_parquet(list(map(str, tmp_path.glob("hf/*.parquet"))), cache_dir=tmp_path)
    assert (tuple(rows.features["size"].names), tuple(rows.features["risk"].names)) == (SIZES, RISKS)
    codes = frame()["size"].cat.codes
    assert all(row["size"] == (None if codes[row["id"]] < 0 else codes[row["id"]]) for row in rows)


def test_other_values_and_other_orders_are_refused(tmp_path: Path) -> None:
    parquet(tmp_path)
    build(source=frame(), destination=str(tmp_path / "out"), **OPTIONS)
    with pytest.raises(SourceError, match="column 'size' holds 'giant', which is none of its ordered categories, smal"):
        append(source=frame((*SIZES, "giant")).fillna({"size": "giant"}), destination=str(tmp_path / "out"))
    frame(SIZES[::-1]).to_parquet(tmp_path / "rows-2.parquet")
    source = f"{tmp_path}/rows-*.parquet"
    with pytest.raises(SourceError, match=r"rows-2.*categories huge, large, medium, small here and small.*rows-0"):
        build(source=source, destination=str(tmp_path / "all"), **OPTIONS)
    prepare = PrepareOptions(steps=(parse_step("--fill-nulls", "size=none", folder="."),))
    with pytest.raises(ConfigError, match=r"holds the ordered categories small, .* got 'none'; .*--cast size=string"):
        build(source=frame(), destination=str(tmp_path / "all"), prepare=prepare, **OPTIONS)


STEPS: dict[str, tuple[dict[str, Any], list[tuple[str, ...]]]] = {
    "--cast size=string --fill-nulls size=none": ({}, [(), (), RISKS]),
    "--fill-nulls size=huge": ({}, [(), SIZES, RISKS]),
    "--rename size=s": ({}, [(), SIZES, RISKS]),
    "--drop-nulls size": (
        {"label": "size", "rare_classes": "merge:rest", "min_class_records": 9}, [(), (*SIZES, "rest"), RISKS]
    ),
}  # fmt: skip


@pytest.mark.parametrize("steps", STEPS)
def test_steps_keep_them_or_make_strings(tmp_path: Path, steps: str) -> None:
    options, expected = STEPS[steps]
    words = steps.split()
    parsed = tuple(parse_step(*pair, folder=".") for pair in zip(words[::2], words[1::2], strict=True))
    build(source=frame(), destination=str(tmp_path), prepare=PrepareOptions(steps=parsed), **OPTIONS | options)
    assert meaning(tmp_path)[0] == expected

"""Datasets to load: built once a session, of records that carry their own number."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import BuildOptions, build

CLASSES = ("common", "middling", "rare")


def make_table(records: int) -> pa.Table:
    """Records whose every column follows from their number `id`."""
    ids = np.arange(records)
    labels = np.where(ids % 50 == 0, "rare", np.where(ids % 5 == 0, "middling", "common"))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, 3).astype(np.float32)), 3)
    return pa.table({"id": pa.array(ids), "vector": vectors, "label": pa.array(labels)})


def numbered(table: pa.Table) -> pa.Table:
    """The same with an integer for the label: all records then share one layout."""
    codes = pa.array([CLASSES.index(value) for value in table.column("label").to_pylist()], pa.int64())
    return table.set_column(2, "label", codes)


def rewrite(file: Path, data: bytes) -> None:
    """Put another file in its place: a reader that has failed, or ended, may still have threads at what it mapped."""
    (file.parent / "rewritten").write_bytes(data)
    (file.parent / "rewritten").replace(file)


@pytest.fixture(scope="session")
def make_dataset(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Build a dataset of numbered records; equal arguments share one."""
    made: dict[Any, str] = {}

    def make(records: int = 1000, *, shards: int = 7, shard_format: str = "tfrecord", fixed: bool = True) -> str:
        key = (records, shards, shard_format, fixed)
        if key not in made:
            folder: Path = tmp_path_factory.mktemp("dataset")
            table = make_table(records)
            pq.write_table(numbered(table) if fixed else table, folder / "source.parquet")
            options = BuildOptions(
                source=str(folder / "source.parquet"),
                destination=str(folder / "shards"),
                label="label",
                shards=shards,
                shard_format=shard_format,
                min_class_records=1,
            )
            build(replace(options, splits={"train": Fraction(1)}))
            made[key] = str(folder / "shards")
        return made[key]

    return make

"""Datasets to load, built once per session from records that carry their own number."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import BuildOptions, build
from tests.helpers.numbered_records import make_table, numbered


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

"""Loading a dataset after an append: all records, with their classes and values unchanged."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import AppendOptions, append, open_dataset
from tests.helpers.numbered_records import make_table, numbered

OLD, NEW = 1000, 600


def append_records(url: str, folder: Path, *, fixed: bool, first: int, label: int | str) -> None:
    """600 records with numbers from `first` on, all of one class."""
    table = make_table(NEW)
    ids = pa.array(np.arange(first, first + NEW))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, 3).astype(np.float32)), 3)
    labels = pa.array([label] * NEW)
    table = (numbered(table) if fixed else table).set_column(0, "id", ids).set_column(1, "vector", vectors)
    pq.write_table(table.set_column(2, "label", labels), folder / "more.parquet")
    append(AppendOptions(source=str(folder / "more.parquet"), destination=url))


def loaded(url: str, **options: Any) -> list[tuple[int, float, Any, int]]:
    rows = []
    for batch in Loader(url, batch_size=16, **options).epoch(0):
        columns = (batch["id"], batch["vector"][:, 2], batch["label"], batch["class_id"])
        rows += zip(*(column.numpy().tolist() for column in columns), strict=True)
    return rows


@pytest.mark.parametrize(
    ("shard_format", "fixed", "first", "is_fixed"),
    [
        ("tfrecord", True, 2000, True),  # two bytes a number, as those before
        ("tfrecord", True, 20_000, False),  # three: from now on all records are parsed
        ("tfrecord", False, 2000, False),
        ("parquet", True, 20_000, False),
    ],
)
def test_old_and_new_records_load_unchanged(
    make_dataset: Callable[..., str], tmp_path: Path, shard_format: str, fixed: bool, first: int, is_fixed: bool
) -> None:
    url = str(shutil.copytree(make_dataset(OLD, shard_format=shard_format, fixed=fixed), tmp_path / "copy"))
    before = {id_: (label, class_id) for id_, _, label, class_id in loaded(url)}
    label = 7 if fixed else "alien"  # a class that is new, and that does not come last in order of the words
    append_records(url, tmp_path, fixed=fixed, first=first, label=label)
    manifest = open_dataset(url).manifest
    assert (manifest.layout is not None) == is_fixed
    rows = loaded(url)
    assert len({row[0] for row in rows}) == len(rows) == (OLD + NEW) // 16 * 16
    wanted = label if fixed else b"alien"
    for id_, x, value, class_id in rows:
        assert x == id_
        if id_ in before:
            assert (value, class_id) == before[id_]
        elif id_ >= first:
            assert (value, class_id) == (wanted, 3)
    balanced = loaded(url, balance="uniform")
    counts = np.bincount([class_id for *_, class_id in balanced])
    assert np.ptp(counts) <= 1
    assert len(counts) == 4

"""Parquet shards opened again give the same samples without a search for their vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader
from ringfeed.pipeline.decode import shard_opener
from ringfeed.pipeline.decode.columns import Columns, open_parquet
from ringfeed.pipeline.decode.page_locations import PageLocationCache
from ringfeed.sharding import BuildOptions, build

ROWS = 90


@pytest.fixture(params=[1 << 14])
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    monkeypatch.setattr(shard_opener, "_page_locations", PageLocationCache(request.param))
    values = np.random.default_rng(0).random((ROWS, 4), np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 4)
    table = pa.table({"x": vectors, "n": range(ROWS), "label": [i % 3 for i in range(ROWS)]})
    pq.write_table(table, tmp_path / "rows.parquet")
    options = {"label": "label", "shards": 3, "shard_format": "parquet", "splits": {"train": 1}}
    build(BuildOptions(source=str(tmp_path / "rows.parquet"), destination=str(tmp_path / "dst"), **options))  # type: ignore[arg-type]
    return str(tmp_path / "dst")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    def noted(data: pa.Buffer, schema: Any, *others: Any) -> Columns:
        names.append(",".join(schema.names))
        return open_parquet(data, schema, *others)

    monkeypatch.setattr(shard_opener, "open_parquet", noted)
    return names


def epochs(loader: Loader) -> list[dict[str, Any]]:
    return [batch for epoch in (0, 1, 0) for batch in loader.numpy_epoch(epoch)]


def test_known_locations_are_not_searched_again(url: str, opened: list[str]) -> None:
    got = epochs(Loader(url, batch_size=10, streams=1, columns=["x"]))
    assert opened == ["x"] * 3
    again = epochs(Loader(url, batch_size=10, streams=1, columns=["x"]))  # of another loader, too
    assert opened == ["x"] * 3
    for one, other in zip(got, again, strict=True):
        np.testing.assert_array_equal(one["x"], other["x"])
        np.testing.assert_array_equal(one["class_id"], other["class_id"])
    wide = epochs(Loader(url, batch_size=10, streams=1))  # whose other column Arrow has to read
    assert opened[3:] == ["x,n"] * 9
    for one, other in zip(got, wide, strict=True):
        np.testing.assert_array_equal(one["x"], other["x"])


@pytest.mark.parametrize("url", [2], indirect=True)
def test_the_cache_of_locations_is_bounded(url: str, opened: list[str]) -> None:
    epochs(Loader(url, batch_size=10, streams=1, columns=["x"]))
    assert len(opened) == 3 + 2  # of the last shard, in each epoch

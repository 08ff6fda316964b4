"""Numeric labels of Parquet shards come from the index, and their column is not read."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader
from ringfeed.pipeline.decode import shard_opener
from ringfeed.pipeline.decode.columns import Columns, open_parquet
from ringfeed.sharding import BuildOptions, build
from ringfeed.sharding.schema import Schema

ROWS = 60
LABELS: dict[str, Any] = {
    "int8": np.array([-128, 127, 0], np.int8),
    "uint64": np.array([2**64 - 1, 2**63, 7], np.uint64),
    "bool": np.array([True, False, True]),
    "string": ["b", "", "ä"],
}


@pytest.mark.parametrize("kind", LABELS)
def test_each_record_has_the_label_that_was_written(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()

    def noted(data: pa.Buffer, schema: Schema, *others: Any) -> Columns:
        read.update(schema.names)
        return open_parquet(data, schema, *others)

    monkeypatch.setattr(shard_opener, "open_parquet", noted)
    labels = pa.array(LABELS[kind]).take(pa.array(np.arange(ROWS) * 7 % 3))
    pq.write_table(
        pa.table({"id": np.arange(ROWS), "label": labels, "x": np.arange(ROWS) / 2}), tmp_path / "rows.parquet"
    )
    options = {"label": "label", "shards": 3, "shard_format": "parquet"}
    build(BuildOptions(source=str(tmp_path / "rows.parquet"), destination=str(tmp_path / "dst"), **options))

    def plain(value: Any) -> Any:
        return value.decode() if isinstance(value, bytes) else value

    expected = {number: labels[number].as_py() for number in range(ROWS)}
    stored = pq.read_table(list((tmp_path / "dst").glob("train-*.parquet")), columns=["id", "label"])
    assert {row["id"]: row["label"] for row in stored.to_pylist()} == expected
    for asked in ({}, {"balance": "uniform"}, {"where": "id < 50"}, {"rank": 1, "world_size": 3}):
        loader = Loader(str(tmp_path / "dst"), batch_size=6, **asked)
        for batch in loader.numpy_epoch(0):
            assert {"id", "label", "x"} < batch.keys()
            assert batch["label"].dtype == (object if kind == "string" else np.dtype(kind))
            found = zip(batch["id"].tolist(), batch["label"].tolist(), batch["class_id"].tolist(), strict=True)
            for number, label, class_id in found:
                assert plain(label) == expected[number] == loader.manifest.classes[class_id]
    for record in (loader.sample(index) for index in range(ROWS)):
        assert record["label"] == expected[int(record["id"])]
    assert read == {"id", "x"} | ({"label"} if kind == "string" else set())
    (alone,) = Loader(str(tmp_path / "dst"), batch_size=ROWS, columns=["label"]).numpy_epoch(0)
    assert sorted(map(plain, alone["label"].tolist())) == sorted(expected.values())

"""Labels of Parquet shards that are numbers are not read: the index has their classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, build

ROWS = 60
LABELS: dict[str, Any] = {
    "int8": np.array([-128, 127, 0], np.int8),
    "uint64": np.array([2**64 - 1, 2**63, 7], np.uint64),
    "bool": np.array([True, False, True]),
    "string": ["b", "", "ä"],
}


@pytest.mark.parametrize("kind", LABELS)
def test_each_record_has_the_label_that_was_written(tmp_path: Path, kind: str) -> None:
    labels = pa.array(LABELS[kind]).take(pa.array(np.arange(ROWS) * 7 % 3))
    pq.write_table(
        pa.table({"id": np.arange(ROWS), "label": labels, "x": np.arange(ROWS) / 2}), tmp_path / "rows.parquet"
    )
    options = {"label": "label", "shards": 3, "shard_format": "parquet"}
    build(BuildOptions(source=str(tmp_path / "rows.parquet"), destination=str(tmp_path / "dst"), **options))
    for shard in (tmp_path / "dst").glob("*.parquet"):
        table = pq.read_table(shard, columns=["id", "label"]) if shard.name.startswith("train") else None
        for row in table.to_pylist() if table else []:
            assert row["label"] == labels[row["id"]].as_py()

    def plain(value: Any) -> Any:
        return value.decode() if isinstance(value, bytes) else value

    expected = {number: labels[number].as_py() for number in range(ROWS)}
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
    (alone,) = Loader(str(tmp_path / "dst"), batch_size=ROWS, columns=["label"]).numpy_epoch(0)
    assert sorted(map(plain, alone["label"].tolist())) == sorted(expected.values())

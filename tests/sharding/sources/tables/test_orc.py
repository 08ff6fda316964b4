"""ORC files; `test_table_files.py` tests what all tables share."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import orc

from ringfeed.sharding import SourceError, read_records
from ringfeed.sharding.prepare import Drop, Filter, PrepareOptions, open_prepared
from ringfeed.sharding.sources import open_source
from ringfeed.sharding.sources.base import ReadSizes
from tests.helpers.builds import built
from tests.helpers.contents import completed, labels


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "zstd"])
def test_a_part_is_a_run_of_stripes(tmp_path: Path, compression: str) -> None:
    rows = 60_000
    numbers = np.random.default_rng(0).integers(0, 2**60, rows)
    table = pa.table({"x": numbers, "label": pa.array(["a", "b"] * (rows // 2))})
    orc.write_table(table, tmp_path / "x.orc", stripe_size=1 << 16, compression=compression, batch_size=1000)
    stripes = orc.ORCFile(tmp_path / "x.orc").nstripes
    sizes = ReadSizes(part_rows=rows // 2)
    source = open_source(str(tmp_path), "label", sizes=sizes)
    assert stripes > 2
    assert len(source.parts) == 2
    assert [part.first_record for part in source.parts] == [0, sum(rows for _, rows in source.parts[0].pieces)]
    unlabelled = open_source(str(tmp_path), None, sizes=sizes)
    counts = [len(batch) for part in unlabelled.parts for batch in unlabelled.labels(part)]
    assert counts == [sum(rows for _, rows in part.pieces) for part in source.parts]
    assert completed(source) == table.to_pylist()
    assert labels(source) == table.column("label").to_pylist()


def test_times_keep_their_values(tmp_path: Path) -> None:
    table = pa.table(
        {"when": pa.array([0, None, 10**15], pa.timestamp("us")), "day": pa.array([1, 2, None], pa.date32())}
    )
    orc.write_table(table, tmp_path / "x.orc")
    source = open_source(str(tmp_path), None)
    assert (source.schema["when"].logical, source.schema["day"].logical) == ("timestamp[ns]", "date32[day]")
    assert completed(source) == [{"when": 0, "day": 1}, {"when": None, "day": 2}, {"when": 10**18, "day": None}]


def test_a_time_beyond_nanoseconds_is_no_damage(tmp_path: Path) -> None:
    far = pa.array([None, 32_503_680_000_000], pa.timestamp("ms"))
    orc.write_table(
        pa.table({"x": [1, 2], "near": pa.array([0, 1], pa.timestamp("ms")), "far": far}), tmp_path / "x.orc"
    )
    with pytest.raises(
        SourceError, match=r"x\.orc: column 'far' holds a time outside of the years 1677 to 2262"
    ) as caught:
        completed(open_source(str(tmp_path), None))
    assert "damaged" not in str(caught.value)
    left = open_prepared(str(tmp_path), None, "auto", PrepareOptions(steps=(Drop(("far",)),)))
    assert completed(left) == [{"x": 1, "near": 0}, {"x": 2, "near": 10**6}]


@pytest.mark.parametrize(
    ("how", "records_of"),
    [
        ({"split_column": "fold"}, {"test": 3, "train": 3}),
        ({"label": "fold"}, {"train": 6}),
        ({"prepare": PrepareOptions(dedup=("fold",))}, {"train": 2}),
        ({"prepare": PrepareOptions(steps=(Filter("fold == 'test'"),))}, {"train": 3}),
    ],
)
def test_partition_keys_alone_may_be_read(tmp_path: Path, how: dict[str, Any], records_of: dict[str, int]) -> None:
    for fold in ("train", "test"):
        (tmp_path / "x" / f"fold={fold}").mkdir(parents=True)
        orc.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "x" / f"fold={fold}" / "a.orc")
    dataset = built(str(tmp_path / "x"), tmp_path / "out", shards=1, **how)
    assert {name: split.records for name, split in dataset.manifest.splits.items()} == records_of
    found = [row["x"] for split in records_of for row in read_records(dataset, split, 9)]
    assert sorted(set(found)) == ([1] if len(found) == 2 else [1, 2, 3])

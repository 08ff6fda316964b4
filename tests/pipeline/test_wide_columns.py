"""Chunks of more than 2 GiB: no column that a loader makes has offsets of 32 bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import build

KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "binary": (pa.binary(), [b"a", b"bc", b"", b"d"]),
    "string": (pa.string(), ["a", "bc", "", "ü"]),
    "pairs": (pa.list_(pa.string(), 2), [["a", "b"], ["", "c"], ["d", ""], ["e", "f"]]),
    "texts": (pa.list_(pa.string()), [["a"], [], ["b", "c"], ["d"]]),
    "numbers": (pa.list_(pa.uint8()), [[1], [], [2, 3], [4]]),
    "missing": (pa.binary(), [b"a", None, b"", b"d"]),
}


def _narrow(kind: pa.DataType) -> bool:
    inner = any(_narrow(kind.field(number).type) for number in range(kind.num_fields))
    return inner or pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_list(kind)


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
@pytest.mark.parametrize("name", KINDS)
def test_no_column_has_narrow_offsets(
    name: str, shard_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, values = KINDS[name]
    table = pa.table({"x": pa.array(values, kind), "i": range(4)})
    build(source=table, destination=str(tmp_path / "d"), format=shard_format, shards=2)
    seen: list[pa.DataType] = []
    from ringfeed.pipeline.deliver import to_numpy

    original = to_numpy._from_arrow
    monkeypatch.setattr(
        to_numpy, "_from_arrow", lambda column, feature: (seen.append(column.type), original(column, feature))[1]
    )
    fill = {"x": b"?"} if name == "missing" else {}
    (batch,) = Loader(str(tmp_path / "d"), batch_size=4, cache=None, fill=fill).numpy_epoch(0)
    assert seen
    assert not any(map(_narrow, seen)), seen
    rows = batch["x"].rows() if hasattr(batch["x"], "rows") else batch["x"]
    for number, row in zip(batch["i"].tolist(), rows, strict=True):
        value = values[number] if values[number] is not None else b"?"
        texts = [v.encode() if isinstance(v, str) else v for v in (value if isinstance(value, list) else [value])]
        assert (row.tolist() if isinstance(row, np.ndarray) else [row]) == texts


@pytest.mark.campaign
@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
@pytest.mark.parametrize("batch", [72, 2304])
def test_a_chunk_of_more_than_two_gib_is_delivered(tmp_path: Path, shard_format: str, batch: int) -> None:
    records, size = 2304, 1_000_000
    block = np.random.default_rng(0).bytes(size + records)
    rows = ({"x": block[row : row + size], "i": row} for row in range(records))
    build(source=rows, destination=str(tmp_path / "d"), format=shard_format)
    seen = 0
    for each in Loader(str(tmp_path / "d"), batch_size=batch, cache=None).numpy_epoch(0):
        for row, value in zip(each["i"].tolist(), each["x"], strict=True):
            assert value == block[row : row + size]
            seen += 1
    assert seen == records

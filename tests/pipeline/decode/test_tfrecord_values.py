"""Features located when a shard is opened equal those that TensorFlow parses."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline.decode.columns import concat_columns, copy_views, take_columns, view_bytes
from ringfeed.pipeline.decode.tfrecord_values import has_plain_values, open_values
from ringfeed.sharding import BuildOptions, build
from ringfeed.sharding.formats.example_encode import encode_examples
from ringfeed.sharding.schema import Feature, Schema
from tests.helpers.reading import loader_with

pytestmark = pytest.mark.usefixtures("implementation")

RECORDS = 90
PIECES = [bytes([number]) * (number % 20) for number in range(60)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("values")
    n = np.arange(RECORDS)
    table = pa.table(
        {
            "id": n,
            "image": pa.array([bytes([i]) * (i % 25) for i in range(RECORDS)], pa.binary()),
            "name": pa.array([f"é{i}" * (i % 3) for i in range(RECORDS)]),
            "double": pa.array(n / 3),
            "half": pa.array((n / 4).astype(np.float16)),
            "box": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(RECORDS * 2) - 7, pa.int16()), 2),
            "label": pa.array([f"class-{i % 3}" for i in range(RECORDS)]),
        }
    )
    pq.write_table(table, folder / "source.parquet")
    target = str(folder / "shards")
    build(BuildOptions(source=str(folder / "source.parquet"), destination=target, label="label", shards=4))
    return target


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"columns": ["id", "name", "box", "double"], "remainder": "pad"},
        {"where": "id > 20", "sample_keys": True},
        {"balance": "uniform"},
    ],
    ids=["all", "columns", "where", "balanced"],
)
def test_located_features_equal_parsed_ones(url: str, options: dict[str, Any]) -> None:
    epochs, arrays = [], []
    for least in (1, 1 << 20):
        loader = loader_with({"large_record": least}, url, batch_size=12, seed=3, **options)
        assert has_plain_values(loader.manifest, "train", loader.schema)
        assert loader.locates_features == (least == 1)
        epochs.append([{n: (v.dtype, v.numpy().tolist()) for n, v in b.items()} for b in loader.epoch(1, 1)])
        arrays.append([{n: (v.dtype, v.tolist()) for n, v in b.items()} for b in loader.numpy_epoch(1, 1)])
    assert epochs[0] == epochs[1]
    assert arrays[0] == arrays[1]
    assert [{n: v[1] for n, v in b.items()} for b in arrays[0]] == [{n: v[1] for n, v in b.items()} for b in epochs[0]]


@pytest.mark.parametrize("span", [1 << 30, 64])
def test_short_and_long_pieces_are_viewed(span: int) -> None:
    ends = np.cumsum([len(piece) for piece in PIECES])
    views = view_bytes(pa.py_buffer(b"".join(PIECES)), ends - [len(piece) for piece in PIECES], ends, span)
    views.validate(full=True)
    assert views.to_pylist() == PIECES
    rows = np.random.default_rng(0).permutation(60)
    taken = concat_columns([take_columns({"x": views}, rows), {"x": views.slice(7, 9)}])["x"]
    assert copy_views(taken.slice(3)).tolist() == [*(PIECES[row] for row in rows[3:]), *PIECES[7:16]]


def test_messages_with_another_feature_order_are_located_too() -> None:
    text, number = Feature(name="text", dtype="string"), Feature(name="number", dtype="int64")
    written, asked = Schema(features=(number, text)), Schema(features=(text, number))
    batch = pa.record_batch({"number": [5, 6, 7], "text": ["a" * 30, "", "b"]})
    messages = encode_examples(batch, written, None).to_pylist()
    framed = [b"length--crc." + message + b"crc." for message in messages]
    lengths = np.array([len(frame) for frame in framed])
    index = pa.record_batch({"offset": np.cumsum(lengths) - lengths, "length": lengths})
    for stored in (written, asked):
        found = open_values(pa.py_buffer(b"".join(framed)), index, stored, asked)
        assert found["number"].tolist() == [5, 6, 7]
        assert found["text"].to_pylist() == [b"a" * 30, b"", b"b"]

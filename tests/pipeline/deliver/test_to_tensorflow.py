"""Every kind of feature is read back exactly, by the loader and by plain TensorFlow.

Covers `chunk_encoding`, `chunk_sizes`, `example_parsing`, `generator_dataset` and `malloc`, too.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from ringfeed.pipeline import Loader, parse_batch
from ringfeed.pipeline.deliver import to_tensorflow as delivery
from ringfeed.pipeline.deliver.chunk_sizes import ChunkSizes
from ringfeed.pipeline.deliver.example_parsing import feature_spec
from ringfeed.pipeline.deliver.generator_dataset import generator_dataset_maker
from ringfeed.sharding import BuildOptions, ConfigError, build, open_dataset
from tests.helpers.feature_tables import RECORDS, make_table, make_variable_table
from tests.helpers.lean import lean_environment
from tests.helpers.reading import loader_with


def load(table: pa.Table, folder: Path, shard_format: str, **options: Any) -> tuple[Loader, dict[int, dict[str, Any]]]:
    """Build, read one epoch, and return each record by its id."""
    pq.write_table(table, folder / "source.parquet")
    url = str(folder / "shards")
    build(
        BuildOptions(
            source=str(folder / "source.parquet"), destination=url, label="label", shards=3, shard_format=shard_format
        )
    )
    loader = Loader(url, batch_size=12, **options)
    records = {}
    for batch in loader.epoch(0):
        for row, key in enumerate(batch["id"].numpy().tolist()):
            records[key] = {name: values[row].numpy() for name, values in batch.items()}
    return loader, records


def expected(table: pa.Table, name: str, row: int) -> Any:
    value = table.column(name)[row].as_py()
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
@pytest.mark.parametrize("variable", [False, True])
def test_all_kinds_of_features_keep_their_values_and_dtypes(tmp_path: Path, shard_format: str, variable: bool) -> None:
    table = make_variable_table() if variable else make_table()
    loader, records = load(table, tmp_path, shard_format)
    assert (loader.manifest.layout is not None) == (shard_format == "tfrecord" and not variable)
    assert {spec.shape[0] for spec in loader.epoch(0).element_spec.values()} == {12}
    assert sorted(records) == list(range(RECORDS))
    for key, record in records.items():
        for feature in loader.schema.features:
            value = record[feature.name]
            np.testing.assert_array_equal(value, expected(table, feature.name, key), err_msg=feature.name)
            if feature.numeric:
                assert value.dtype == np.dtype(feature.dtype), feature.name
        assert record["matrix"].shape == (2, 3)
        assert record["class_id"] == record["label"]


def test_batches_that_cross_one_by_one_are_those_that_cross_together(
    tmp_path: Path,
) -> None:
    loader, records = load(make_table(), tmp_path, "tfrecord")
    spec = loader.epoch(0).element_spec
    alone = loader_with({"most_steps": 1}, str(tmp_path / "shards"), batch_size=12).epoch(0)
    assert alone.element_spec == spec
    for batch in alone:
        for row, key in enumerate(batch["id"].numpy().tolist()):
            for name, value in records[key].items():
                np.testing.assert_array_equal(batch[name][row].numpy(), value)


def test_shards_open_with_plain_tensorflow(tmp_path: Path) -> None:
    table = make_variable_table()
    loader, _ = load(table, tmp_path, "tfrecord")
    files = [str(tmp_path / "shards" / shard.path) for shard in open_dataset(str(tmp_path / "shards")).shards]
    examples = next(iter(tf.data.TFRecordDataset(files).batch(RECORDS)))
    parsed = parse_batch(examples, loader.schema)
    plain = tf.io.parse_example(examples, feature_spec(loader.schema))
    assert plain["id"].dtype == tf.int64
    for row, key in enumerate(parsed["id"].numpy().tolist()):
        for name in loader.schema.names:
            np.testing.assert_array_equal(parsed[name][row].numpy(), expected(table, name, key), err_msg=name)


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
def test_missing_values_are_nan_or_filled(tmp_path: Path, shard_format: str) -> None:
    def holed(values: list[Any]) -> list[Any]:
        return [None if i % 7 == 0 else value for i, value in enumerate(values)]

    n = range(RECORDS)
    table = pa.table(
        {
            "id": pa.array(n),
            "number": pa.array(holed([i / 3 for i in n]), pa.float64()),
            "vector": pa.array(holed([[i / 3, 1.0] for i in n]), pa.list_(pa.float32(), 2)),
            "count": pa.array(holed(list(n)), pa.int32()),
            "word": pa.array(holed([str(i) for i in n])),
            "doubles": pa.array(holed([[i / 3] * (i % 3) for i in n]), pa.list_(pa.float64())),
            "bytes": pa.array(holed([[i] * (i % 3) for i in n]), pa.list_(pa.uint8())),
            "label": pa.array([i % 2 for i in n]),
        }
    )
    fill = {"count": -1, "word": "?"}
    _, records = load(table, tmp_path, shard_format, fill=fill)
    for key, record in records.items():
        if key % 7:
            assert record["count"] == key
            assert record["word"] == str(key).encode()
            assert record["number"] == key / 3
            np.testing.assert_array_equal(record["vector"], np.array([key / 3, 1.0], np.float32))
            np.testing.assert_array_equal(record["doubles"], [key / 3] * (key % 3))
            np.testing.assert_array_equal(record["bytes"], [key] * (key % 3))
        else:
            assert record["count"] == -1
            assert len(record["doubles"]) == len(record["bytes"]) == 0
            assert record["word"] == b"?"
            assert np.isnan(record["number"])
            assert np.isnan(record["vector"]).all()
    missing = "feature 'count' has 9 missing values and feature 'word' has 9 missing values in split 'train'"
    with pytest.raises(ConfigError) as refused:
        Loader(str(tmp_path / "shards"), batch_size=12)
    assert (
        str(refused.value)
        == f"{missing}; choose a value to replace them: Loader(..., fill={{'count': ..., 'word': ...}})"
    )
    with pytest.raises(ConfigError, match="fill names 'doubles', which has variable length: if missing, it is"):
        Loader(str(tmp_path / "shards"), batch_size=12, fill={"doubles": 0.0})


def test_a_compressed_tfrecord_loads_like_a_plain_one(tmp_path: Path) -> None:
    pq.write_table(make_table(), tmp_path / "source.parquet")
    batches = {}
    for compression in ("none", "gzip"):
        url = str(tmp_path / compression)
        source = str(tmp_path / "source.parquet")
        build(BuildOptions(source=source, destination=url, label="label", shards=2, compression=compression))
        batches[compression] = [batch["double"].numpy().tolist() for batch in Loader(url, batch_size=6).epoch(0)]
    assert batches["none"] == batches["gzip"]


def test_a_dataset_outlives_its_loader_and_has_several_iterators(make_dataset: Callable[..., str]) -> None:
    dataset = Loader(make_dataset(), batch_size=10, seed=4).epoch(3, 90)
    steps = [batch["id"].numpy().tolist() for batch in dataset]
    assert len(steps) == dataset.cardinality() == 10
    assert [batch["id"].numpy().tolist() for batch in dataset.repeat(2)] == 2 * steps
    assert [(a["id"].numpy().tolist(), b["id"].numpy().tolist()) for a, b in zip(dataset, dataset, strict=True)] == [
        (step, step) for step in steps
    ]


def test_equal_deliveries_share_a_trace_and_nothing_else(
    make_dataset: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = []

    def counted(*arguments: Any) -> Any:
        traced.append(arguments)
        return generator_dataset_maker(*arguments)

    monkeypatch.setattr(delivery, "generator_dataset_maker", counted)
    monkeypatch.setattr(delivery, "_makers", {})
    options: list[dict[str, Any]] = [{"seed": 4}, {"seed": 5}, {"balance": "uniform"}, {"sample_keys": True}]
    loaders = [Loader(make_dataset(), batch_size=10, **each) for each in options]
    datasets = [loader.epoch(0) for loader in loaders]
    assert len(traced) == 2  # those with keys have a column more
    delivered = zip(*datasets, *[loader.numpy_epoch(0) for loader in loaders], strict=True)
    for batches in delivered:
        for got, wanted in zip(batches[: len(loaders)], batches[len(loaders) :], strict=True):
            assert got.keys() == wanted.keys()
            np.testing.assert_array_equal(got["id"], wanted["id"])


def test_loaders_do_not_share_fills(tmp_path: Path) -> None:
    numbers = pa.array([None, 1.0] * 6, pa.float32())
    texts = pa.array(["x" * row for row in range(12)])
    pq.write_table(pa.table({"number": numbers, "text": texts, "label": [0, 1] * 6}), tmp_path / "source.parquet")
    url = str(tmp_path / "shards")
    build(BuildOptions(source=str(tmp_path / "source.parquet"), destination=url, label="label", shards=1))
    for fill in (0.0, -0.0, 2.0):
        (batch,) = Loader(url, batch_size=12, fill={"number": fill}).epoch(0)
        assert {str(value) for value in batch["number"].numpy()} == {str(np.float32(fill)), "1.0"}


def test_many_loaders_cause_no_warning_of_tensorflow(
    make_dataset: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    tf.get_logger().addHandler(caplog.handler)
    try:
        for seed in range(12):
            next(iter(Loader(make_dataset(), batch_size=10, seed=seed).epoch(0)))
    finally:
        tf.get_logger().removeHandler(caplog.handler)
    assert not [record for record in caplog.records if record.name.startswith("tensorflow")]


def test_under_op_determinism_tensorflow_sees_a_graph_to_rewrite(make_dataset: Callable[..., str]) -> None:
    program = f"""
import tensorflow as tf
from ringfeed.pipeline import Loader, parse_batch
tf.config.experimental.enable_op_determinism()
print(len(list(Loader({make_dataset()!r}, batch_size=10).epoch(0))))
"""  # in a process of its own: it cannot be switched off again
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=lean_environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "100\n"
    assert "will not be optimized" not in done.stderr


@pytest.mark.parametrize(
    ("record_bytes", "numbers", "ragged", "large"),
    [
        (512, 4, False, True),
        (511, 0, False, False),
        (1024, 5, False, False),  # many numbers are decoded faster a chunk at a time
        (1024, 0, True, False),
        (4096, 5, True, True),
    ],
)
def test_long_strings_cross_one_at_a_time(record_bytes: int, numbers: int, ragged: bool, large: bool) -> None:
    sizes = ChunkSizes(record_bytes=record_bytes, undecoded=True, ragged=ragged, numbers=numbers)
    assert sizes.large == large
    assert not replace(sizes, undecoded=False).large


@pytest.mark.parametrize(
    ("record_bytes", "local_batch", "steps"), [(4096, 64, 32), (100_000, 64, 10), (115_000, 400, 1), (9_000_000, 7, 1)]
)
def test_a_chunk_of_large_records_needs_64_mib_of_windows_at_most(
    record_bytes: int, local_batch: int, steps: int
) -> None:
    assert (
        ChunkSizes(record_bytes=record_bytes, undecoded=True, ragged=False, numbers=0).chunk_steps(local_batch) == steps
    )

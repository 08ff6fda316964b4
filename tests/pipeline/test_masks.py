"""Masks mark missing values of every dtype, and no value of a record is taken for a missing one."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ringfeed.pipeline import Loader, Mixture
from ringfeed.pipeline.deliver.to_numpy import Ragged
from ringfeed.sharding import ConfigError, build

RECORDS = 240


def _values(name: str) -> pa.Array:
    """Values with the extremes of their dtype, the neutral value, and missing ones."""
    numbers = {
        "int8": [-128, 127, 0],
        "uint8": [0, 255, 1],
        "int64": [-(2**63), 2**63 - 1, 0],
        "uint64": [0, 2**64 - 1],
    }
    cycle: list[Any]
    kind: pa.DataType
    match name:
        case "flag":
            cycle, kind = [True, False], pa.bool_()
        case "text":
            cycle, kind = ["", "\0", "missing", "NaN"], pa.string()
        case "bytes":
            cycle, kind = [b"", b"\0", b"x" * 40], pa.binary()
        case "share":
            cycle, kind = [0.0, float("nan"), -1.5], pa.float32()
        case "wide":
            cycle, kind = [0.0, float("nan"), 1e300], pa.float64()
        case "vector":
            cycle, kind = [[0, 0], [255, 1]], pa.list_(pa.uint8(), 2)
        case "list":
            cycle, kind = [[], [0], [1, 2, 3]], pa.list_(pa.int32())
        case _:
            cycle, kind = numbers[name], pa.type_for_alias(name)
    missing = {i for i in range(RECORDS) if i % 7 == len(name) % 7}
    return pa.array([None if i in missing else cycle[i % len(cycle)] for i in range(RECORDS)], kind)


NAMES = ("int8", "uint8", "int64", "uint64", "flag", "text", "bytes", "share", "wide", "vector", "list")
TABLE = pa.table({"key": pa.array(range(RECORDS)), **{name: _values(name) for name in NAMES}})


@pytest.fixture(scope="module", params=["parquet", "tfrecord", "tfrecord-gzip"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of all dtypes in each format of shards."""
    shard_format, _, compression = request.param.partition("-")
    url = str(tmp_path_factory.mktemp("masks") / request.param)
    labels = pa.array(["a", "b", "b"] * (RECORDS // 3))
    build(
        source=TABLE.append_column("label", labels),
        destination=url,
        label="label",
        format=shard_format,
        compression=compression or "none",
        shards=3,
        workers=1,
        split={"train": 1.0},
    )
    return url


def _check(keys: list[int], batch: dict[str, Any]) -> None:
    """Compare delivered values and masks with Arrow's nulls, bit by bit."""
    for name in NAMES:
        source = TABLE.column(name).combine_chunks().take(pa.array(keys))
        np.testing.assert_array_equal(batch[f"missing:{name}"], source.is_null().to_numpy(zero_copy_only=False), name)
        held = batch[name]
        rows = held.rows() if isinstance(held, Ragged) else held
        for value, expected in zip(rows, source.to_pylist(), strict=True):
            if expected is None:
                continue
            wanted = expected.encode() if isinstance(expected, str) else expected
            if isinstance(wanted, bytes):
                assert value == wanted
            else:
                np.testing.assert_array_equal(value, np.array(wanted, np.asarray(value).dtype), name)


@pytest.mark.parametrize("options", [{}, {"balance": "uniform"}, {"shuffle": False, "where": "key < 201"}])
def test_masks_are_the_nulls_of_the_source(dataset: str, options: dict[str, Any]) -> None:
    loader = Loader(dataset, batch_size=20, streams=2, masks=NAMES, **options)
    for batch in loader.numpy_epoch(0):
        _check(batch["key"].tolist(), batch)
    for tensors in loader.epoch(0):
        ragged = tensors["list"]
        batch = {name: values.numpy() for name, values in tensors.items() if name != "list"}
        _check(batch["key"].tolist(), {**batch, "list": Ragged(ragged.values.numpy(), ragged.row_lengths().numpy())})


def test_a_single_record_has_its_masks(dataset: str) -> None:
    loader = Loader(dataset, batch_size=20, masks=["int8", "text"], columns=["key", "int8", "text"])
    for index in range(0, RECORDS, 11):
        record = loader.sample(index)
        for name in ("int8", "text"):
            expected = TABLE.column(name)[int(record["key"])].as_py()
            assert record[f"missing:{name}"] == (expected is None)
            assert expected is None or record[name] == expected


def test_a_mixture_mixes_masks(dataset: str, tmp_path: Path) -> None:
    plain = TABLE.select(["key", "int8"]).filter(TABLE.column("int8").is_valid())
    build(
        source=plain.append_column("label", pa.array(["a", "b"] * (len(plain) // 2) + ["a"] * (len(plain) % 2))),
        destination=str(tmp_path / "plain"), label="label", format="tfrecord", shards=1, workers=1,
        split={"train": 1.0},
    )  # fmt: skip
    reading = {"columns": ["key", "int8"], "masks": ["int8"]}
    urls = {"a": dataset, "b": str(tmp_path / "plain")}
    mixture = Mixture({name: {"url": url, **reading} for name, url in urls.items()}, batch_size=20)
    seen = 0
    for batch in mixture.numpy_epoch(0):
        expected = TABLE.column("int8").take(pa.array(batch["key"])).combine_chunks().is_null().to_numpy(False)
        np.testing.assert_array_equal(batch["missing:int8"], expected)
        seen += int(expected.sum())
    assert seen > 0
    with pytest.raises(ConfigError, match="'a' and 'b' cannot be mixed: give all datasets the same `masks`"):
        Mixture({"a": {"url": dataset, **reading}, "b": {"url": urls["b"], "columns": ["key", "int8"]}}, batch_size=20)


def test_masks_name_delivered_features(dataset: str) -> None:
    for masks, message in (
        (["int9"], "masks: there is no column 'int9'; did you mean 'int8'"),
        (["text"], "masks: there is no column 'text'"),
        (["int8", "int8"], "masks"),
        ("int8", "masks must be a list of names of features, got 'int8'"),
    ):
        with pytest.raises(ConfigError, match=message):
            Loader(dataset, batch_size=20, columns=["int8"], masks=masks)


def test_a_column_of_the_name_of_a_mask_is_refused(tmp_path: Path) -> None:
    table = pa.table({"x": [1, None] * 20, "missing:x": [0, 1] * 20})
    build(source=table, destination=str(tmp_path / "d"), shards=1, workers=1, split={"train": 1.0})
    with pytest.raises(ConfigError, match="a feature is called 'missing:x', a name reserved for the loader"):
        Loader(str(tmp_path / "d"), batch_size=10, masks=["x"])

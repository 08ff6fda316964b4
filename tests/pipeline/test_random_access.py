"""Single records hold what was written, in every format, and recent shards are not fetched again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, CorruptionError, build
from tests.helpers.feature_tables import RECORDS, make_table, make_variable_table
from tests.helpers.reading import read

Make = Callable[..., str]


def built(table: pa.Table, folder: Path, shard_format: str) -> str:
    pq.write_table(table, folder / "source.parquet")
    options = {"source": str(folder / "source.parquet"), "destination": str(folder / "shards"), "label": "label"}
    build(BuildOptions(**options, shards=3, shard_format=shard_format))
    return str(folder / "shards")


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
@pytest.mark.parametrize("variable", [False, True])
def test_a_record_holds_all_kinds_of_values_as_written(tmp_path: Path, shard_format: str, variable: bool) -> None:
    table = make_variable_table() if variable else make_table()
    loader = Loader(built(table, tmp_path, shard_format), batch_size=12)
    rows = table.to_pylist()
    seen = set()
    for index in range(loader.records):
        sample = loader.sample(index)
        assert sample.pop("class_id") == sample["label"]
        row = rows[sample["id"]]
        seen.add(int(sample["id"]))
        assert list(sample) == list(loader.schema.names)
        for feature in loader.schema.features:
            value = sample[feature.name]
            np.testing.assert_array_equal(value, row[feature.name], err_msg=feature.name)
            if feature.numeric:
                assert value.dtype == np.dtype(feature.dtype), feature.name
            else:
                assert type(value) is (str if feature.dtype == "string" else bytes)
    assert seen == set(range(RECORDS))


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
def test_a_missing_value_is_filled(tmp_path: Path, shard_format: str) -> None:
    table = pa.table(
        {
            "label": pa.array([0, 1] * 10),
            "x": pa.array([None, 2.5] * 10, pa.float32()),
            "n": pa.array([None, 3] * 10, pa.int16()),
            "word": pa.array([None, "w"] * 10),
            "vector": pa.array([None, [1, 2]] * 10, pa.list_(pa.int32(), 2)),
            "some": pa.array([None, [1]] * 10, pa.list_(pa.int32())),
        }
    )
    fill = {"n": -1, "word": "?", "vector": 7}
    loader = Loader(built(table, tmp_path, shard_format), batch_size=2, fill=fill)
    for sample in map(loader.sample, range(20)):
        if sample["label"]:
            assert (sample["x"], sample["n"], sample["word"]) == (2.5, 3, "w")
            assert (sample["vector"].tolist(), sample["some"].tolist()) == ([1, 2], [1])
        else:
            assert np.isnan(sample["x"])
            assert (sample["n"], sample["word"]) == (-1, "?")
            assert (sample["vector"].tolist(), sample["some"].tolist()) == ([7, 7], [])
            assert sample["vector"].dtype == sample["some"].dtype == np.int32


def test_records_are_numbered_in_the_order_of_the_dataset(make_dataset: Make) -> None:
    loader = Loader(make_dataset(1000), batch_size=10, shuffle=False)
    ids = read(loader)["id"].reshape(-1)
    for index in (0, 142, 143, 500, 999):
        assert loader.sample(index)["id"] == ids[index]


@pytest.mark.parametrize("index", [-1, 1000])
def test_a_number_beyond_the_split_is_refused_with_the_range(make_dataset: Make, index: int) -> None:
    with pytest.raises(IndexError, match=rf"the split has records \[0, 1000\), got {index}"):
        Loader(make_dataset(1000), batch_size=10).sample(index)


def test_a_shard_is_fetched_once_while_it_is_among_the_last_few(make_dataset: Make) -> None:
    loader = Loader(make_dataset(1000), batch_size=10)
    firsts = [0, 143, 286, 429]  # of 7 shards
    for index in [*firsts, *firsts, 1, 2, 3]:
        loader.sample(index)
    assert loader.stats()["open"].items == 4
    loader.sample(999)  # the fifth: the one used longest ago makes room
    loader.sample(4)
    assert loader.stats()["open"].items == 5
    loader.sample(143)
    assert loader.stats()["open"].items == 6


def test_a_damaged_shard_is_named_and_nothing_of_it_is_kept(make_dataset: Make, tmp_path: Path) -> None:
    root = Path(shutil.copytree(make_dataset(1000), tmp_path / "copy"))
    victim = root / "train-00000-of-00007.tfrecord"
    whole: Any = victim.read_bytes()
    victim.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    loader = Loader(str(root), batch_size=10)
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"train-00000-of-00007\.tfrecord is damaged"):
            loader.sample(0)
    victim.write_bytes(whole)
    assert loader.sample(0)["class_id"] == loader.sample(0)["label"]


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
def test_the_fill_of_text_may_end_in_zeros(tmp_path: Path, shard_format: str) -> None:
    table = pa.table(
        {
            "label": pa.array([0, 1] * 10),
            "word": pa.array([None, "w"] * 10),
            "pair": pa.array([None, [b"a", b"b"]] * 10, pa.list_(pa.binary(), 2)),
        }
    )
    loader = Loader(built(table, tmp_path, shard_format), batch_size=2, fill={"word": "x\0", "pair": b"\0"})
    assert {loader.sample(i)["word"] for i in range(20)} == {"x\0", "w"}
    assert {tuple(loader.sample(i)["pair"]) for i in range(20)} == {(b"\0", b"\0"), (b"a", b"b")}
    for batches in (loader.numpy_epoch(0), loader.epoch(0).as_numpy_iterator()):
        found = [(word, *pair) for batch in batches for word, pair in zip(batch["word"], batch["pair"], strict=True)]
        assert set(found) == {(b"x\0", b"\0", b"\0"), (b"w", b"a", b"b")}

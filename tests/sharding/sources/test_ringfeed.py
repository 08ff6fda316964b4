"""Datasets of ringfeed as sources: records are rewritten exactly, from checked bytes."""

import pickle
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.sharding import (
    AppendOptions,
    BuildOptions,
    CorruptionError,
    Dataset,
    DatasetError,
    DestinationError,
    Original,
    SourceError,
    append,
    build,
    open_dataset,
    read_records,
    repair,
    verify,
)
from ringfeed.sharding.prepare import Filter, PrepareOptions, Rename, Select
from ringfeed.sharding.sources import open_source
from ringfeed.sharding.sources import ringfeed as module
from tests.helpers.builds import built, make_table
from tests.helpers.contents import completed, labels
from tests.servers.store import Store

HALVES = {"train": Fraction(1, 2), "test": Fraction(1, 2)}
FORMATS = [("tfrecord", None), ("tfrecord", "gzip"), ("tfrecord", "zlib"), ("parquet", None)]
COLUMNS: dict[str, Callable[[st.DataObject, int], pa.Array]] = {
    "list": lambda data, n: rows(data, n, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3), pa.list_(pa.int64())),
    "words": lambda data, n: rows(data, n, st.lists(st.text(max_size=3), max_size=3), pa.list_(pa.string())),
    "text": lambda data, n: rows(data, n, st.text(max_size=9), pa.large_string()),
    "bytes": lambda data, n: rows(data, n, st.binary(max_size=200), pa.binary()),
    "when": lambda data, n: rows(data, n, st.integers(-(2**40), 2**40), pa.timestamp("us", "Europe/Berlin")),
    "day": lambda data, n: rows(data, n, st.integers(-(2**15), 2**15), pa.date32()),
    "maybe": lambda data, n: rows(data, n, st.booleans(), pa.bool_()),
    "big": lambda data, n: rows(data, n, st.integers(0, 2**64 - 1), pa.uint64()),
    "half": lambda data, n: rows(data, n, st.floats(width=16, allow_nan=False), pa.float16()),
    "image": lambda data, n: pa.FixedShapeTensorArray.from_numpy_ndarray(
        np.arange(n * 6, dtype=np.uint8).reshape(n, 2, 3)
    ),
}


def rows(data: st.DataObject, count: int, values: st.SearchStrategy[Any], kind: pa.DataType) -> pa.Array:
    values = st.none() | values if data.draw(st.booleans()) else values
    return pa.array(data.draw(st.lists(values, min_size=count, max_size=count)), kind)


def in_order(dataset: Dataset) -> list[dict[str, Any]]:
    found = [row for split in dataset.manifest.splits for row in read_records(dataset, split, 10**9)]
    return sorted(found, key=lambda row: row["id"])


@settings(max_examples=10)
@given(data=st.data())
def test_records_survive_any_chain_of_builds(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("chain")
    count = data.draw(st.integers(8, 40))
    names = data.draw(st.lists(st.sampled_from(sorted(COLUMNS)), unique=True))
    table = make_table(count).set_column(5, "label", pa.array(["a", "b"] * count)[:count])
    for name in names:
        table = table.append_column(name, COLUMNS[name](data, count))
    pq.write_table(table, folder / "source.parquet", row_group_size=7)
    url, first, label = str(folder / "source.parquet"), None, "label"
    for step, (shard_format, compression) in enumerate(data.draw(st.permutations(FORMATS))[:3]):
        dataset = built(
            url,
            folder / str(step),
            label=label,
            shards=data.draw(st.integers(1, 3)),
            splits=data.draw(st.sampled_from([{"train": Fraction(1)}, HALVES])),
            shard_format=shard_format,
            compression=compression,
            seed=step,
            min_class_records=1,
        )
        first = first or dataset
        assert dataset.manifest.schema == first.manifest.schema
        assert dataset.manifest.classes == first.manifest.classes
        assert in_order(dataset) == in_order(first)
        url, label = dataset.storage.url, None


@pytest.fixture(scope="module", params=FORMATS, ids=lambda form: f"{form[0]}-{form[1]}")
def pristine(request: pytest.FixtureRequest, _original: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    form = dict(zip(("shard_format", "compression"), request.param, strict=True))
    out = tmp_path_factory.mktemp("pristine")
    return built(str(_original / "source.parquet"), out, label="label", shards=3, splits=HALVES, **form)


@pytest.fixture
def dataset(root: Path) -> Dataset:
    return open_dataset(str(root))


def test_records_and_labels_of_all_splits_are_read_shard_by_shard(dataset: Dataset) -> None:
    source = open_source(dataset.storage.url, None)
    expected = [row for split in HALVES for row in read_records(dataset, split, 10**9)]
    assert completed(pickle.loads(pickle.dumps(source))) == expected
    assert labels(source) == [row["label"] for row in expected]
    assert labels(open_source(dataset.storage.url, "flag")) == [row["flag"] for row in expected]
    assert source.schema == dataset.manifest.schema
    assert source.sample(source.parts[0], 5).to_pylist() == expected[:5]


def test_a_part_of_the_url_names_a_split(dataset: Dataset) -> None:
    source = open_source(f"{dataset.storage.url}#test", None)
    assert completed(source) == list(read_records(dataset, "test", 10**9))
    assert source.fingerprint != open_source(dataset.storage.url, None).fingerprint
    with pytest.raises(DatasetError, match="no split 'tset'; the dataset has 'train', 'test'"):
        open_source(f"{dataset.storage.url}#tset", None)


def test_the_split_becomes_a_column_on_request(dataset: Dataset) -> None:
    source = open_source(dataset.storage.url, "split")
    assert labels(source) == [row["split"] for row in completed(source)] == ["train"] * 300 + ["test"] * 300
    assert "split" not in open_source(dataset.storage.url, None).schema.names


@pytest.mark.parametrize(
    ("steps", "options"),
    [
        ((), {"shard_format": "parquet"}),
        ((Select(("id", "label")),), {"balance": "bytes"}),
        ((Filter("id != 3"), Rename((("id", "number"),))), {"on_bad_record": "skip:1"}),
        ((), {"prepare": PrepareOptions(dedup=("id",))}),
    ],
)
def test_splits_are_kept_if_their_column_divides(
    dataset: Dataset, tmp_path: Path, steps: tuple[Any, ...], options: dict[str, Any]
) -> None:
    append(AppendOptions(source=write_more(tmp_path), destination=dataset.storage.url))
    before, url = open_dataset(dataset.storage.url), str(tmp_path / "again")
    options = {"prepare": PrepareOptions(steps=steps), **options}
    again = built(before.storage.url, url, shards=4, split_column="split", **options)
    assert "split" not in again.manifest.schema.names
    assert len(again.manifest.generations) == 0
    for name in HALVES:
        expected = {row["id"] for row in read_records(before, name, 10**9)} - (
            {3} if "on_bad_record" in options else set()
        )
        found = [row.get("id", row.get("number")) for row in read_records(again, name, 10**9)]
        assert sorted(found) == sorted(expected)
    victim = Path(url) / again.shards[0].path
    whole = victim.read_bytes()
    victim.unlink()
    repair(url, originals=[Original(url=before.storage.url)])
    assert victim.read_bytes() == whole


def write_more(folder: Path) -> str:
    table = make_table(60)
    ids = pa.array(range(1000, 1060), table.schema.field("id").type)
    pq.write_table(table.set_column(table.schema.get_field_index("id"), "id", ids), folder / "more.parquet")
    return str(folder / "more.parquet")


def test_splits_alone_need_no_byte_of_a_shard(dataset: Dataset) -> None:
    source = open_source(dataset.storage.url, None)
    assert isinstance(source, module.RingfeedSource)
    for shard in dataset.shards:
        (Path(dataset.storage.url) / shard.path).unlink()
    splits = source.with_splits().narrow(["split"])
    assert [row["split"] for row in completed(splits)] == ["train"] * 300 + ["test"] * 300


def test_a_column_of_that_name_divides_by_its_own_values(parquet: str, tmp_path: Path) -> None:
    rename = PrepareOptions(steps=(Rename((("label", "split"),)),))
    built(parquet, tmp_path / "a", shards=2, splits=HALVES, prepare=rename)
    again = built(str(tmp_path / "a"), tmp_path / "b", shards=2, split_column="split")
    assert set(again.manifest.splits) == {"a", "b", "c"}
    assert "split" in again.manifest.schema.names


def test_batches_keep_within_their_bounds(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = completed(open_source(dataset.storage.url, None))
    for name in ("_DECODE_BYTES", "BATCH_BYTES"):
        monkeypatch.setattr(f"ringfeed.sharding.dataset.shard_records.{name}", 1000)
    monkeypatch.setattr("ringfeed.sharding.sources.base.BATCH_BYTES", 1000)
    source = open_source(dataset.storage.url, None)
    batches = [batch for part in source.parts for batch in source.drafts(part)]
    assert max(batch.nbytes for batch in batches) < 2000
    assert [row for batch in batches for row in batch.to_pylist()] == expected


def test_labels_need_no_byte_of_a_shard(dataset: Dataset) -> None:
    expected = labels(open_source(dataset.storage.url, None))
    for shard in dataset.shards:
        (Path(dataset.storage.url) / shard.path).unlink()
    assert labels(open_source(dataset.storage.url, None)) == expected


def test_a_damaged_shard_or_index_is_never_used(dataset: Dataset) -> None:
    source = open_source(dataset.storage.url, None)
    shard = dataset.shards[1]
    for path, read in ((shard.path, completed), (shard.index_path, labels)):
        file = Path(dataset.storage.url) / path
        good = file.read_bytes()
        file.write_bytes(good[:-7] + bytes([good[-7] ^ 1]) + good[-6:])
        with pytest.raises(CorruptionError, match=rf"{path} is damaged"):
            read(source)
        file.write_bytes(good)
    assert len(completed(source)) == 600


def test_without_a_label_the_dataset_keeps_its_own(parquet: str, tmp_path: Path) -> None:
    built(parquet, tmp_path / "data", shards=2)
    source = open_source(str(tmp_path / "data"), None)
    assert source.schema.label is None
    assert labels(source) == [None] * 600
    assert len(labels(open_source(str(tmp_path / "data"), "label"))) == 600
    with pytest.raises(SourceError, match="did you mean 'label'"):
        open_source(str(tmp_path / "data"), "lable")


def test_a_logical_label_keeps_its_values(tmp_path: Path) -> None:
    days = pa.array([3, 5] * 5, pa.date32())
    pq.write_table(pa.table({"day": days, "id": range(10)}), tmp_path / "x.parquet")
    dataset = built(str(tmp_path / "x.parquet"), tmp_path / "a", label="day", shards=2)
    again = built(str(tmp_path / "a"), tmp_path / "b", shards=1)
    assert again.manifest.schema == dataset.manifest.schema
    assert again.manifest.schema["day"].logical == "date32[day]"
    assert (again.manifest.classes, in_order(again)) == ((3, 5), in_order(dataset))


def test_a_dataset_goes_from_store_to_store(store: Store, parquet: str, tmp_path: Path) -> None:
    first = built(parquet, f"{store.url}/a", label="label", shards=2, splits=HALVES)
    again = built(f"{store.url}/a#train", f"{store.url}/b", shards=3, shard_format="parquet")
    assert in_order(again) == sorted(read_records(first, "train", 10**9), key=lambda row: row["id"])
    assert verify(f"{store.url}/b") == []


def test_a_dataset_is_not_written_over_itself(dataset: Dataset) -> None:
    for url in (dataset.storage.url, f"{dataset.storage.url}#train"):
        with pytest.raises(DestinationError, match="is the source itself"):
            build(BuildOptions(source=url, destination=dataset.storage.url, overwrite=True))
    assert len(in_order(open_dataset(dataset.storage.url))) == 600


@pytest.mark.parametrize("split", ["", "#train"])
def test_a_folder_without_a_manifest_is_no_dataset(tmp_path: Path, split: str) -> None:
    with pytest.raises(DatasetError, match=r"no dataset at .*: it has no dataset\.json"):
        open_source(f"{tmp_path}{split}", None, "ringfeed")


def test_a_folder_name_may_hold_a_number_sign(parquet: str, tmp_path: Path) -> None:
    built(parquet, tmp_path / "a#b", label="label", shards=1)
    assert module.find_dataset(f"{tmp_path}/a#b") == (f"{tmp_path}/a#b", None)
    assert len(completed(open_source(f"{tmp_path}/a#b#train", None))) == 600

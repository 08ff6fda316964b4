"""Datasets that contradict themselves despite correct checksums, as forged ones may, are refused by file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import Dataset, DatasetError, open_dataset, repair, verify
from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.dataset.manifest import _dump, _with_checksum
from tests.helpers.builds import SPLITS, built, make_table

Change = Callable[[Any], Any]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("pristine")
    table = make_table(60).drop_columns(["label"]).append_column("label", pa.array([3, 5, 9] * 20))
    pq.write_table(table, folder / "x.parquet")
    how: dict[str, Any] = {"label": "label", "shards": 2, "splits": SPLITS, "min_class_records": 1}
    return built(str(folder / "x.parquet"), folder / "out", **how)


@pytest.fixture
def dataset(root: Path) -> Path:
    return root


def forge(root: Path, change: Change) -> None:
    value = json.loads((root / "_ringfeed/dataset.json").read_bytes())
    del value["checksum"]
    change(value)
    body = _dump(value)
    (root / "_ringfeed/dataset.json").write_bytes(_with_checksum(body, checksum(body)))


def forge_table(root: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(root / "_ringfeed/shards.table")), root / "_ringfeed/shards.table")
    data = (root / "_ringfeed/shards.table").read_bytes()
    forge(root, lambda value: value["shards"].update(bytes=len(data), checksum=checksum(data)))


def in_row(number: int, **changes: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        rows = table.to_pylist()
        rows[number] |= changes
        return pa.Table.from_pylist(rows, table.schema)

    return change


def assert_refused(dataset: Path, name: str, problem: str) -> None:
    for read in (open_dataset, verify):
        with pytest.raises(DatasetError) as no:
            read(str(dataset))
        assert f"{dataset}/{name} is intact but contradicts" in str(no.value)
        assert problem in str(no.value)


MANIFESTS: list[tuple[Change, str]] = [
    (lambda v: v.update(compression="zstd"), "there are no shards of format 'tfrecord' and compression 'zstd'"),
    (lambda v: v.update(features=[]), "it has no features"),
    (lambda v: v.update(classes=[3, 5, [9]]), "its classes are not values of its label 'label'"),
    (lambda v: v.update(classes=[3, 5, 5]), "it has the same class twice"),
    (lambda v: v.update(classes=[3, 5]), "split 'train' counts 3 classes, not 2"),
    (lambda v: v["features"][-1].pop("role"), "it has 3 classes, and no label"),
    (lambda v: v.update(splits={}), "it has no splits"),
    (lambda v: v["splits"].update({"../up": v["splits"].pop("test")}), "'../up' is not a valid name of a split"),
    (lambda v: v["splits"]["test"].update(records=7), "split 'test' has 7 records, but 6 over all classes"),
    (lambda v: v["splits"]["test"].update(shards=1 << 40), "split 'test' has 6 records in 1099511627776 shards"),
    (lambda v: v["splits"]["test"]["statistics"].pop("id"), "the statistics of split 'test' do not match its features"),
    (lambda v: v["layout"].update(example_bytes=1 << 40), "its layout does not fit its features"),
    (lambda v: v["layout"]["columns"][0].update(name="x"), "its layout does not fit its features"),
    (lambda v: v["layout"]["columns"][0].update(item_bytes=-1), "its layout does not fit its features"),
    (lambda v: v["options"]["splits"].update(train="most"), "its options lack the shares of the splits"),
    (lambda v: v["options"].pop("splits"), "its options lack the shares of the splits"),
    (lambda v: v["shards"].update(path="x.parquet"), "'x.parquet' is not a valid name of a shard table"),
]


@pytest.mark.parametrize(("change", "problem"), MANIFESTS, ids=[problem for _, problem in MANIFESTS])
def test_a_contradictory_manifest_is_refused(dataset: Path, change: Change, problem: str) -> None:
    forge(dataset, change)
    assert_refused(dataset, "_ringfeed/dataset.json", problem)


def test_duplicate_features_are_refused(dataset: Path) -> None:
    forge(dataset, lambda value: value["features"].append(value["features"][0]))
    with pytest.raises(DatasetError, match=r"dataset\.json is intact, .*column names must differ"):
        open_dataset(str(dataset))


def test_class_counts_that_are_no_list_are_refused(dataset: Path) -> None:
    forge(dataset, lambda value: value["splits"]["test"].update(class_counts=6))
    with pytest.raises(DatasetError, match=r"dataset\.json is intact, .*counts must be a list, got 6"):
        open_dataset(str(dataset))


TABLES: list[tuple[Callable[[pa.Table], pa.Table], str]] = [
    (lambda table: table.drop_columns(["index_bytes"]), "it is not a shard table"),
    (lambda table: table.drop_columns(["class_counts"]), "no 'class_counts' of type list"),
    (lambda table: table.set_column(1, "path", pa.array([7] * len(table))), "no 'path' of type string"),
    (in_row(0, split="other"), "it has shards of split 'other', unknown to dataset.json"),
    (in_row(0, path="_ringfeed/dataset.json"), "two of its files have one name"),
    (in_row(0, records=-1), "a shard has a negative number of bytes or records"),
]


@pytest.mark.parametrize(("change", "problem"), TABLES, ids=[problem for _, problem in TABLES])
def test_a_table_of_other_shards_is_refused(
    dataset: Path, change: Callable[[pa.Table], pa.Table], problem: str
) -> None:
    forge_table(dataset, change)
    assert_refused(dataset, "_ringfeed/shards.table", problem)


def test_totals_that_are_not_those_of_the_table_are_refused(dataset: Path) -> None:
    forge_table(dataset, lambda table: table.slice(1))
    with pytest.raises(DatasetError, match=r"split 'train' has 27 records in 1 shards, and in dataset\.json 54 in 2"):
        open_dataset(str(dataset))
    for deep in (False, True):
        assert [damage.kind for damage in verify(str(dataset), deep=deep)] == ["miscounted"]
    with pytest.raises(DatasetError, match=r"split 'train' has 27 records in 1 shards"):
        repair(str(dataset))


@pytest.mark.parametrize("counts", [[], [1 << 62] * 4, [28, -1, 0], [27, 1, 0]])
def test_class_counts_that_do_not_add_up_are_refused_when_read(dataset: Path, counts: list[int]) -> None:
    forge_table(dataset, in_row(0, class_counts=counts))
    shards = open_dataset(str(dataset)).shards
    with pytest.raises(DatasetError, match="the records of a shard are not the sum over its 3 classes"):
        sum(shards[1].class_counts)
    with pytest.raises(DatasetError, match="the records of a shard are not the sum over its 3 classes"):
        verify(str(dataset))


def test_a_table_whose_copy_is_no_manifest_recovers_nothing(dataset: Path) -> None:
    from ringfeed.sharding.dataset.shard_table import _CHECKSUM_KEY, _COPY_KEY, _NO_CHECKSUM, recover_from_table

    for copy in ("[]", "{", '{"format_version": 1}'):
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, pa.schema([("x", pa.int8())])) as writer:
            writer.add_key_value_metadata({_COPY_KEY: copy, _CHECKSUM_KEY: _NO_CHECKSUM})
        data = sink.getvalue().to_pybytes()
        forged = data.replace(_NO_CHECKSUM.encode(), checksum(data).encode())
        assert recover_from_table(forged, "_ringfeed/shards.table") is None

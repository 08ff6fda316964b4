"""Shards and indexes that contradict the manifest under correct checksums: every reader names the file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import CorruptionError, ExportOptions, export, open_dataset, read_records
from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.dataset.shard_table import seal
from tests.helpers.builds import built, make_table

Make = Callable[..., Path]
ALL_READ: dict[str, Callable[[str], object]] = {
    "epoch": lambda root: list(Loader(root, batch_size=6).numpy_epoch(0)),
    "uniform": lambda root: list(Loader(root, batch_size=6, balance="uniform").numpy_epoch(0)),
    "where": lambda root: list(Loader(root, batch_size=6, where="id >= 0").numpy_epoch(0)),
    "sample": lambda root: Loader(root, batch_size=6).sample(0),
    "export": lambda root: export(ExportOptions(url=root, destination=f"{root}-out", to="webdataset")),
}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(shard_format: str = "tfrecord", *, text: bool = True, **options: Any) -> Path:
        table = make_table(60)
        if not text:
            table = table.drop_columns(["label"]).append_column("label", pa.array([3, 5, 9] * 20))
        pq.write_table(table, tmp_path / "x.parquet")
        built(
            str(tmp_path / "x.parquet"),
            tmp_path / "out",
            label="label",
            shards=1,
            shard_format=shard_format,
            min_class_records=1,
            **options,
        )
        return tmp_path / "out"

    return made


def forge(root: Path, field: str, data: bytes) -> str:
    """Another content of the first shard, or of its index, with the right checksums; returns the file's name."""
    dataset = open_dataset(root)
    path: str = getattr(dataset.shards[0], f"{field}path")
    (root / path).write_bytes(data)
    changes: dict[str, Any] = {f"{field}bytes": len(data), f"{field}checksum": checksum(data)}
    manifest, table = seal(dataset.manifest, [replace(dataset.shards[0], **changes)])
    (root / "_ringfeed/shards.table").write_bytes(table)
    (root / "_ringfeed/dataset.json").write_bytes(manifest.encode())
    return path


def index_of(root: Path) -> pa.Table:
    return pa.ipc.open_file(str(root / open_dataset(root).shards[0].index_path)).read_all()


def encoded(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def with_value(name: str, record: int, value: int | None) -> Callable[[pa.Table], pa.Table]:
    def change(index: pa.Table) -> pa.Table:
        values = index.column(name).to_pylist()
        values[record] = value
        place = index.schema.get_field_index(name)
        return index.set_column(place, name, pa.array(values, index.schema.field(name).type))

    return change


def refused(root: Path, file: str, problem: str, *ways: str) -> None:
    for way in ways or ALL_READ:
        with pytest.raises(
            CorruptionError, match=rf"{root}/{file} is intact but not what dataset\.json describes: "
        ) as no:
            ALL_READ[way](str(root))
        assert problem in str(no.value), way


INDEXES: list[tuple[Callable[[pa.Table], pa.Table], str]] = [
    (with_value("length", 4, -(1 << 31)), "it has a record of -2147483648 bytes"),
    (with_value("length", 4, 1 << 30), "a record does not start where the previous one ends"),
    (with_value("offset", 0, 1 << 40), "a record does not start where the previous one ends"),
    (with_value("length", 59, 1 << 30), "its records end at byte"),
    (with_value("class_id", 7, -(1 << 31)), "it has class ids -2147483648 to 2, not 0 to 2"),
    (with_value("class_id", 7, 3), "it has class ids 0 to 3, not 0 to 2"),
    (with_value("length", 4, None), "its column 'length' is of type int32, with 1 nulls"),
    (lambda index: index.drop_columns(["class_id"]), "class_id"),
    (lambda index: index.slice(1), "it has 59 rows for 60 records"),
    (lambda index: index.slice(0, 0), "it has 0 rows for 60 records"),
]


@pytest.mark.parametrize(("change", "problem"), INDEXES)
def test_an_index_of_another_shard_is_refused(make: Make, change: Callable[[pa.Table], pa.Table], problem: str) -> None:
    root = make()
    refused(root, forge(root, "index_", encoded(change(index_of(root)))), problem)


def test_bytes_that_are_no_record_are_reported_by_every_decoder(make: Make) -> None:
    root = make()
    data = (root / open_dataset(root).shards[0].path).read_bytes()
    size = index_of(root).column("length")[0].as_py()
    forge(root, "", data[:12] + bytes(size - 16) + data[size - 4 :])
    for way, where in (("epoch", "a record"), ("uniform", "a record"), ("sample", "record 0 of the split")):
        with pytest.raises(CorruptionError, match=rf"^{where} is intact but not what .*verify --deep"):
            ALL_READ[way](str(root))


@pytest.mark.parametrize("data", [b"PAR1", bytes(3000)])
def test_a_file_that_is_not_parquet_is_refused(make: Make, data: bytes) -> None:
    root = make("parquet")
    refused(root, forge(root, "", data), "", "epoch", "sample", "export")


def test_a_file_that_is_not_an_index_is_refused(make: Make) -> None:
    root = make("parquet")
    refused(root, forge(root, "index_", b"ARROW1"), "", "epoch", "uniform", "sample")


def test_the_index_of_a_compressed_shard_is_compared_with_its_records(make: Make) -> None:
    root = make(compression="gzip")
    index = with_value("length", 59, 1 << 30)(index_of(root))
    forge(root, "index_", encoded(index))
    refused(root, open_dataset(root).shards[0].path, "", "epoch", "uniform", "sample")


def test_records_of_another_layout_are_refused(make: Make) -> None:
    root = make(text=False)
    layout = open_dataset(root).manifest.layout
    assert layout is not None
    width = 16 + layout.example_bytes
    data = (root / open_dataset(root).shards[0].path).read_bytes()
    starts = np.arange(60) * width
    index = pa.table({"offset": starts, "length": pa.array([width] * 59 + [width - 9], pa.int32())})
    forge(root, "index_", encoded(index.append_column("class_id", index_of(root).column("class_id"))))
    refused(root, forge(root, "", data[:-9]), "")


def replaced(name: str, values: pa.Array) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.schema.get_field_index(name), name, values)


TABLES: list[tuple[Callable[[pa.Table], pa.Table], str]] = [
    (replaced("vector", pa.array([[1.0] * 3] * 60, pa.list_(pa.float32(), 3))), "vector"),
    (replaced("flag", pa.array(["q"] * 60)), "bool"),
    (lambda table: table.rename_columns(["id", "vector", "tiny", "price", "flag", "label"]), "small"),
    (lambda table: table.slice(1), "it has 59 records"),
]


@pytest.mark.parametrize(("change", "problem"), TABLES)
def test_parquet_of_another_schema_is_refused(make: Make, change: Callable[[pa.Table], pa.Table], problem: str) -> None:
    root = make("parquet")
    path = open_dataset(root).shards[0].path
    sink = pa.BufferOutputStream()
    pq.write_table(change(pq.read_table(root / path)), sink)
    refused(root, forge(root, "", sink.getvalue().to_pybytes()), problem, "epoch", "uniform", "sample", "export")


def test_cat_reports_a_shape_that_differs_from_the_records(make: Make) -> None:
    root = make("parquet")
    path = open_dataset(root).shards[0].path
    sink = pa.BufferOutputStream()
    pq.write_table(TABLES[0][0](pq.read_table(root / path)), sink)
    forge(root, "", sink.getvalue().to_pybytes())
    with pytest.raises(CorruptionError, match=rf"{root}/{path} is intact but not what"):
        list(read_records(open_dataset(root), "train", 1))


def test_a_missing_value_unknown_to_the_statistics_is_reported(make: Make) -> None:
    root = make("parquet")
    path = open_dataset(root).shards[0].path
    sink = pa.BufferOutputStream()
    pq.write_table(replaced("flag", pa.array([None] * 60, pa.bool_()))(pq.read_table(root / path)), sink)
    refused(root, forge(root, "", sink.getvalue().to_pybytes()), "feature 'flag' has missing values", "epoch", "sample")

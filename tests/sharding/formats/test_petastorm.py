"""Petastorm's `make_batch_reader` opens Parquet shards and reads all columns of types that it supports, exactly."""

import json
import pickle
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import Feature, open_dataset, read_records
from ringfeed.sharding.prepare import PrepareOptions
from tests.helpers.builds import built
from tests.helpers.kinds import ROWS, columns, image, plain, values_of, write_kinds
from tests.servers.petastorm import run_with_petastorm

READ = """
import json, pickle, sys
from petastorm import make_batch_reader
target, options, *shards = sys.argv[1:]
urls = [f"file://{shard}" for shard in shards]
# The pool of threads, the default, may take an epoch for ended before it begins: one in eight of these is empty.
with make_batch_reader(urls, reader_pool_type="dummy", **json.loads(options)) as reader:
    batches = [{name: (c.dtype.str, c.tolist()) for name, c in batch._asdict().items()} for batch in reader]
with open(target, "wb") as file:
    pickle.dump(batches, file)
"""
Batch = dict[str, tuple[str, list[Any]]]  # the dtype and the values of each column

TENSORS = ("tensor float64", "tensor float32", "tensor uint8", "tensor string")
UNKNOWN = ("scalar uint16", "scalar uint32", "scalar uint64", "missing vector", "missing counts")
MISSING = ("missing bool", "missing string", "missing float64", "missing uint8")
EXACT = [
    name for name in columns() if name.startswith(("scalar", "tensor")) and name not in (*UNKNOWN, "scalar float16")
]


def identifier(name: str) -> str:
    """A column's name in Petastorm's batches, which are named tuples."""
    return name.replace(" ", "_")


def read(folder: Path, shards: Iterable[Path], **options: Any) -> list[Batch]:
    target = folder / "batches.pickle"
    run_with_petastorm(READ, str(target), json.dumps(options), *map(str, shards), cwd=folder)
    batches: list[Batch] = pickle.loads(target.read_bytes())
    return batches


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Columns of all types that Petastorm can open; all tensors but one are lists of variable length."""
    folder = tmp_path_factory.mktemp("petastorm")
    table = pq.read_table(write_kinds(folder / "kinds.parquet"))
    table = table.select(["id", *EXACT, *UNKNOWN, *MISSING, "label", "image"])
    table = table.append_column("fixed size", table["tensor float32"])
    pq.write_table(table.rename_columns([identifier(name) for name in table.column_names]), folder / "x.parquet")
    lists = [Feature(name=identifier(name), dtype=name.split()[1], shape=(None,)) for name in TENSORS]
    built(
        str(folder / "x.parquet"),
        folder / "out",
        label="label",
        shards=3,
        splits={"train": Fraction(3, 4), "test": Fraction(1, 4)},
        shard_format="parquet",
        prepare=PrepareOptions(features={feature.name: feature for feature in lists}),
    )
    return folder / "out"


@pytest.fixture(scope="module")
def batches(dataset: Path) -> list[Batch]:
    """All records of both splits."""
    shards = [*train(dataset), *dataset.glob("test-*.parquet")]
    assert len(shards) == 4
    return read(dataset.parent, shards)


def train(dataset: Path) -> list[Path]:
    return sorted(dataset.glob("train-*.parquet"))


def ids_of(batches: list[Batch]) -> list[list[int]]:
    """The sorted ids of each batch."""
    return sorted(sorted(batch["id"][1]) for batch in batches)


def ids_in(shards: list[Path]) -> list[list[int]]:
    """The sorted ids of each shard."""
    return sorted(sorted(pq.read_table(shard)["id"].to_pylist()) for shard in shards)


def values_by_id(batches: list[Batch], name: str) -> dict[int, Any]:
    pairs = [pair for batch in batches for pair in zip(batch["id"][1], batch[name][1], strict=True)]
    assert len(pairs) == ROWS
    return dict(pairs)


@pytest.mark.parametrize("name", EXACT)
def test_every_value_is_read_exactly(batches: list[Batch], name: str) -> None:
    expected = values_of(name)
    if name in TENSORS:
        expected = [np.ravel(value).tolist() for value in expected]
    found = values_by_id(batches, identifier(name))
    assert [repr(plain(found[i])) for i in range(ROWS)] == [repr(plain(value)) for value in expected]
    kind = name.split()[1]
    if kind not in ("string", "binary"):
        assert {batch[identifier(name)][0] for batch in batches} == {np.dtype(kind).str}


def test_labels_and_images_are_read(batches: list[Batch]) -> None:
    assert values_by_id(batches, "label") == {i: ("odd", "even")[i % 2] for i in range(ROWS)}
    assert values_by_id(batches, "image") == {i: image(i) for i in range(ROWS)}


def test_all_records_of_a_split_are_read_once_and_a_batch_is_a_shard(dataset: Path) -> None:
    names = ("id", "label", "tensor_float32")
    batches = read(dataset.parent, train(dataset), schema_fields=[f"^{name}$" for name in names])
    found = [repr(plain(list(row))) for batch in batches for row in zip(*(batch[n][1] for n in names), strict=True)]
    written = read_records(open_dataset(str(dataset)), "train", ROWS)
    assert len(found) == ROWS * 3 // 4
    assert Counter(found) == Counter(repr(plain([record[name] for name in names])) for record in written)
    assert ids_of(batches) == ids_in(train(dataset))


def test_shards_are_dealt_to_several_readers(dataset: Path) -> None:
    pieces = [read(dataset.parent, train(dataset), cur_shard=i, shard_count=2) for i in range(2)]
    assert [len(batches) for batches in pieces] == [2, 1]
    assert ids_of([*pieces[0], *pieces[1]]) == ids_in(train(dataset))


def test_lists_of_fixed_size_and_wide_unsigned_integers_are_left_out(dataset: Path, batches: list[Batch]) -> None:
    stored = {feature.name for feature in open_dataset(str(dataset)).manifest.schema.features}
    assert {frozenset(stored - set(batch)) for batch in batches} == {
        frozenset(["fixed_size", *map(identifier, UNKNOWN)])
    }


def test_missing_values(batches: list[Batch]) -> None:
    def found(name: str) -> list[Any]:
        return [value for i, value in sorted(values_by_id(batches, name).items()) if i % 3 == 0]

    assert found("missing_bool") == [None] * (ROWS // 3)
    assert found("missing_string") == ["None"] * (ROWS // 3)
    assert np.isnan([*found("missing_float64"), *found("missing_uint8")]).all()


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array(np.zeros(2, np.float16)), "Thrift LogicalType that is not recognized"),
        (pa.array([[1], [2, 3]]), "are expected to be the same length"),
        (pa.array([[1, 2], None]), "'NoneType' object has no attribute 'shape'"),
    ],
)
def test_columns_that_petastorm_cannot_open(column: pa.Array, words: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet")
    built(str(tmp_path / "x.parquet"), tmp_path / "out", shards=1, shard_format="parquet")
    with pytest.raises(AssertionError, match=words):
        read(tmp_path, (tmp_path / "out").glob("train-*.parquet"))

"""Vectors read from Parquet pages equal those that Arrow reads, or are left to Arrow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding.formats.parquet import read_columns
from ringfeed.sharding.formats.parquet_pages import FileVectors, read_vectors

pytestmark = pytest.mark.usefixtures("implementation")

PLAIN = ["int32", "int64", "uint32", "uint64", "float32", "float64"]
OTHERS = ["int8", "uint16", "float16"]


def vectors(dtype: str, rows: int, elements: int, seed: int = 0) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (rows, elements * np.dtype(dtype).itemsize), np.uint8).view(dtype)


def column(values: np.ndarray[Any, Any]) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def file(table: pa.Table, **options: Any) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **{"write_page_checksum": True, "use_dictionary": False, **options})
    return sink.getvalue()


def read(data: pa.Buffer, leaf: int, dtype: str, elements: int, groups: list[int] | None = None) -> Any:
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    chosen = list(range(metadata.num_row_groups)) if groups is None else groups
    return read_vectors(data, metadata, chosen, leaf, dtype, elements)


@given(starts=st.lists(st.integers(0, 6), max_size=12), elements=st.integers(2, 3))
def test_vectors_are_rebuilt_from_their_runs(starts: list[int], elements: int) -> None:
    data = pa.py_buffer(vectors("int16", 20, 9).tobytes())
    lying = FileVectors(data=data, starts=4 * np.array(starts, np.int64), dtype=np.dtype("int16"), shape=(elements,))
    again = FileVectors.of_runs(data, lying.runs(), lying.dtype, lying.shape)
    np.testing.assert_array_equal(again.starts, lying.starts)
    assert [count for _, count in lying.runs()] == [1] * len(starts) or len(lying.runs()) < len(starts)


@given(
    dtype=st.sampled_from(PLAIN),
    rows=st.integers(1, 400),
    elements=st.integers(2, 9),
    group=st.integers(1, 400),
    page=st.sampled_from([1, 64, 1000, 1 << 20]),
    compression=st.sampled_from(["none", "snappy", "zstd", "lz4", "gzip"]),
    seed=st.integers(0, 9),
)
def test_vectors_keep_every_bit(
    dtype: str, rows: int, elements: int, group: int, page: int, compression: str, seed: int
) -> None:
    values = vectors(dtype, rows, elements, seed)
    table = pa.table({"id": range(rows), "vector": column(values)})
    data = file(table, row_group_size=group, data_page_size=page, compression=compression)
    found = read(data, 1, dtype, elements)
    assert found.dtype == dtype
    assert found.take(np.arange(rows), axis=0).tobytes() == values.tobytes()
    last = values[(rows - 1) // group * group :]
    found = read(data, 1, dtype, elements, [(rows - 1) // group])
    assert found.take(np.arange(len(last)), axis=0).tobytes() == last.tobytes()


@pytest.mark.parametrize("page", [1000, 1 << 20])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_uncompressed_vectors_are_gathered_in_place(page: int, compression: str) -> None:
    values = vectors("float32", 300, 6)
    data = file(pa.table({"vector": column(values)}), row_group_size=200, data_page_size=page, compression=compression)
    found = read(data, 0, "float32", 6)
    assert isinstance(found, FileVectors) == (compression == "none")
    if isinstance(found, FileVectors):
        matrices = replace(found, shape=(2, 3)).slice(100, 150)
        rows = np.array([149, 0, 77, 0])
        assert matrices.take(rows).tobytes() == values[100 + rows].tobytes()
        assert matrices.take(rows).shape == (4, 2, 3)
        assert matrices.take(np.array([], np.int64)).shape == (0, 2, 3)
        assert matrices.take(np.array([-5, 500]), mode="clip").tobytes() == values[[100, 249]].tobytes()
        with pytest.raises(IndexError):
            matrices.take(np.array([150]))


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)), {}),
        (pa.array([[1, 2], [None, 5], [3, 4]], pa.list_(pa.int64(), 2)), {}),
        (pa.array([[1, 2, 3], [4], [5, 6]], pa.list_(pa.int64())), {}),  # as many values as three pairs have
        (pa.array([[1, 2], [1, 2], [1, 2]], pa.list_(pa.int64(), 2)), {"use_dictionary": True}),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), {"data_page_version": "2.0"}),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), {"write_statistics": False}),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), {"column_encoding": "DELTA_BINARY_PACKED"}),
        *[(column(vectors(dtype, 5, 2)), {}) for dtype in OTHERS],
    ],
)
def test_unsupported_pages_are_left_to_arrow(values: pa.Array, options: dict[str, Any]) -> None:
    data = file(pa.table({"vector": values}), **options)
    dtype = np.dtype(values.type.value_type.to_pandas_dtype())
    if pa.types.is_fixed_size_list(values.type):  # which is for the caller to know
        assert read(data, 0, dtype.name, 2) is None
    found, table = read_columns(data, {"vector": (dtype, 2)}, [], None)
    assert (found, table.column("vector").to_pylist()) == ({}, values.to_pylist())


def test_other_columns_are_read_as_a_table() -> None:
    one, two = vectors("float32", 10, 3), vectors("int8", 10, 2)
    table = pa.table({"one": column(one), "id": range(10), "two": column(two), "name": [str(i) for i in range(10)]})
    data = file(table, row_group_size=4)
    found, rest = read_columns(data, {"one": ("float32", 3), "two": ("int8", 2)}, ["name"], [1, 2])
    assert found["one"].take(np.arange(6), axis=0).tobytes() == one[4:].tobytes()
    assert rest.column_names == ["two", "name"]
    assert rest.column("name").to_pylist() == ["4", "5", "6", "7", "8", "9"]
    assert rest.column("two").to_pylist() == two[4:].tolist()

"""Class counts behave like a tuple and take as few bytes as possible."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding.compute.class_counts import ClassCounts, count_matrix, deferred_counts

COUNTS = st.lists(st.integers(0, 2**62), max_size=8)


@given(COUNTS)
def test_counts_equal_their_tuple(values: list[int]) -> None:
    counts = ClassCounts(values)
    assert counts == tuple(values)
    assert tuple(values) == counts
    assert counts == ClassCounts(values)
    assert hash(counts) == hash(tuple(values))
    assert repr(counts) == repr(tuple(values))
    assert list(counts) == values
    assert len(counts) == len(values)
    assert sum(counts) == sum(values)
    assert counts != (*values, 1)
    assert counts != values
    for same in (pickle.loads(pickle.dumps(counts)), copy.deepcopy(counts), counts[:]):
        assert same == counts


@given(st.lists(COUNTS, max_size=5))
def test_deferred_rows_equal_the_rows_that_were_read(rows: list[list[int]]) -> None:
    offsets = np.cumsum([0, *map(len, rows)])
    values = np.array([value for row in rows for value in row], np.int64)
    assert deferred_counts(lambda: [(values, offsets)], len(rows)) == [tuple(row) for row in rows]


def test_rows_are_read_once_at_first_use() -> None:
    reads = []

    def read() -> list[tuple[np.ndarray, np.ndarray]]:
        reads.append(1)
        return [(np.array([1, 2, 300, 4]), np.array([0, 2, 4]))]

    first, second = deferred_counts(read, 2)
    assert reads == []
    assert count_matrix([ClassCounts([7, 8]), second]).tolist() == [[7, 8], [300, 4]]
    assert second == (300, 4)
    assert pickle.loads(pickle.dumps(first)) == (1, 2)
    assert len(reads) == 2  # a matrix keeps nothing of what it reads; the second reading is kept


def test_a_matrix_of_deferred_rows_holds_their_counts() -> None:
    values = np.arange(250, 262)
    parts = [(values[:6], np.array([0, 3, 6])), (values[6:], np.array([0, 3, 6]))]
    rows = [*deferred_counts(lambda: parts, 4), *deferred_counts(lambda: parts[:1], 2)]
    matrix = count_matrix([rows[5], *rows])
    assert matrix.dtype == np.uint16
    assert matrix.tolist() == [[253, 254, 255], *values.reshape(4, 3).tolist(), [250, 251, 252], [253, 254, 255]]


def test_a_row_is_pickled_without_its_array() -> None:
    row, *_ = deferred_counts(lambda: [(np.zeros(1_000_000, np.int64), np.arange(0, 1_000_001, 1000))], 1000)
    assert len(pickle.dumps(row)) < 2000


@pytest.mark.parametrize(("most", "item_bytes"), [(255, 1), (256, 2), (2**16, 4), (2**32, 8)])
def test_a_count_takes_as_few_bytes_as_the_largest_needs(most: int, item_bytes: int) -> None:
    assert np.asarray(ClassCounts([0, most])).itemsize == item_bytes
    matrix = count_matrix([(0, 1), ClassCounts([most, 2])])
    assert (matrix.tolist(), matrix.itemsize) == ([[0, 1], [most, 2]], item_bytes)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="counts must be at least 0, got -1"):
        ClassCounts([1, -1])


def test_no_rows_make_an_empty_matrix() -> None:
    assert count_matrix([]).size == 0

"""Rows are copied once, from their shard to their place in a batch, with or without compiled kernels.

Covers `columns` and `interleave`, too.
"""

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.pipeline.decode.columns import concat_columns, copy_columns, slice_columns, take_from_segments
from ringfeed.pipeline.decode.interleave import interleave
from ringfeed.pipeline.decode.row_views import RowViews
from ringfeed.sharding.compute import kernels
from ringfeed.sharding.formats.parquet_pages import FileVectors
from ringfeed.sharding.schema import Feature, Schema

SCHEMA = Schema(features=(Feature(name="x", dtype="int16", shape=(2, 3)), Feature(name="y", dtype="int64", shape=())))
WIDTHS = (2, 1, 3)


def lying(values: np.ndarray[Any, Any], *, in_place: bool) -> Any:
    """The values as they are, or as they lie in a page of a file."""
    if not in_place:
        return values
    head = b"head "
    starts = len(head) + np.arange(len(values), dtype=np.int64) * 12
    return FileVectors(data=pa.py_buffer(head + values.tobytes()), starts=starts, dtype=values.dtype, shape=(2, 3))


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    in_place=st.lists(st.booleans(), min_size=3, max_size=3),
    steps=st.integers(1, 4),
    windows=st.integers(1, 3),
    seed=st.integers(0, 99),
    compiled=st.booleans(),
)
def test_a_batch_holds_the_rows_chosen_for_it(
    sizes: list[int], in_place: list[bool], steps: int, windows: int, seed: int, compiled: bool
) -> None:
    random = np.random.default_rng(seed)
    total = sum(sizes)
    starts = np.cumsum([0, *sizes[:-1]])
    parts, expected = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "are_compiled", lambda: compiled)
        for width in WIDTHS:
            taken: list[Any] = []
            wanted = []
            for rows in np.array_split(random.integers(0, total, steps * width), windows):
                values = random.integers(-999, 999, (total, 2, 3), dtype=np.int16)
                numbers = random.integers(0, 9, total)
                ends = starts[1:]
                segments = [
                    {"x": lying(x, in_place=lies), "y": y}
                    for x, y, lies in zip(np.split(values, ends), np.split(numbers, ends), in_place, strict=False)
                ]
                taken = [*map(copy_columns, taken), take_from_segments(segments, starts.tolist(), rows)]
                wanted.append((values[rows], numbers[rows]))
            assert isinstance(taken[-1]["x"], RowViews) == compiled
            parts.append(concat_columns(taken))
            expected.append([np.concatenate(each) for each in zip(*wanted, strict=True)])
        batches = interleave(parts, WIDTHS, steps, SCHEMA, None)
    for name, number in (("x", 0), ("y", 1)):
        pieces = [
            own[number].reshape(steps, width, *own[number].shape[1:])
            for own, width in zip(expected, WIDTHS, strict=True)
        ]
        side_by_side = np.concatenate(pieces, axis=1)
        assert batches[name].tobytes() == side_by_side.tobytes()
        assert batches[name].shape == (steps * sum(WIDTHS), *side_by_side.shape[2:])


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("row", [-8, 4])
def test_missing_rows_are_refused(row: int, in_place: bool) -> None:
    column = lying(np.zeros((4, 2, 3), np.int16), in_place=in_place)
    with pytest.raises(IndexError):
        take_from_segments([{"x": column}], [0], np.array([0, row]))


def test_views_keep_memory_and_copies_do_not() -> None:
    values = np.arange(24, dtype=np.int16).reshape(4, 2, 3)
    expected, holds = values[[3, 1]].tobytes(), sys.getrefcount(values)
    picked = take_from_segments([{"x": values}], [0], np.array([3, 1]))
    assert sys.getrefcount(values) > holds
    own = copy_columns(picked)["x"]
    del picked
    assert sys.getrefcount(values) == holds
    assert own.tobytes() == expected


def test_copied_numbers_keep_no_shard_in_memory() -> None:
    numbers = np.arange(9)
    part = slice_columns({"y": numbers}, 2, 4)
    assert np.shares_memory(part["y"], numbers)
    own = copy_columns(part)["y"]
    assert own.tolist() == [2, 3]
    assert not np.shares_memory(own, numbers)

"""Casts of Arrow columns that Arrow itself would round wrongly."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import SourceError
from ringfeed.sharding.compute.arrow_casts import cast_column

LISTS = [pa.list_(pa.decimal128(9, 5)), pa.large_list(pa.decimal128(9, 5)), pa.list_(pa.decimal256(60, 5), 2)]


@given(numbers=st.lists(st.none() | st.integers(-(10**15), 10**15)), scale=st.integers(0, 18))
def test_a_decimal_becomes_the_nearest_float(numbers: list[int | None], scale: int) -> None:
    values = [None if number is None else Decimal(number).scaleb(-scale) for number in numbers]
    column = pa.array(values, pa.decimal128(38, scale))
    wide = cast_column(column, pa.float64(), "x").to_pylist()
    assert wide == [None if value is None else float(value) for value in values]


def test_a_decimal_with_more_digits_than_a_float_holds_is_refused() -> None:
    column = pa.array([Decimal("9007199254740993")], pa.decimal128(20, 0))
    with pytest.raises(SourceError, match="9007199254740993"):
        cast_column(column, pa.float64(), "x")


def test_a_decimal_becomes_the_nearest_float32() -> None:
    values = [Decimal(number).scaleb(-5) for number in range(0, 10_000_000, 3701)]
    narrow = cast_column(pa.array(values, pa.decimal128(7, 5)), pa.float32(), "x").to_pylist()
    assert narrow == [float(np.float32(str(value))) for value in values]


@pytest.mark.parametrize("kind", LISTS, ids=str)
def test_decimals_in_lists_become_the_nearest_floats(kind: pa.DataType) -> None:
    column = pa.array([[Decimal("0.3"), Decimal("19.99")], None], kind)
    target = pa.list_(pa.float64(), 2) if pa.types.is_fixed_size_list(kind) else pa.list_(pa.float64())
    assert cast_column(column, target, "x").to_pylist() == [[0.3, 19.99], None]

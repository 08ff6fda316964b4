"""Exact sums against fractions, of numbers of every size."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.training.metrics.exact_sum import ExactSum

NUMBERS = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20)


@settings(max_examples=100, deadline=None)
@given(NUMBERS, NUMBERS)
def test_a_sum_has_no_rounding(first: list[float], second: list[float]) -> None:
    total = ExactSum()
    total.add(first)
    total.add(second)
    assert total.value == sum(map(Fraction, first + second))


def test_a_sum_with_a_number_that_is_not_finite_is_nan() -> None:
    total = ExactSum()
    total.add([1.0, np.inf])
    total.add([1.0])
    assert np.isnan(total.value)

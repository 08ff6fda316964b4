"""Shares of splits that were rounded (`split_shares.py`), in Python and on the command line."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import BuildOptions, ConfigError
from ringfeed.tools.argument_types import parse_splits

CASES = [
    ({"train": 0.8, "test": 1 - 0.8}, ["4/5", "1/5"]),
    ({"train": 0.9, "test": 1 - 0.9}, ["9/10", "1/10"]),
    ({"train": 2 / 3, "test": 1 / 3}, ["2/3", "1/3"]),
    ({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, ["1/3", "1/3", "1/3"]),
    ({"train": 0.7, "val": 0.2, "test": 0.1}, ["7/10", "1/5", "1/10"]),
    ({"train": float(np.float32(0.8)), "test": float(np.float32(0.2))}, ["4/5", "1/5"]),
    ({"train": 0.666667, "test": 0.333333}, ["666667/1000000", "333333/1000000"]),
]


@pytest.mark.parametrize(("shares", "expected"), CASES)
def test_rounding_is_undone(shares: dict[str, float], expected: list[str]) -> None:
    options = BuildOptions(source="a", destination="b", splits=shares)  # type: ignore[arg-type]
    assert list(map(str, options.splits.values())) == expected
    text = ",".join(f"{name}={share}" for name, share in shares.items())
    assert parse_splits(text) == options.splits


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8))
def test_shares_of_whole_numbers_are_exact(parts: list[int]) -> None:
    shares = {str(number): part / sum(parts) for number, part in enumerate(parts)}
    found = BuildOptions(source="a", destination="b", splits=shares).splits  # type: ignore[arg-type]
    assert sum(found.values()) == 1
    assert all(abs(found[str(n)] - Fraction(part, sum(parts))) < 1e-6 for n, part in enumerate(parts))


@pytest.mark.parametrize(
    ("shares", "total"), [({"a": 0.8, "b": 0.19}, "0.99"), ({"a": 0.33, "b": 0.33, "c": 0.33}, "0.99"), ({"a": 2}, "2")]
)
def test_another_sum_is_refused_with_all_its_digits(shares: dict[str, float], total: str) -> None:
    with pytest.raises(ConfigError, match=rf"add up to 1, got a=.*, which add up to {total}$"):
        BuildOptions(source="a", destination="b", splits=shares)  # type: ignore[arg-type]

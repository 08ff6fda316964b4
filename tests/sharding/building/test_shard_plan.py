"""The plan that follows from counts."""

from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import BuildOptions, ConfigError, Feature, Schema, SourceError
from ringfeed.sharding.assignment.label_counts import ValueCounts
from ringfeed.sharding.building.shard_plan import (
    check_label,
    default_shards,
    plan_assignment,
    plan_split_counts,
    sort_classes,
)


def options(**changes: Any) -> BuildOptions:
    return BuildOptions(**{"source": "a", "destination": "b", **changes})


def tally(counts: dict[Any, int]) -> ValueCounts:
    return ValueCounts(
        values=pa.array(list(counts), None if counts else pa.string()), counts=np.array([*counts.values()], int)
    )


def test_classes_are_sorted_by_their_values() -> None:
    assert sort_classes(tally({"b": 2, "a": 3, "": 2}), "x", 2).to_pylist() == ["", "a", "b"]
    assert sort_classes(tally({10: 2, 9: 2}), "x", 2).to_pylist() == [9, 10]
    assert sort_classes(tally({True: 5, False: 2}), "x", 2).to_pylist() == [False, True]


@given(st.lists(st.text(), min_size=1, unique=True))
def test_text_is_sorted_as_python_sorts_it(values: list[str]) -> None:
    assert sort_classes(tally(dict.fromkeys(values, 2)), "x", 2).to_pylist() == sorted(values)


def test_a_class_with_too_few_records_is_refused_by_name() -> None:
    with pytest.raises(SourceError, match=r"class 'b' has 1 record, fewer than 2 \(and 1 more class\)"):
        sort_classes(tally({"a": 5, "c": 1, "b": 1}), "x", 2)
    assert sort_classes(tally({"a": 5, "b": 1}), "x", 1).to_pylist() == ["a", "b"]


def test_without_a_label_the_error_for_too_few_records_names_no_class() -> None:
    with pytest.raises(SourceError, match=r"^x has 1 record, fewer than 2; pass --min-class-records 1$"):
        sort_classes(tally({False: 1}), "x", 2, labelled=False)
    with pytest.raises(SourceError, match=r"^the source has 1 record, too few for one in each of 2 splits"):
        plan_split_counts([None], [1], {"a": Fraction(1, 2), "b": Fraction(1, 2)})


@pytest.mark.parametrize("counts", [{}, {"a": 0}])
def test_no_records_are_refused(counts: dict[str, int]) -> None:
    with pytest.raises(SourceError, match="x holds no records"):
        sort_classes(tally(counts), "x", 2)


@pytest.mark.parametrize(
    ("dtype", "shape", "reason"),
    [
        ("binary", (), "'y' holds bytes, which make no classes; .*--cast y=string"),
        ("int64", (2,), "'y' holds .*int64.* omit --label"),
        ("string", (None,), "'y' holds .*string.* omit --label"),
    ],
)
def test_a_label_that_makes_no_classes_is_refused(dtype: str, shape: tuple[int | None, ...], reason: str) -> None:
    schema = Schema(features=(Feature(name="y", dtype=dtype, shape=shape),), label="y")
    with pytest.raises(SourceError, match=reason):
        check_label(schema)


@pytest.mark.parametrize("dtype", ["string", "bool", "int8", "uint64"])
def test_labels_that_make_classes_pass(dtype: str) -> None:
    check_label(Schema(features=(Feature(name="y", dtype=dtype),), label="y"))


@pytest.mark.parametrize(
    ("records", "record_bytes", "shards"),
    [
        (3, 10, 3),
        (344, 210, 4),
        (9000, 1000, 8),
        (1 << 14, 1 << 10, 16),
        (1 << 20, 1 << 10, 16),
        (1 << 23, 1 << 10, 32),
    ],
)
def test_the_default_number_of_shards_follows_from_the_size(records: int, record_bytes: int, shards: int) -> None:
    """From 16 MiB on there are 16, and from 4 GiB on more; small data has few, but no fewer than 4."""
    assert plan_assignment(options(), {"train": (records,)}, record_bytes).shards == shards


@given(st.integers(0, 1 << 45), st.integers(0, 1 << 45))
def test_more_data_never_has_fewer_shards_by_default(one: int, other: int) -> None:
    small, large = sorted((one, other))
    assert 4 <= default_shards(small) <= default_shards(large)


def test_a_small_split_does_not_take_shards_from_a_large_one() -> None:
    plan = plan_assignment(options(), {"train": (999,), "test": (1,)}, 1 << 15)
    assert [split.shards for split in plan.splits] == [16, 1]


def test_the_shard_size_decides_the_number() -> None:
    assert plan_assignment(options(shard_bytes=1000), {"train": (1000,)}, 10).shards == 10
    assert plan_assignment(options(shard_bytes=1 << 20), {"train": (1000,)}, 10).shards == 1


def test_shards_that_would_not_fit_in_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"at most 1024 MiB.*2 shards would have about 4768 MiB"):
        plan_assignment(options(shards=2), {"train": (1_000_000,)}, 10_000)


def test_a_class_that_cannot_be_in_every_split_is_refused_by_name() -> None:
    splits = {name: Fraction(1, 3) for name in "abc"}
    with pytest.raises(SourceError, match="class 'rare' has 2 records, too few for one in each of 3 splits"):
        plan_split_counts(["common", "rare"], [100, 2], splits)


def test_more_counts_than_a_reader_can_hold_are_refused() -> None:
    options = BuildOptions(source="s", destination="d", shards=1000)
    with pytest.raises(ConfigError, match="1,000,000 classes in 1,000 shards make 1,000,000,000 counts, which every"):
        plan_assignment(options, {"train": (2,) * 1_000_000}, 10.0)

"""Counts of many classes in many parts: sparse, and equal to those of plain dictionaries."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import Feature, Schema
from ringfeed.sharding.assignment.label_counts import LabelCounts, count_strata, count_values, first_ordinals

SCHEMA = Schema(features=(Feature(name="y", dtype="string"),), label="y")
PARTS = st.lists(st.lists(st.lists(st.text(max_size=2), max_size=6), max_size=3), min_size=1, max_size=5)


MERGED_VALUES = 4  # merges several parts, several times


@given(PARTS, st.randoms())
def test_parts_in_any_order_are_counted_as_by_hand(parts: list[list[list[str]]], random: object) -> None:
    counted = LabelCounts(SCHEMA, len(parts), MERGED_VALUES)
    expected = [Counter(value for batch in part for value in batch) for part in parts]
    numbers = list(range(len(parts)))
    random.shuffle(numbers)  # type: ignore[attr-defined]
    for number in numbers:
        counted.add(
            number, count_values([pa.array(batch, pa.string()) for batch in parts[number]], pa.string(), MERGED_VALUES)
        )
    totals = dict(zip(counted.totals.values.to_pylist(), counted.totals.counts.tolist(), strict=True))
    assert totals == sum(expected, Counter())
    classes = sorted(totals)
    for found, wanted in zip(counted.by_part(pa.array(classes, pa.string())), expected, strict=True):
        assert found.strata.tolist() == [number for number, value in enumerate(classes) if value in wanted]
        assert found.counts.tolist() == [wanted[value] for value in classes if value in wanted]


@given(st.lists(st.lists(st.integers(0, 5), max_size=9), max_size=6))
def test_first_ordinals_are_the_sums_of_the_parts_before(parts: list[list[int]]) -> None:
    counts = [count_strata(np.array(part, np.int64), np.full(len(part), 300)) for part in parts]
    before: Counter[int] = Counter()
    for part, sparse, firsts in zip(parts, counts, first_ordinals(counts, strata=6), strict=True):
        assert firsts.tolist() == [before[stratum] * 300 for stratum in sparse.strata.tolist()]
        assert sparse.counts.tolist() == [part.count(stratum) * 300 for stratum in sparse.strata.tolist()]
        before.update(part)


def test_a_part_takes_few_bytes_for_each_class_in_it() -> None:
    counted = LabelCounts(Schema(features=(Feature(name="y", dtype="int64"),), label="y"), 1, MERGED_VALUES)
    counted.add(0, count_values([pa.array(np.arange(1000))], pa.int64(), MERGED_VALUES))
    (part,) = counted.by_part(pa.array(np.arange(1_000_000)))
    assert part.strata.nbytes + part.counts.nbytes == 9 * 1000

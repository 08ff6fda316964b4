"""Groups stay whole, each split gets some, and the splits come as near to their shares as groups allow."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding.assignment.group_splits import GroupCounts, assign_groups

HALVES = [Fraction(1, 2)] * 2


def counted(groups: np.ndarray, class_ids: np.ndarray) -> GroupCounts:
    """Of single records."""
    pairs, counts = np.unique(np.stack([groups, class_ids], axis=1), axis=0, return_counts=True)
    return GroupCounts(groups=pairs[:, 0], class_ids=pairs[:, 1], counts=counts)


def reached(table: GroupCounts, splits: np.ndarray, shares: list[Fraction]) -> np.ndarray:
    """Share of each class in each split, [splits, classes]."""
    counts = np.zeros((len(shares), table.class_ids.max() + 1))
    np.add.at(counts, (splits[table.groups], table.class_ids), table.counts)
    return counts / counts.sum(axis=0)


@st.composite
def tables(draw: st.DrawFn) -> GroupCounts:
    groups = draw(st.integers(4, 40))
    rows = st.dictionaries(st.integers(0, 5), st.integers(1, 1000), min_size=1)
    contents = draw(st.lists(rows, min_size=groups, max_size=groups))
    cells = [(group, class_id, n) for group, row in enumerate(contents) for class_id, n in sorted(row.items())]
    return GroupCounts(**dict(zip(("groups", "class_ids", "counts"), np.array(cells).T, strict=True)))


shares_of_one = st.lists(st.integers(1, 100), min_size=2, max_size=4).map(
    lambda weights: [Fraction(weight, sum(weights)) for weight in weights]
)


@given(table=tables(), shares=shares_of_one, key=st.integers(0, 9))
def test_every_group_has_a_split_and_every_split_a_group(table: GroupCounts, shares: list[Fraction], key: int) -> None:
    splits = assign_groups(table, shares, key)
    assert len(splits) == len(table.bounds) - 1
    assert set(splits.tolist()) == set(range(len(shares)))
    assert splits.tolist() == assign_groups(table, shares, key).tolist()


@given(records=st.integers(20, 400), percent=st.integers(5, 95), key=st.integers(0, 9))
def test_groups_of_one_record_are_split_within_one_of_the_shares(records: int, percent: int, key: int) -> None:
    shares = [Fraction(percent, 100), Fraction(100 - percent, 100)]
    table = counted(np.arange(records), np.zeros(records, np.int64))
    first = np.count_nonzero(assign_groups(table, shares, key) == 0)
    assert abs(first - float(shares[0] * records)) < 1


@pytest.mark.parametrize("shares", [[0.9, 0.1], [0.8, 0.1, 0.1]])
def test_classes_come_within_half_a_point_of_their_shares(shares: list[float]) -> None:
    rng = np.random.default_rng(0)
    weights = rng.lognormal(size=2000)
    groups = rng.choice(2000, 100_000, p=weights / weights.sum())
    groups = np.unique(groups, return_inverse=True)[1]
    class_ids = (groups + rng.integers(0, 3, 100_000)) % 10  # classes that go with the groups
    table = counted(groups, class_ids)
    fractions = [Fraction(str(share)) for share in shares]
    found = reached(table, assign_groups(table, fractions, 0), fractions)
    assert np.abs(found - np.array(shares)[:, None]).max() < 0.005


def test_the_seed_decides_between_groups_that_are_alike() -> None:
    table = counted(np.arange(100), np.zeros(100, np.int64))
    assert assign_groups(table, HALVES, 0).tolist() != assign_groups(table, HALVES, 1).tolist()


def test_fewer_groups_than_splits_are_refused() -> None:
    with pytest.raises(ValueError, match="at least as many groups as splits, got 1 for 2"):
        assign_groups(counted(np.zeros(5, np.int64), np.arange(5)), HALVES, 0)


@given(table=tables(), shares=shares_of_one, key=st.integers(0, 9), data=st.data())
def test_a_group_that_has_a_split_keeps_it(
    table: GroupCounts, shares: list[Fraction], key: int, data: st.DataObject
) -> None:
    groups = len(table.bounds) - 1
    known = np.array(data.draw(st.lists(st.integers(-1, len(shares) - 1), min_size=groups, max_size=groups)), np.int32)
    rows = st.lists(st.lists(st.integers(0, 500), min_size=8, max_size=8), min_size=len(shares), max_size=len(shares))
    existing = np.array(data.draw(rows | st.just([[0] * 8] * len(shares))))
    splits = assign_groups(table, shares, key, known_splits=known, existing_counts=existing)
    assert splits[known >= 0].tolist() == known[known >= 0].tolist()
    assert splits.min() >= 0
    fresh = set(range(len(shares))) - set(known.tolist()) - set(np.flatnonzero(existing.any(axis=1)).tolist())
    if np.count_nonzero(known < 0) >= len(fresh):
        assert fresh <= set(splits.tolist())  # no split is left without a group


def test_new_groups_make_up_for_existing_imbalance() -> None:
    table = counted(np.arange(100), np.zeros(100, np.int64))
    splits = assign_groups(table, HALVES, 0, existing_counts=np.array([[300], [240]]))
    assert np.bincount(splits).tolist() == [20, 80]

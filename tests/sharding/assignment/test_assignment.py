"""The guarantees of the assignment, for any classes, splits and shards."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringfeed.sharding.assignment.assignment import Assignment, SplitLayout, shards_per_split, split_class_counts
from ringfeed.sharding.errors import ConfigError


@st.composite
def assignments(draw: st.DrawFn) -> Assignment:
    classes = draw(st.integers(1, 6))
    presplit = draw(st.booleans())  # a split may then lack a class
    splits = []
    for name in draw(st.sampled_from([["train"], ["train", "test"], ["a", "b", "c"]])):
        numbers = st.lists(st.integers(0 if presplit else 1, 400), min_size=classes, max_size=classes)
        counts = draw(numbers.filter(any))
        splits.append(SplitLayout(name=name, shards=draw(st.integers(1, sum(counts))), class_counts=tuple(counts)))
    return Assignment(seed=draw(st.integers(0, 9)), splits=tuple(splits), presplit=presplit)


def every_record(assignment: Assignment) -> tuple[np.ndarray, np.ndarray]:
    """Strata and ordinals of all records, in an interleaved order."""
    counts = np.array([split.class_counts for split in assignment.splits])
    totals = counts.reshape(-1) if assignment.presplit else counts.sum(axis=0)
    strata = np.concatenate([np.full(total, c) for c, total in enumerate(totals)]).astype(np.int32)
    ordinals = np.concatenate([np.arange(total) for total in totals])
    order = np.random.default_rng(0).permutation(len(strata))
    return strata[order], ordinals[order]


@given(assignments())
def test_records_and_places_are_in_bijection(assignment: Assignment) -> None:
    strata, ordinals = every_record(assignment)
    shards, slots = assignment.locate(strata, ordinals)
    taken = set(zip(shards.tolist(), slots.tolist(), strict=True))
    places = {
        (shard, slot)
        for shard in range(assignment.shards)
        for slot in range(assignment.shard(shard)[0].shard_records(assignment.shard(shard)[1]))
    }
    assert len(taken) == len(strata)
    assert taken == places


@given(assignments())
def test_record_and_class_counts_of_shards_differ_by_at_most_one(assignment: Assignment) -> None:
    strata, ordinals = every_record(assignment)
    shards, _ = assignment.locate(strata, ordinals)
    assert assignment.strata > strata.max()
    found = np.zeros((assignment.shards, assignment.classes), np.int64)
    np.add.at(found, (shards, strata % assignment.classes), 1)
    first = 0
    for split in assignment.splits:
        mine = found[first : first + split.shards]
        first += split.shards
        assert np.ptp(mine, axis=0).max() <= 1
        assert np.ptp(mine.sum(axis=1)) <= 1
        assert tuple(mine.sum(axis=0).tolist()) == split.class_counts
        planned = np.stack([split.shard_class_counts(shard) for shard in range(split.shards)])
        assert np.array_equal(mine, planned)
        assert np.array_equal(mine, split.all_shard_class_counts())
        assert mine.sum(axis=1).tolist() == [split.shard_records(shard) for shard in range(split.shards)]


@given(assignments(), st.data())
def test_places_do_not_depend_on_how_the_records_are_batched(assignment: Assignment, data: st.DataObject) -> None:
    strata, ordinals = every_record(assignment)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(strata)), max_size=4)))
    whole = np.stack(assignment.locate(strata, ordinals))
    pieces = zip(np.split(strata, cuts), np.split(ordinals, cuts), strict=True)
    assert np.array_equal(whole, np.concatenate([np.stack(assignment.locate(*piece)) for piece in pieces], axis=1))


@given(assignments())
def test_places_do_not_depend_on_how_many_strata_are_placed_together(assignment: Assignment) -> None:
    strata, ordinals = every_record(assignment)
    one_by_one = assignment.places(strata, ordinals, many_records=0)
    assert np.array_equal(assignment.places(strata, ordinals, many_records=1 << 40), one_by_one)


@given(assignments())
def test_rows_of_a_shard_are_a_permutation_of_its_slots(assignment: Assignment) -> None:
    for shard in range(min(assignment.shards, 5)):
        split, number = assignment.shard(shard)
        assert sorted(assignment.row_of_slot(shard).tolist()) == list(range(split.shard_records(number)))


@given(assignments().filter(lambda assignment: assignment.presplit))
def test_presplit_records_go_to_their_split(assignment: Assignment) -> None:
    strata, ordinals = every_record(assignment)
    shards, _ = assignment.locate(strata, ordinals)
    found = [assignment.shard(shard)[0].name for shard in shards.tolist()]
    assert found == [assignment.splits[stratum // assignment.classes].name for stratum in strata.tolist()]


def test_another_seed_is_another_assignment() -> None:
    split = SplitLayout(name="train", shards=10, class_counts=(1000,))
    args = (np.zeros(1000, np.int32), np.arange(1000))
    a, b = (Assignment(seed=seed, splits=(split,)).locate(*args)[0] for seed in (0, 1))
    assert np.mean(a == b) < 0.2


def test_an_unknown_shard_number_is_refused() -> None:
    with pytest.raises(ValueError, match="shard must be below 2, got 2"):
        Assignment(seed=0, splits=(SplitLayout(name="a", shards=2, class_counts=(2,)),)).shard(2)


fractions_of_one = st.lists(st.integers(1, 20), min_size=1, max_size=4).map(
    lambda weights: {f"s{i}": Fraction(weight, sum(weights)) for i, weight in enumerate(weights)}
)


@given(counts=st.lists(st.integers(1, 10**6), min_size=1, max_size=20), fractions=fractions_of_one)
def test_each_class_is_split_within_one_of_its_share(counts: list[int], fractions: dict[str, Fraction]) -> None:
    splits = split_class_counts(counts, fractions)
    for c, count in enumerate(counts):
        given_ = [splits[name][c] for name in fractions]
        assert sum(given_) == count
        if count < len(fractions):
            continue
        assert min(given_) >= 1
        if min(share * count for share in fractions.values()) >= 1:
            assert all(abs(n - share * count) < 1 for n, share in zip(given_, fractions.values(), strict=True))


@given(counts=st.lists(st.integers(50, 10**6), min_size=1, max_size=50), percent=st.integers(2, 98))
def test_rounding_does_not_accumulate_over_classes(counts: list[int], percent: int) -> None:
    share = Fraction(percent, 100)
    splits = split_class_counts(counts, {"a": share, "b": 1 - share})
    assert abs(sum(splits["a"]) - share * sum(counts)) < 1


def test_a_class_smaller_than_the_splits_leaves_some_empty() -> None:
    assert split_class_counts([1], {"a": Fraction(1, 2), "b": Fraction(1, 2)}) == {"a": (1,), "b": (0,)}


def grown(fractions: dict[str, Fraction], counts: list[int], appends: list[list[int]]) -> list[np.ndarray]:
    """Records of each class in each split, int64 [splits, classes], after a build and after each append."""
    existing = {name: list(of_split) for name, of_split in split_class_counts(counts, fractions).items()}
    found = [np.array(list(existing.values()))]
    for more in appends:
        added = split_class_counts(more, fractions, existing_counts=existing)
        assert np.array_equal(np.sum([list(of_split) for of_split in added.values()], axis=0), more)
        existing = {name: [a + b for a, b in zip(existing[name], added[name], strict=True)] for name in fractions}
        found.append(np.array(list(existing.values())))
    return found


def off(records: np.ndarray, fractions: dict[str, Fraction]) -> np.ndarray:
    """How far each split is from its share of each class, and of all."""
    records = np.column_stack([records, records.sum(axis=1)])
    return np.abs(records - np.array([[float(share)] for share in fractions.values()]) * records.sum(axis=0))


@pytest.mark.parametrize("percent", [1, 10, 25, 50])
def test_single_records_of_every_class_are_split_within_each_class(percent: int) -> None:
    fractions = {"train": 1 - Fraction(percent, 100), "test": Fraction(percent, 100)}
    states = grown(fractions, [100] * 10, [[1] * 10] * 100)
    assert max(off(state, fractions).max() for state in states) <= 1
    assert states[-1].tolist() == [[200 - 2 * percent] * 10, [2 * percent] * 10]


@given(
    weights=st.lists(st.integers(1, 20), min_size=2, max_size=4),
    appends=st.integers(1, 8).flatmap(
        lambda classes: st.lists(st.lists(st.integers(0, 3), min_size=classes, max_size=classes), max_size=40)
    ),
    old=st.integers(40, 200),
)
@example(weights=[9, 1], appends=[[1] * 8] * 40, old=40)
def test_many_small_appends_keep_each_class_and_the_totals_to_their_shares(
    weights: list[int], appends: list[list[int]], old: int
) -> None:
    fractions = {f"s{i}": Fraction(weight, sum(weights)) for i, weight in enumerate(weights)}
    classes = len(appends[0]) if appends else 1
    for state in grown(fractions, [old + c for c in range(classes)], appends):
        assert off(state, fractions).max() < (2 if len(weights) == 2 else 3)


@given(counts=st.lists(st.integers(0, 100), min_size=1, max_size=8), weights=st.lists(st.integers(1, 9), min_size=2))
def test_an_append_is_split_as_asked_whatever_the_dataset_holds(counts: list[int], weights: list[int]) -> None:
    fractions = {f"s{i}": Fraction(weight, sum(weights)) for i, weight in enumerate(weights)}
    existing = {"s0": [0] * len(counts), "s1": [10**6] * len(counts)}
    splits = split_class_counts(counts, fractions, existing_counts=existing)
    for name, share in fractions.items():
        assert all(abs(n - share * count) < 1 for n, count in zip(splits[name], counts, strict=True))


def test_records_in_other_splits_count_for_no_share() -> None:
    halves = {"a": Fraction(1, 2), "b": Fraction(1, 2)}
    existing = {"a": [10, 10], "b": [10, 10]}
    assert split_class_counts([1, 1], halves, existing_counts=existing) == {"a": (1, 0), "b": (0, 1)}
    assert split_class_counts([1, 1], halves, existing_counts=existing | {"held_out": [500, 0]}) == {
        "a": (1, 0),
        "b": (0, 1),
    }
    tenth = {"a": Fraction(9, 10), "b": Fraction(1, 10)}
    existing = {"a": [9, 9], "b": [0, 1], "held_out": [500, 500]}
    assert split_class_counts([1, 1], tenth, existing_counts=existing) == {"a": (0, 1), "b": (1, 0)}


def test_a_new_class_goes_to_the_splits_furthest_behind_overall() -> None:
    halves = {"a": Fraction(1, 2), "b": Fraction(1, 2)}
    assert split_class_counts([0, 3], halves, existing_counts={"a": [12], "b": [10]}) == {"a": (0, 1), "b": (0, 2)}


def test_shards_of_all_splits_have_about_the_same_size() -> None:
    assert shards_per_split({"train": 900, "test": 100, "tiny": 1}, 9) == {"train": 9, "test": 1, "tiny": 1}


def test_more_shards_than_records_are_refused() -> None:
    with pytest.raises(ConfigError, match="'train' has 3 records, too few for 4 shards"):
        shards_per_split({"train": 3}, 4)

"""Keyed permutations."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ringfeed.sharding.compute.keyed_random import derive_key, mix64, permute, permute_each, shuffled, shuffled_by_group

pytestmark = pytest.mark.usefixtures("implementation")


@given(key=st.integers(0, 2**64 - 1), size=st.integers(1, 20_000))
def test_a_permutation_reaches_every_index_once(key: int, size: int) -> None:
    assert np.array_equal(np.sort(permute(key, size, np.arange(size))), np.arange(size))


@given(size=st.integers(4_097, 10**12), indices=st.lists(st.integers(0, 2**62), min_size=1, max_size=50))
def test_an_index_is_mapped_independently_of_the_others(size: int, indices: list[int]) -> None:
    asked = np.array(indices) % size
    together = permute(7, size, asked)
    alone = [int(permute(7, size, np.array([index]))[0]) for index in asked]
    assert together.tolist() == alone
    assert together.min() >= 0
    assert together.max() < size


@pytest.mark.parametrize("size", [5, 5_000])
@pytest.mark.parametrize("index", [-1, "size"])
def test_an_index_outside_is_refused(size: int, index: int | str) -> None:
    with pytest.raises(ValueError, match=rf"\[0, {size}\)"):
        permute(1, size, np.array([size if index == "size" else index]))


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_different_keys_give_different_random_orders(size: int) -> None:
    a, b = permute(1, size, np.arange(size)), permute(2, size, np.arange(size))
    for order in (a, b):
        assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 0.1
        assert np.mean(np.diff(order) == 1) < 0.01
    assert np.mean(a == b) < 0.01


def test_orders_equal_golden_values() -> None:
    """Golden values, made by this code on 2026-11-21: a change here changes every dataset and every epoch."""
    assert shuffled(1, 8).tolist() == [5, 3, 6, 0, 7, 1, 2, 4]
    places, bounds = shuffled_by_group(1, np.array([2, 0, 2, 1, 0, 0, 2, 2], np.int32), 4)
    assert (places.tolist(), bounds.tolist()) == ([5, 1, 4, 3, 6, 0, 7, 2], [0, 3, 4, 8, 8])
    assert permute(1, 10_000, np.arange(6)).tolist() == [2250, 3116, 3392, 9421, 7092, 6222]
    assert derive_key(7, "epoch", 3) == 8886608461340475718
    assert mix64(np.array([0, 1], np.uint64)).tolist() == [0, 0xE220A8397B1DCDAF]  # SplitMix64's first output, seed 0


@given(key=st.integers(0, 2**64 - 1), groups=st.lists(st.integers(0, 4), max_size=3_000))
def test_shuffling_by_group_shuffles_each_group(key: int, groups: list[int]) -> None:
    places, bounds = shuffled_by_group(key, np.array(groups, np.int32), 5)
    assert np.array_equal(np.sort(places), np.arange(len(groups)))
    assert np.array_equal(np.diff(bounds), np.bincount(groups, minlength=5))
    assert [groups[place] for place in places.tolist()] == sorted(groups)


@settings(max_examples=30)
@given(
    key=st.integers(0, 2**64 - 1),
    size=st.integers(60, 70) | st.integers(0, 5_000) | st.just(70_000),
    count=st.sampled_from([1, 2, 300, 1_000_000]),
)
@example(key=2**64 - 1, size=2_100_000, count=2)
@example(key=7, size=2_100_000, count=1_000_000)
def test_an_order_sorts_the_noise_of_its_numbers(key: int, size: int, count: int) -> None:
    noise = mix64(np.arange(size, dtype=np.uint64) ^ np.uint64(derive_key(key)))
    places, group = max(size - 1, 1).bit_length(), max(count - 1, 1).bit_length()
    assert np.array_equal(shuffled(key, size), np.argsort(noise >> np.uint64(places), kind="stable"))
    groups = (np.random.default_rng(size).random(size) ** 4 * count).astype(np.int32)  # of very different sizes
    found, _ = shuffled_by_group(key, groups, count)
    assert np.array_equal(found, np.lexsort((noise >> np.uint64(places + group), groups)))


def test_parts_of_a_key_are_separated() -> None:
    keys = {derive_key(*parts) for parts in [("a", "b"), ("ab",), ("a", "b", ""), (1, 2), (12,), ("1", "2"), (1, "2")]}
    assert len(keys) == 7


@pytest.mark.parametrize("sizes", [[1, 2, 7, 300, 4096], [4097, 10_000, 123_457], [5, 10**9, 3, 70_000]])
def test_permuting_with_many_keys_at_once_gives_the_same_numbers(sizes: list[int]) -> None:
    rng = np.random.default_rng(3)
    groups = rng.integers(0, len(sizes), 500)
    indices = (rng.random(500) * np.array(sizes)[groups]).astype(np.int64)
    keys = [derive_key("k", number) for number in range(len(sizes))]
    together = permute_each(keys, np.array(sizes), groups, indices)
    for number, size in enumerate(sizes):
        mine = groups == number
        assert np.array_equal(together[mine], permute(keys[number], size, indices[mine]))


@pytest.mark.parametrize("index", [-1, 9])
def test_an_index_beyond_its_group_is_refused(index: int) -> None:
    with pytest.raises(ValueError, match="of their groups"):
        permute_each([1, 2], np.array([9, 90]), np.array([1, 0]), np.array([10, index]))

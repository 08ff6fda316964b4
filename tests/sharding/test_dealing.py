"""The promises of dealing by size: counts are even always, bytes as far as sizes allow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding.dealing import deal_by_size


def shards_of(sizes: np.ndarray, counts: list[int], shards: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes, int64 [shards], and records of each class, int64 [shards, classes], of each shard."""
    positions = deal_by_size(sizes, counts, shards)
    assert np.array_equal(np.sort(positions), np.arange(len(sizes)))
    found = np.zeros((shards, len(counts)), np.int64)
    np.add.at(found, (positions % shards, np.repeat(np.arange(len(counts)), counts)), 1)
    return np.bincount(positions % shards, sizes, minlength=shards).astype(np.int64), found


@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any),
    shards=st.integers(1, 70),
    spread=st.sampled_from([1, 3, 10**6]),
    seed=st.integers(0, 99),
)
def test_shards_and_classes_in_shards_differ_by_at_most_one(
    counts: list[int], shards: int, spread: int, seed: int
) -> None:
    sizes = np.random.default_rng(seed).integers(0, spread, sum(counts))
    _, found = shards_of(sizes, counts, shards)
    assert np.ptp(found, axis=0).max() <= 1
    assert np.ptp(found.sum(axis=1)) <= 1


@pytest.mark.parametrize("sigma", [0.3, 0.6, 1.2])  # photographs of one camera have about 0.3, web images about 0.8
@pytest.mark.parametrize("shares", [[1.0], [0.7, 0.25, 0.05], [0.001] * 1000])
@pytest.mark.parametrize("shards", [2, 16, 61])
def test_shards_of_a_thousand_images_are_of_one_size(sigma: float, shares: list[float], shards: int) -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(1000 * shards, shares).tolist()
    sizes = rng.lognormal(11, sigma, 1000 * shards).astype(np.int64)
    loads, found = shards_of(sizes, counts, shards)
    assert loads.max() <= 1.02 * loads.min()
    assert np.ptp(found, axis=0).max() <= 1
    assert np.ptp(found.sum(axis=1)) <= 1


def test_by_records_alone_the_same_images_would_not_be() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.lognormal(11, 0.6, 16_000).astype(np.int64)
    loads = np.bincount(np.arange(16_000) % 16, sizes)
    assert loads.max() > 1.02 * loads.min()


def test_a_few_records_that_are_very_large_are_made_up_for() -> None:
    sizes = np.random.default_rng(0).integers(900, 1100, 16_000)
    sizes[:3] = 20_000
    loads, _ = shards_of(sizes, [16_000], 16)
    assert loads.max() <= 1.001 * loads.min()


def test_records_of_one_size_are_dealt_in_the_order_given() -> None:
    assert deal_by_size(np.ones(6, np.int64), [6], 3).tolist() == [0, 1, 2, 3, 4, 5]

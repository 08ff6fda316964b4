"""The guarantees of dealing by size: counts are always balanced, bytes as far as sizes allow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding.assignment.size_balance import deal_by_size


def shards_of(sizes: np.ndarray, counts: list[int], shards: int, **most: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes, int64 [shards], and records of each class, int64 [shards, classes], of each shard."""
    positions = deal_by_size(sizes, counts, shards, **most)
    assert np.array_equal(np.sort(positions), np.arange(len(sizes)))
    found = np.zeros((shards, len(counts)), np.int64)
    np.add.at(found, (positions % shards, np.repeat(np.arange(len(counts)), counts)), 1)
    return np.bincount(positions % shards, sizes, minlength=shards).astype(np.int64), found


@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any),
    shards=st.integers(1, 70),
    spread=st.sampled_from([1, 3, 10**6]),
    tail=st.sampled_from([0.7, 1.5, 1e9]),
    seed=st.integers(0, 99),
)
def test_record_and_class_counts_of_shards_differ_by_at_most_one(
    counts: list[int], shards: int, spread: int, tail: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    sizes = (rng.integers(0, spread, sum(counts)) * (1 + rng.pareto(tail, sum(counts)))).astype(np.int64)
    _, found = shards_of(sizes, counts, shards)
    assert np.ptp(found, axis=0).max() <= 1
    assert np.ptp(found.sum(axis=1)) <= 1


@pytest.mark.parametrize("sigma", [0.3, 0.6, 1.2])  # photographs of one camera have about 0.3, web images about 0.8
@pytest.mark.parametrize("shares", [[1.0], [0.7, 0.25, 0.05], [0.001] * 1000])
@pytest.mark.parametrize("shards", [2, 16, 61])
def test_shards_of_a_thousand_images_have_the_same_size(sigma: float, shares: list[float], shards: int) -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(1000 * shards, shares).tolist()
    sizes = rng.lognormal(11, sigma, 1000 * shards).astype(np.int64)
    loads, found = shards_of(sizes, counts, shards)
    assert loads.max() <= 1.02 * loads.min()
    assert np.ptp(found, axis=0).max() <= 1
    assert np.ptp(found.sum(axis=1)) <= 1


def test_the_same_images_balanced_by_records_differ_in_size() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.lognormal(11, 0.6, 16_000).astype(np.int64)
    loads = np.bincount(np.arange(16_000) % 16, sizes)
    assert loads.max() > 1.02 * loads.min()


def test_a_few_very_large_records_are_evened_out() -> None:
    sizes = np.random.default_rng(0).integers(900, 1100, 16_000)
    sizes[:3] = 20_000
    loads, _ = shards_of(sizes, [16_000], 16)
    assert loads.max() <= 1.001 * loads.min()


UNEVEN = {  # sizes, records, shards and classes: what blocks alone leave, is from 1.03 to 1.16
    "Pareto": (lambda rng, n: np.minimum(rng.pareto(1.2, n) * 500 + 40, 5e6), 20_000, 5, 1),
    "lognormal, long tail": (lambda rng, n: rng.lognormal(6, 2, n), 20_000, 16, 1),
    "lognormal, several shards": (lambda rng, n: rng.lognormal(6, 1.5, n), 20_000, 64, 1),
    "lognormal, several classes": (lambda rng, n: rng.lognormal(6, 1.2, n), 10_000, 64, 100),
    "lognormal, many classes": (lambda rng, n: rng.lognormal(6, 0.6, n), 5000, 64, 800),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", UNEVEN)
def test_what_blocks_leave_uneven_is_evened_out(name: str, seed: int) -> None:
    draw, records, shards, classes = UNEVEN[name]
    rng = np.random.default_rng(seed)
    sizes = draw(rng, records).astype(np.int64)
    assert sizes.max() <= sizes.sum() / shards / 2
    loads, found = shards_of(sizes, rng.multinomial(records, np.full(classes, 1 / classes)).tolist(), shards)
    assert loads.max() <= 1.002 * loads.min()
    assert np.ptp(found, axis=0).max() <= 1
    assert np.ptp(found.sum(axis=1)) <= 1


@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any),
    shards=st.integers(2, 20),
    sigma=st.sampled_from([0.1, 0.6, 3]),
    seed=st.integers(0, 99),
)
def test_exchanges_keep_class_counts_and_never_worsen_the_balance(
    counts: list[int], shards: int, sigma: float, seed: int
) -> None:
    sizes = np.random.default_rng(seed).lognormal(9, sigma, sum(counts)).astype(np.int64)
    loads, found = shards_of(sizes, counts, shards)
    before, found_before = shards_of(sizes, counts, shards, exchanges=0)
    assert np.array_equal(found, found_before)
    assert before.min() <= loads.min()
    assert loads.max() <= before.max()
    assert loads.sum() == before.sum()


def test_one_record_larger_than_a_shard_leaves_the_other_shards_alike() -> None:
    sizes = np.random.default_rng(0).lognormal(9, 0.6, 1600).astype(np.int64)
    sizes[7] = sizes.sum()
    loads, _ = shards_of(sizes, [1600], 16)
    rest = np.delete(loads, loads.argmax())
    assert rest.max() <= 1.002 * rest.min()


def test_records_of_one_size_are_dealt_in_the_order_given() -> None:
    assert deal_by_size(np.ones(6, np.int64), [6], 3).tolist() == [0, 1, 2, 3, 4, 5]

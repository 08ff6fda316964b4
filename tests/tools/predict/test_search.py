"""The search on models whose best options are known, and what counts as better."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ringfeed.tools.measure.epochs_in_turn import Confirmed, is_better
from ringfeed.tools.predict.search import Space, choose, search, try_shard_sizes
from ringfeed.tools.simulation import Costs, DatasetShape, Setup, StepCosts, StoreCosts

SHAPE = DatasetShape(
    records=np.full(64, 100), data_bytes=np.full(64, 1 << 20), index_bytes=np.full(64, 0), record_bytes=10_000
)
BASE = Setup(batch_size=160, cores=4)
LATE = Costs(store=StoreCosts(latency_seconds=(0.5,), bytes_per_second=1e9))
SLOW_STEP = StepCosts(seconds=(1.0,), core_seconds=0.0, samples=160)


def space(**options: Any) -> Space:
    return Space(**{"epochs": 2} | options)


def test_a_late_store_gets_more_fetches_at_once() -> None:
    candidates = search(SHAPE, LATE, BASE, space(keeps_order=True))
    best = choose(candidates)[0]
    assert candidates[0].setup == BASE
    assert (best.setup.fetch_threads or 0) >= 32
    assert best.seconds < candidates[0].seconds / 2
    assert best.keeps_order
    assert {one.setup.streams for one in candidates} == {None}


def test_a_cache_pays_if_epochs_follow() -> None:
    narrow = Costs(store=StoreCosts(bytes_per_second=1e6))
    for epochs, is_cached in ((1, False), (10, True)):
        chosen = choose(search(SHAPE, narrow, BASE, space(epochs=epochs, cache_bytes=1 << 30)))
        assert any("cache_bytes" in one.changed for one in chosen) == is_cached
    assert not choose(search(SHAPE, narrow, BASE, space(epochs=10, keeps_order=True)))  # nothing helps a full link


def test_a_cache_in_memory_counts_as_memory() -> None:
    held = []
    for in_memory in (False, True):
        base = replace(BASE, cache_in_memory=in_memory)
        candidates = search(SHAPE, LATE, base, space(cache_bytes=1 << 30))
        held.append([one.simulation.memory_bytes for one in candidates if one.changed == ("cache_bytes",)])
    assert held[1] == [held[0][0] + SHAPE.bytes]


def test_batches_keep_records_of_four_shards() -> None:
    costs = Costs(store=StoreCosts(bytes_per_second=1e7), step=SLOW_STEP)
    candidates = search(SHAPE, costs, BASE, space())
    best = choose(candidates)[0]
    assert best.setup.streams == 4
    assert all(one.simulation.streams * one.setup.window_shards >= 4 for one in candidates)


def test_streams_divide_the_batch_and_are_shared_by_the_ranks() -> None:
    candidates = search(SHAPE, LATE, replace(BASE, ranks=4, batch_size=96), space())
    assert {one.simulation.streams for one in candidates} <= {4, 8, 16, 32}


def test_where_the_step_is_the_limit_nothing_is_chosen() -> None:
    costs = Costs(store=StoreCosts(latency_seconds=(0.001,), bytes_per_second=1e10), step=SLOW_STEP)
    assert choose(search(SHAPE, costs, BASE, space())) == []


def test_memory_is_a_bound() -> None:
    free = choose(search(SHAPE, LATE, BASE, space()))[0]
    limit = search(SHAPE, LATE, BASE, space())[0].simulation.memory_bytes
    bound = choose(search(SHAPE, LATE, BASE, space(memory_bytes=limit)))
    assert all(one.simulation.memory_bytes <= limit for one in bound[:1])
    assert free.seconds <= bound[0].seconds


def test_the_best_of_each_kind_are_measured() -> None:
    chosen = choose(search(SHAPE, LATE, BASE, space(epochs=10, cache_bytes=1 << 30)))
    assert len(chosen) == 3
    assert chosen[0].seconds == min(one.seconds for one in chosen)
    assert any(one.keeps_order for one in chosen)
    assert any("cache_bytes" not in one.changed for one in chosen)


def test_larger_shards_are_named_for_a_late_store() -> None:
    base = search(SHAPE, LATE, BASE, space())[0]
    found = try_shard_sizes(SHAPE, LATE, base, BASE, 1)
    assert found is not None
    assert found.shards < 64
    assert found.gain > 1.05
    assert try_shard_sizes(SHAPE, Costs(step=SLOW_STEP), base, BASE, 1) is None


@pytest.mark.parametrize(
    ("gains", "better"),
    [((1.2, 1.1, 1.3), True), ((1.2, 0.99, 1.3), False), ((1.01, 1.02, 1.3), False), ((1.0, 1.0, 1.0), False)],
)
def test_only_what_wins_every_round_is_better(gains: tuple[float, ...], better: bool) -> None:
    assert is_better(Confirmed(seconds=(1.0, 1.0, 1.0), gains=gains)) == better

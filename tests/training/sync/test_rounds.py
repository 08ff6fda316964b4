"""Rounds of periodic averaging: what all ranks agree on, and who averages with whom. Real ranks: compression tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.config.sync import DiLoCoConfig, FedAvgConfig, LocalSGDConfig, PostLocalSGDConfig
from ringfeed.training.ring.ring import Ring, SoloRing
from ringfeed.training.sync.build import build_synchronizer
from ringfeed.training.sync.diloco import DiLoCo
from ringfeed.training.sync.fedavg import FedAvg
from ringfeed.training.sync.gossip import partners
from ringfeed.training.sync.means import median, trimmed_mean
from ringfeed.training.sync.periodic import Periodic
from ringfeed.training.sync.synchronizer import SyncRun
from tests.helpers.sync_runs import sync_run
from tests.helpers.thread_ring import on_ranks


def _moved(synchronizer: Periodic, steps: int, every: float = 1.0) -> list[float]:
    """The weight after each step of a rank whose optimizer adds `every` to it."""
    variable = keras.Variable([0.0], name="w")
    synchronizer.build([variable])
    seen = []
    for step in range(1, steps + 1):
        variable.assign_add([every])
        synchronizer.after_step(step)
        seen.append(float(variable.numpy()[0]))
    return seen


def _moved_among(factors: Sequence[float], make: Callable[[Ring], Periodic], steps: int) -> list[float]:
    """The weight of the first rank after each step of ranks whose optimizers add these numbers."""
    moved = on_ranks(len(factors), lambda ring: _moved(make(ring), steps, factors[ring.rank]))
    return moved[0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (LocalSGDConfig(every=3), [1, 2, 6, 7, 8, 12, 13]),
        (PostLocalSGDConfig(every=2, start_step=3), [1, 2, 3, 8]),
    ],
)
def test_a_round_ends_after_each_multiple_of_its_steps(options: LocalSGDConfig, expected: list[float]) -> None:
    assert _moved_among([1, 3], lambda ring: Periodic(sync_run(ring), options), len(expected)) == expected


@pytest.mark.parametrize(("steps", "agreed"), [(2, None), (3, 4 + 0.7 * (1.9 * 2 + 0.81 * 4))])
def test_agreeing_within_a_round_changes_nothing(steps: int, agreed: float | None) -> None:
    """After a round there is nothing to agree on; within one it is what the outer step would lead to."""

    def train(ring: Ring) -> tuple[bool, list[float]]:
        synchronizer = DiLoCo(sync_run(ring), DiLoCoConfig(every=2))
        before = _moved(synchronizer, steps, [1.0, 3.0][ring.rank])[-1]
        values = [float(value[0]) for _, value in synchronizer.agreed(steps)]
        return float(synchronizer._variables[0].numpy()[0]) == before, values

    first = 0.7 * 1.9 * 4  # the weight after the first round, whose mean change is 4
    expected = [] if agreed is None else [pytest.approx(first - 4 + agreed, rel=1e-6)]
    assert on_ranks(2, train) == [(True, expected)] * 2


def test_diloco_is_an_outer_sgd_with_nesterovs_momentum() -> None:
    """With rate 1 and no momentum it is local SGD; else Keras' SGD on the pseudo-gradient says the same."""
    options = DiLoCoConfig(every=2, outer_learning_rate=1.0, outer_momentum=0.0)
    plain = _moved_among([1, 3], lambda ring: DiLoCo(sync_run(ring), options), 6)
    assert plain == _moved_among([1, 3], lambda ring: Periodic(sync_run(ring), LocalSGDConfig(every=2)), 6)
    outer, weight = keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True), keras.Variable([0.0])
    outer.build([weight])
    expected = []
    for _ in range(3):
        outer.apply([tf.constant([-4.0])])  # two steps of 1, and ranks that move by 1 and 3 times that
        expected.append(float(weight.numpy()[0]))
    found = _moved_among([1, 3], lambda ring: DiLoCo(sync_run(ring), DiLoCoConfig(every=2)), 6)
    assert found[1::2] == pytest.approx(expected, rel=1e-6)


def test_fedavg_counts_samples_and_a_median_does_not_follow_an_outlier() -> None:
    def robust(ring: Ring) -> FedAvg:
        return FedAvg(sync_run(ring), FedAvgConfig(every=1, aggregate="median"))

    assert _moved_among([1, 2, 1000], robust, 2) == [2, 4]
    assert _moved(FedAvg(sync_run(SoloRing(), lambda step: 7 * step), FedAvgConfig(every=1)), 2) == [1, 2]


def test_a_rank_counts_by_its_samples_of_the_round() -> None:
    """10 samples in the first round of two steps, 60 in the second, 30 in the next step; the other always has 30."""
    samples = [[0, 5, 10, 60, 70, 100], [0, 15, 30, 45, 60, 90]]

    def train(ring: Ring) -> tuple[float, float, float]:
        own, pace = samples[ring.rank], [1.0, 0.0][ring.rank]
        synchronizer = FedAvg(sync_run(ring, lambda step: own[step]), FedAvgConfig(every=2))
        moved = _moved(synchronizer, 4, pace)
        synchronizer._variables[0].assign_add([pace])
        ((_, agreed),) = synchronizer.agreed(5)
        return moved[1], moved[3] - moved[1], float(agreed[0]) - moved[3]

    for found in on_ranks(2, train):
        assert found == pytest.approx((2 * 10 / 40, 2 * 60 / 90, 30 / 60))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=9), st.floats(1e6, 1e30))
def test_robust_means_stay_among_the_honest_ranks(values: list[float], wrong: float) -> None:
    rows = tf.constant([[v] for v in [*values, wrong]], tf.float32)
    for mean in (median(rows), trimmed_mean(rows, 1)):
        assert min(values) - 1e-4 <= float(mean[0]) <= max(values) + 1e-4


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 50), st.integers(1, 9), st.sampled_from(["ring", "random"]))
def test_partners_name_each_other(turn: int, ranks: int, topology: str) -> None:
    found = partners(turn, ranks, topology=topology, seed=3)
    assert [found[partner] for partner in found] == list(range(ranks))
    assert sum(rank == partner for rank, partner in enumerate(found)) == ranks % 2


@pytest.mark.parametrize(("topology", "ranks"), [("ring", 4), ("ring", 5), ("random", 5)])
def test_gossip_reaches_consensus(topology: str, ranks: int) -> None:
    values = np.arange(ranks, dtype=np.float64)
    for turn in range(60):
        found = partners(turn, ranks, topology=topology, seed=0)
        values = (values + values[found]) / 2
    np.testing.assert_allclose(values, (ranks - 1) / 2, atol=1e-3)


@pytest.mark.parametrize(
    ("sync", "message"),
    [
        ({"method": "fedavg", "aggregate": "trimmed"}, r"sync.trim=0.34 leaves out none of 1 ranks; raise it"),
        ({"method": "post_local_sgd", "start_step": 9}, r"sync.start_step=9 is beyond the 5 steps of this run"),
    ],
)
def test_what_would_do_nothing_is_refused(sync: dict[str, object], message: str) -> None:
    config = parse_config({"data": {"url": "x"}, "sync": sync}, "test")
    with pytest.raises(ConfigError, match=message):
        build_synchronizer(SyncRun(config=config, ring=SoloRing(), steps_per_epoch=5, samples_before=int))

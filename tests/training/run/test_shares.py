"""Shares of the global batch that follow the ranks' speed: what they come to, and that batches stay the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.pipeline import Loader
from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.config_file import load_config, parse_config
from ringfeed.training.ring.ring import Ring
from ringfeed.training.run.assembly import assemble
from ringfeed.training.run.shares import even_shares, shares_by_speed
from ringfeed.training.run.step_log import StepWindow
from ringfeed.training.run.trainer import Trainer
from ringfeed.training.step.train_step import StepMetrics
from tests.helpers.thread_ring import ThreadRing, on_ranks


class _Timed(ThreadRing):
    """A rank that says how long its steps take: the first takes twice as long as the second."""

    def allgather_object(self, value: Any) -> list[Any]:
        return super().allgather_object([2.0, 1.0][self.rank] if isinstance(value, float) and value else value)


ranks = st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=9)


@settings(max_examples=60, deadline=None)
@given(ranks, st.integers(9, 5000), st.floats(1.01, 10))
def test_shares_make_up_the_batch_within_their_bounds(costs: list[float], batch: int, bound: float) -> None:
    shares = even_shares(batch, len(costs))
    found = shares_by_speed(shares, [share * cost for share, cost in zip(shares, costs, strict=True)], bound)
    equal = batch / len(costs)
    assert sum(found) == batch
    assert all(max(1, int(equal / bound)) <= share <= int(equal * bound) + 1 for share in found)


@pytest.mark.parametrize("costs", [[2.0, 1.0], [1.0, 1.0, 2.0], [1.0, 3.0, 2.0, 1.0]])
def test_epochs_end_up_with_ranks_that_take_equal_times(costs: list[float]) -> None:
    """Each rank has a time per sample, and one per step, for which shares cannot make up at once."""
    shares = even_shares(1000, len(costs))
    before = max(30 + share * cost for share, cost in zip(shares, costs, strict=True))
    for _ in range(4):
        times = [30 + share * cost for share, cost in zip(shares, costs, strict=True)]
        shares = shares_by_speed(shares, times, 4.0)
    after = [30 + share * cost for share, cost in zip(shares, costs, strict=True)]
    assert max(after) < 1.05 * np.mean(after)
    assert max(after) < 0.8 * before


@pytest.mark.parametrize("shares", [[20, 40], [1, 57, 2], [60, 0], [0, 7, 0, 53]])
def test_every_global_batch_keeps_its_samples(flights: str, shares: list[int]) -> None:
    whole = Loader(flights, batch_size=60, sample_keys=True, seed=3, fill={"distance": -1, "carrier": ""})
    bounds = np.cumsum([0, *shares])
    parts = [whole.with_share(*pair) for pair in itertools.pairwise(bounds)]
    assert [part.local_batch_size for part in parts] == [max(share, 1) for share in shares]
    for expected, *batches in zip(*(loader.numpy_epoch(1, 45) for loader in (whole, *parts)), strict=True):
        real = [batch for batch, share in zip(batches, shares, strict=True) if share]
        for name, values in expected.items():
            np.testing.assert_array_equal(np.concatenate([batch[name] for batch in real]), values)
        empty = [batch for batch, share in zip(batches, shares, strict=True) if not share]
        assert all(batch["sample_weight"].tolist() == [0.0] for batch in empty)


def test_a_share_outside_the_batch_is_refused(flights: str) -> None:
    with pytest.raises(ConfigError, match=r"a share must lie in \[0, 60\], got \[50, 61\)"):
        Loader(flights, batch_size=60, columns=["delay"]).with_share(50, 61)


def test_shares_follow_the_speed_from_the_second_epoch_on(write_config: Callable[..., Path]) -> None:
    """The first of two ranks takes twice the time."""
    path = write_config(
        data={"batch_size": 1500, "eval_split": None, "test_split": None},
        model={"hidden": [4], "norm": "none", "dropout": 0.0},
        optimizer={"name": "sgd"},
        sync={"shares": "speed"},
        epochs=2,
    )

    def train(ring: Ring) -> None:
        trainer = Trainer(load_config(str(path), ["deterministic=false", "output.metrics=null"]), ring)
        result = trainer.run()
        assert result["shares"] == [500, 1000]
        assert trainer.loader.local_batch_size == result["shares"][ring.rank]
        assert (result["total_steps"], result["train_samples"], result["skipped_steps"]) == (4, 6000, 0)

    on_ranks(2, train, _Timed)


def test_waiting_for_other_ranks_is_not_a_ranks_own_time() -> None:
    stamps = [tf.constant([10.0, 18.0], tf.float64), tf.constant([20.0, 20.5], tf.float64), tf.zeros(0, tf.float64)]
    steps = [StepMetrics(*[tf.constant(0.0)] * 3, stamp, *[tf.constant(False)] * 2) for stamp in stamps]
    window = StepWindow(metrics=steps[:2], timed_steps=1)  # the first step compiled
    assert window.reduce_seconds() == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sync": {"shares": "speed"}},
            r"sync.shares=speed does not go with deterministic=true: .* deterministic=false",
        ),
        (
            {"sync": {"shares": "speed", "method": "local_sgd"}, "deterministic": False},
            r"sync.shares=speed does not go with sync.method=local_sgd",
        ),
        ({"sync": {"share_bound": 1.0}}, r"sync.share_bound must be finite and above 1, got 1.0"),
    ],
)
def test_what_does_not_go_with_measured_shares_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"data": {"url": "x"}, **options}, "test")


def test_a_rank_that_could_get_no_sample_is_refused(write_config: Callable[..., Path]) -> None:
    path = write_config(data={"batch_size": 2}, sync={"shares": "speed"}, deterministic=False)
    with pytest.raises(ConfigError, match=r"sync.shares=speed needs a sample for each of 3 ranks"):
        on_ranks(3, lambda ring: assemble(load_config(str(path), []), ring))

"""What ranks agree on of moving statistics; rounds and real runs are in `run/test_modes.py`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringfeed.training.ring.ring import Ring, SoloRing
from ringfeed.training.sync.agreement import Agreement
from tests.helpers.thread_ring import on_ranks


def _network() -> Any:
    layers = [keras.layers.Dense(2), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    return keras.Sequential([keras.Input((3,)), *layers])


def test_only_moving_statistics_are_averaged() -> None:
    def settle(ring: Ring) -> None:
        network = _network()
        agreement = Agreement(ring, network)
        for variable in network.variables:
            if "float" in str(variable.dtype):
                variable.assign_add(tf.fill(variable.shape, 1.0 + 2.0 * ring.rank))
        before = {v.path: v.numpy().copy() for v in network.variables}
        agreement.settle()
        after = {v.path: v.numpy() for v in network.variables}
        changed = {path.rpartition("/")[2] for path in after if not np.array_equal(after[path], before[path])}
        assert changed == {"moving_variance", "moving_mean"}
        assert network.layers[1].moving_variance.numpy().tolist() == [3.0, 3.0]  # 1 + (1 + 3) / 2
        assert network.layers[1].moving_mean.numpy().tolist() == [2.0, 2.0]

    on_ranks(2, settle)


def test_what_no_step_updates_keeps_its_bits() -> None:
    values = np.float32([0.1, 1 / 3])

    def settle(ring: Ring) -> None:
        (mean,) = ring.allreduce_mean([tf.constant(values)])
        assert not np.array_equal(mean, values)  # a plain mean would drift
        network = _network()
        network.layers[1].moving_mean.assign(values)
        agreement = Agreement(ring, network)
        for _ in range(20):
            agreement.settle()
        assert np.array_equal(network.layers[1].moving_mean.numpy(), values)

    on_ranks(3, settle)


def test_one_rank_keeps_its_statistics() -> None:
    network = _network()
    agreement = Agreement(SoloRing(), network)
    network.layers[1].moving_variance.assign([2.0, 2.0])
    agreement.settle()
    assert network.layers[1].moving_variance.numpy().tolist() == [2.0, 2.0]


def test_agreed_values_last_as_long_as_the_body() -> None:
    def apply(ring: Ring) -> None:
        network = _network()
        mean = network.layers[1].moving_mean
        agreement = Agreement(ring, network)
        own = [1.0 + 2.0 * ring.rank, 2.0 + 4.0 * ring.rank]
        mean.assign(own)
        with agreement.applied(step=1), agreement.applied(step=1):
            assert mean.numpy().tolist() == [2.0, 4.0]
            assert agreement.rows()[0].tolist() == [own]  # what a checkpoint keeps of this rank
        assert mean.numpy().tolist() == own

    on_ranks(2, apply)

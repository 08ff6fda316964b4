"""The average over ranks of moving statistics."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringfeed.training.averaging.statistics import StatisticsAverage
from ringfeed.training.ring.ring import SoloRing


class _Three(SoloRing):
    """A ring of three equal ranks, whose mean of equal numbers is off by rounding."""

    size = 3

    def allreduce_mean(self, tensors: Any) -> list[Any]:
        return [(t + t + t) * np.float32(1 / 3) for t in tensors]


class _Doubling(SoloRing):
    """A ring of two, whose other rank always has three times the value."""

    size = 2

    def allreduce_mean(self, tensors: Any) -> list[Any]:
        return [2 * t for t in tensors]


def _network() -> Any:
    layers = [keras.layers.Dense(2), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    return keras.Sequential([keras.Input((3,)), *layers])


def test_only_moving_statistics_are_averaged() -> None:
    network = _network()
    average = StatisticsAverage(_Doubling(), network)
    for variable in network.variables:
        if "float" in str(variable.dtype):
            variable.assign_add(tf.ones(variable.shape))
    before = {v.path: v.numpy().copy() for v in network.variables}
    average.update()
    changed = {v.path.rpartition("/")[2] for v in network.variables if not np.array_equal(v.numpy(), before[v.path])}
    assert changed == {"moving_variance", "moving_mean"}
    assert network.layers[1].moving_variance.numpy().tolist() == [3.0, 3.0]  # 1 + 2 * (2 - 1)
    assert network.layers[1].moving_mean.numpy().tolist() == [2.0, 2.0]


def test_what_no_step_updates_keeps_its_bits() -> None:
    network = _network()
    values = np.float32([0.1, 1 / 3])
    assert not np.array_equal((values + values + values) * np.float32(1 / 3), values)  # a plain mean would drift
    network.layers[1].moving_mean.assign(values)
    average = StatisticsAverage(_Three(), network)
    for _ in range(20):
        average.update()
    assert np.array_equal(network.layers[1].moving_mean.numpy(), values)


def test_one_rank_keeps_its_statistics() -> None:
    network = _network()
    average = StatisticsAverage(SoloRing(), network)
    network.layers[1].moving_variance.assign([2.0, 2.0])
    average.update()
    assert network.layers[1].moving_variance.numpy().tolist() == [2.0, 2.0]

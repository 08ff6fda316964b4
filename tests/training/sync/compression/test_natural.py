"""Natural compression against its definition in NumPy, arXiv 1905.10988, and over ranks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ringfeed.training.config.config_file import parse_config
from ringfeed.training.ring.ring import Ring
from ringfeed.training.sync.build import build_synchronizer
from ringfeed.training.sync.compression.natural import Natural
from ringfeed.training.sync.synchronizer import Exchange, SyncRun
from tests.helpers.thread_ring import on_ranks

CODEC = Natural()
VALUES = npst.arrays(
    np.float32, npst.array_shapes(max_dims=3, max_side=9), elements=st.floats(-(2.0**99), 2.0**99, width=32)
)


def _sent(values: np.ndarray, seed: int) -> np.ndarray:
    payload = CODEC.encode(tf.constant(values), tf.constant([seed, 7]))
    assert payload.shape == [values.size + -(-values.size // 8)]  # nine bits an entry
    found: np.ndarray = CODEC.decode(payload, list(values.shape)).numpy()
    return found


@settings(max_examples=40, deadline=None)
@given(VALUES, st.integers(0, 99))
def test_an_entry_becomes_one_of_the_two_powers_of_two_beside_it(values: np.ndarray, seed: int) -> None:
    wide = values.astype(np.float64)
    found = _sent(values, seed)
    is_normal = np.abs(wide) >= 2.0**-126
    low = np.where(is_normal, 2.0 ** np.floor(np.log2(np.where(is_normal, np.abs(wide), 1.0))), 0.0)
    high = np.where(is_normal, 2 * low, 2.0**-126)
    is_power = np.abs(wide) == low
    assert ((np.abs(found) == low) | ((np.abs(found) == high) & ~is_power)).all()
    assert (np.sign(found) * np.sign(values) >= 0).all()


def test_rounding_is_unbiased_with_the_variance_of_the_definition() -> None:
    """P(up) = (|x| - low) / low, so that the variance of an entry is (high - |x|) (|x| - low), at most x² / 8."""
    values = np.array([1.0, 1.25, -1.5, 2.75, 0.1, -3e-5, 0.0], np.float32)
    many = np.tile(values, (40_000, 1))
    found = _sent(many, 5).astype(np.float64)
    low = np.array([1.0, 1.0, 1.0, 2.0, 2.0**-4, 2.0**-16, 0.0])
    size = np.abs(values.astype(np.float64))
    variance = (2 * low - size) * (size - low)
    assert (variance <= size**2 / 8 + 1e-12).all()
    np.testing.assert_allclose(found.var(axis=0), variance, rtol=0.05, atol=1e-12)
    error = 5 * np.sqrt(variance / len(many)) + 1e-12
    assert (np.abs(found.mean(axis=0) - values) <= error).all()


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_apply_the_mean_of_what_each_has_sent(ranks: int) -> None:
    config = parse_config({"data": {"url": "x"}, "compression": {"method": "natural"}, "epochs": 9}, "test")
    gradients = np.random.default_rng(1).normal(size=(ranks, 4, 3)).astype(np.float32)

    def exchange(ring: Ring) -> np.ndarray:
        method = build_synchronizer(SyncRun(config=config, ring=ring, steps_per_epoch=3, samples_before=int))
        method.build([tf.Variable(gradients[0])], None)
        sent = Exchange([tf.constant(gradients[ring.rank])], loss=tf.constant(float(ring.rank)))
        means = method.reduce(sent, tf.constant(0, tf.int64))
        assert float(means.loss) == (ranks - 1) / 2
        found: np.ndarray = means.gradients[0].numpy()
        return found

    found = on_ranks(ranks, exchange)
    assert all((mean == found[0]).all() for mean in found)
    sums = np.abs(found[0] * ranks)
    assert (np.abs(found[0] - gradients.mean(axis=0)) <= np.abs(gradients).mean(axis=0)).all()
    assert (sums * 2.0**24 % 1 == 0).all()  # sums of powers of two, which are not small

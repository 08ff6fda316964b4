"""Batch normalisation over the samples of all ranks, where each rank would normalise by its own.

The ranks exchange sizes, means and variances, as PyTorch's SyncBatchNorm does, and combine them as Chan et al.,
"Updating formulae and a pairwise algorithm for computing sample variances" (1979): sums of squares would lose the
variance of inputs that are far from 0. Gathered rows are added in rank order: grouped with other tensors, an all-reduce
of three ranks and more may add in a different order on each run.
Tested in tests/training/sync/compression/test_methods.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.optimizers.keras_doors import Tensor, inner_layers, replace_method, require_method
from ringfeed.training.ring.ring import Ring

Moments = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]


def synchronise_batch_norm(network: Any, ring: Ring) -> None:
    """Let the layers of batch normalisation in a network normalise over all ranks, where they use a batch's statistics.

    They stay layers of Keras, so a saved network needs nothing of ringfeed. Frozen ones use their moving statistics.
    """
    layers = [layer for layer in inner_layers(network) if isinstance(layer, keras.layers.BatchNormalization)]
    if not layers:
        raise ConfigError("sync.batch_norm=true, but the model has no batch normalisation; leave it out")
    for layer in layers:
        own = require_method(layer, "_moments")
        replace_method(layer, "_moments", functools.partial(_moments, ring, own))


def _moments(ring: Ring, own: Moments, inputs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    mean, variance = own(inputs, mask)
    mean, variance = tf.reshape(mean, [-1]), tf.reshape(variance, [-1])  # Keras squeezes them where there is a mask
    count = tf.size(inputs) / tf.size(mean) if mask is None else tf.math.count_nonzero(mask)
    return global_moments(ring, tf.cast(count, mean.dtype), mean, variance)


def global_moments(ring: Ring, samples: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance over all ranks, from each rank's (a collective, as is its gradient).

    With shares ``p_k = n_k / sum(n)`` of the samples: ``mean = sum(p_k m_k)``,
    ``variance = sum(p_k (v_k + (m_k - mean) ** 2))``. The gradient differentiates the sum of the ranks' losses.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow ships no types
    def combined(mean: Tensor, variance: Tensor) -> Any:
        channels = mean.shape[0]
        rows = ring.gather(tf.concat([mean, variance, samples[None]], 0))
        means, variances, sizes = tf.split(rows, [channels, channels, 1], 1)
        shares = tf.math.divide_no_nan(sizes, tf.reduce_sum(sizes))
        whole = tf.reduce_sum(shares * means, 0)
        spread = tf.reduce_sum(shares * (variances + tf.square(means - whole)), 0)

        def gradient(of_whole: Tensor, of_spread: Tensor) -> tuple[Tensor, Tensor]:
            total = tf.reduce_sum(ring.gather(tf.concat([of_whole, of_spread], 0)), 0)
            of_whole, of_spread = tf.split(total, 2)
            share = shares[ring.rank]
            return share * (of_whole + 2 * (mean - whole) * of_spread), share * of_spread

        return (whole, spread), gradient

    moments: tuple[Tensor, Tensor] = combined(mean, variance)
    return moments

"""The collectives of a ring, each of which gives what its name says: for rings of threads and of real ranks alike."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.ring.ring import Ring
from ringfeed.training.ring.same_weights import assert_same_weights

_compiled = functools.partial(tf.function, autograph=False)  # as training compiles its steps


def check_collectives(ring: Ring) -> None:
    """Call each collective on values that differ between three ranks."""
    rank = ring.rank
    assert ring.size == 3
    assert ring.local_rank == rank
    _check_reductions(ring)
    _check_exchanges(ring)
    assert ring.allgather(np.arange(rank + 1)).tolist() == [0, 0, 1, 0, 1, 2]
    assert ring.allgather(np.zeros(0 if rank else 3, np.float32)).shape == (3,)
    gathered = ring.allgather_object({"rank": rank, "text": "ä" * rank})
    assert gathered == [{"rank": each, "text": "ä" * each} for each in range(3)]
    variables = [tf.Variable([1.0, 2.0 + rank], name="same"), tf.Variable(rank, name="other")]
    ring.barrier()
    with pytest.raises(
        TrainingError, match=r"^ranks 1, 2 of 3 ended with different weights than rank 0 \(first difference: same"
    ):
        assert_same_weights(ring, variables)
    ring.broadcast(variables)
    assert variables[0].numpy().tolist() == [1.0, 2.0]
    assert variables[1].numpy() == 0
    assert_same_weights(ring, variables)
    for dtype in (tf.bool, tf.int64, tf.uint32, tf.uint64, tf.float16, tf.bfloat16):
        variable = tf.Variable(tf.cast([rank, 1], dtype))
        ring.broadcast([variable])
        assert tf.cast(variable, tf.int32).numpy().tolist() == [0, 1], dtype


def _check_reductions(ring: Ring) -> None:
    rank = ring.rank
    slices = tf.IndexedSlices(tf.ones((1, 2)) * (rank + 1), tf.constant([rank]), tf.constant([3, 2]))
    inputs = [tf.constant([1.0 + rank]), tf.constant(rank, tf.float64), tf.constant([rank], tf.bfloat16), slices]
    for reduce in (ring.allreduce_mean, _compiled(ring.allreduce_mean)):
        mean = reduce(inputs)
        assert [t.dtype.name for t in mean] == ["float32", "float64", "bfloat16", "float32"]
        assert mean[0].numpy().tolist() == [2.0]
        assert mean[1].numpy() == 1.0
        np.testing.assert_allclose(mean[3], np.array([[1, 1], [2, 2], [3, 3]]) / 3, rtol=1e-6)
    assert ring.allreduce_sum([tf.constant(2**40 + rank, tf.int64)])[0].numpy() == 3 * 2**40 + 3


def _check_exchanges(ring: Ring) -> None:
    rank = ring.rank
    rows = tf.constant([[10.0 * rank + other] for other in range(3)])
    partner = {0: 2, 1: 1, 2: 0}[rank]
    for compiled in (lambda function: function, _compiled):
        gathered = compiled(ring.gather)(tf.fill([2], float(rank)))
        assert gathered.numpy().tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
        assert compiled(ring.alltoall)(rows).numpy().ravel().tolist() == [rank, 10.0 + rank, 20.0 + rank]
        swapped = compiled(functools.partial(ring.sendrecv, partner=partner))(tf.fill([4], float(rank)))
        assert swapped.numpy().tolist() == [float(partner)] * 4

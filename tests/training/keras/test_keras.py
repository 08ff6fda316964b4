"""What does not train together is refused; on real ranks `fit` is tested by compression/test_methods.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism  # there is no public name for it

from ringfeed.pipeline import Loader
from ringfeed.sharding.errors import TrainingError
from ringfeed.training.keras import Synchronise, distribute
from ringfeed.training.ring.ring import Ring, SoloRing
from tests.helpers.thread_ring import on_ranks

RING = SoloRing()
DATA = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)


def _model(optimizer: Any, **options: Any) -> Any:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **options)
    return model


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, on saving
def test_a_saved_model_has_the_plain_optimizer(tmp_path: Any) -> None:
    model = _model(distribute(keras.optimizers.Adam(0.1), RING))
    model.fit(*DATA, callbacks=[Synchronise(RING)], verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras").optimizer
    assert type(loaded) is keras.optimizers.Adam
    np.testing.assert_array_equal(loaded.variables[2], model.optimizer.variables[2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (keras.optimizers.SGD, r"would train apart: compile the model with distribute\(optimizer, ring\)"),
        (
            lambda: keras.optimizers.LossScaleOptimizer(distribute(keras.optimizers.SGD(), RING)),
            r"compile the model with distribute\(keras.optimizers.LossScaleOptimizer\(optimizer\), ring\)",
        ),
        (lambda: distribute(keras.optimizers.SGD(), SoloRing()), "would train apart"),
    ],
)
def test_a_model_that_would_train_apart_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        _model(make()).fit(*DATA, callbacks=[Synchronise(RING)], verbose=0)


def test_a_model_without_weights_is_refused() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(distribute(keras.optimizers.SGD(), RING), "mse")
    with pytest.raises(TrainingError, match=r"no weights yet .*: begin it with a keras.Input"):
        model.fit(*DATA, callbacks=[Synchronise(RING)], verbose=0)


def test_a_model_that_xla_would_compile_is_refused() -> None:
    disable_op_determinism()  # with it, as a run in this process may have left it, Keras uses no XLA

    def fit(ring: Ring) -> None:
        model = _model(distribute(keras.optimizers.SGD(), ring), jit_compile=True)
        model.fit(*DATA, callbacks=[Synchronise(ring)], verbose=0)

    with pytest.raises(TrainingError, match="compile the model with jit_compile=False"):
        on_ranks(3, fit)


def test_sparse_gradients_are_weighted_as_dense_ones(flights: str) -> None:
    def apply(ring: Ring) -> None:
        loader = Loader(flights, columns=["hour"], batch_size=100, rank=ring.rank, world_size=3)  # 34 samples each
        optimizer = distribute(keras.optimizers.SGD(1.0), ring, loader)
        table = keras.Variable(np.zeros((3, 1), np.float32))
        rows = tf.IndexedSlices(tf.ones([2, 1]), tf.constant([2, 2]), tf.constant([3, 1]))  # as of an embedding
        optimizer.apply([rows], [table])
        np.testing.assert_allclose(table.numpy(), [[0], [0], [-2 * 34 * 3 / 100]], rtol=1e-6)

    on_ranks(3, apply)


def test_what_cannot_be_distributed_is_refused(flights: str) -> None:
    optimizer = distribute(keras.optimizers.SGD(), RING)
    with pytest.raises(TrainingError, match="distributed already; make a new one for each model"):
        distribute(optimizer, RING)
    with pytest.raises(TrainingError, match=r"takes an optimizer such as keras.optimizers.SGD\(0.1\), got 'sgd'"):
        distribute("sgd", RING)  # type: ignore[type-var]
    loader = Loader(flights, columns=["hour"], batch_size=30)
    with pytest.raises(TrainingError, match=r"the part of rank 0 of 1 on rank 0 of 3: Loader\(..., rank=ring.rank"):
        on_ranks(3, lambda ring: distribute(keras.optimizers.SGD(), ring, loader))

"""Keras' `fit` on ranks beside a step of ringfeed's loop in one process; one of the checks of `compression.checks`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringfeed.pipeline import Loader
from ringfeed.training.keras import Synchronise, distribute
from ringfeed.training.optimizers.precision import LossScale
from ringfeed.training.ring.ring import Ring, SoloRing
from ringfeed.training.ring.same_weights import assert_same_weights
from ringfeed.training.step.train_step import make_train_step
from ringfeed.training.sync.synchronizer import EveryStep

BATCH, EPOCHS = 100, 2  # three ranks do not divide it


def fit_as_one_process(ring: Ring, url: str) -> None:
    """Fit on the ranks, and assert the weights and metrics of one process that sees all samples."""
    loader = _loader(url, "train", ring)
    model = _network(seed=ring.rank)  # until rank 0's weights are broadcast
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(distribute(_optimizer(), ring, loader), loss, weighted_metrics=["accuracy"], jit_compile=False)
    fitted = model.fit(
        loader.keras(EPOCHS, transform=_features),
        epochs=EPOCHS,
        steps_per_epoch=len(loader),
        shuffle=False,
        validation_data=_loader(url, "test", ring).epoch(0, transform=_features, as_supervised=True),
        callbacks=[Synchronise(ring)],
        verbose=0,
    )
    assert_same_weights(ring, model.weights)

    alone = _network(seed=0)
    losses = _train(alone, _loader(url, "train", SoloRing()))
    for mine, expected in zip(model.weights, alone.weights, strict=True):
        np.testing.assert_allclose(mine, expected, atol=2e-6, err_msg=mine.path)
    found = fitted.history
    counted = BATCH / (-(-BATCH // ring.size) * ring.size)  # Keras counts the fillers of weight 0
    np.testing.assert_allclose(found["loss"], counted * np.mean(losses, 1), rtol=1e-5)
    batches = list(_loader(url, "test", SoloRing()).epoch(0, transform=_features, as_supervised=True))
    logits, labels = alone(np.concatenate([x for x, _ in batches])), np.concatenate([y for _, y in batches])
    np.testing.assert_allclose(found["val_loss"][-1], counted * float(loss(labels, logits)), rtol=1e-5)
    assert found["val_accuracy"][-1] == np.float32(np.mean(np.argmax(logits, 1) == labels))


def fit_with_statistics(ring: Ring, url: str) -> None:
    """Fit a network with batch normalisation for an epoch, and assert that all ranks end with the same."""
    loader = _loader(url, "train", ring)
    model = keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization(), _network(seed=ring.rank)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(distribute(_optimizer(), ring, loader), loss, jit_compile=False)
    batches = loader.epoch(0, transform=_features, as_supervised=True)
    model.fit(batches, shuffle=False, callbacks=[Synchronise(ring)], verbose=0)
    assert_same_weights(ring, model.weights)


def _optimizer() -> Any:
    return keras.optimizers.SGD(0.2, momentum=0.9, global_clipnorm=0.5)


def _loader(url: str, split: str, ring: Ring) -> Loader:
    columns, fill = ["hour", "distance"], {"distance": 0}
    return Loader(
        url, split=split, batch_size=BATCH, seed=1, columns=columns, fill=fill, rank=ring.rank, world_size=ring.size
    )


def _network(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((2,))
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dense(6, activation="tanh")(inputs)))


def _features(batch: dict[str, Any]) -> dict[str, Any]:
    numbers = [tf.cast(batch[name], tf.float32) / scale for name, scale in (("hour", 24), ("distance", 1000))]
    others = {name: batch[name] for name in ("class_id", "sample_weight") if name in batch}
    return {"numbers": tf.stack(numbers, 1), **others}


def _train(network: Any, loader: Loader) -> list[list[float]]:
    synchronizer = EveryStep(SoloRing())
    optimizer = _optimizer()
    optimizer.build(network.trainable_variables)
    synchronizer.build(network.trainable_variables, optimizer)
    step = make_train_step(network, optimizer, synchronizer, LossScale(None))
    losses = []
    for epoch in range(EPOCHS):
        batches = loader.epoch(epoch, transform=_features, as_supervised=True)
        losses.append([float(step(x, y, tf.ones(len(y))).loss) for x, y in batches])
    return losses

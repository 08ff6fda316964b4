"""A program for tests: one worker of several on which Keras trains a model. Prints, as JSON, what came of it."""

import json
import sys
import warnings
from typing import Any

import keras
import tensorflow as tf

from ringfeed.pipeline import Loader
from ringfeed.training import MultiWorkerStrategy


def train(strategy: Any, url: str, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
    """The course of two epochs, an evaluation, predictions, and the weights in the end."""
    loader = Loader(url, batch_size=120, seed=3, remainder="pad", rank=rank, world_size=world_size)

    def batches(epoch: int) -> Any:
        return loader.distributed_epoch(strategy, epoch, as_supervised=True)

    with strategy.scope():
        model = network()
        model.compile(
            keras.optimizers.Adam(0.05),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="entropy")],
        )
    history = [
        model.fit(
            batches(epoch),
            validation_data=batches(0),
            initial_epoch=epoch,
            epochs=epoch + 1,
            shuffle=False,
            verbose=0,
        ).history
        for epoch in range(2)
    ]
    return {
        "history": history,
        "evaluation": model.evaluate(batches(1), verbose=0),
        "predictions": model.predict(batches(1), verbose=0).tolist(),
        "weights": [weights.tolist() for weights in model.get_weights()],
        "steps": int(model.optimizer.iterations.numpy()),
    }


class Sum(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types
    """The features of a batch, texts and ragged numbers among them, as columns: [batch, 5]."""

    def call(self, features: Any) -> Any:
        length = tf.cast(tf.strings.length(features["word"]), tf.float32)
        return tf.concat([features["vector"], tf.stack([tf.reduce_sum(features["numbers"], 1), length], 1)], 1)

    def compute_output_shape(self, shapes: Any) -> Any:
        return (shapes["vector"][0], 5)


def network() -> Any:
    """A network of fixed weights that is not yet built, with a loss of its own and statistics of batches."""
    first, second = (keras.initializers.GlorotUniform(seed) for seed in range(2))
    hidden = keras.layers.Dense(8, "relu", kernel_initializer=first, kernel_regularizer=keras.regularizers.L2(0.01))
    normalised = keras.layers.BatchNormalization(synchronized=True)
    return keras.Sequential([Sum(), hidden, normalised, keras.layers.Dense(2, kernel_initializer=second)])


if __name__ == "__main__":
    warnings.simplefilter("error", UserWarning)
    url, rank, world_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    print(json.dumps(train(MultiWorkerStrategy(), url, rank, world_size)))

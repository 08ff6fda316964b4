"""Memory and CPU time of a step of a convolutional network: plain, with `model.remat`, or with `jit_compile`.

python benchmarks/train/remat.py plain|remat|jit

Each in a process of its own, since memory is that at the peak.
"""

from __future__ import annotations

import resource
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from ringfeed.training import LossScale, SoloRing
from ringfeed.training.models.remat import rematerialise
from ringfeed.training.step.train_step import StepOptions, make_train_step
from ringfeed.training.sync.synchronizer import EveryStep

BLOCKS, CONVOLUTIONS, FILTERS, SIZE, BATCH, STEPS = 4, 3, 32, 64, 16, 5


def _block(number: int) -> keras.Model:
    inputs = features = keras.Input((SIZE, SIZE, FILTERS))
    for _ in range(CONVOLUTIONS):
        features = keras.layers.Conv2D(FILTERS, 3, padding="same")(features)
        features = keras.layers.ReLU()(keras.layers.BatchNormalization()(features))
    return keras.Model(inputs, features, name=f"block{number}")


def _network() -> keras.Model:
    inputs = keras.Input((SIZE, SIZE, 3))
    features = keras.layers.Conv2D(FILTERS, 3, padding="same")(inputs)
    for number in range(BLOCKS):
        features = _block(number)(features)
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(features)))


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print the growth of the peak of memory over the steps, and the CPU time of one."""
    mode = sys.argv[1]
    network = _network()
    rematerialise(network, ["^block"] if mode == "remat" else [])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(network.trainable_variables)
    step = make_train_step(
        network, optimizer, EveryStep(SoloRing()), LossScale(None), StepOptions(jit_compile=mode == "jit")
    )
    images = tf.constant(np.random.default_rng(0).normal(size=(BATCH, SIZE, SIZE, 3)), tf.float32)
    classes, weight = tf.constant([0, 1] * (BATCH // 2)), tf.ones(BATCH)
    before, seconds = _peak_mb(), []
    for _ in range(STEPS):
        started = time.process_time()
        step(images, classes, weight).loss.numpy()
        seconds.append(time.process_time() - started)
    print(f"{mode}: {_peak_mb() - before:.0f} MB for the steps, {min(seconds):.2f} s of CPU for one")


if __name__ == "__main__":
    main()

"""A rank of `synchronisation`, under `horovodrun`: trains by each method and prints what came out as lines of JSON."""

from __future__ import annotations

import gzip
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from ringfeed.pipeline.deliver.quiet_tensorflow import quiet_tensorflow

with quiet_tensorflow():
    import tensorflow as tf

import keras
import numpy as np

from ringfeed.training.config.config_file import parse_config
from ringfeed.training.optimizers.build import build_schedule
from ringfeed.training.optimizers.precision import LossScale
from ringfeed.training.ring.connect import connect
from ringfeed.training.ring.metered import MeteredRing
from ringfeed.training.ring.ring import Ring
from ringfeed.training.ring.same_weights import assert_same_weights
from ringfeed.training.step.train_step import make_predict_step, make_train_step
from ringfeed.training.sync.agreement import Agreement
from ringfeed.training.sync.build import build_run_optimizer, build_synchronizer
from ringfeed.training.sync.epoch_plan import EpochPlan
from ringfeed.training.sync.synchronizer import SyncRun

HIDDEN = (512, 256)
BATCH = 512  # over all ranks


def images(folder: Path, part: str) -> tuple[Any, Any]:
    """The images of Fashion-MNIST, float32 [n, 784] in [0, 1], and their classes."""
    pixels = np.frombuffer(gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())[16:], np.uint8)
    classes = np.frombuffer(gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())[8:], np.uint8)
    return pixels.reshape(-1, 784).astype(np.float32) / 255, classes.astype(np.int32)


def received_bytes() -> int:
    """Bytes that have come over all links of this host."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[0]) for line in lines if not line.strip().startswith("lo:"))


def train(ring: Ring, options: dict[str, Any], data: Any, seed: int, epochs: int) -> dict[str, Any]:
    """Train a network of two hidden layers; return its accuracy, and bytes and milliseconds per step.

    Bytes and times are those of the second half of the steps. The time of the CPU is that of all threads of this rank,
    Horovod's among them.
    """
    epochs = options.get("epochs", epochs)
    (pixels, classes), (test_pixels, test_classes) = data
    steps = len(pixels) // BATCH
    tree = {
        "data": {"url": "fashion-mnist", "batch_size": BATCH},
        "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9},
        "epochs": epochs,
        "seed": seed,
        **options,
    }
    config = parse_config(tree, "benchmark")
    keras.utils.set_random_seed(seed)
    inputs = layer = keras.Input((784,))
    for units in HIDDEN:
        layer = keras.layers.Dense(units, activation="relu")(layer)
    network = keras.Model(inputs, keras.layers.Dense(10)(layer))
    wire = MeteredRing(ring)
    epoch_plan = EpochPlan(
        batches=steps, steps=steps, samples=len(pixels), batch_size=BATCH // ring.size, step_samples=BATCH
    )
    run = SyncRun(config=config, ring=wire, steps_per_epoch=steps, samples_before=epoch_plan.samples_before)
    synchronizer = build_synchronizer(run)
    optimizer = build_run_optimizer(config, build_schedule(config, steps), network.trainable_variables, steps)
    synchronizer.build(network.trainable_variables, optimizer)
    synchronizer.begin()
    step = make_train_step(network, optimizer, synchronizer, LossScale(None))
    weight = tf.ones(BATCH // ring.size)
    seconds, after_half = [], 0.0
    number, half, cpu_begun, received = 0, steps * epochs // 2, 0.0, 0
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(pixels))
        for i in range(steps):
            mine = order[i * BATCH : (i + 1) * BATCH][ring.rank :: ring.size]
            batch = tf.constant(pixels[mine]), tf.constant(classes[mine])
            begun = time.perf_counter()
            step(*batch, weight).loss.numpy()
            number += 1
            synchronizer.after_step(number)
            seconds.append(time.perf_counter() - begun)
            if number == half:
                after_half, cpu_begun, received = float(wire.wire_bytes), time.process_time(), received_bytes()
    cpu = time.process_time() - cpu_begun
    measured, received = (float(wire.wire_bytes) - after_half) / (number - half), received_bytes() - received
    Agreement(ring, network, synchronizer).settle(number)
    assert_same_weights(ring, network.weights)
    predicted = make_predict_step(network)(tf.constant(test_pixels)).numpy().argmax(1)
    return {
        "accuracy": float((predicted == test_classes).mean()),
        "bytes": measured,
        "link_bytes": received / (number - half),
        "cpu_milliseconds": 1000 * cpu / (number - half),
        "milliseconds": 1000 * statistics.fmean(sorted(seconds[half:])[: (number - half) * 9 // 10]),
        "mean_milliseconds": 1000 * statistics.fmean(seconds[half:]),
    }


def main() -> None:
    """Train by all methods of a file with some seeds."""
    methods, folder, seeds, epochs = json.loads(Path(sys.argv[1]).read_text())
    tf.config.experimental.enable_op_determinism()
    ring = connect()
    data = images(Path(folder), "train"), images(Path(folder), "t10k")
    for seed in range(seeds):
        for name, options in methods.items():
            result = {"method": name, "seed": seed, **train(ring, options, data, seed, epochs)}
            if ring.rank == 0:
                sys.stdout.write(json.dumps(result) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()

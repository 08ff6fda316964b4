"""A rank of `synchronisation`, under `horovodrun`: trains by each method and prints what came out as lines of JSON."""

from __future__ import annotations

import gzip
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
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
from ringfeed.training.sync.synchronizer import Synchronizer, SyncRun

HIDDEN = (512, 256)
BATCH = 512  # over all ranks
EVALUATED = 10  # steps between two looks at the accuracy


def images(folder: Path, part: str) -> tuple[Any, Any]:
    """The images of Fashion-MNIST, float32 [n, 784] in [0, 1], and their classes."""
    pixels = np.frombuffer(gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())[16:], np.uint8)
    classes = np.frombuffer(gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())[8:], np.uint8)
    return pixels.reshape(-1, 784).astype(np.float32) / 255, classes.astype(np.int32)


def received_bytes() -> int:
    """Bytes that have come over all links of this host."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[0]) for line in lines if not line.strip().startswith("lo:"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A network of two hidden layers that trains by one method, and the pixels and classes that it trains on."""

    ring: Ring
    wire: MeteredRing  # the same, which counts bytes
    network: Any
    synchronizer: Synchronizer
    agreement: Agreement
    step: Any
    predict: Any
    data: tuple[Any, Any]
    seed: int
    epochs: int

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return len(self.data[0]) // BATCH * self.epochs

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """This rank's part of each global batch."""
        (pixels, classes), of_epoch = self.data, self.steps // self.epochs
        for epoch in range(self.epochs):
            order = np.random.default_rng([self.seed, epoch]).permutation(len(pixels))
            for i in range(of_epoch):
                mine = order[i * BATCH : (i + 1) * BATCH][self.ring.rank :: self.ring.size]
                yield tf.constant(pixels[mine]), tf.constant(classes[mine])

    def seconds_by_step(self) -> Iterator[float]:
        """Make all steps; yield how long each took, with what is due after it."""
        weight = tf.ones(BATCH // self.ring.size)
        for number, batch in enumerate(self.batches(), 1):
            begun = time.perf_counter()
            self.step(*batch, weight).loss.numpy()
            self.agreement.after_step(number)
            yield time.perf_counter() - begun

    def accuracy(self, pixels: Any, classes: Any) -> float:
        """The accuracy of this rank's weights."""
        return float((self.predict(tf.constant(pixels)).numpy().argmax(1) == classes).mean())


def build(ring: Ring, options: dict[str, Any], data: tuple[Any, Any], seed: int, epochs: int) -> Training:
    """Build the network, and all that trains it."""
    epochs, samples = options.get("epochs", epochs), len(data[0])
    steps = samples // BATCH
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
        batches=steps, steps=steps, samples=samples, batch_size=BATCH // ring.size, step_samples=BATCH
    )
    run = SyncRun(config=config, ring=wire, steps_per_epoch=steps, samples_before=epoch_plan.samples_before)
    synchronizer = build_synchronizer(run)
    optimizer = build_run_optimizer(config, build_schedule(config, steps), network.trainable_variables, steps)
    synchronizer.build(network.trainable_variables, optimizer)
    synchronizer.begin()
    return Training(
        ring=ring, wire=wire, network=network, synchronizer=synchronizer,
        agreement=Agreement(ring, network, synchronizer),
        step=make_train_step(network, optimizer, synchronizer, LossScale(None)),
        predict=make_predict_step(network), data=data, seed=seed, epochs=epochs,
    )  # fmt: skip


def train(training: Training, test: tuple[Any, Any]) -> dict[str, Any]:
    """Train to the end; return the accuracy, and bytes and milliseconds per step.

    Bytes and times cover the second half of the steps. CPU time counts all threads of this rank, Horovod's among them.
    """
    wire, ring, seconds, half = training.wire, training.ring, [], training.steps // 2
    for taken in training.seconds_by_step():
        seconds.append(taken)
        if len(seconds) == half:
            after_half, cpu_begun, received = float(wire.wire_bytes), time.process_time(), received_bytes()
    number, cpu = len(seconds), time.process_time() - cpu_begun
    measured, received = (float(wire.wire_bytes) - after_half) / (number - half), received_bytes() - received
    training.agreement.settle(number)
    assert_same_weights(ring, training.network.weights)
    return {
        "accuracy": training.accuracy(*test),
        "bytes": measured,
        "link_bytes": received / (number - half),
        "cpu_milliseconds": 1000 * cpu / (number - half),
        "milliseconds": 1000 * statistics.fmean(sorted(seconds[half:])[: (number - half) * 9 // 10]),
        "mean_milliseconds": 1000 * statistics.fmean(seconds[half:]),
    }


def train_until(training: Training, test: tuple[Any, Any], goal: float) -> dict[str, Any]:
    """Train until an accuracy is reached, which is looked at every ten steps; return steps and seconds.

    The seconds leave out the first step, which compiles, and the evaluations.
    """
    seconds, accuracy, number = 0.0, 0.0, 0
    for number, taken in enumerate(training.seconds_by_step(), 1):
        seconds += taken if number > 1 else 0.0
        if number % EVALUATED == 0 or number == training.steps:
            with training.agreement.applied(number):
                accuracy = training.ring.allgather_object(training.accuracy(*test))[0]
            if accuracy >= goal:
                break
    return {"steps": number, "seconds": seconds, "accuracy": accuracy}


def main() -> None:
    """Train by all methods of a file, which share a ring, with some seeds: to the end, or to an accuracy."""
    methods, folder, seeds, epochs, *goal = json.loads(Path(sys.argv[1]).read_text())
    tf.config.experimental.enable_op_determinism()
    ring = connect(hierarchical=any(options.get("sync", {}).get("hierarchical") for options in methods.values()))
    data, test = images(Path(folder), "train"), images(Path(folder), "t10k")
    for seed in range(seeds):
        for name, options in methods.items():
            training = build(ring, options, data, seed, epochs)
            result = train_until(training, test, *goal) if goal else train(training, test)
            if ring.rank == 0:
                sys.stdout.write(json.dumps({"method": name, "seed": seed, **result}) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()

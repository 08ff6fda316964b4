"""What checkpoints cost training: the steps of runs with none, with synchronous and with asynchronous ones, in turn.

    python benchmarks/train/checkpoints.py [--rounds 5] [--steps 60] [--every 10] [--width 1024] [--url FOLDER]

Every round makes one block of steps of each kind, in random order; the medians of the blocks' ratios to the one without
checkpoints are printed, with the size of a checkpoint.
"""

import argparse
import random
import statistics
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf

from ringfeed.training import Checkpoint, CheckpointStore
from ringfeed.training.checkpoint.background import BackgroundWriter
from ringfeed.training.checkpoint.snapshot import Parts
from ringfeed.training.optimizers.precision import LossScale
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.step.train_step import make_train_step
from ringfeed.training.sync.synchronizer import EveryStep

BATCH = 256
KINDS = ("none", "synchronous", "asynchronous")


def make_parts(width: int) -> tuple[Parts, object]:
    """A network of three wide layers with Adam, and its compiled step of one batch."""
    inputs = hidden = keras.Input((width,))
    for _ in range(3):
        hidden = keras.layers.Dense(width, activation="relu")(hidden)
    network = keras.Model(inputs, keras.layers.Dense(2)(hidden))
    optimizer = keras.optimizers.Adam(1e-4)
    optimizer.build(network.trainable_variables)
    parts = Parts(network=network, optimizer=optimizer, scale=LossScale(None), synchronizer=EveryStep(SoloRing()))
    step = make_train_step(network, optimizer, parts.synchronizer, parts.scale)
    batch = tf.random.stateless_normal((BATCH, width), (0, 0)), tf.zeros(BATCH, tf.int32), tf.ones(BATCH)
    return parts, lambda: step(*batch)


def captured(parts: Parts, step: int) -> Checkpoint:
    """The checkpoint of the network and its optimizer."""
    arrays = {name: np.asarray(tf.convert_to_tensor(v)) for name, v in parts.variables().items()}
    return Checkpoint(step=step, arrays=arrays, state={"history": {}})


def main() -> None:
    """Measure, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("rounds", 5), ("steps", 60), ("every", 10), ("width", 1024)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--url", help="folder of the checkpoints; default: a temporary one")
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    parts, step = make_parts(args.width)
    step().loss.numpy()
    held = captured(parts, 0)
    size = sum(array.nbytes for array in held.arrays.values())
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
    waits: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        store, writer = CheckpointStore(args.url or folder), BackgroundWriter()
        number = 0
        for _ in range(args.rounds):
            seconds = {}
            for kind in random.sample(KINDS, len(KINDS)):
                started = time.perf_counter()
                for done in range(1, args.steps + 1):
                    metrics = step()
                    number += 1
                    if kind == "none" or done % args.every:
                        continue
                    metrics.loss.numpy()
                    before = time.perf_counter()
                    checkpoint = captured(parts, number)
                    if kind == "synchronous":
                        store.save(checkpoint)
                    else:
                        writer.save(store.save, checkpoint)
                    waits[kind].append(time.perf_counter() - before)
                metrics.loss.numpy()
                seconds[kind] = time.perf_counter() - started
                writer.wait()  # outside of the block: a run waits for its last write alone
            for kind in KINDS:
                ratios[kind].append(seconds[kind] / seconds["none"])
    print(f"a checkpoint of {size / 1e6:.0f} MB after every {args.every} steps, {args.rounds} rounds:")
    for kind in KINDS[1:]:
        held_up = 1e3 * statistics.median(waits[kind])
        print(f"{kind:>13}: step time x {statistics.median(ratios[kind]):.3f}, held up {held_up:.1f} ms a checkpoint")


if __name__ == "__main__":
    main()

"""What records cost a training step: pairs of steps with and without, in one process, in random order.

    python benchmarks/train/records.py [--blocks 200]

Each block is 50 steps of a network that takes about 2 ms. The median of the ratios of neighbouring blocks is printed.
"""

import argparse
import random
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf

from ringfeed.training.optimizers.precision import LossScale
from ringfeed.training.records.clock import Clock, clock
from ringfeed.training.reports.events import RunBegan, RunEnded, StepDone, StepTimes
from ringfeed.training.reports.recorder import Recorder
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.step.train_step import make_train_step
from ringfeed.training.sync.synchronizer import EveryStep

STEPS, BATCH = 50, 256


def make_step(read_clock: Clock | None):
    """A compiled step of a network of a few layers, whose weights are its own."""
    inputs = hidden = keras.Input((32,))
    for _ in range(3):
        hidden = keras.layers.Dense(160, activation="relu")(hidden)
    network = keras.Model(inputs, keras.layers.Dense(2)(hidden))
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(network.trainable_variables)
    step = make_train_step(network, optimizer, EveryStep(SoloRing()), LossScale(None), read_clock=read_clock)
    batch = tf.random.stateless_normal((BATCH, 32), (0, 0)), tf.zeros(BATCH, tf.int32), tf.ones(BATCH)
    return lambda: step(*batch)


def main() -> None:
    """Measure, and print the median."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=200)
    blocks = parser.parse_args().blocks
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(0)
    plain, timed = make_step(None), make_step(clock(deterministic=True))
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(folder, None)
        recorder.begin(RunBegan(total_steps=STEPS * blocks, batch_size=BATCH))
        done = 0

        def without() -> None:
            time.monotonic()
            time.monotonic()
            plain()

        def recorded() -> None:
            nonlocal done
            asked, got = time.monotonic(), time.monotonic()
            metrics = timed()
            returned = time.monotonic()
            times = StepTimes(asked, got, returned, time.monotonic(), metrics.stamps)
            done += 1
            recorder.step(StepDone(done, 0, times=times))

        seconds = {without: [], recorded: []}
        for step in seconds:
            step()
        for _ in range(blocks):
            for step in random.sample([without, recorded], 2):
                begun = time.process_time(), time.perf_counter()
                for _ in range(STEPS):
                    step()
                seconds[step].append((time.process_time() - begun[0], time.perf_counter() - begun[1]))
        recorder.close(RunEnded(done, 0, is_finished=True))
    cpu, wall = np.moveaxis(np.array([seconds[recorded], seconds[without]]), 2, 0)
    for name, times in (("in all", wall), ("of the CPU", cpu)):
        more = np.median(times[0] / times[1]) - 1
        print(f"a step takes {1000 * np.median(times[1]) / STEPS:.2f} ms {name}; with records {more:+.2%}")


if __name__ == "__main__":
    main()

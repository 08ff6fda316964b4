"""Whether buckets of gradients, reduced while the backward pass goes on, beat one grouped all-reduce after it.

    python benchmarks/train/buckets.py

Two ranks by `horovodrun`, a network of 8 matrices of 1024 x 1024 (34 MB), 64 samples on each rank. With buckets, groups
are not fused (`HOROVOD_DISABLE_GROUP_FUSION=1`), without which three ranks have other bits in each run. Prints the
median time of a step in ms.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LAYERS, UNITS, BATCH, STEPS, ROUNDS = 8, 1024, 64, 10, 5


def rank() -> None:
    """Measure on one rank; rank 0 prints."""
    import tensorflow as tf

    from ringfeed.training.ring.connect import connect

    ring = connect()
    weights = [tf.Variable(tf.random.stateless_normal([UNITS, UNITS], (0, i)) / UNITS**0.5) for i in range(LAYERS)]
    inputs = tf.random.stateless_normal([BATCH, UNITS], (1, ring.rank))

    def step(buckets: int) -> Any:
        @tf.function
        def run() -> Any:
            with tf.GradientTape() as tape:
                hidden = inputs
                for weight in weights:
                    hidden = tf.nn.relu(hidden @ weight)
                loss = tf.reduce_sum(tf.square(hidden))
            gradients = tape.gradient(loss, weights)
            size = LAYERS // max(buckets, 1)
            parts = [gradients[i : i + size] for i in range(0, LAYERS, size)] if buckets else []
            reduced = [mean for part in reversed(parts) for mean in ring.allreduce_mean(part)] or gradients
            return tf.add_n([tf.reduce_sum(mean) for mean in reduced])

        return run

    counts = [int(count) for count in sys.argv[2:]]
    steps = {count: step(count) for count in counts}
    times: dict[int, list[float]] = {count: [] for count in counts}
    for turn in range(ROUNDS + 1):
        for count, run in steps.items():
            for _ in range(STEPS):
                start = time.perf_counter()
                run().numpy()
                if turn:  # the first compiles
                    times[count].append(1000 * (time.perf_counter() - start))
    if ring.rank == 0:
        print({f"{count} buckets": round(statistics.median(found), 1) for count, found in times.items()}, flush=True)


def main() -> None:
    """Start the ranks with and without the fusion of groups; 0 buckets is a step without a reduction."""
    launcher = str(Path(sys.executable).parent / "horovodrun")
    for unfused, counts in (("0", ["0", "1"]), ("1", ["1", "2", "4", "8"])):
        environment = {**os.environ, "HOROVOD_DISABLE_GROUP_FUSION": unfused}
        print(f"HOROVOD_DISABLE_GROUP_FUSION={unfused}", flush=True)
        command = [launcher, "-np", "2", "--gloo", sys.executable, __file__, "rank", *counts]
        subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    rank() if sys.argv[1:2] == ["rank"] else main()

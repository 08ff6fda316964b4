"""A rank of `step-cost`, under `horovodrun`: rank 0 prints a line of JSON a round, in seconds of CPU for a step."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ringfeed.pipeline.deliver.quiet_tensorflow import quiet_tensorflow

with quiet_tensorflow():
    import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[1]))

from train.step_cost import BATCH, HIDDEN, STEPS, MemoryTrainer, configuration, cpu_seconds

from ringfeed.training.ring.connect import connect
from ringfeed.training.ring.ring import SoloRing


def main() -> None:
    """Measure a step of the ring, one alone on the same batches, and the all-reduce of its gradients, in turn."""
    url, rounds = sys.argv[1], int(sys.argv[2])
    ring = connect()
    hidden = HIDDEN["eight layers of 512"]
    together = MemoryTrainer(configuration(url, "sgd", hidden), ring)
    alone = MemoryTrainer(configuration(url, "sgd", hidden, BATCH // ring.size), SoloRing())
    alone.memory = together.memory
    gradients = [tf.ones(variable.shape) for variable in together.parts.network.trainable_variables]

    @tf.function(autograph=False)
    def reduced(given: Any) -> Any:
        return tf.add_n([tf.reduce_sum(tensor) for tensor in ring.allreduce_mean(given)])

    def all_reduces() -> None:
        for _ in range(STEPS):
            reduced(gradients).numpy()

    parts = {"step": together.epoch, "compute": alone.epoch, "all-reduce": all_reduces}
    for work in parts.values():
        work()
    for _ in range(rounds):
        seconds = {}
        for name, work in parts.items():
            ring.barrier()
            seconds[name] = cpu_seconds(work) / STEPS
        if ring.rank == 0:
            sys.stdout.write(json.dumps(seconds) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Time of an all-reduce of 4 MiB in one and in two levels, as the median of 30; each rank runs it.

horovodrun -np 4 -H localhost:2,127.0.0.1:2 --gloo --network-interfaces lo python benchmarks/train/two_levels.py
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import tensorflow as tf

from ringfeed.training.ring.connect import connect
from ringfeed.training.ring.hierarchical_ring import DYNAMIC, HierarchicalRing
from ringfeed.training.ring.horovod import require_horovod
from ringfeed.training.ring.ring import Ring

__all__ = ["main"]

TIMES, NUMBERS = 30, 1 << 20


def _milliseconds(ring: Ring) -> float:
    reduce, tensors, seconds = tf.function(ring.allreduce_mean), [tf.ones([NUMBERS])], []
    reduce(tensors)
    for _ in range(TIMES):
        begun = time.perf_counter()
        reduce(tensors)[0].numpy()
        seconds.append(time.perf_counter() - begun)
    return 1000 * statistics.median(seconds)


def main() -> None:
    """Measure both twice."""
    os.environ[DYNAMIC] = "1"
    flat = connect()
    levels = HierarchicalRing(require_horovod(flat.size))
    for _ in range(2):
        one, two = _milliseconds(flat), _milliseconds(levels)
        if flat.rank == 0:
            sys.stdout.write(f"one level {one:.1f} ms, two levels {two:.1f} ms\n")


if __name__ == "__main__":
    main()

"""The ranks of `simulation`: each configuration is run on the first n of them, as processes with a ring of Gloo.

Started by `horovodrun`; reads configurations from a JSON file, and rank 0 prints a line of JSON for each.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from ringfeed.pipeline.deliver.quiet_tensorflow import quiet_tensorflow

with quiet_tensorflow():
    import tensorflow as tf

import horovod.tensorflow as hvd

from ringfeed.pipeline import Loader

GRADIENT_BYTES = 1 << 20
RING_BYTES = (1 << 12, 1 << 20, 1 << 22)
_REPEATS = 12


def make_step(kind: str) -> Any:
    """A step of a batch: of the cores (two matrix products), or of a device that computes meanwhile (a sleep)."""
    if not kind:
        return lambda batch: None
    if kind.startswith("device"):
        seconds = float(kind.removeprefix("device:"))
        return lambda batch: time.sleep(seconds)
    weights = tf.random.stateless_normal([512, 2048], [0, 1])

    @tf.function(autograph=False)
    def step(batch: Any) -> Any:
        hidden = tf.nn.relu(batch["x"] @ weights)
        return tf.reduce_sum(hidden @ tf.transpose(weights))

    return lambda batch: step(batch).numpy()


def main() -> None:
    """Run all configurations of a file, and print what each took."""
    configurations = json.loads(Path(sys.argv[1]).read_text())
    sizes = sorted({one["ranks"] for one in configurations})
    sets = {n: hvd.ProcessSet(list(range(n))) for n in sizes if 1 < n < 4}
    hvd.init(process_sets=list(sets.values()))
    rings = {n: sets.get(n, hvd.global_process_set) for n in sizes if n > 1}
    for n, ring in rings.items():
        for size in RING_BYTES:
            hvd.allreduce(tf.zeros(1))
            if hvd.rank() < n:
                seconds = [_allreduce(ring, size, f"fit{n}") for _ in range(_REPEATS)]
                _print({"ranks": n, "bytes": size, "seconds": statistics.median(seconds[2:])})
    for number, one in enumerate(configurations):
        hvd.allreduce(tf.zeros(1))
        if hvd.rank() < one["ranks"]:
            _print({"number": number, "seconds": _measure(one, rings.get(one["ranks"]))})
    hvd.allreduce(tf.zeros(1))


def _print(result: dict[str, Any]) -> None:
    if hvd.rank() == 0:
        print("RESULT", json.dumps(result), flush=True)


def _allreduce(ring: Any, size: int, name: str) -> float:
    start = time.perf_counter()
    hvd.allreduce(tf.zeros(size // 4), op=hvd.Sum, process_set=ring, name=f"{name}-{size}").numpy()
    return time.perf_counter() - start


def _measure(one: dict[str, Any], ring: Any) -> list[float]:
    """Seconds of an epoch in each round, of the slowest rank; the first round, which compiles, is not counted."""
    step = make_step(one["step"])
    results = []
    for number in range(one["rounds"] + 1):
        if one["cache"] and not one["warm"] and hvd.rank() == 0:
            shutil.rmtree(one["cache"], ignore_errors=True)
        _meet(ring)
        options = one["loader"] | ({"cache": one["cache"]} if one["cache"] else {})
        loader = Loader(one["url"], rank=hvd.rank(), world_size=one["ranks"], seed=number, **options)
        gradient = tf.zeros(GRADIENT_BYTES // 4)
        _meet(ring)
        start = time.perf_counter()
        for batch in loader.epoch(0):
            step(batch)
            if ring is not None:
                hvd.allreduce(gradient, op=hvd.Sum, process_set=ring, name="gradient").numpy()
        seconds = time.perf_counter() - start
        if ring is not None:
            slowest = hvd.allreduce(tf.constant(seconds), op=hvd.Max, process_set=ring, name="slowest")
            seconds = float(slowest.numpy())
        results.append(seconds)
    return results[1:]


def _meet(ring: Any) -> None:
    if ring is not None:
        hvd.allreduce(tf.zeros(1), op=hvd.Sum, process_set=ring, name="meet").numpy()


if __name__ == "__main__":
    main()

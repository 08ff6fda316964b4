"""A rank of `simulation`, alone or under `horovodrun` with a ring of Gloo.

It reads configurations of one number of ranks from a JSON file, and rank 0 prints a line of JSON for each.
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
_REPEATS = 24
_PAUSE_SECONDS = 0.01


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
    if configurations[0]["ranks"] > 1:
        hvd.init()
        for size in RING_BYTES:
            times = [_allreduce(size) for _ in range(_REPEATS)][2:]
            seconds, core_seconds = (statistics.median(column) for column in zip(*times, strict=True))
            _print({"ranks": hvd.size(), "bytes": size, "seconds": seconds, "core_seconds": core_seconds})
    for one in configurations:
        _print({"number": one["number"], "seconds": _measure(one)})


def _rank() -> int:
    return hvd.rank() if hvd.is_initialized() else 0


def _meet() -> None:
    """Wait for all ranks."""
    if hvd.is_initialized():
        hvd.allreduce(tf.zeros(1), op=hvd.Sum, name="meet").numpy()


def _print(result: dict[str, Any]) -> None:
    if _rank() == 0:
        print("RESULT", json.dumps(result), flush=True)


def _allreduce(size: int) -> tuple[float, float]:
    """Seconds and processor time of an all-reduce after a step, with what the ranks differ by in waking up."""
    _meet()
    time.sleep(_PAUSE_SECONDS)
    start, cores = time.perf_counter(), time.process_time()
    hvd.allreduce(tf.zeros(size // 4), op=hvd.Sum, name=f"fit-{size}").numpy()
    return time.perf_counter() - start, time.process_time() - cores


def _measure(one: dict[str, Any]) -> list[float]:
    """Seconds of an epoch in each round, of the slowest rank; the first round, which compiles, is not counted."""
    step = make_step(one["step"])
    results = []
    for number in range(one["rounds"] + 1):
        if one["cache"] and not one["warm"] and _rank() == 0:
            shutil.rmtree(one["cache"], ignore_errors=True)
        _meet()
        options = one["loader"] | ({"cache": one["cache"]} if one["cache"] else {})
        loader = Loader(one["url"], rank=_rank(), world_size=one["ranks"], seed=number, **options)
        gradient = tf.zeros(GRADIENT_BYTES // 4)
        _meet()
        start = time.perf_counter()
        for batch in loader.epoch(0):
            step(batch)
            if one["ranks"] > 1:
                hvd.allreduce(gradient, op=hvd.Sum, name="gradient").numpy()
        seconds = time.perf_counter() - start
        if one["ranks"] > 1:
            seconds = float(hvd.allreduce(tf.constant(seconds), op=hvd.Max, name="slowest").numpy())
        results.append(seconds)
    return results[1:]


if __name__ == "__main__":
    main()

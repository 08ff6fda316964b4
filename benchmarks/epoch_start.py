"""The wait for the first batch of an epoch: in one reading of several epochs, and where each epoch is read alone.

A step takes 5 ms; meanwhile the loader works ahead. The figure is the rest of an epoch of 4 s, without this wait.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from train.step_cost import BATCH, write_dataset

from ringfeed.pipeline import Loader

EPOCHS = 5
_STEP_SECONDS = 0.005
_EPOCH_SECONDS = 4.0


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Shares for `batches` and `numpy_epoch`, after an epoch that is not counted."""
    loader = Loader(write_dataset(folder), batch_size=BATCH, seed=0)
    readers: dict[str, Callable[..., Iterator[Any]]] = {"batches": loader.batches, "numpy_epoch": loader.numpy_epoch}
    shares: dict[tuple[str, int], list[float]] = {(name, epochs): [] for name in readers for epochs in (EPOCHS, 1)}
    for read in readers.values():
        list(read(0))
    for _ in range(rounds):
        for name, epochs in shares:
            waits = _first_waits(readers[name], epochs, loader.steps_per_epoch)
            shares[name, epochs].append(1 - statistics.median(waits) / _EPOCH_SECONDS)
            print(f"  {name}, {epochs} epochs a reading: {1e3 * statistics.median(waits):.1f} ms", flush=True)
    what = {EPOCHS: "next epoch in the same reading", 1: "each epoch read alone"}
    goals = {EPOCHS: 0.99, 1: 0.0}
    return [
        (f"{name}, {what[epochs]}: share of 4 s without the wait for its first batch", found, goals[epochs])
        for (name, epochs), found in shares.items()
    ]


def _first_waits(read: Callable[..., Iterator[Any]], epochs: int, steps: int) -> list[float]:
    """Seconds that the first batch of each epoch after the first one takes."""
    waits = []
    for epoch in range(0, EPOCHS, epochs):
        batches = read(epoch, epochs=epochs)
        for step in range(epochs * steps):
            asked = time.perf_counter()
            next(batches)
            if step % steps == 0:
                waits.append(time.perf_counter() - asked)
            time.sleep(_STEP_SECONDS)
    return waits[1:]

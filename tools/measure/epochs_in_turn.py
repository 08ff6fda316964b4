"""Measures epochs of several loaders in turn, so that what disturbs the machine disturbs all of them.

Tested in tests/tools/predict/test_search.py and tests/tools/profile/test_predictions.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from ringfeed.pipeline import Loader
from ringfeed.pipeline.fetch.shard_cache import ShardCache, open_cache
from ringfeed.sharding.storage.temporary_folder import temporary_folder

from .training_trials import Workload

T = TypeVar("T")
_LEAST_GAIN = 1.03  # median of the rounds
_LEAST_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """Measured seconds of the run's epochs with some options, one mean for each round; and gains over the defaults."""

    seconds: tuple[float, ...]
    gains: tuple[float, ...]

    @property
    def gain(self) -> float:
        """Median gain of the rounds."""
        return median(self.gains)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTime:
    """Seconds until an epoch's first batch, and of the whole epoch; and the steps that were read of it."""

    first: float
    total: float
    steps: int


def is_better(confirmed: Confirmed) -> bool:
    """Whether options are faster than the defaults beyond doubt: in every round, and by more than 3 % in the middle."""
    return confirmed.gain >= _LEAST_GAIN and min(confirmed.gains) > 1


def confirm(
    loader: Loader,
    workload: Workload | None,
    candidates: Sequence[Mapping[str, Any]],
    *,
    seconds: float,
    rounds: int,
    epochs: int,
    cache: str | None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Confirmed]:
    """Measure the defaults and some options, in turn.

    Args:
        loader: the loader with the defaults.
        workload: transform and step; None reads and discards batches.
        candidates: arguments of `Loader` that differ; a key ``cache_bytes`` stands for a cache of this limit.
        seconds: time for all of it.
        rounds: how often each is measured.
        epochs: epochs of the run; a cache serves all but the first.
        cache: ``memory``, or the folder beside which trial caches are made.
        report: called with trials done, and all of them.

    Returns:
        What was measured of the defaults, and of each of the options.
    """
    everyone: list[Mapping[str, Any]] = [{}, *candidates]
    each = seconds / (rounds * sum(2 if "cache_bytes" in options else 1 for options in everyone))

    def mean_seconds(options: Mapping[str, Any], epoch: int) -> float:
        """Mean seconds of the run's epochs; with a cache of a cold one, and of as many warm ones as follow."""
        if "cache_bytes" not in options:
            return read_epoch(loader, workload, each, options, epoch).total
        assert cache is not None
        others = {name: value for name, value in options.items() if name != "cache_bytes"}
        with trial_cache(cache, options["cache_bytes"]) as empty:
            first, *later = (
                read_epoch(loader, workload, each, others | {"cache": empty}, epoch).total
                for _ in range(min(epochs, 2))
            )
        return (first + (epochs - 1) * sum(later)) / epochs

    read_epoch(loader, workload, 0.0 if loader.arguments["cache"] is None else each)  # warms up
    times = in_turn([partial(mean_seconds, own) for own in everyone], rounds, report)
    gains = [[base / own for base, own in zip(times[0], row, strict=True)] for row in times]
    return [Confirmed(seconds=tuple(row), gains=tuple(gain)) for row, gain in zip(times, gains, strict=True)]


def in_turn(
    measures: Sequence[Callable[[int], T]],
    rounds: int,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[T]]:
    """Call each function once in each round, another one first each time; return their results by function."""
    results: list[list[T]] = [[] for _ in measures]
    for done in range(rounds * len(measures)):
        number, place = divmod(done, len(measures))
        chosen = (place + number) % len(measures)
        report(done, rounds * len(measures))
        results[chosen].append(measures[chosen](number))
    report(rounds * len(measures), rounds * len(measures))
    return results


def read_epoch(
    loader: Loader,
    workload: Workload | None,
    seconds: float,
    options: Mapping[str, Any] | None = None,
    epoch: int = 0,
    steps: int | None = None,
) -> EpochTime:
    """Time an epoch, from its request to its last step, read by a new loader with some arguments changed.

    After `seconds`, or a number of steps, the rest is reckoned at the rate after the first batch.
    """
    own = Loader(**dict(loader.arguments) | dict(options or {}))
    batches = own.batches(epoch) if workload is None else replace(workload, loader=own).batches(epoch)
    first = begun = now = 0.0
    start, total, done = time.perf_counter(), own.steps_per_epoch, 0
    for done, batch in enumerate(batches, start=1):
        first = first or time.perf_counter() - start
        if workload is not None:
            workload.step(batch)
        now = time.perf_counter() - start
        begun = begun or now
        if done == steps or (now > seconds and done >= _LEAST_STEPS):
            break
    later = (now - begun) / max(done - 1, 1) * (total - 1)
    return EpochTime(first=first, total=begun + later, steps=done)


@contextmanager
def trial_cache(place: str, limit_bytes: int | None = None) -> Iterator[ShardCache | None]:
    """Make an empty cache in memory if `place` says so, else in a folder beside that one; it is removed at the end."""
    if place == "memory":
        yield open_cache(place, limit_bytes)
        return
    parent = Path(place).absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(parent) as folder:
        yield open_cache(str(folder), limit_bytes)

"""Measure options beside the defaults: epoch after epoch in turn, so that what disturbs the machine disturbs all.

Tested in tests/tools/predict/test_search.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ringfeed.pipeline import Loader
from ringfeed.tools.measure.training_trials import Workload
from ringfeed.tools.measure.trial_cache import trial_cache

__all__ = ["Confirmed", "confirm", "is_better"]

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
        epochs: epochs of the run, of which a cache serves all but the first.
        cache: ``memory``, or the folder beside which trial caches are made.
        report: called with trials done, and all of them.

    Returns:
        What was measured of the defaults, and of each of the options.
    """
    everyone: list[Mapping[str, Any]] = [{}, *candidates]
    readings = sum(2 if "cache_bytes" in options else 1 for options in everyone)
    each = seconds / (rounds * readings)
    times: list[list[float]] = [[] for _ in everyone]
    _read(loader, workload, loader.arguments, 0, 0.0 if loader.arguments["cache"] is None else each)  # warms up
    done = 0
    for number in range(rounds):
        for place in range(len(everyone)):
            chosen = (place + number) % len(everyone)
            report(done, rounds * len(everyone))
            times[chosen].append(_mean_epoch(loader, workload, everyone[chosen], number, each, epochs, cache))
            done += 1
    report(done, rounds * len(everyone))
    gains = [[base / own for base, own in zip(times[0], row, strict=True)] for row in times]
    return [Confirmed(seconds=tuple(row), gains=tuple(gain)) for row, gain in zip(times, gains, strict=True)]


def _mean_epoch(
    loader: Loader,
    workload: Workload | None,
    options: Mapping[str, Any],
    epoch: int,
    seconds: float,
    epochs: int,
    cache: str | None,
) -> float:
    """Mean seconds of the run's epochs; with a cache of a cold one, and of as many warm ones as follow."""
    others = {name: value for name, value in options.items() if name != "cache_bytes"}
    arguments = dict(loader.arguments) | others
    if "cache_bytes" not in options:
        return _read(loader, workload, arguments, epoch, seconds)
    assert cache is not None
    with trial_cache(cache, options["cache_bytes"]) as empty:
        arguments["cache"] = empty
        first = _read(loader, workload, arguments, epoch, seconds)
        later = _read(loader, workload, arguments, epoch, seconds) if epochs > 1 else 0.0
    return (first + (epochs - 1) * later) / epochs


def _read(loader: Loader, workload: Workload | None, arguments: Mapping[str, Any], epoch: int, seconds: float) -> float:
    """Seconds of an epoch, from its request to its last step, read by a new loader.

    If that takes longer than `seconds`, the rest is reckoned at the rate after the first batch.
    """
    own = Loader(**arguments)
    step: Callable[[Any], Any] = (lambda batch: None) if workload is None else workload.step
    start = time.perf_counter()
    batches = own.batches(epoch) if workload is None else replace(workload, loader=own).batches(epoch)
    first = now = 0.0
    total = own.steps_per_epoch
    for done, batch in enumerate(batches, start=1):
        step(batch)
        now = time.perf_counter() - start
        first = first or now
        if now > seconds and done >= min(_LEAST_STEPS, total):
            return first + (now - first) / max(done - 1, 1) * (total - 1)
    return time.perf_counter() - start

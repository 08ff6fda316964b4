"""A trial: samples that passed in a time, and the loops that measure one."""

from __future__ import annotations

import itertools
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .estimates import Estimate, estimate, window_rates

_PREFETCHED = 4  # batches, as a loader keeps ready
_LEAST_CALLS = 3  # of a slow function, however little time there is
_MOST_WAIT = 1.5  # times a trial's seconds, with the waits for first batches, which are not counted
_MOST_GAPS = 1 << 16  # slowest batches that are remembered
_COMPILING = 2  # first calls, which compile
_MOST_KEPT, _MOST_KEPT_BYTES = 256, 128 << 20
_STRING_BYTES = 64  # guessed for a value without a size of its own
_EXPLAINED = 0.5  # share of the variance of a control variate worth using


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A measurement: samples that passed in a time.

    Attributes:
        samples: samples of this rank.
        seconds: their time.
        wait_seconds: part of it spent waiting for input.
        cpu_seconds: seconds of cores that this process used meanwhile.
        rates: samples a second in each of up to ten parts of the time.
        gaps: seconds that each batch took, by (epoch, step), where that was noted.
    """

    samples: int
    seconds: float
    wait_seconds: float = 0.0
    cpu_seconds: float = 0.0
    rates: tuple[float, ...] = ()
    gaps: tuple[tuple[int, int, float], ...] = ()

    @property
    def samples_per_second(self) -> float:
        """Samples of this rank a second."""
        return self.samples / self.seconds

    @property
    def estimate(self) -> Estimate:
        """The rate with its interval."""
        return estimate(self.samples_per_second, self.rates)


def cpu_seconds() -> float:
    """Seconds of cores that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def time_calls(
    call: Callable[[], Any], seconds: float, *, least: int = _LEAST_CALLS, synchronize: bool = True
) -> tuple[list[float], list[float]]:
    """Seconds of each call of a function, and seconds of cores that this process used in it.

    Args:
        call: the function.
        seconds: how long to call it.
        least: the fewest calls.
        synchronize: whether a call ends when devices have computed it; else only the last one does.
    """
    times, cpus = [time.perf_counter()], [cpu_seconds()]
    end = times[0] + seconds
    while len(times) <= least or times[-1] < end:
        call()
        if synchronize:
            synchronize_devices()
        times.append(time.perf_counter())
        cpus.append(cpu_seconds())
    synchronize_devices()
    times[-1] = time.perf_counter()
    return np.diff(times).tolist(), np.diff(cpus).tolist()


def repeat(call: Callable[[], Any], batch_size: int, seconds: float) -> Trial:
    """Call a function of one batch again and again; its first calls, which compile, are not counted."""
    for _ in range(_COMPILING):
        call()
    synchronize_devices()
    walls, cpus = time_calls(call, seconds, synchronize=False)
    return _trial(walls, cpus, batch_size)


def _trial(walls: Sequence[float], cpus: Sequence[float], batch_size: int, scale: float = 1.0) -> Trial:
    """The trial of calls, whose times are multiplied by a factor."""
    times = np.concatenate([[0.0], np.cumsum(walls)]) * scale
    return Trial(
        samples=len(walls) * batch_size,
        seconds=float(times[-1]),
        cpu_seconds=sum(cpus),
        rates=window_rates(times.tolist(), batch_size),
    )


@dataclass(slots=True, kw_only=True)
class KeptBatches:
    """The first batches of a trial, as many as fit into memory, to give them to the step again.

    Attributes:
        batches: the batches.
        seconds: what the step took for each of them, in the trial.
        mean_seconds: what it took for a batch of the whole trial, on average.
    """

    batches: list[Any] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    mean_seconds: float = 0.0
    _bytes: int = 0

    def add(self, batch: Any, seconds: float) -> None:
        """Keep a batch, if there is room."""
        if len(self.batches) < _MOST_KEPT and self._bytes < _MOST_KEPT_BYTES:
            self.batches.append(batch)
            self.seconds.append(seconds)
            self._bytes += _batch_bytes(batch)


def consume(
    batches: Iterator[tuple[int, int, Any]],
    step: Callable[[Any], Any],
    batch_size: int,
    seconds: float,
    kept: KeptBatches | None = None,
) -> Trial:
    """Give each batch to a step, and time wait and step of each. Waits for first batches are not counted.

    What was prefetched is used up first. A step ends when the device has computed it.

    Args:
        batches: epoch, step and batch, without end.
        step: function of a batch.
        batch_size: samples of a batch.
        seconds: how long, though at least three batches.
        kept: where to keep the first batches.
    """
    begun = time.perf_counter()
    for done in range(_PREFETCHED + 1):
        if done < _COMPILING or time.perf_counter() - begun < seconds / 4:
            step(next(batches)[2])
    synchronize_devices()
    cpu = cpu_seconds()
    begun = start = now = time.perf_counter()
    times, gaps, waited, ignored = [start], [], 0.0, 0.0
    while len(times) <= _LEAST_CALLS or (now - start < seconds and now - begun < _MOST_WAIT * seconds):
        epoch, number, batch = next(batches)
        came = time.perf_counter()
        wait = came - now
        if number == 0:
            start += wait
            ignored += wait
        else:
            waited += wait
            gaps.append((epoch, number, wait))
        step(batch)
        synchronize_devices()
        now = time.perf_counter()
        times.append(now - ignored)
        if kept is not None:
            kept.add(batch, now - came)
    gaps.sort(key=lambda gap: -gap[2])
    if kept is not None:
        kept.mean_seconds = (now - start - waited) / (len(times) - 1)
    return Trial(
        samples=(len(times) - 1) * batch_size, seconds=now - start, wait_seconds=waited,
        cpu_seconds=cpu_seconds() - cpu, rates=window_rates(times, batch_size), gaps=tuple(gaps[:_MOST_GAPS]),
    )  # fmt: skip


def repeat_kept(step: Callable[[Any], Any], kept: KeptBatches, batch_size: int, seconds: float) -> Trial:
    """Give kept batches to a step with nothing beside it: the ideal loader, of the same batches.

    Batches may differ in length, and the kept ones be longer or shorter than the others. So their times in the first
    trial, whose mean over all batches is known, serve as a control variate (Lavenberg and Welch, Management Science
    1981), where they explain at least half of the variance.

    Args:
        step: function of a batch.
        kept: the batches.
        batch_size: samples of a batch.
        seconds: how long, though at least three batches.
    """
    each = itertools.cycle(kept.batches)
    walls, cpus = time_calls(lambda: step(next(each)), seconds)
    alone, before = np.array(walls), np.resize(np.array(kept.seconds), len(walls))
    covariance = np.cov(alone, before)
    explained = covariance[0, 1] ** 2 / max(covariance[0, 0] * covariance[1, 1], 1e-30)
    slope = max(covariance[0, 1], 0.0) / covariance[1, 1] if explained > _EXPLAINED else 0.0
    scale = max(1 + slope * (kept.mean_seconds - float(before.mean())) / float(alone.mean()), 0.1)
    return _trial(walls, cpus, batch_size, scale)


def _batch_bytes(batch: Any) -> int:
    """About how many bytes the tensors of a batch take."""
    import tensorflow as tf

    leaves = tf.nest.flatten(batch, expand_composites=True)
    return sum(int(getattr(leaf, "nbytes", 0) or np.size(leaf) * _STRING_BYTES) for leaf in leaves)


def synchronize_devices() -> None:
    """Wait for what devices compute; they run behind the program."""
    import tensorflow as tf

    if any(device.device_type != "CPU" for device in tf.config.list_logical_devices()):
        tf.test.experimental.sync_devices()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()

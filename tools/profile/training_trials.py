"""Trials of training: the transform and the step on a batch held in memory, and both fed by the loader.

The step on a batch in memory runs as fast as with an ideal loader, so what is slower with the real one is input's
share. This is DS-Analyzer's differential method (Mohan et al., arXiv 2007.06775, section 3).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...pipeline import Loader
from ...sharding.errors import ConfigError, RingfeedError
from ...sharding.sources.user_code import describe_error

__all__ = ["TrainingTrials", "Trial", "Workload", "try_training"]

_LEAST_CALLS = 3  # of a slow function, however little time there is
_PREFETCH_BATCHES = 4
_MOST_WAIT = 2  # times a trial's seconds, with the waits for first batches, which are not counted
_SHARES = {"transform": 0.15, "input": 0.25, "step": 0.25, "together": 0.35}  # of the seconds for all trials


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained: batches of a loader, transformed, given to a step.

    Attributes:
        loader: the source of all batches.
        transform: function from a loader's element to what the step takes, for `tf.data`'s ``map``; None: none.
        step: function of one transformed element; what it returns is ignored.
        transform_name, step_name: names for reports.
        is_deterministic: whether TensorFlow's op determinism is on, under which a transform has one thread.
    """

    loader: Loader
    transform: Callable[[Any], Any] | None
    step: Callable[[Any], Any]
    transform_name: str
    step_name: str
    is_deterministic: bool = False

    def batches(self, epoch: int) -> Any:
        """The dataset of an epoch's transformed batches, prefetched as a trainer would."""
        return self._transformed(self.loader.epoch(epoch)).prefetch(_PREFETCH_BATCHES)

    def repeat_transform(self, batch: Any) -> Any:
        """A dataset that transforms one batch again and again."""
        import tensorflow as tf

        return self._transformed(tf.data.Dataset.from_tensors(batch).repeat())

    def _transformed(self, batches: Any) -> Any:
        import tensorflow as tf

        if self.transform is None:
            return batches
        return batches.map(self.transform, num_parallel_calls=None if self.is_deterministic else tf.data.AUTOTUNE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A measurement: samples that passed in a time, and the part of the time spent waiting for input."""

    samples: int
    seconds: float
    wait_seconds: float = 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples of this rank a second."""
        return self.samples / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTrials:
    """What was measured of a workload, each part without its first calls, which compile.

    Attributes:
        transform: the transform alone, on a batch held in memory; None if there is none.
        input: the loader with the transform, and no step.
        step: the step alone, on a batch held in memory: the ideal loader.
        together: training: loader, transform and step, without the wait for an epoch's first batch.
        transform_name, step_name: names of the functions.
    """

    transform: Trial | None
    input: Trial
    step: Trial
    together: Trial
    transform_name: str
    step_name: str

    @property
    def utilisation(self) -> float:
        """Share of training's time in which the step computes: MLPerf Storage's accelerator utilisation, in [0, 1]."""
        return min(self.together.samples_per_second / self.step.samples_per_second, 1.0)


def try_training(workload: Workload, seconds: float, report: Callable[[str], None] = lambda _: None) -> TrainingTrials:
    """Measure a workload part by part, in about so many seconds after its functions have compiled.

    Args:
        workload: what is measured.
        seconds: time for all trials.
        report: called with what is measured next.

    Raises:
        ConfigError: the transform or the step fails.
    """
    batch_size = workload.loader.local_batch_size
    first = next(iter(workload.loader.epoch(0)))
    transform = None
    if workload.transform is not None:
        report(f"{workload.transform_name} alone")
        with _blaming(workload.transform_name):
            repeated = iter(workload.repeat_transform(first))
            transform = _repeat(lambda: next(repeated), batch_size, seconds * _SHARES["transform"])
            del repeated  # it transforms ahead
    report("the loader" if workload.transform is None else f"the loader with {workload.transform_name}")
    batches = _endless(workload)
    _, batch = next(batches)
    fast = _consume(batches, lambda _: None, batch_size, seconds * _SHARES["input"])

    def call(batch: Any) -> None:
        with _blaming(workload.step_name):
            workload.step(batch)

    report(f"{workload.step_name} alone")
    step = _repeat(lambda: call(batch), batch_size, seconds * _SHARES["step"])
    report("training")
    together = _consume(batches, call, batch_size, seconds * _SHARES["together"])
    return TrainingTrials(
        transform=transform,
        input=fast,
        step=step,
        together=together,
        transform_name=workload.transform_name,
        step_name=workload.step_name,
    )


def _endless(workload: Workload) -> Iterator[tuple[bool, Any]]:
    """Transformed batches of epoch after epoch, each with whether it is the first of its epoch."""
    for epoch in itertools.count():
        with workload.loader.own_errors(), _blaming(workload.transform_name):
            for number, batch in enumerate(workload.batches(epoch)):
                yield number == 0, batch


def _repeat(call: Callable[[], Any], batch_size: int, seconds: float) -> Trial:
    """Call a function again and again; its first two calls, which compile, are not counted."""
    for _ in range(2):
        call()
    _synchronize()
    start = now = time.perf_counter()
    calls = 0
    while calls < _LEAST_CALLS or now - start < seconds:
        call()
        calls += 1
        now = time.perf_counter()
    _synchronize()
    return Trial(samples=calls * batch_size, seconds=time.perf_counter() - start)


def _consume(batches: Iterator[tuple[bool, Any]], step: Callable[[Any], Any], batch_size: int, seconds: float) -> Trial:
    """Give each batch to a step. What was prefetched is used up first; waits for first batches are not counted."""
    for _ in range(_PREFETCH_BATCHES + 1):
        step(next(batches)[1])
    _synchronize()
    begun = start = now = time.perf_counter()
    steps, waited = 0, 0.0
    while steps < _LEAST_CALLS or (now - start < seconds and now - begun < _MOST_WAIT * seconds):
        is_first, batch = next(batches)
        wait = time.perf_counter() - now
        if is_first:
            start += wait
        else:
            waited += wait
        step(batch)
        steps += 1
        now = time.perf_counter()
    _synchronize()
    return Trial(samples=steps * batch_size, seconds=time.perf_counter() - start, wait_seconds=waited)


def _synchronize() -> None:
    """Wait for what devices compute; they run behind the program."""
    import tensorflow as tf

    tf.test.experimental.sync_devices()


@contextmanager
def _blaming(name: str) -> Iterator[None]:
    """Report an error of the user's function as one line with its place."""
    try:
        yield
    except RingfeedError:
        raise
    except Exception as error:
        raise ConfigError(f"{describe_error(error, name)} (in {name}); fix the function") from error

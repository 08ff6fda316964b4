"""Trials of training: loader, transform and step together, and the step alone on the same batches.

Together, wait and step of each batch are timed. Alone, the step runs as fast as with an ideal loader, which is
DS-Analyzer's differential method (Mohan et al., arXiv 2007.06775, section 3); on the same batches, since they may
differ in length.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ringfeed.pipeline import Loader
from ringfeed.pipeline.transforms.apply import apply_transform
from ringfeed.sharding.errors import ConfigError, RingfeedError
from ringfeed.sharding.sources.user_code import describe_error

from .estimates import Estimate
from .other_load import LockWatch
from .trial import KeptBatches, Trial, consume, repeat, repeat_kept

_SHARES = {"transform": 0.15, "input": 0.25, "step": 0.25, "together": 0.35}  # of the seconds for all trials
_LEAST_STEP = 0.25  # seconds; a shorter trial is not judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained: batches of a loader, transformed, given to a step.

    Attributes:
        loader: the source of all batches.
        transform: function from a loader's element to what the step takes, for `tf.data`'s ``map``; None: none.
        step: function of one transformed element; what it returns is ignored.
        transform_name, step_name: names for reports.
        decodes: whether the transform is ringfeed's own, whose work is to decode images.
    """

    loader: Loader
    transform: Callable[[Any], Any] | None
    step: Callable[[Any], Any]
    transform_name: str
    step_name: str
    decodes: bool = False

    def batches(self, epoch: int) -> Iterator[Any]:
        """An epoch's transformed batches, prefetched as for a trainer."""
        return self.loader.batches(epoch, transform=self.transform)

    def repeat_transform(self, batch: Any) -> Any:
        """A dataset that transforms one batch again and again."""
        import tensorflow as tf

        batches = tf.data.Dataset.from_tensors(batch).repeat()
        return batches if self.transform is None else apply_transform(batches, self.transform, None)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTrials:
    """What was measured of a workload, each part without its first calls, which compile.

    Attributes:
        transform: the transform alone, on a batch held in memory; None if there is none.
        input: the loader with the transform, and no step; None without a transform.
        step: the step alone, on the first batches of `together`, held in memory: the ideal loader.
        together: training: loader, transform and step, without the wait for an epoch's first batch.
        lock_held: share of the looks at Python's lock, during `together`, at which it was held.
        transform_name, step_name: names of the functions.
    """

    transform: Trial | None
    input: Trial | None
    step: Trial
    together: Trial
    lock_held: float
    transform_name: str
    step_name: str

    @property
    def transform_estimate(self) -> Estimate | None:
        """The transform's rate; it is at least the rate of the loader with it."""
        trials = [trial.estimate for trial in (self.transform, self.input) if trial is not None]
        return max(trials, key=lambda rate: rate.value) if self.transform is not None else None

    def without_gaps(self) -> TrainingTrials:
        """The same without the time of each batch."""
        fed = None if self.input is None else replace(self.input, gaps=())
        return replace(self, input=fed, together=replace(self.together, gaps=()))

    @property
    def utilisation(self) -> float:
        """Share of training's time that the step computes: MLPerf Storage's accelerator utilisation, in [0, 1]."""
        return min(self.together.samples_per_second / self.step.samples_per_second, 1.0)


def try_training(
    workload: Workload, first: Any, seconds: float, report: Callable[[str], None] = lambda _: None
) -> TrainingTrials:
    """Measure a workload part by part, in about so many seconds after its functions have compiled.

    Args:
        workload: what is measured.
        first: a batch of its loader.
        seconds: time for all trials.
        report: called with what is measured next.

    Raises:
        ConfigError: the transform or the step fails.
    """
    batch_size = workload.loader.local_batch_size
    transform = try_transform(workload, first, seconds * _SHARES["transform"], report)
    batches, fast = _endless(workload), None
    if workload.transform is not None:
        report(f"the loader with {workload.transform_name}")
        fast = consume(batches, lambda _: None, batch_size, seconds * _SHARES["input"])
    call, kept = guarded_step(workload), KeptBatches()
    report("training")
    with LockWatch() as lock:
        together = consume(batches, call, batch_size, seconds * _SHARES["together"], kept)
    del batches  # which transform ahead
    report(f"{workload.step_name} alone")
    step = repeat_kept(call, kept, batch_size, max(seconds * _SHARES["step"], _LEAST_STEP))
    return TrainingTrials(
        transform=transform, input=fast, step=step, together=together, lock_held=lock.held,
        transform_name=workload.transform_name, step_name=workload.step_name,
    )  # fmt: skip


def try_transform(workload: Workload, batch: Any, seconds: float, report: Callable[[str], None]) -> Trial | None:
    """Transform a batch held in memory again and again; None without a transform.

    Raises:
        ConfigError: the transform fails.
    """
    if workload.transform is None:
        return None
    report(f"{workload.transform_name} alone")
    with _blaming(workload.transform_name):
        repeated = iter(workload.repeat_transform(batch))
        return repeat(lambda: next(repeated), workload.loader.local_batch_size, seconds)


def guarded_step(workload: Workload) -> Callable[[Any], None]:
    """The step, whose errors are one line."""

    def call(batch: Any) -> None:
        with _blaming(workload.step_name):
            workload.step(batch)

    return call


def _endless(workload: Workload) -> Iterator[tuple[int, int, Any]]:
    """Transformed batches of epoch after epoch, each with its epoch and step."""
    for epoch in itertools.count():
        with _blaming(workload.transform_name):
            for number, batch in enumerate(workload.batches(epoch)):
                yield epoch, number, batch


@contextmanager
def _blaming(name: str) -> Iterator[None]:
    """Report an error of the user's function as one line with its place."""
    try:
        yield
    except RingfeedError:
        raise
    except Exception as error:
        raise ConfigError(f"{describe_error(error, name)} (in {name}); fix the function") from error

"""Predict what an option of the loader would bring, and cost. Pure arithmetic on what was measured.

An epoch of the loader takes as long as its shards take to come, or as it takes with all of them at hand, whichever is
more; an epoch of training as long as its slowest part, and what is lost beside it.
Tested in tests/tools/profile/test_predictions.py and tests/tools/verdict/test_verdict.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ringfeed.tools.measure.estimates import Estimate, predicted, ratio

__all__ = ["ExpectedGain", "MeasuredEpoch", "Setting", "first_batch_bytes", "predict_gain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredEpoch:
    """An epoch as measured, on one rank.

    Attributes:
        samples: samples of the epoch.
        first_batch_seconds: seconds until the first batch.
        loader: the loader's rate after it, alone.
        loader_seconds: seconds of the loader's epoch, alone.
        transform: the transform's rate alone; None: there is none.
        step: the step's rate alone; None: there is none.
        together: the rate of training after the first batch; None: there is no step.
        waiting: share of that time in which the step waited for input, measured on the same batches, in [0, 1].
        rest: the rate of the loader's epoch without what limits it, by the part that would limit it then.
    """

    samples: int
    first_batch_seconds: float
    loader: Estimate
    loader_seconds: float
    transform: Estimate | None = None
    step: Estimate | None = None
    together: Estimate | None = None
    waiting: float = 0.0
    rest: Mapping[str, Estimate] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, float]:
        """Seconds that each part would take for the epoch, alone."""
        rates = {"step": self.step, "transform": self.transform}
        return {name: self.samples / rate.value for name, rate in rates.items() if rate is not None} | {
            "loader": self.loader_seconds
        }

    @property
    def seconds(self) -> float:
        """Seconds of an epoch of training; without a step, of the loader."""
        if self.together is None:
            return self.loader_seconds
        return max(self.first_batch_seconds + self.samples / self.together.value, *self.parts.values())

    @property
    def step_seconds(self) -> float:
        """Seconds of an epoch of training in which the step is at work; 0 without a step."""
        if self.together is None:
            return 0.0
        return max(self.samples / self.together.value * (1 - self.waiting), self.parts["step"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The loader with an option changed, as it is expected to be.

    Attributes:
        options: arguments of `Loader`; empty if it takes a new dataset.
        text: what to do, as the command takes it.
        first_batch_seconds: seconds until the first batch.
        seconds: seconds of the loader's epoch, as a factor's interval around its value.
        memory_bytes: memory that it takes more; less than 0: that it saves.
        disk_bytes: room on the local disk that it takes.
        later: whether only epochs after the first one gain.
    """

    options: Mapping[str, Any]
    text: str
    first_batch_seconds: float
    seconds: Estimate
    memory_bytes: int
    disk_bytes: int = 0
    later: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedGain:
    """One knob: what to turn, and what that is expected to bring and cost.

    Attributes:
        options: arguments of `Loader`, which `--try` measures; empty if it takes a new dataset.
        text: what to do, as the command takes it.
        gain: speed-up of an epoch of training; without a step, of the loader. None where the measurements spread too
            far to tell.
        first_batch_seconds: seconds until the first batch, before and after.
        memory_bytes: memory that it takes more; less than 0: that it saves.
        disk_bytes: room on the local disk that it takes.
        later: whether only epochs after the first one gain.
    """

    options: Mapping[str, Any]
    text: str
    gain: Estimate | None
    first_batch_seconds: tuple[float, float]
    memory_bytes: int
    disk_bytes: int
    later: bool


def predict_gain(setting: Setting, figures: MeasuredEpoch) -> ExpectedGain:
    """What a setting brings to an epoch of training; without a step, to one of the loader."""
    return ExpectedGain(
        options=setting.options,
        text=setting.text,
        gain=predicted(_gain(setting, figures)),
        first_batch_seconds=(figures.first_batch_seconds, setting.first_batch_seconds),
        memory_bytes=setting.memory_bytes,
        disk_bytes=setting.disk_bytes,
        later=setting.later,
    )


def _gain(setting: Setting, figures: MeasuredEpoch) -> Estimate:
    now = figures.seconds
    measured = figures.loader if figures.together is None else figures.together
    relative = Estimate(value=1.0, low=measured.value / measured.high, high=measured.value / measured.low)
    if figures.together is None:
        return _scaled(ratio(relative, setting.seconds), now)
    others = max((seconds for name, seconds in figures.parts.items() if name != "loader"), default=0.0)
    sooner = figures.first_batch_seconds - setting.first_batch_seconds
    lost = max(now - max(figures.parts.values()) - sooner, 0.0)

    def after(loader_seconds: float) -> float:
        return max(others, loader_seconds) + lost

    times = setting.seconds
    changed = Estimate(value=after(times.value), low=after(times.low), high=after(times.high))
    return _scaled(ratio(relative, changed), now)


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(value=estimate.value * factor, low=estimate.low * factor, high=estimate.high * factor)


def first_batch_bytes(streams: int, window_bytes: float, total_bytes: float) -> float:
    """Bytes that must have come before the first batch: a window of each stream.

    >>> first_batch_bytes(4, 10.0, 100.0), first_batch_bytes(16, 10.0, 100.0)
    (40.0, 100.0)
    """
    return min(streams * window_bytes, total_bytes)

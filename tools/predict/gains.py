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
        waiting: share of that time that the step waited for input, measured on the same batches, in [0, 1].
        rest: the rate of the loader's epoch without what limits it, by the part that would limit it then.
        disturbed: share of the time that this program waited for cores that others held, in [0, 1].
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
    disturbed: float = 0.0

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

    @property
    def stall(self) -> float:
        """Share of an epoch of training that the step waits for input, in [0, 1]."""
        return 1 - self.step_seconds / self.seconds

    @property
    def headroom(self) -> float:
        """The input's rate over an epoch / the step's rate."""
        return self.parts["step"] / max(seconds for name, seconds in self.parts.items() if name != "step")


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
    memory_bytes: int = 0
    disk_bytes: int = 0
    later: bool = False


def expected_gain(
    figures: MeasuredEpoch,
    options: Mapping[str, Any],
    text: str,
    *,
    first_batch_seconds: float,
    seconds: Estimate,
    memory_bytes: float = 0,
    disk_bytes: float = 0,
    later: bool = False,
) -> ExpectedGain:
    """What an option brings to an epoch of training; without a step, to one of the loader.

    Args:
        figures: the epoch as measured.
        options, text, memory_bytes, disk_bytes, later: see `ExpectedGain`.
        first_batch_seconds: seconds until the first batch, with the option.
        seconds: seconds of the loader's epoch with it.
    """
    measured, now = figures.together or figures.loader, figures.seconds
    relative = Estimate(value=1.0, low=measured.value / measured.high, high=measured.value / measured.low)
    others = lost = 0.0
    if figures.together is not None:
        others = max((each for name, each in figures.parts.items() if name != "loader"), default=0.0)
        lost = max(now - max(figures.parts.values()) - (figures.first_batch_seconds - first_batch_seconds), 0.0)
    low, value, high = ((max(others, each) + lost) / now for each in (seconds.low, seconds.value, seconds.high))
    gain = predicted(ratio(relative, Estimate(value=value, low=low, high=high)), figures.disturbed)
    first = figures.first_batch_seconds, first_batch_seconds
    return ExpectedGain(
        options=options, text=text, gain=gain, first_batch_seconds=first, memory_bytes=int(memory_bytes),
        disk_bytes=int(disk_bytes), later=later,
    )  # fmt: skip

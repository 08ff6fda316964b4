"""The learning-rate range test: a run whose rate rises until the loss does. Smith, arXiv 1506.01186, section 3.3.

Tested in tests/training/run/test_find_rate.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

__all__ = ["ExponentialRise", "RangeTest", "has_diverged", "judge_rates", "smoothed"]

_DIVERGED = 4.0  # fastai, too, ends the test at this multiple of the lowest loss so far
_DECAY = 0.9  # the moving average then covers about ten steps
_WINDOW = 5  # a slope is fitted over so many steps to either side: between two steps it is noise
_SKIPPED = 0.1  # the averages of this share of the steps, at the start, cover too few losses


class ExponentialRise(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # Keras ships no types
    """A rate that rises by the same factor in each step, from `least` to `greatest`.

    >>> rate = ExponentialRise(least=0.01, greatest=100.0, steps=5)
    >>> [round(float(rate(step)), 4) for step in (0, 2, 4)]
    [0.01, 1.0, 100.0]
    """

    def __init__(self, least: float, greatest: float, steps: int) -> None:
        self.least, self.greatest, self.steps = float(least), float(greatest), int(steps)

    def __call__(self, step: Any) -> Any:
        slope = math.log(self.greatest / self.least) / (self.steps - 1)
        return self.least * keras.ops.exp(keras.ops.cast(step, "float32") * slope)

    def get_config(self) -> dict[str, Any]:
        return {"least": self.least, "greatest": self.greatest, "steps": self.steps}


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTest:
    rates: tuple[float, ...]  # `optimizer.learning_rate` of each step
    losses: tuple[float, ...]  # loss of each step, smoothed, up to where it diverged
    suggestion: float | None  # the rate at which the loss falls most steeply; None if it never falls
    lowest: float  # the rate of the lowest loss


def smoothed(losses: Sequence[float]) -> list[float]:
    """Return the bias-corrected moving average of losses.

    >>> smoothed([2.0, 2.0, 2.0])
    [2.0, 2.0, 2.0]
    """
    average, result = 0.0, []
    for count, loss in enumerate(losses, 1):
        average = _DECAY * average + (1 - _DECAY) * loss
        result.append(round(average / (1 - _DECAY**count), 12))
    return result


def has_diverged(losses: Sequence[float]) -> bool:
    """Whether the last of the smoothed losses is far above the lowest, or not finite."""
    return not math.isfinite(losses[-1]) or losses[-1] > _DIVERGED * min(losses)


def judge_rates(rates: Sequence[float], losses: Sequence[float]) -> RangeTest:
    """Find the steepest fall of a loss, not smoothed, over the logarithm of the rising rates, before it is lowest."""
    means: list[float] = []
    for mean in smoothed(losses):
        means.append(mean)
        if has_diverged(means):
            break
    finite = [mean for mean in means if math.isfinite(mean)]
    best = finite.index(min(finite)) if finite else 0
    first = min(int(len(finite) * _SKIPPED), best)
    width = min(_WINDOW, (best - first) // 2)
    logs = np.log(rates[: best + 1])
    falls = {
        i: float(np.polyfit(logs[i - width : i + width + 1], finite[i - width : i + width + 1], 1)[0])
        for i in range(first + width, best - width + 1)
        if width
    }
    steepest = min(falls, key=falls.__getitem__, default=None)
    return RangeTest(
        rates=tuple(rates[: len(finite)]),
        losses=tuple(finite),
        suggestion=rates[steepest] if steepest is not None and falls[steepest] < 0 else None,
        lowest=rates[best],
    )

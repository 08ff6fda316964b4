"""Rates with intervals: the spread of repeated measurements, carried through ratios. Pure arithmetic.

Tested in tests/tools/verdict/test_verdict.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

_WINDOWS = 10
# Quantiles of Student's t for 95 %, by degrees of freedom; beyond the last one the normal distribution's.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
_NORMAL95 = 1.96
_MOST_HALF = 0.9  # of the mean time
_MODEL_ERROR = 1.25  # factor by which measured gains differed from predictions at most (docs/profiling.md)
_MOST_SPREAD = 3.0  # highest / lowest value of an interval that still says something


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A measured or predicted value, with the interval that holds it in 95 of 100 cases.

    A single measurement has no spread: its interval is the value itself.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.high - self.low < 0.005:
            return f"{self.value:.2f} x"
        return f"{self.value:.2f} x ({self.low:.2f} to {self.high:.2f})"


def window_rates(times: Sequence[float], samples: int) -> tuple[float, ...]:
    """Rates of up to ten windows of equal numbers of calls.

    Args:
        times: when the measurement began, and when each call ended, in seconds.
        samples: samples of a call.

    >>> window_rates([0.0, 1.0, 2.0, 4.0, 6.0], 10)
    (10.0, 10.0, 5.0, 5.0)
    """
    calls = len(times) - 1
    windows = min(_WINDOWS, calls)
    cuts = [round(number * calls / windows) for number in range(windows + 1)] if windows else [0]
    return tuple((stop - start) * samples / max(times[stop] - times[start], 1e-9) for start, stop in pairwise(cuts))


def estimate(value: float, rates: Sequence[float]) -> Estimate:
    """A rate with the t-interval of its mean time, from the rates of equal parts of the measurement.

    >>> print(estimate(2.0, [1.9, 2.1, 2.0, 2.0]))
    2.00 x (1.88 to 2.14)
    """
    if len(rates) < 2:
        return Estimate(value=value, low=value, high=value)
    times = [1 / rate for rate in rates]
    quantile = _T95[len(times) - 2] if len(times) - 2 < len(_T95) else _NORMAL95
    half = quantile * stdev(times) / fmean(times) / math.sqrt(len(times))
    return Estimate(value=value, low=value / (1 + half), high=value / (1 - min(half, _MOST_HALF)))


def ratio(over: Estimate, under: Estimate) -> Estimate:
    """The ratio of two independent estimates; relative errors add as their squares.

    >>> print(ratio(Estimate(value=4.0, low=3.6, high=4.4), Estimate(value=2.0, low=2.0, high=2.0)))
    2.00 x (1.80 to 2.20)
    """
    value = over.value / under.value
    down = math.hypot(math.log(over.value / over.low), math.log(under.high / under.value))
    up = math.hypot(math.log(over.high / over.value), math.log(under.value / under.low))
    return Estimate(value=value, low=value * math.exp(-down), high=value * math.exp(up))


def exactly(value: float) -> Estimate:
    """A value whose spread was not measured.

    >>> print(exactly(2.0))
    2.00 x
    """
    return Estimate(value=value, low=value, high=value)


def around(value: float, like: Estimate) -> Estimate:
    """A value that spreads as another one does.

    >>> print(around(3.0, Estimate(value=1.0, low=0.5, high=2.0)))
    3.00 x (1.50 to 6.00)
    """
    return Estimate(value=value, low=value * like.low / like.value, high=value * like.high / like.value)


def predicted(gain: Estimate, disturbed: float = 0.0) -> Estimate | None:
    """A predicted gain with the errors of the model and of the measurements; None if it says nothing.

    The parts of a prediction are measured one after the other, while what other programs take changes. So the error
    grows by twice the share of the time that this program waited for cores that they held.

    >>> print(predicted(Estimate(value=2.0, low=2.0, high=2.0)))
    2.00 x (1.60 to 2.50)
    >>> predicted(Estimate(value=2.0, low=0.1, high=12.9)) is None
    True
    """
    error = _MODEL_ERROR + 2 * disturbed
    wide = ratio(gain, Estimate(value=1.0, low=1 / error, high=error))
    return wide if wide.high <= _MOST_SPREAD * wide.low else None

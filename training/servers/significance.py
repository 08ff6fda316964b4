"""Holds back updates that would change little: approximate synchronous parallel training.

Hsieh et al., "Gaia", NSDI 2017, section 4: a worker sends what it has accumulated of an entry once that is significant
beside the weight, by a threshold that falls with the square root of the steps. What is accumulated is the update of
SGD, gradient times learning rate; what is sent is the gradient that makes it at the present rate.
Tested in tests/training/servers/test_parameter_server.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Entries = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


class Significance:
    """One worker's accumulated updates; at the first step a change must exceed this share of a weight to be sent.

    >>> worker = Significance(0.1)
    >>> worker.sift(0, 1.0, [np.array([0.5, 0.05], np.float32)], [np.ones(2)])  # indices and values that are sent
    [(array([0]), array([0.5], dtype=float32))]
    >>> worker.sift(0, 1.0, [np.array([0.0, 0.06], np.float32)], [np.ones(2)])[0][0]
    array([1])
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._kept: list[npt.NDArray[np.float32]] = []

    def sift(self, step: int, rate: float, gradients: Sequence[Array], weights: Sequence[Array]) -> list[Entries]:
        """Add gradients to what is held back, and return of each variable the entries to send, flat."""
        if not self._kept:
            self._kept = [np.zeros(g.size, np.float32) for g in gradients]
        threshold = self._threshold / math.sqrt(step + 1)
        sent = []
        for kept, gradient, weight in zip(self._kept, gradients, weights, strict=True):
            kept += rate * gradient.ravel()
            sent.append(_taken(kept, np.abs(kept) > threshold * np.abs(weight.ravel()), rate))
        return sent

    def flush(self, count: int, rate: float) -> list[Entries]:
        """Return all that is held back of each of `count` variables, and hold nothing back any more."""
        if not self._kept:
            return [(np.zeros(0, np.int64), np.zeros(0, np.float32))] * count
        return [_taken(kept, kept != 0, rate) for kept in self._kept]


def _taken(kept: npt.NDArray[np.float32], chosen: npt.NDArray[np.bool_], rate: float) -> Entries:
    """Take the chosen entries, as gradients; at the rate 0 none makes an update."""
    indices = np.flatnonzero(chosen & (rate > 0)).astype(np.int64)
    values = (kept[indices] / np.float32(rate)).astype(np.float32) if len(indices) else np.zeros(0, np.float32)
    kept[indices] = 0
    return indices, values

"""A trace of some steps by TensorFlow's profiler, for TensorBoard's Profile page or XProf.

Tested in tests/training/trackers/test_trackers.py.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .tracker import RunStart, Tracker

__all__ = ["Profiler"]


class Profiler(Tracker):
    """Traces steps of rank 0.

    Args:
        folder: path of a folder on a disk.
        first, stop: the steps, first <= step < stop, counted from 0.
    """

    name = "profile"

    def __init__(self, folder: str, first: int, stop: int) -> None:
        self._folder, self._first, self._stop = folder, first, stop
        self._is_tracing = False

    def begin(self, start: RunStart, state: Any) -> None:
        """Start where the run begins within the steps."""
        self.step(start.first_step)

    def step(self, step: int) -> None:
        """Start before the first of the steps, and stop after the last."""
        if self._is_tracing and step >= self._stop:
            self.close(is_finished=True)
        elif not self._is_tracing and self._first <= step < self._stop:
            tf.profiler.experimental.start(self._folder)
            self._is_tracing = True

    def close(self, *, is_finished: bool) -> None:
        """Write the trace, where the run ends within the steps."""
        if self._is_tracing:
            self._is_tracing = False
            tf.profiler.experimental.stop()

"""A trace of some steps by TensorFlow's profiler, for TensorBoard's Profile page or XProf."""

from __future__ import annotations

import logging

import tensorflow as tf

from .events import RunBegan, RunEnded, StepDone
from .tracker import Tracker

log = logging.getLogger(__name__)


class Profiler(Tracker):
    """Traces the steps first <= step < stop of rank 0, counted from 0, into a folder on a disk."""

    name = "profile"

    def __init__(self, folder: str, first: int, stop: int) -> None:
        self._folder, self._first, self._stop = folder, first, stop
        self._is_tracing = False
        self._is_due = False  # a trace of this process

    def begin(self, event: RunBegan) -> None:
        """Start where the run begins within the steps; warn where it ends before them."""
        self._is_due = event.first_step < self._stop
        if self._first >= event.total_steps:
            self._warn(event.total_steps)
        self._at(event.first_step)

    def _warn(self, end: int) -> None:
        self._is_due = False
        first = min(1, end - 1)  # the first step compiles
        log.warning(
            f"track.profile writes no trace: the run ends after {end} steps, before track.profile_steps="
            f"[{self._first}, {self._stop}]; set track.profile_steps=[{first}, {end}]"
        )

    def step(self, event: StepDone) -> None:
        self._at(event.step)

    def _at(self, step: int) -> None:
        self._done = step
        if self._is_tracing and step >= self._stop:
            self._end()
        elif not self._is_tracing and self._first <= step < self._stop:
            tf.profiler.experimental.start(self._folder)
            self._is_tracing, self._is_due = True, False

    def close(self, event: RunEnded) -> None:
        if self._is_tracing:
            self._end()
        elif self._is_due and event.is_finished:  # early, since evaluations no longer improved
            self._warn(self._done)

    def _end(self) -> None:
        self._is_tracing = False
        tf.profiler.experimental.stop()

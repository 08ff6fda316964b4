"""Copies of a run's state, made between two steps: written on a thread, or kept in memory.

A step then waits only for the copy of the weights. One write is in flight at most: the next one waits for it. Its
errors are raised by whatever is called next.
Tested in tests/training/checkpoint/test_background.py and tests/training/test_launch.py.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from .store import Checkpoint


class BackgroundWriter:
    """Runs one write at a time; any method raises what the last write raised, once."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._write: Future[object] | None = None

    def save(self, write: Callable[[Checkpoint], object], checkpoint: Checkpoint) -> None:
        """Copy a checkpoint, whose arrays may change afterwards, and write the copy while the caller goes on."""
        self.wait()
        # One thread for all writes: malloc gives each new thread another arena, and every one of them would grow to
        # what a write takes.
        self._pool = self._pool or ThreadPoolExecutor(1, "ringfeed-checkpoint")
        self._write = self._pool.submit(write, _copied(checkpoint))

    def check(self) -> None:
        """Raise the error of a write that has ended; wait for none."""
        if self._write is not None and self._write.done():
            self.wait()

    def wait(self) -> None:
        write, self._write = self._write, None
        if write is not None:
            write.result()

    def join(self) -> None:
        """Wait for the write in flight, and end the thread.

        An error of the write is left to the next call, as another error may end the run.
        """
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class Memory:
    """The newest commit of this process, if any: the state of a run to resume from when another rank dies."""

    def __init__(self) -> None:
        self.newest: Checkpoint | None = None

    @property
    def step(self) -> int:
        """The step of the newest commit; -1 before the first."""
        return -1 if self.newest is None else self.newest.step

    def keep(self, commit: Checkpoint) -> None:
        """Keep a copy of a commit, in place of the one before."""
        self.newest = _copied(commit)


def _copied(checkpoint: Checkpoint) -> Checkpoint:
    return replace(checkpoint, arrays={name: np.array(array) for name, array in checkpoint.arrays.items()})

"""Writes checkpoints on a thread, so that a step waits only for the copy of the weights.

One write is in flight at most: the next one waits for it. Its errors are raised by whatever is called next.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

import numpy as np

from .store import Checkpoint

__all__ = ["BackgroundWriter"]


class BackgroundWriter:
    """Runs one write at a time.

    Raises:
        Exception: from any method, what the last write raised; once.
    """

    def __init__(self) -> None:
        # One thread for all writes: malloc gives each new thread another arena, and every one of them would grow to
        # what a write takes.
        self._pool = ThreadPoolExecutor(1, "ringfeed-checkpoint")
        self._write: Future[object] | None = None

    def save(self, write: Callable[[Checkpoint], object], checkpoint: Checkpoint) -> None:
        """Copy a checkpoint, and write the copy while the caller goes on.

        Args:
            write: writes a checkpoint, such as `CheckpointStore.save`.
            checkpoint: the checkpoint, whose arrays may change afterwards.
        """
        self.wait()
        arrays = {name: np.array(array) for name, array in checkpoint.arrays.items()}
        self._write = self._pool.submit(write, replace(checkpoint, arrays=arrays))

    def check(self) -> None:
        """Raise the error of a write that has ended; wait for none."""
        if self._write is not None and self._write.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the write in flight."""
        write, self._write = self._write, None
        if write is not None:
            write.result()

    def join(self) -> None:
        """Wait for the write in flight, and leave its error to the next call, as where another error ends the run."""
        if self._write is not None:
            wait([self._write])

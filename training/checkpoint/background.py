"""Writes checkpoints on a thread, so that a step waits only for the copy of the weights.

One write is in flight at most: the next one waits for it. Its errors are raised by whatever is called next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Thread

import numpy as np

from .store import Checkpoint

__all__ = ["BackgroundWriter"]


class BackgroundWriter:
    """Runs one write at a time.

    Raises:
        Exception: from any method, what the last write raised; once.
    """

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def save(self, write: Callable[[Checkpoint], object], checkpoint: Checkpoint) -> None:
        """Copy a checkpoint, and write the copy while the caller goes on.

        Args:
            write: writes a checkpoint, such as `CheckpointStore.save`.
            checkpoint: the checkpoint, whose arrays may change afterwards.
        """
        self.wait()
        arrays = {name: np.array(array) for name, array in checkpoint.arrays.items()}
        copy = replace(checkpoint, arrays=arrays)
        self._thread = Thread(target=self._run, args=(write, copy), name="ringfeed-checkpoint")
        self._thread.start()

    def _run(self, write: Callable[[Checkpoint], object], checkpoint: Checkpoint) -> None:
        try:
            write(checkpoint)
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        """Raise the error of a write that has ended; wait for none."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait for the write in flight."""
        self.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def join(self) -> None:
        """Wait for the write in flight, and leave its error to the next call, as where another error ends the run."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

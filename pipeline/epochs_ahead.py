"""Epochs read one at a time, from one reading that begins each of them before the last one ends.

Tested in tests/pipeline/test_epochs_ahead.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any


class EpochsAhead:
    """The batches of one epoch after another, as long as they are asked for in order.

    Any other epoch, or an epoch that was not taken to its end, makes it start a new reading.
    """

    def __init__(self) -> None:
        self._place: tuple[object, int, int] | None = None  # source, epoch and step where the reading continues
        self._reading: Generator[Any, None, None] | None = None
        self._process = os.getpid()  # a fork has none of the reading's threads

    def __reduce__(self) -> tuple[Any, ...]:
        return EpochsAhead, ()  # another process has a reading of its own

    def epoch(
        self,
        read: Callable[..., Generator[Any, None, None]],
        source: object,
        epoch: int,
        start_step: int,
        *,
        steps_per_epoch: int,
        stop_epoch: int,
    ) -> Iterator[Any]:
        """Yield the batches of an epoch from a step on.

        Args:
            read: starts a reading from there on, of the number of epochs in its argument `epochs`.
            source: what is read; a reading continues with the same object alone.
            epoch: number of the epoch.
            start_step: its first step.
            steps_per_epoch: steps of an epoch.
            stop_epoch: the epoch to stop reading ahead before.
        """
        if (self._process, self._place) != (os.getpid(), (source, epoch, start_step)):
            self.close()
            self._process, self._reading = os.getpid(), read(epochs=max(stop_epoch - epoch, 1))
        assert self._reading is not None
        reading, self._place = self._reading, None
        yield from islice(reading, steps_per_epoch - start_step)
        if reading is not self._reading:  # another epoch has begun in the meantime
            return
        if epoch + 1 < stop_epoch:
            self._place = source, epoch + 1, 0
        else:
            self.close()

    def close(self) -> None:
        """End the reading."""
        if self._reading is not None:
            self._reading.close()
        self._reading = self._place = None

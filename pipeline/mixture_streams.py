"""The streams of a mixture: which sample of which dataset fills each seat.

Tested in tests/pipeline/test_mixture.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from .decode.columns import Columns, concat_columns, copy_columns
from .order.class_balance import ClassSchedule
from .order.epoch_order import StreamSlice
from .streams.stream_reader import OpenStreams, StreamReader

__all__ = ["DatasetStream", "MixtureStream"]

Int64 = npt.NDArray[np.int64]


class DatasetStream:
    """One stream of one dataset, read epoch after epoch.

    Args:
        opened: the dataset's streams.
        stream: number of the stream; each step takes one sample of it.
        length: samples of the stream in an epoch.
    """

    def __init__(self, opened: OpenStreams, stream: int, length: int) -> None:
        self._opened = opened
        self._part = StreamSlice(stream=stream, start=0, stop=1)
        self._length = length
        self._epoch = -1
        self._reader: StreamReader | None = None

    def take(self, numbers: Int64) -> Columns:
        """The samples with these numbers, which count on from epoch to epoch.

        Args:
            numbers: ascending, and above those of the last call.
        """
        parts: list[Columns] = []
        while len(numbers):
            if parts:
                parts[-1] = copy_columns(parts[-1])
            epoch, position = divmod(int(numbers[0]), self._length)
            if self._reader is None or epoch != self._epoch:
                if self._reader is not None:
                    self._reader.close()
                self._epoch, self._reader = epoch, self._opened.reader(epoch, self._part, position, scattered=True)
            until = int(np.searchsorted(numbers, (epoch + 1) * self._length))
            parts.append(self._reader.at(numbers[:until] - epoch * self._length))
            numbers = numbers[until:]
        return concat_columns(parts)


class MixtureStream:
    """One stream of a mixture: which sample of which dataset fills each of its seats.

    Args:
        schedule: the dataset of each seat.
        part: the stream, and which samples of each of its pieces this rank takes.
        piece: samples of the stream in a step.
        served: samples of each dataset that the stream has served so far, int64 [datasets].
        sources: the same stream of each dataset.

    Attributes:
        width: samples in a step.
        sources: as given.
    """

    def __init__(
        self, schedule: ClassSchedule, part: StreamSlice, piece: int, served: Int64, sources: Sequence[DatasetStream]
    ) -> None:
        self._schedule = schedule
        self._positions = range(part.stream * piece, (part.stream + 1) * piece)
        self._offsets = part.offsets()
        self._served = served.copy()
        self.width = part.width
        self.sources = sources

    def seats(self, steps: Int64) -> Iterator[tuple[Int64, Int64]]:
        """The samples that this rank takes in the next steps.

        Args:
            steps: numbers of steps, which follow those of the last call.

        Yields:
            For each dataset, the numbers of its samples in its own stream, and the seats they fill among this rank's,
            step after step. Both ascend.
        """
        datasets = self._schedule.classes_at(steps, self._positions)
        for number in range(len(self.sources)):
            taken = datasets == number
            samples = self._served[number] + np.cumsum(taken).reshape(taken.shape) - 1
            self._served[number] += np.count_nonzero(taken)
            own = taken[:, self._offsets]
            yield samples[:, self._offsets][own], np.flatnonzero(own)

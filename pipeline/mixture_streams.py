"""The samples of one dataset of a mixture that this rank serves: which they are, and reading them.

Tested in tests/pipeline/test_mixture.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .decode.columns import Columns, copy_columns
from .order.epoch_order import StreamSlice
from .order.passes import Draws
from .streams.stream_reader import OpenStreams, StreamReader

Int64 = npt.NDArray[np.int64]


class _Drawer(Protocol):
    def draw(self, seats: npt.NDArray[np.bool_], columns: Int64) -> Draws:
        """See `EpochDraws.draw`."""


class DatasetReader:
    """One dataset, read pass after pass.

    Args:
        opened: the dataset's streams.
        drawer: which record each seat serves.
    """

    def __init__(self, opened: OpenStreams, drawer: _Drawer) -> None:
        self._opened, self._drawer = opened, drawer
        self._pass = -1
        self._readers: dict[int, StreamReader] = {}  # by part

    def take(self, seats: npt.NDArray[np.bool_], columns: Int64) -> Iterator[tuple[Columns, Int64]]:
        """Read the samples of some columns of the next global batches.

        Args:
            seats: which seats of these batches are the dataset's, [steps, batch].
            columns: positions in the batch, ascending.

        Yields:
            Samples, and the number of each among the dataset's seats in these columns, step after step.
        """
        draws = self._drawer.draw(seats, columns)
        order = np.lexsort((draws.parts, draws.passes))  # stable: positions ascend in each part
        passes, parts = draws.passes[order], draws.parts[order]
        cuts = np.flatnonzero((np.diff(passes) != 0) | (np.diff(parts) != 0)) + 1
        for run in np.split(order, cuts) if len(order) else ():
            number, part = int(draws.passes[run[0]]), int(draws.parts[run[0]])
            rows = self._reader(number, part, int(draws.positions[run[0]])).at(draws.positions[run])
            yield copy_columns(rows) if number < passes[-1] else rows, run  # a copy lets go of the window

    def _reader(self, number: int, part: int, position: int) -> StreamReader:
        """The reader of a part in a pass; closes the readers of earlier passes."""
        if number != self._pass:
            for reader in self._readers.values():
                reader.close()
            self._pass, self._readers = number, {}
        if part not in self._readers:
            whole = StreamSlice(stream=part, start=0, stop=1)  # each of its steps takes one sample
            self._readers[part] = self._opened.reader(number, whole, position, scattered=True)
        return self._readers[part]

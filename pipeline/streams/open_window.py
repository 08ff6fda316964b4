"""A window in memory: its records, and the record that serves each of its positions.

Tested in tests/pipeline/test_loader.py and tests/pipeline/test_mixture.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from ringfeed.pipeline.decode.columns import Column, Columns, slice_columns, take_from_segments
from ringfeed.pipeline.decode.row_views import has_viewable_rows
from ringfeed.pipeline.decode.shard_opener import OpenShard
from ringfeed.pipeline.order.windows import Positions
from ringfeed.pipeline.select.sample_columns import CLASS_ID

from .row_picks import ArrayPicks, Picks


@dataclass(frozen=True, kw_only=True)
class OpenWindow:
    """A window in memory.

    Records are numbered through the segments. The window keeps the shards that it requested, so that another stream
    that needs one of them finds it in memory.
    """

    shards: Sequence[Future[OpenShard]]
    segments: Sequence[Columns]  # columns of each segment
    starts: Sequence[int]  # number of the first record of each segment
    picks: Picks  # record of each position
    gathered: Columns  # columns whose rows are already in the order of positions, from `first` on; may be empty
    first: int  # position of the first row of `gathered`

    def take(self, positions: Positions) -> dict[str, Column]:
        """Return the samples at ascending positions. Each call continues the last."""
        if not self.gathered or not isinstance(positions, range):
            return take_from_segments(self.segments, self.starts, self.picks.at(positions))
        columns = slice_columns(self.gathered, positions.start - self.first, positions.stop - self.first)
        others = [{name: segment[name] for name in segment if name not in columns} for segment in self.segments]
        if others[0]:
            columns |= take_from_segments(others, self.starts, self.picks.at(positions))
        return {name: columns[name] for name in self.segments[0]}


def assemble_window(
    shards: Sequence[Future[OpenShard]], segments: Sequence[Columns], picks: Picks, *, contiguous: bool
) -> OpenWindow:
    """Make a window of its segments and picks.

    Args:
        shards: shards of the segments, kept in memory with the window.
        segments: columns of each segment.
        picks: record of each position.
        contiguous: whether all positions will be read, as ranges; columns that gain by it are gathered in advance.
    """
    ends = np.cumsum([len(segment[CLASS_ID]) for segment in segments])
    starts = [0, *ends[:-1].tolist()]
    gathered, first = {}, 0
    if contiguous and isinstance(picks, ArrayPicks):
        gathered = take_from_segments([_columns_to_gather(segment) for segment in segments], starts, picks.rows)
        first = picks.first
    return OpenWindow(shards=shards, segments=segments, starts=starts, picks=picks, gathered=gathered, first=first)


def _columns_to_gather(segment: Columns) -> Columns:
    """Return the columns worth gathering for a whole window at once: numbers, and the locations of larger values.

    Gathered a few thousand rows at a time, they would have left the processor's cache between two calls.
    """
    return {
        name: values
        for name, values in segment.items()
        if has_viewable_rows(values) or (isinstance(values, np.ndarray) and values.ndim == 1)
    }

"""Records that shards have lent to windows without their class, kept for the next window that lacks it.

A class with fewer records than there are windows is lacked by many of them, which mostly borrow of the same shards: to
fetch a whole shard each time, for a few of its records, would read most of the dataset again.
"""

from __future__ import annotations

from collections import OrderedDict

import pyarrow as pa

from .columns import Column, Columns, compacted, views_of

__all__ = ["LentRecords"]

_LIMIT_BYTES = 32 << 20
_LARGEST_SHARE = 4  # of the room, that the records of one class in one shard may take


class LentRecords:
    """The records of a class in a shard, as long as there is room. For one thread at a time.

    Args:
        limit_bytes: of them all; those that were not asked for longest make room.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._held: OrderedDict[tuple[int, int], Columns] = OrderedDict()
        self._held_bytes = 0

    def get(self, shard: int, class_id: int) -> Columns | None:
        """The records of a class in a shard; None if they are not kept."""
        columns = self._held.get((shard, class_id))
        if columns is not None:
            self._held.move_to_end((shard, class_id))
        return columns

    def keep(self, shard: int, class_id: int, columns: Columns) -> Columns:
        """The columns, which were taken from their shard; what is kept holds nothing else of it."""
        if sum(map(_bytes_of, columns.values())) > self._limit_bytes // _LARGEST_SHARE:
            return columns
        own = compacted(columns)
        self._held[shard, class_id] = own
        self._held_bytes += sum(map(_bytes_of, own.values()))
        while self._held_bytes > self._limit_bytes:
            self._held_bytes -= sum(map(_bytes_of, self._held.popitem(last=False)[1].values()))
        return own


def _bytes_of(values: Column) -> int:
    if isinstance(values, pa.Array) and pa.types.is_binary_view(values.type):  # whose own answer is that of the shard
        views = views_of(values)
        return views.nbytes + int(views["length"].sum())
    return int(values.nbytes)

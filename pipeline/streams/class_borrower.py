"""Borrow records of classes that a window lacks from the shards of other windows.

Tested in tests/pipeline/streams/test_borrowed_records.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ringfeed.pipeline.decode.columns import Columns, concat_columns, take_columns
from ringfeed.pipeline.decode.shard_opener import OpenShard
from ringfeed.pipeline.order.class_balance import ClassSchedule
from ringfeed.pipeline.order.epoch_order import EpochOrder
from ringfeed.pipeline.order.missing_classes import first_shards_with
from ringfeed.pipeline.order.windows import Window
from ringfeed.pipeline.select.sample_columns import CLASS_ID
from ringfeed.sharding.compute.grouping import group, stable_order

from .stream_context import StreamContext

Int64 = npt.NDArray[np.int64]


class ClassBorrower:
    """Borrows records of classes that a window lacks. For one thread at a time.

    Args:
        order: order of the epoch.
        schedule: classes of the epoch.
        context: shards, threads and counters of the streams.
    """

    def __init__(self, order: EpochOrder, schedule: ClassSchedule, context: StreamContext) -> None:
        self._order = order
        self._schedule = schedule
        self._class_counts = context.class_counts
        self._fetcher = context.fetcher
        self._counters = context.counters

    def borrow(self, window: Window, lacking: Int64) -> Columns:
        """Return the records that other shards lend, class after class.

        Args:
            window: window that lacks classes.
            lacking: the classes, ascending.

        Raises:
            CorruptionError: all shards with records of a class are in quarantine, or one is damaged.
            StorageError: the store refuses access.
        """
        borrowed = self._fetcher.borrowed
        with self._counters.busy("plan"):
            donors = self._donors(window, lacking)
            kept = borrowed.get(donors, lacking)
            pieces = [] if kept is None else [kept]
            if kept is not None:
                missing = ~np.isin(lacking, kept[CLASS_ID])
                lacking, donors = lacking[missing], donors[missing]
        while lacking.size:
            requests = [
                (shard, lacking[own], self._fetcher.request(self._fetcher.whole(shard))) for shard, own in group(donors)
            ]
            unread: list[Int64] = []
            for shard, classes, future in requests:
                opened = self._fetcher.wait_unless_bad(shard, future)  # waits for the store: not planning time
                if opened is None:
                    unread.append(classes)
                    continue
                with self._counters.busy("plan"):
                    rows = _rows_to_lend(opened.class_ids, classes, self._lent_later(shard))
                    pieces.append(borrowed.keep(shard, labelled_columns(opened), *rows))
            if not unread:
                break
            lacking = np.sort(np.concatenate(unread))
            donors = self._donors(window, lacking)
        with self._counters.busy("plan"):
            records = concat_columns(pieces)
            return take_columns(records, stable_order(records[CLASS_ID]))

    def _donors(self, window: Window, classes: Int64) -> Int64:
        """Return for each class the next shard after the window that has it and is not known to be damaged."""
        counts, quarantine = self._class_counts(), self._fetcher.quarantine
        following = self._order.shards_after(window.segments[-1].shard, window.stream)
        donors = first_shards_with(counts, quarantine.readable_shards(following), classes)
        for class_id in classes[donors < 0].tolist():
            quarantine.readable_counts(counts[:, class_id])  # raises: all shards of the class are damaged
        return donors

    def _lent_later(self, shard: int) -> npt.NDArray[np.bool_]:
        """Return which classes later windows may borrow from a shard: those that a neighbour on the tape lacks."""
        nearest: npt.NDArray[np.bool_] = (self._class_counts()[self._order.neighbours(shard)] == 0).any(axis=0)
        return nearest & (self._schedule.weights > 0)


def labelled_columns(shard: OpenShard) -> Columns:
    """Return the columns of a shard with its class ids."""
    return {**shard.columns, CLASS_ID: shard.class_ids}


def _rows_to_lend(class_ids: npt.NDArray[np.int32], wanted: Int64, later: npt.NDArray[np.bool_]) -> tuple[Int64, Int64]:
    """Return the rows of a shard to lend now, and those that may be lent later; each class after class.

    Args:
        class_ids: class of each record.
        wanted: classes to lend now.
        later: whether each class may be lent later, [classes].
    """
    now = np.zeros(len(later), np.bool_)
    now[wanted] = True
    chosen = (np.flatnonzero(classes[class_ids]) for classes in (now, later & ~now))
    first, second = (rows[stable_order(class_ids[rows])] for rows in chosen)
    return first, second

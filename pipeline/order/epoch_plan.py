"""Describe an epoch before a shard is opened: pure functions of the manifest and the options.

Tested in tests/pipeline/test_loader.py and tests/pipeline/test_guarantees.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringfeed.sharding.dataset.manifest import ShardInfo

from .class_balance import ClassSchedule
from .epoch_order import EpochOrder
from .missing_classes import MissingClass, SplitContents, choose_donors, find_missing_classes
from .plan_table import MixRow, PlanTable, mix_rows, share_bars
from .remainder import RecordRange, dropped_ranges, wrapped_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMix:
    """One class in an epoch.

    Attributes:
        records: records of the class in the split.
        samples: samples of the class in the epoch; in natural order with a dropped or wrapped remainder, the expected
            number.
        per_batch: fewest and most samples in a global batch; in natural order, the expected mean, twice.
        repeats: samples / records; above 1, records come more than once.

    >>> from ringfeed.pipeline import Loader
    >>> mix = Loader("flights", batch_size=64, balance="uniform").plan().class_mix["late"]
    >>> mix.records, mix.per_batch
    (40, (32.0, 32.0))
    """

    records: int
    samples: float
    per_batch: tuple[float, float]
    repeats: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterPlan:
    """The records that pass a filter, and the cost of counting them.

    Attributes:
        where: filter expression.
        records: records of the split.
        kept: records that pass.
        shards: shards of the split.
        shards_kept: shards with a record that passes; no other shard is opened.
        row_groups: row groups of Parquet shards; 0 for a filter on the label alone, which reads none.
        row_groups_skipped: row groups that their statistics rule out.
        bytes_read: bytes read to count.
        bytes_skipped: bytes of the filter's columns in skipped row groups.

    >>> from ringfeed.pipeline import Loader
    >>> found = Loader("flights", batch_size=8, where="miles > 2000").plan().row_filter
    >>> found.records, found.kept
    (320, 57)
    """

    where: str
    records: int
    kept: int
    shards: int
    shards_kept: int
    row_groups: int
    row_groups_skipped: int
    bytes_read: int
    bytes_skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderPlan:
    """One epoch, for all ranks.

    Attributes:
        epoch: number of the epoch.
        steps: steps of every rank, which is the number of global batches.
        batch_size: size of the global batch.
        streams: number of streams.
        dropped: records that no batch of the epoch holds. With a balance 0: classes come as often as their shares ask
            for, and no record is left over.
        padded: samples of weight 0 in the global batches.
        class_mix: mix of each class, by its value.
        bytes_per_rank: bytes of the files that each rank reads in the epoch, each file once. A TFRecord shard that a
            cut divides counts in part, as if all records had one size; others count whole. Of Parquet a rank may read
            less, above all if `columns` names few of many; only the footers tell how much. Without a cache, a file
            that lends a class may be fetched again for its own window.
        missing: classes that windows lack.
        wrapped: repeated samples that fill up the last batch.
        filled: samples of weight 0 beside the global batches, on ranks with one sample less than others.
        dropped_records: the dropped records.
        wrapped_records: the repeated records.
        row_filter: what `where` lets through. All other attributes count only these records, except the bytes.
        quarantined: shards that are not read. Other records stand in for theirs, which `class_mix` still counts.

    >>> from ringfeed.pipeline import Loader
    >>> plan = Loader("flights", batch_size=64).plan()
    >>> plan.steps, plan.dropped
    (5, 0)
    """

    epoch: int
    steps: int
    batch_size: int
    streams: int
    dropped: int
    padded: int
    class_mix: dict[Any, ClassMix]
    bytes_per_rank: tuple[int, ...]
    missing: tuple[MissingClass, ...]
    wrapped: int
    filled: int
    dropped_records: tuple[RecordRange, ...]
    wrapped_records: tuple[RecordRange, ...]
    row_filter: FilterPlan | None = None
    quarantined: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self._table())

    def _repr_html_(self) -> str:
        return self._table().html() + (share_bars(self._mix(), "class") if self.class_mix else "")

    def _mix(self) -> list[MixRow]:
        return [(str(value), m.records, m.samples, m.per_batch, m.repeats) for value, m in self.class_mix.items()]

    def _table(self) -> PlanTable:
        least, most = min(self.bytes_per_rank), max(self.bytes_per_rank)
        read = f"{most:,}" if least == most else f"{least:,} to {most:,}"
        counts = {
            "records dropped": self.dropped,
            "samples of padding": self.padded,
            "samples repeated to fill the last batch": self.wrapped,
            "samples of weight 0 beside the global batches": self.filled,
            "times a window borrows a class": len(self.missing),
            "shards in quarantine": len(self.quarantined),
        }
        lines = [
            f"epoch {self.epoch}: {self.steps:,} steps of {self.batch_size:,} samples, streams: {self.streams}",
            f"ranks: {len(self.bytes_per_rank)}, bytes that each reads: {read}",
            *(f"{name}: {count:,}" for name, count in counts.items() if count),
        ]
        if self.row_filter is not None:
            passed = self.row_filter
            lines.append(f"records where {passed.where}: {passed.kept:,} of {passed.records:,}")
        return PlanTable(lines, ["class", "records", "samples", "per batch", "repeats"], mix_rows(self._mix()))


def plan_epoch(
    order: EpochOrder, schedule: ClassSchedule | None, split: SplitContents, world_size: int, *, in_parts: bool = False
) -> LoaderPlan:
    """Plan one epoch.

    Args:
        schedule: classes of the epoch; None for the natural mix.
        split: shards and classes of the split.
        world_size: number of ranks.
        in_parts: whether a shard that a cut divides is read in part.
    """
    geometry = order.geometry
    missing, lent = ([], []) if schedule is None else find_missing_classes(order, schedule, split)
    lent += _substitutes(order, split.shards)
    return LoaderPlan(
        epoch=order.epoch,
        steps=geometry.steps,
        batch_size=geometry.batch_size,
        streams=geometry.streams,
        dropped=geometry.dropped if schedule is None else 0,
        padded=geometry.padded,
        class_mix=_class_mix(order, schedule, split),
        bytes_per_rank=_bytes_per_rank(order, split.shards, world_size, lent, in_parts=in_parts),
        missing=tuple(missing),
        wrapped=geometry.wrapped,
        filled=geometry.steps * (geometry.local_batch(world_size) * world_size - geometry.batch_size),
        dropped_records=dropped_ranges(order, split.shards) if schedule is None else (),
        wrapped_records=wrapped_ranges(order, split.shards),
    )


def _class_mix(order: EpochOrder, schedule: ClassSchedule | None, split: SplitContents) -> dict[Any, ClassMix]:
    geometry = order.geometry
    records = np.asarray(split.class_counts, np.int64)
    if schedule is None:
        served = geometry.records - geometry.dropped + geometry.wrapped
        samples = records / records.sum() * served
        bounds = np.stack([samples, samples]) / geometry.steps
    else:
        seats, fewest, most = schedule.seats_of_epoch()
        samples = seats.astype(np.float64)
        bounds = np.stack([fewest, most]).astype(np.float64)
    return {
        value: ClassMix(
            records=int(records[i]),
            samples=float(samples[i]),
            per_batch=(float(bounds[0, i]), float(bounds[1, i])),
            repeats=float(samples[i] / records[i]) if records[i] else 0.0,
        )
        for i, value in enumerate(split.classes)
    }


def _bytes_per_rank(
    order: EpochOrder, shards: Sequence[ShardInfo], world_size: int, lent: Sequence[tuple[int, int]], *, in_parts: bool
) -> tuple[int, ...]:
    """Return the bytes that each rank reads; `lent` has the (stream, shard) pairs that are read whole in addition."""
    geometry = order.geometry
    segments = [order.windows(stream).served_segments for stream in range(geometry.streams)]
    data, index, records = (
        np.array([getattr(shard, name) for shard in shards]) for name in ("bytes", "index_bytes", "records")
    )
    totals = []
    for rank in range(world_size):
        streams = [part.stream for part in geometry.rank_slices(rank, world_size)]
        read = np.zeros(len(shards), np.int64)  # records of each shard
        for stream in streams:
            np.add.at(read, segments[stream].shards, segments[stream].lengths)
        needed = read > 0
        read = np.minimum(read, records) if in_parts else records * needed
        whole = np.unique([shard for stream, shard in lent if stream in streams]).astype(np.int64)
        read[whole], needed[whole] = records[whole], True
        totals.append(int((data * (read / np.maximum(records, 1)) + index * needed).sum()))
    return tuple(totals)


def _substitutes(order: EpochOrder, shards: Sequence[ShardInfo]) -> list[tuple[int, int]]:
    """Return the (stream, shard) pairs that windows read because quarantine costs them most of their records.

    See `WindowOpener`.
    """
    readable = np.array([shard.bytes > 0 for shard in shards])
    pairs: list[tuple[int, int]] = []
    if readable.all():
        return pairs
    records = np.asarray(order.shard_records, np.int64) * readable
    for stream in range(order.geometry.streams):
        windows = order.windows(stream)
        segments, starts = windows.segments, windows.bounds[:-1]
        lost = np.add.reduceat(segments.lengths * ~readable[segments.shards], starts)
        short = windows.served & (2 * lost > np.add.reduceat(segments.lengths, starts))
        last = segments.shards[windows.bounds[1:] - 1]
        lenders = choose_donors(order, np.full(np.count_nonzero(short), stream), last[short], records)
        pairs += [(stream, int(shard)) for shard in lenders]
    return pairs

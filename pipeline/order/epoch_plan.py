"""What an epoch will be like, told before a shard is opened: pure functions of the manifest and the options."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...sharding.compute.class_counts import count_matrix
from ...sharding.compute.grouping import group
from ...sharding.dataset.manifest import ShardInfo
from .class_balance import ClassSchedule
from .donor_shards import choose_donors
from .epoch_order import EpochOrder
from .remainder import RecordRange, dropped_ranges, wrapped_ranges
from .windows import StreamWindows, Window

__all__ = ["ClassMix", "FilterPlan", "LoaderPlan", "MissingClass", "plan_epoch"]

_AT_ONCE = 256  # windows, of whose classes a matrix is made


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMix:
    """One class in an epoch.

    Attributes:
        records: of the class in the split.
        samples: of the class in the epoch (an expectation in natural order, where a remainder is dropped or
            wrapped).
        per_batch: the fewest and the most in a global batch; in natural order, the mean expected of an epoch, twice.
        repeats: samples / records: above 1, records come more than once.
    """

    records: int
    samples: float
    per_batch: tuple[float, float]
    repeats: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingClass:
    """A window without a record of a class that its batches need: the class is borrowed from another shard.

    Attributes:
        stream: in ``[0, streams)``.
        window: of the stream, from 0, in the order of the epoch.
        class_value: that is missing.
        donor: path of the shard that it is borrowed from.
    """

    stream: int
    window: int
    class_value: Any
    donor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderPlan:
    """One epoch, for all ranks.

    Attributes:
        epoch: its number.
        steps: global batches; every rank makes so many.
        batch_size: of the global batch.
        streams: canonical streams.
        dropped: records that no batch of the epoch holds; with a balance 0, for there classes come as often as their
            shares ask for, and nothing is left over.
        padded: samples of weight 0 in the global batches.
        class_mix: by class value.
        bytes_per_rank: of the files each rank reads in the epoch, each once. Of a TFRecord shard that a cut divides,
            the part that is read counts, as if all records were of one size; of others the whole. Of Parquet less
            may be read, where few `columns` are wanted above all, but how much their footers alone tell. Without a
            cache a file that lends a class may be fetched again for its own window.
        missing: classes that windows lack.
        wrapped: samples that fill up the last batch, of records that the epoch began with.
        filled: samples of weight 0 beside the global batches, on ranks whose share is smaller than that of others.
        dropped_records: which they are.
        wrapped_records: which they are.
        row_filter: what `where` lets through; all else here is of these records alone, but for the bytes.
        quarantined: shards that are not read; others' records stand in for theirs, which `class_mix` counts still.
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


def plan_epoch(
    order: EpochOrder,
    schedule: ClassSchedule | None,
    shards: Sequence[ShardInfo],
    classes: Sequence[Any],
    class_totals: Sequence[int],
    world_size: int,
    class_ids: Callable[[int], npt.NDArray[np.int32]],
    *,
    in_parts: bool = False,
) -> LoaderPlan:
    """Plan one epoch.

    Args:
        order: of the epoch.
        schedule: of classes, or None for the natural mix.
        shards: of the split.
        classes: values of the label.
        class_totals: records of each in the split.
        world_size: ranks.
        class_ids: reads a shard's index; called only for shards that a stream's cut divides, and only where the
            manifest cannot tell whether a class lies in the piece.
        in_parts: whether of a shard that a cut divides only a part is read.
    """
    geometry = order.geometry
    missing, donors = _find_missing(order, schedule, shards, classes, class_ids)
    donors += _stand_ins(order, shards)
    return LoaderPlan(
        epoch=order.epoch,
        steps=geometry.steps,
        batch_size=geometry.batch_size,
        streams=geometry.streams,
        dropped=geometry.dropped if schedule is None else 0,
        padded=geometry.padded,
        class_mix=_mix(order, schedule, classes, np.asarray(class_totals, np.int64)),
        bytes_per_rank=_bytes_per_rank(order, shards, world_size, donors, in_parts=in_parts),
        missing=tuple(missing),
        wrapped=geometry.wrapped,
        filled=geometry.steps * (geometry.local_batch(world_size) * world_size - geometry.batch_size),
        dropped_records=dropped_ranges(order, shards) if schedule is None else (),
        wrapped_records=wrapped_ranges(order, shards),
    )


def _mix(
    order: EpochOrder, schedule: ClassSchedule | None, classes: Sequence[Any], records: npt.NDArray[np.int64]
) -> dict[Any, ClassMix]:
    geometry = order.geometry
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
        for i, value in enumerate(classes)
    }


def _bytes_per_rank(
    order: EpochOrder,
    shards: Sequence[ShardInfo],
    world_size: int,
    donors: Sequence[tuple[int, int]],
    *,
    in_parts: bool,
) -> tuple[int, ...]:
    geometry = order.geometry
    windows = list(map(order.windows, range(geometry.streams)))
    data, index, records = (
        np.array([getattr(shard, name) for shard in shards]) for name in ("bytes", "index_bytes", "records")
    )
    totals = []
    for rank in range(world_size):
        streams = [part.stream for part in geometry.rank_slices(rank, world_size)]
        read = np.zeros(len(shards), np.int64)  # records of each shard
        for stream in streams:
            own = windows[stream].served_segments
            np.add.at(read, windows[stream].shards[own], windows[stream].lengths[own])
        needed = read > 0
        read = np.minimum(read, records) if in_parts else records * needed
        lent = np.unique([shard for stream, shard in donors if stream in streams]).astype(np.int64)
        read[lent], needed[lent] = records[lent], True
        totals.append(int((data * (read / np.maximum(records, 1)) + index * needed).sum()))
    return tuple(totals)


def _find_missing(
    order: EpochOrder,
    schedule: ClassSchedule | None,
    shards: Sequence[ShardInfo],
    classes: Sequence[Any],
    class_ids: Callable[[int], npt.NDArray[np.int32]],
) -> tuple[list[MissingClass], list[tuple[int, int]]]:
    """Windows that lack a class they need, and the (stream, shard) pairs that lend it."""
    if schedule is None:
        return [], []
    counts = count_matrix([shard.class_counts for shard in shards])
    streams = list(map(order.windows, range(order.geometry.streams)))
    class_ids = functools.lru_cache(maxsize=2)(class_ids)
    lacking = [
        (stream, window.number, window.segments[-1].shard, _lacking(window, doubtful, counts, class_ids))
        for stream, windows in enumerate(streams)
        for window, doubtful in _doubtful(windows, schedule.weights > 0, counts, order.shard_records)
    ]
    if not lacking:
        return [], []
    of_class = np.concatenate([entry[-1] for entry in lacking])
    places = np.array([entry[:3] for entry in lacking]).repeat([len(entry[-1]) for entry in lacking], axis=0)
    donors = np.empty(len(of_class), np.int64)
    for class_id, own in group(of_class):
        donors[own] = choose_donors(order, places[own, 0], places[own, 2], counts[:, class_id])
    paths = [shard.path for shard in shards]
    missing = [
        MissingClass(stream=stream, window=number, class_value=classes[class_id], donor=paths[donor])
        for stream, number, class_id, donor in zip(
            *(numbers.tolist() for numbers in (places[:, 0], places[:, 1], of_class, donors)), strict=True
        )
    ]
    pairs = np.unique(np.stack([places[:, 0], donors], axis=1), axis=0)
    return missing, [(stream, donor) for stream, donor in pairs.tolist()]


def _stand_ins(order: EpochOrder, shards: Sequence[ShardInfo]) -> list[tuple[int, int]]:
    """Streams and the shards lent to those of their windows that have lost more than they keep; see `WindowOpener`."""
    readable = np.array([shard.bytes > 0 for shard in shards])
    pairs: list[tuple[int, int]] = []
    if readable.all():
        return pairs
    records = np.asarray(order.shard_records, np.int64) * readable
    for stream, windows in enumerate(map(order.windows, range(order.geometry.streams))):
        lost, held = (
            np.add.reduceat(windows.lengths * own, windows.bounds[:-1]) for own in (~readable[windows.shards], 1)
        )
        last = windows.shards[windows.bounds[1:] - 1]
        short = windows.served & (2 * lost > held)
        lenders = choose_donors(order, np.full(np.count_nonzero(short), stream), last[short], records)
        pairs += [(stream, int(shard)) for shard in lenders]
    return pairs


def _doubtful(
    windows: StreamWindows,
    needed: npt.NDArray[np.bool_],
    counts: npt.NDArray[np.unsignedinteger],
    shard_records: Sequence[int],
) -> Iterator[tuple[Window, npt.NDArray[np.int64]]]:
    """Windows, and the needed classes of which no segment has a record for certain, where there are some.

    One has by pigeonhole, if its shard has more records of the class than lie outside the segment.
    """
    outside = np.asarray(shard_records)[windows.shards] - windows.lengths
    for first in range(0, len(windows), _AT_ONCE):
        bounds = windows.bounds[first : first + _AT_ONCE + 1]
        own = slice(int(bounds[0]), int(bounds[-1]))
        certain = counts[windows.shards[own]] > outside[own, None]
        complete = np.logical_or.reduceat((certain | ~needed).all(axis=1), bounds[:-1] - bounds[0])
        for number in np.flatnonzero(~complete & windows.served[first : first + _AT_ONCE]).tolist():
            there = certain[bounds[number] - bounds[0] : bounds[number + 1] - bounds[0]].any(axis=0)
            doubtful = np.flatnonzero(needed & ~there)
            if len(doubtful):
                yield windows[first + number], doubtful


def _lacking(
    window: Window,
    doubtful: npt.NDArray[np.int64],
    counts: npt.NDArray[np.unsignedinteger],
    class_ids: Callable[[int], npt.NDArray[np.int32]],
) -> npt.NDArray[np.int64]:
    """Of classes that are not certainly there, those that no segment holds, by the indexes of their shards."""
    for segment in window.segments:
        if counts[segment.shard, doubtful].any():
            doubtful = doubtful[~np.isin(doubtful, class_ids(segment.shard)[segment.start : segment.stop])]
    return doubtful


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterPlan:
    """What a filter lets through, and what it took to know.

    Attributes:
        where: the expression.
        records: of the split.
        kept: of these, let through.
        shards: of the split.
        shards_kept: with a record that is let through; no other is opened.
        row_groups: of Parquet shards; 0 for a filter on the label alone, for which none is looked at.
        row_groups_skipped: of these, ruled out by statistics.
        bytes_read: to count.
        bytes_skipped: of the filter's columns, in row groups that were ruled out.
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

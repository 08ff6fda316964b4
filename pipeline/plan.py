"""What an epoch will be like, told before a shard is opened: pure functions of the manifest and the options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..sharding.class_counts import count_matrix
from ..sharding.manifest import ShardInfo
from .balance import ClassSchedule
from .order import EpochOrder, Window
from .selection import FilterPlan
from .streams import choose_donor

__all__ = ["ClassMix", "LoaderPlan", "MissingClass", "plan_epoch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMix:
    """One class in an epoch.

    Attributes:
        records: of the class in the split.
        samples: of the class in the epoch (an expectation in natural order, where a remainder is dropped).
        per_batch: the fewest and the most in a global batch; in natural order, the expected number twice.
        repeats: samples / records: above 1, records come more than once.
    """

    records: int
    samples: float
    per_batch: tuple[float, float]
    repeats: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingClass:
    """A window without a record of a class that its batches need: the class is borrowed from another shard."""

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
        dropped: records that no batch of the epoch holds.
        padded: samples of weight 0.
        class_mix: by class value.
        bytes_per_rank: of the shards each rank reads in the epoch.
        missing: classes that windows lack.
        row_filter: what `where` lets through; all else here is of these records alone, but for the bytes.
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
    row_filter: FilterPlan | None = None


def plan_epoch(
    order: EpochOrder,
    schedule: ClassSchedule | None,
    shards: Sequence[ShardInfo],
    classes: Sequence[Any],
    world_size: int,
    class_ids: Callable[[int], npt.NDArray[np.int32]],
) -> LoaderPlan:
    """Plan one epoch.

    Args:
        order: of the epoch.
        schedule: of classes, or None for the natural mix.
        shards: of the split.
        classes: values of the label.
        world_size: ranks.
        class_ids: reads a shard's index; called only for shards that a stream's cut divides, and only where the
            manifest cannot tell whether a class lies in the piece.
    """
    geometry = order.geometry
    counts = count_matrix([shard.class_counts for shard in shards])
    windows = [window for stream in range(geometry.streams) for window in order.windows(stream)]
    missing, donors = _find_missing(order, schedule, windows, shards, classes, counts, class_ids)
    return LoaderPlan(
        epoch=order.epoch,
        steps=geometry.steps,
        batch_size=geometry.batch_size,
        streams=geometry.streams,
        dropped=geometry.dropped,
        padded=geometry.padded,
        class_mix=_mix(order, schedule, classes, counts.sum(axis=0, dtype=np.int64)),
        bytes_per_rank=_bytes_per_rank(order, windows, shards, world_size, donors),
        missing=tuple(missing),
    )


def _mix(
    order: EpochOrder, schedule: ClassSchedule | None, classes: Sequence[Any], records: npt.NDArray[np.int64]
) -> dict[Any, ClassMix]:
    geometry = order.geometry
    if schedule is None:
        used = geometry.records - geometry.dropped
        samples = records / records.sum() * used
        expected = records / records.sum() * geometry.batch_size
        bounds = np.stack([expected, expected])
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
    windows: Sequence[Window],
    shards: Sequence[ShardInfo],
    world_size: int,
    donors: Sequence[tuple[int, int]],
) -> tuple[int, ...]:
    of_stream: dict[int, set[int]] = {}
    for window in windows:
        of_stream.setdefault(window.stream, set()).update(segment.shard for segment in window.segments)
    for stream, shard in donors:
        of_stream[stream].add(shard)
    totals = []
    for rank in range(world_size):
        slices = order.geometry.rank_slices(rank, world_size)
        needed = set().union(*(of_stream[part.stream] for part in slices))
        totals.append(sum(shards[shard].bytes + shards[shard].index_bytes for shard in needed))
    return tuple(totals)


def _find_missing(
    order: EpochOrder,
    schedule: ClassSchedule | None,
    windows: Sequence[Window],
    shards: Sequence[ShardInfo],
    classes: Sequence[Any],
    counts: npt.NDArray[np.unsignedinteger],
    class_ids: Callable[[int], npt.NDArray[np.int32]],
) -> tuple[list[MissingClass], list[tuple[int, int]]]:
    """Windows that lack a class they need, and the (stream, shard) pairs that lend it."""
    missing: list[MissingClass] = []
    donors: list[tuple[int, int]] = []
    if schedule is None:
        return missing, donors
    for window in windows:
        for class_id in np.flatnonzero((schedule.weights > 0) & ~_surely_there(window, counts)).tolist():
            if _has_class(window, class_id, counts, class_ids):
                continue
            donor = choose_donor(order, window, counts[:, class_id])
            donors.append((window.stream, donor))
            missing.append(
                MissingClass(
                    stream=window.stream,
                    window=window.number,
                    class_value=classes[class_id],
                    donor=shards[donor].path,
                )
            )
    return missing, donors


def _surely_there(window: Window, counts: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.bool_]:
    """The classes of which some segment has a record, by pigeonhole: its shard has more than lie outside it."""
    there = np.zeros(counts.shape[1], np.bool_)
    for segment in window.segments:
        row = counts[segment.shard]
        there |= row > int(row.sum()) - (segment.stop - segment.start)
    return there


def _has_class(
    window: Window,
    class_id: int,
    counts: npt.NDArray[np.unsignedinteger],
    class_ids: Callable[[int], npt.NDArray[np.int32]],
) -> bool:
    """Whether any segment holds a class that is not surely there, by the index of its shard."""
    doubtful = [segment for segment in window.segments if counts[segment.shard, class_id]]
    return any(bool(np.any(class_ids(s.shard)[s.start : s.stop] == class_id)) for s in doubtful)

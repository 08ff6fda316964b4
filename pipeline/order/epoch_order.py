"""The order of samples: a pure function of (seed, epoch, step) that does not know the number of ranks.

Each epoch the shards are put in a keyed random order; their records, end to end, are one tape. The tape is cut into
C equal parts, one a stream; from shard to shard, if a few records more or less allow it, and else inside a shard, which
two streams then read. Every other stream reads its part from its end to its beginning, so that both come to that shard
at the same time, and where one process has them, it is read once. A stream reads in windows of about W shards, and
shuffles within a window. Without shuffling, tape, streams and windows are in the order of the dataset. Global batch i
is P = G / C samples of each stream in turn, so position q of a stream belongs to step q div P; a rank takes a
contiguous slice of each global batch.

All ranges are half-open.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...sharding.common.validation import boolean, choice, integer
from ...sharding.compute.keyed_random import derive_key, shuffled
from ...sharding.errors import ConfigError
from .windows import Segment, StreamWindows, Window

__all__ = ["ORDER_VERSION", "EpochOrder", "Geometry", "Remainder", "StreamSlice", "coprime_stride", "default_streams"]

ORDER_VERSION = 2  # the version of what is arranged here; what was kept under another one is not gone on with
Remainder = Literal["drop", "pad", "wrap"]
_REMAINDERS = ("drop", "pad", "wrap")
_DEFAULT_STREAMS = 16
_UNEVEN = 20  # one stream may have this fraction of its records more than another, so that it reads whole shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How an epoch is cut, the same for every epoch.

    Attributes:
        records: in the split.
        batch_size: of the global batch, G.
        streams: C, a divisor of G.
        window_shards: shards' worth of records in a window, W; windows are made of whole segments of shards.
        remainder: ``drop`` the records that fill no global batch; or fill up the last one, by samples of weight 0
            (``pad``), or by what the streams began with (``wrap``).
        samples: in an epoch, in whole batches; None: as many as records. For fewer only a part of the tape is read,
            unless `spread`; if shuffled, one that begins elsewhere in each epoch.
        spread: over the whole tape: each window serves `samples` in proportion to its records.
        shuffle: whether shards and records come in random order, or in that of the dataset.

    Raises:
        ConfigError: a value its rule forbids.
    """

    records: int
    batch_size: int
    streams: int
    window_shards: int = 1
    remainder: Remainder = "drop"
    samples: int | None = None
    spread: bool = False
    shuffle: bool = True

    def __post_init__(self) -> None:
        for name in ("batch_size", "streams", "window_shards"):
            integer(name, getattr(self, name), 1)
        boolean("shuffle", self.shuffle)
        choice("remainder", self.remainder, _REMAINDERS)
        if self.batch_size % self.streams:
            raise ConfigError(f"streams must divide the global batch of {self.batch_size}, got {self.streams}")
        if self.records < self.streams:
            raise ConfigError(f"the split has {self.records} records, fewer than its {self.streams} streams")
        if self.samples is not None and self.remainder != "drop":
            raise ConfigError(f"epoch_length leaves no remainder to {self.remainder}; use remainder='drop'")
        if self.samples is not None and self.samples < self.batch_size:
            raise ConfigError(f"an epoch must have one global batch of {self.batch_size} samples, got {self.samples}")
        if max(self.records, self.samples or 0) >= 1 << 63:
            raise ConfigError("an epoch must have fewer than 2**63 samples")
        if self.samples is not None and self.samples > self.records and not self.spread:
            raise ConfigError(f"the split has {self.records} records, an epoch cannot have {self.samples}")
        if self.steps == 0:
            raise ConfigError(
                f"the split has {self.records} records, fewer than one global batch of {self.batch_size}; "
                "use a smaller batch_size, or remainder='pad' or 'wrap', or with a balance an epoch_length"
            )

    @property
    def piece(self) -> int:
        """Samples of one stream in one global batch, P."""
        return self.batch_size // self.streams

    @property
    def steps(self) -> int:
        """Global batches in an epoch."""
        if self.remainder == "drop":
            return (self.records if self.samples is None else self.samples) // self.batch_size
        return -(-self.records // self.batch_size)  # for the longest stream is one record longer than the shortest

    @property
    def dropped(self) -> int:
        """Records that an epoch leaves out; which ones changes from epoch to epoch."""
        return self.records - self.steps * self.batch_size if self.remainder == "drop" and not self.spread else 0

    @property
    def padded(self) -> int:
        """Samples of weight 0 that an epoch adds."""
        return self.steps * self.batch_size - self.records if self.remainder == "pad" else 0

    @property
    def wrapped(self) -> int:
        """Samples that an epoch adds, of records that it began with."""
        return self.steps * self.batch_size - self.records if self.remainder == "wrap" else 0

    def local_batch(self, world_size: int) -> int:
        """Samples of each rank in a step: its share of the global batch, and where that is smaller, one of weight 0."""
        return -(-self.batch_size // world_size)

    def weighted(self, world_size: int) -> bool:
        """Whether any rank has samples of weight 0, so that all ranks tell weights."""
        return self.remainder == "pad" or self.batch_size % world_size > 0

    def rank_slices(self, rank: int, world_size: int) -> tuple[StreamSlice, ...]:
        """The pieces that make up a rank's contiguous slice of every global batch, in order.

        The slices of two ranks differ by at most one sample. The smaller ones end with a filler.

        Raises:
            ConfigError: there is no such rank.
        """
        if world_size < 1 or not 0 <= rank < world_size:
            raise ConfigError(f"rank must lie in [0, world_size), got rank {rank} of {world_size}")
        start, stop = rank * self.batch_size // world_size, (rank + 1) * self.batch_size // world_size
        last = max(stop - 1, start)  # the filler's place; the only one where there are more ranks than samples
        slices = []
        for stream in range(start // self.piece, last // self.piece + 1):
            first = stream * self.piece
            slices.append(
                StreamSlice(
                    stream=stream,
                    start=max(start - first, 0),
                    stop=min(stop - first, self.piece),
                    filler=self.local_batch(world_size) - (stop - start) if first + self.piece > last else 0,
                    weighted=self.weighted(world_size),
                )
            )
        return tuple(slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSlice:
    """Samples ``[start, stop)`` of each piece of a stream, and behind them `filler` samples of weight 0.

    Where `weighted`, samples have weights.
    """

    stream: int
    start: int
    stop: int
    filler: int = 0
    weighted: bool = False

    @property
    def width(self) -> int:
        """Samples in a step."""
        return self.stop - self.start + self.filler

    def offsets(self) -> npt.NDArray[np.int64]:
        """Where in the piece each of the samples lies, int64 [width]; a filler is a sample that is at hand."""
        return np.minimum(np.arange(self.start, self.start + self.width), max(self.stop - 1, self.start))

    def is_real(self) -> npt.NDArray[np.bool_]:
        """Which of the samples count, for they are no fillers; bool [width]."""
        return np.arange(self.width) < self.stop - self.start


def default_streams(batch_size: int, records: int, *, shuffle: bool = True) -> int:
    """The largest divisor of the global batch up to 16 (and up to the records): most ranks counts divide it.

    One where nothing is shuffled, so that the batches come in the order of the dataset.
    """
    if not shuffle:
        return 1
    limit = min(_DEFAULT_STREAMS, max(records, 1), max(batch_size, 1))
    return next(count for count in range(limit, 0, -1) if batch_size % count == 0)


@dataclass(frozen=True)
class EpochOrder:
    """The tape of one epoch, and its streams' windows.

    Args:
        geometry: of the split.
        shard_records: records of each shard of the split, in order.
        seed: of the whole order.
        epoch: from 0.
    """

    geometry: Geometry
    shard_records: Sequence[int]
    seed: int
    epoch: int

    def key(self, *parts: int | str) -> int:
        """A key for one purpose within this epoch."""
        return derive_key(self.seed, "epoch", self.epoch, *parts)

    @cached_property
    def tape(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Shards in the order of the tape, and the tape position at which each ends; int64 [shards] each."""
        shards = len(self.shard_records)
        order = shuffled(self.key("shards"), shards) if self.geometry.shuffle else np.arange(shards)
        return order, np.cumsum(self._records[order])

    @cached_property
    def slots(self) -> npt.NDArray[np.int64]:
        """The place of each shard on the tape, int64 [shards]."""
        slots = np.empty(len(self.shard_records), np.int64)
        slots[self.tape[0]] = np.arange(len(slots))
        return slots

    @cached_property
    def is_reversed(self) -> npt.NDArray[np.bool_]:
        """Whether each stream reads its part of the tape from its end to its beginning, [streams]."""
        odd: npt.NDArray[np.bool_] = np.arange(self.geometry.streams) % 2 == 1
        return odd & self.geometry.shuffle

    def shards_after(self, shard: int, stream: int) -> npt.NDArray[np.int64]:
        """All shards as a stream would come to them: from behind one on, around the end of the tape, to that one."""
        order, place = self.tape[0], int(self.slots[shard])
        if self.is_reversed[stream]:
            return np.roll(order[::-1], place)
        return np.roll(order, -1 - place)

    def neighbours(self, shard: int) -> npt.NDArray[np.int64]:
        """The shards on both sides of one on the tape, whose ends are joined; int64 [2]."""
        order, place = self.tape[0], int(self.slots[shard])
        return order[[place - 1, (place + 1) % len(order)]]

    @cached_property
    def _records(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.shard_records, np.int64)

    def stream_range(self, stream: int) -> tuple[int, int]:
        """The part of the tape that a stream reads; beyond its end the tape goes on at its beginning."""
        geometry = self.geometry
        if geometry.remainder == "drop" and not geometry.spread and (geometry.samples or not geometry.shuffle):
            length = geometry.steps * geometry.piece
            start = self._start + stream * length
            return start, start + length
        return self._cuts[stream], self._cuts[stream + 1]

    @cached_property
    def _start(self) -> int:
        """Where on the tape the streams begin, if the epoch has fewer samples: as far on as those before it have read.

        Shards come in another order each epoch, but what lies behind the beginning of each must have its turn, too.
        """
        geometry = self.geometry
        samples = geometry.steps * geometry.batch_size
        return self.epoch * samples % geometry.records if geometry.samples and geometry.shuffle else 0

    @cached_property
    def _cuts(self) -> list[int]:
        """Where the parts of the tape begin, and the last ends.

        At equal parts; or at an end of a shard near by, if all streams keep enough records, or few enough, for the
        steps of the epoch.
        """
        geometry = self.geometry
        records, streams = geometry.records, geometry.streams
        cuts = np.arange(streams + 1) * records // streams
        room = records // streams // _UNEVEN
        if not geometry.spread:
            length = geometry.steps * geometry.piece
            room = min(room, max(records // streams - length, length - -(-records // streams)))
        _, ends = self.tape
        after = np.searchsorted(ends[:-1], cuts)
        near = np.stack([ends[np.maximum(after - 1, 0)], ends[after]])
        away = np.abs(near - cuts)
        nearest = near[away.argmin(axis=0), np.arange(streams + 1)]
        moves = away.min(axis=0) <= room // 2
        moves[[0, -1]] = False
        result: list[int] = np.where(moves, nearest, cuts).tolist()
        return result

    def windows(self, stream: int) -> StreamWindows:
        """The windows of a stream, in order."""
        step = -1 if self.is_reversed[stream] else 1
        shards, firsts, lengths = (column[::step] for column in self.segments(*self.stream_range(stream)))
        mean = self.geometry.records / len(self.shard_records)
        at_most = min(self.geometry.window_shards, len(self.shard_records) + 1)  # no float holds any number
        enough = min((at_most - 0.5) * mean, self.geometry.records)
        spread = self.geometry.spread
        samples = self.geometry.steps * self.geometry.piece if spread or self.geometry.remainder == "drop" else None
        return StreamWindows(
            stream, shards, firsts, lengths, enough=enough, sliver=mean / 2, samples=samples, spread=spread
        )

    def segments(self, start: int, stop: int) -> tuple[npt.NDArray[np.int64], ...]:
        """The part ``[start, stop)`` of the tape: shards, the first row in each, and rows; int64 [segments] each.

        See `stream_range`.
        """
        records = self.geometry.records
        if start >= records:
            return self.segments(start - records, stop - records)
        if stop > records:
            parts = zip(self.segments(start, records), self.segments(0, stop - records), strict=True)
            return tuple(map(np.concatenate, parts))
        order, ends = self.tape
        # Not by `searchsorted`, which lets go of Python's lock, and then waits for threads that fetch already.
        slots = slice(bisect_right(ends, start), bisect_left(ends, stop) + 1)
        begins = ends[slots] - self._records[order[slots]]  # positions on the tape
        firsts = np.maximum(start - begins, 0)
        return order[slots], firsts, np.minimum(ends[slots], stop) - begins - firsts

    def shared_segment(self, segment: Segment, streams: range) -> Segment:
        """What neighbouring streams read of a shard at the time that one of them reads a segment of it."""
        records, (_, ends), total = self.shard_records[segment.shard], self.tape, self.geometry.records
        if not self.geometry.shuffle or segment.rows == records:
            return segment
        begin = int(ends[self.slots[segment.shard]]) - records
        start, stop = self.stream_range(streams[0])[0] - begin, self.stream_range(streams[-1])[1] - begin
        if not start <= segment.start < stop:  # it lies behind the end of the tape, that is at its beginning
            start, stop = start - total, stop - total
        return Segment(shard=segment.shard, start=max(start, 0), stop=min(stop, records))

    def permutation(self, window: Window) -> npt.NDArray[np.int64]:
        """Which of the window's records each of its positions serves, in natural order; int64 [samples]."""
        return self.full_permutation(window)[: window.samples]

    def full_permutation(self, window: Window) -> npt.NDArray[np.int64]:
        """All records of a window: those that it serves, in natural order, and behind them those that are dropped."""
        if not self.geometry.shuffle:
            return np.arange(window.records)
        return shuffled(self.key("window", window.stream, window.number), window.records)


def coprime_stride(size: int) -> int:
    """A stride near size / golden ratio that is coprime to `size`: its multiples mod `size` are spread evenly."""
    stride = max(1, round(size * 0.6180339887498949))
    while math.gcd(stride, size) != 1:
        stride += 1
    return stride

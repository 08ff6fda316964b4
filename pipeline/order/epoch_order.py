"""The order of samples: a pure function of (seed, epoch, step) that does not depend on the number of ranks.

In each epoch the shards are put in a keyed random order; their records, end to end, form one tape. The tape is cut into
C equal parts, one for each stream: between two shards where a shard ends near by, otherwise inside a shard, which two
streams then read. Every other stream reads its part backwards, so that both reach that shard at the same time, and a
process that has both reads it once. A stream reads in windows of about W shards and shuffles within a window. Without
shuffling, tape, streams and windows follow the order of the dataset. A global batch consists of P = G / C samples of
each stream in turn, so position q of a stream belongs to step q div P; a rank takes a contiguous slice of each global
batch.

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

from ringfeed.sharding.common.validation import boolean, choice, integer
from ringfeed.sharding.compute.keyed_random import derive_key, shuffled
from ringfeed.sharding.errors import ConfigError

from .windows import Segment, SegmentTable, StreamWindows, Window

ORDER_VERSION = 2  # a saved state of another version cannot be resumed
PASSES_VERSION = 3  # short epochs and mixtures: they continue from epoch to epoch
Remainder = Literal["drop", "pad", "wrap"]
_REMAINDERS = ("drop", "pad", "wrap")
_DEFAULT_STREAMS = 16
_UNEVEN = 20  # streams may differ in size by this fraction (1/20), so that they read whole shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How epochs are cut into batches, streams and windows; the same for every epoch.

    Raises:
        ConfigError: a value is invalid.
    """

    records: int  # records in the split
    batch_size: int  # size of the global batch, G
    streams: int  # number of streams, C, a divisor of G
    window_shards: int = 1  # size of a window in shards, W; windows consist of whole segments of shards
    # What to do with records that do not fill a global batch: ``drop`` them, or fill up the last batch with samples of
    # weight 0 (``pad``) or with the first samples of the streams (``wrap``)
    remainder: Remainder = "drop"
    # Samples in an epoch, rounded down to whole batches; None: as many as records. Fewer samples read only a part of
    # the tape, unless `spread`; if shuffled, epochs go on from one another, so that each record is served once before
    # any comes again.
    samples: int | None = None
    # Whether each window serves `samples` in proportion to its records, so that all of the tape is read
    spread: bool = False
    shuffle: bool = True  # whether shards and records come in random order, or in the order of the dataset

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
    def is_short(self) -> bool:
        """Whether epochs are parts of passes over the records."""
        return self.samples is not None and self.shuffle and not self.spread

    @property
    def piece(self) -> int:
        """Number of samples of one stream in a global batch, P."""
        return self.batch_size // self.streams

    @property
    def steps(self) -> int:
        """Number of global batches in an epoch."""
        if self.remainder == "drop":
            return (self.records if self.samples is None else self.samples) // self.batch_size
        return -(-self.records // self.batch_size)  # streams may differ by one record

    @property
    def dropped(self) -> int:
        """Number of records that an epoch leaves out; other ones in each epoch."""
        return self.records - self.steps * self.batch_size if self.remainder == "drop" and not self.spread else 0

    @property
    def padded(self) -> int:
        """Number of samples of weight 0 that an epoch adds."""
        return self.steps * self.batch_size - self.records if self.remainder == "pad" else 0

    @property
    def wrapped(self) -> int:
        """Number of samples that an epoch repeats to fill its last batch."""
        return self.steps * self.batch_size - self.records if self.remainder == "wrap" else 0

    def local_batch(self, world_size: int) -> int:
        """Return the samples of each rank in a step; a rank with one sample less adds one of weight 0."""
        return -(-self.batch_size // world_size)

    def weighted(self, world_size: int) -> bool:
        """Return whether any rank may have samples of weight 0; then all ranks deliver weights."""
        return self.remainder == "pad" or self.batch_size % world_size > 0

    def rank_slices(self, rank: int, world_size: int) -> tuple[StreamSlice, ...]:
        """Return the pieces of a rank's contiguous slice of every global batch, in order.

        The slices of two ranks differ by at most one sample; the smaller ones end with a filler.

        Raises:
            ConfigError: the rank does not exist.
        """
        if world_size < 1 or not 0 <= rank < world_size:
            raise ConfigError(f"rank must lie in [0, world_size), got rank {rank} of {world_size}")
        start, stop = rank * self.batch_size // world_size, (rank + 1) * self.batch_size // world_size
        return self._slices(start, stop, self.local_batch(world_size), weighted=self.weighted(world_size))

    def share_slices(self, start: int, stop: int) -> tuple[StreamSlice, ...]:
        """Return the pieces of the samples ``[start, stop)`` of every global batch, in order.

        Nothing is filled up, except that an empty share gets one sample of weight 0.

        Raises:
            ConfigError: there are no such samples.
        """
        if not 0 <= start <= stop <= self.batch_size:
            raise ConfigError(f"a share must lie in [0, {self.batch_size}], got [{start}, {stop})")
        if start == stop:
            start = stop = min(start, self.batch_size - 1)
        weighted = self.remainder == "pad" or start == stop
        return self._slices(start, stop, max(stop - start, 1), weighted=weighted)

    def _slices(self, start: int, stop: int, width: int, *, weighted: bool) -> tuple[StreamSlice, ...]:
        last = max(stop - 1, start)  # of the filler; without samples, of the whole slice
        slices = []
        for stream in range(start // self.piece, last // self.piece + 1):
            first = stream * self.piece
            slices.append(
                StreamSlice(
                    stream=stream,
                    start=max(start - first, 0),
                    stop=min(stop - first, self.piece),
                    filler=width - (stop - start) if first + self.piece > last else 0,
                    weighted=weighted,
                )
            )
        return tuple(slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSlice:
    """Samples ``[start, stop)`` of each piece of a stream, then `filler` samples of weight 0.

    If `weighted`, samples are delivered with weights.
    """

    stream: int
    start: int
    stop: int
    filler: int = 0
    weighted: bool = False

    @property
    def width(self) -> int:
        """Number of samples in a step."""
        return self.stop - self.start + self.filler

    def offsets(self) -> npt.NDArray[np.int64]:
        """Return the offset of each sample in the piece, int64 [width]; a filler repeats a sample of the slice."""
        return np.minimum(np.arange(self.start, self.start + self.width), max(self.stop - 1, self.start))

    def is_real(self) -> npt.NDArray[np.bool_]:
        """Return which samples are no fillers, bool [width]."""
        return np.arange(self.width) < self.stop - self.start


def default_streams(batch_size: int, records: int, *, shuffle: bool = True) -> int:
    """Return the largest divisor of the global batch up to 16 and up to the records: most rank counts divide it.

    Without shuffling 1, so that batches come in the order of the dataset.
    """
    if not shuffle:
        return 1
    limit = min(_DEFAULT_STREAMS, max(records, 1), max(batch_size, 1))
    return next(count for count in range(limit, 0, -1) if batch_size % count == 0)


@dataclass(frozen=True)
class EpochOrder:
    """The tape of one epoch, and the windows of its streams."""

    geometry: Geometry  # how epochs are cut
    shard_records: Sequence[int]  # records of each shard of the split, in order
    seed: int
    epoch: int  # number of the epoch, from 0

    def key(self, *parts: int | str) -> int:
        """Return a random key for one purpose within this epoch."""
        return derive_key(self.seed, "epoch", self.epoch, *parts)

    @cached_property
    def tape(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Shards in the order of the tape, and the position on the tape where each ends; int64 [shards] each."""
        shards = len(self.shard_records)
        if self.geometry.is_short:
            order = self._order_of_pass
        else:
            order = shuffled(self.key("shards"), shards) if self.geometry.shuffle else np.arange(shards)
        return order, np.cumsum(self._records[order])

    @cached_property
    def _pass(self) -> tuple[int, int]:
        """The number of the pass that a short epoch begins within, and its place on the tape."""
        geometry = self.geometry
        return divmod(self.epoch * geometry.steps * geometry.batch_size, geometry.records)

    @cached_property
    def _ends_pass(self) -> bool:
        """Whether a short epoch serves the last records of a pass and the first ones of the next."""
        geometry = self.geometry
        return geometry.is_short and self._pass[1] + geometry.steps * geometry.batch_size > geometry.records

    @cached_property
    def _order_of_pass(self) -> npt.NDArray[np.int64]:
        """The shards in the order of a pass.

        An epoch that ends a pass begins the next one with other records, since all passes have the same shards in the
        same order where such epochs read; between, each pass has its own order.
        """
        geometry, number = self.geometry, self._pass[0]
        order = shuffled(derive_key(self.seed, "passes", "shards"), len(self.shard_records))
        if self._ends_pass:
            return order
        samples = geometry.steps * geometry.batch_size
        begin = -number * geometry.records % samples
        end = geometry.records - (number + 1) * geometry.records % samples
        ends = np.cumsum(self._records[order])
        between = np.flatnonzero((ends - self._records[order] >= begin) & (ends <= end))
        order[between] = order[between][shuffled(derive_key(self.seed, "pass", number, "shards"), len(between))]
        return order

    @cached_property
    def slots(self) -> npt.NDArray[np.int64]:
        """The index of each shard on the tape, int64 [shards]."""
        slots = np.empty(len(self.shard_records), np.int64)
        slots[self.tape[0]] = np.arange(len(slots))
        return slots

    @cached_property
    def is_reversed(self) -> npt.NDArray[np.bool_]:
        """Whether each stream reads its part of the tape backwards, [streams]."""
        odd: npt.NDArray[np.bool_] = np.arange(self.geometry.streams) % 2 == 1
        return odd & self.geometry.shuffle

    def shards_after(self, shard: int, stream: int) -> npt.NDArray[np.int64]:
        """Return all shards in the order a stream reaches them after this one, which comes last."""
        order, slot = self.tape[0], int(self.slots[shard])
        if self.is_reversed[stream]:
            return np.roll(order[::-1], slot)
        return np.roll(order, -1 - slot)

    def neighbours(self, shard: int) -> npt.NDArray[np.int64]:
        """Return the shards before and after one on the tape, whose ends are joined; int64 [2]."""
        order, slot = self.tape[0], int(self.slots[shard])
        return order[[slot - 1, (slot + 1) % len(order)]]

    @cached_property
    def _records(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.shard_records, np.int64)

    def stream_range(self, stream: int) -> tuple[int, int]:
        """Return the part of the tape that a stream reads; after its end the tape starts over."""
        geometry = self.geometry
        if geometry.remainder == "drop" and not geometry.spread and (geometry.samples or not geometry.shuffle):
            length = geometry.steps * geometry.piece
            start = self._start + stream * length
            return start, start + length
        return self._cuts[stream], self._cuts[stream + 1]

    @cached_property
    def _start(self) -> int:
        """Where on the tape a shorter epoch begins: where the one before it stopped."""
        return self._pass[1] if self.geometry.is_short else 0

    @cached_property
    def _cuts(self) -> list[int]:
        """Where the parts of the tape begin, and where the last ends.

        Parts are equal, or end with a shard near by, if the records of each stream still fit the steps of the epoch.
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
        """Return the windows of a stream, in order."""
        if self._ends_pass:
            first, *others = [self._windows(stream, part, None) for part in self._parts(stream) if part[0] < part[1]]
            return first.followed_by(*others)
        drops = self.geometry.spread or self.geometry.remainder == "drop"
        samples = self.geometry.steps * self.geometry.piece if drops else None
        return self._windows(stream, self.stream_range(stream), samples)

    def _parts(self, stream: int) -> list[tuple[int, int]]:
        """The parts of the tape that a stream reads in an epoch that ends a pass: the end of one pass, then the next.

        All batches before the last of the pass are of the pass alone, so no record comes again before it is over.
        """
        geometry = self.geometry
        start, length = self._start, geometry.steps * geometry.piece
        steps, rest = divmod(geometry.records - start, geometry.batch_size)
        cuts = [each * steps * geometry.piece + min(rest, each * geometry.piece) for each in (stream, stream + 1)]
        begin, end = (
            geometry.records + each * length - cut for each, cut in zip((stream, stream + 1), cuts, strict=True)
        )
        return [(start + cuts[0], start + cuts[1]), (begin, end)]

    def _windows(self, stream: int, part: tuple[int, int], samples: int | None) -> StreamWindows:
        segments = self.segments(*part)[:: -1 if self.is_reversed[stream] else 1]
        mean = self.geometry.records / len(self.shard_records)
        window_shards = min(self.geometry.window_shards, len(self.shard_records) + 1)  # the option may exceed any float
        min_records = min((window_shards - 0.5) * mean, self.geometry.records)
        spread = self.geometry.spread
        return StreamWindows(
            stream, segments, min_records=min_records, sliver_records=mean / 2, samples=samples, spread=spread
        )

    def segments(self, start: int, stop: int) -> SegmentTable:
        """Return the segments of the part ``[start, stop)`` of the tape; see `stream_range`."""
        records = self.geometry.records
        if start >= records:
            return self.segments(start - records, stop - records)
        if stop > records:
            return self.segments(start, records) + self.segments(0, stop - records)
        order, ends = self.tape
        # Not `searchsorted`: it releases the interpreter lock, and then waits for the threads that fetch.
        slots = slice(bisect_right(ends, start), bisect_left(ends, stop) + 1)
        begins = ends[slots] - self._records[order[slots]]  # positions on the tape
        firsts = np.maximum(start - begins, 0)
        lengths = np.minimum(ends[slots], stop) - begins - firsts
        return SegmentTable(shards=order[slots], firsts=firsts, lengths=lengths)

    def shared_segment(self, segment: Segment, streams: range) -> Segment:
        """Return the rows of a shard that neighbouring streams read together, given the segment of one of them."""
        records, (_, ends), total = self.shard_records[segment.shard], self.tape, self.geometry.records
        if not self.geometry.shuffle or segment.rows == records or self._ends_pass:
            return segment
        begin = int(ends[self.slots[segment.shard]]) - records
        start, stop = self.stream_range(streams[0])[0] - begin, self.stream_range(streams[-1])[1] - begin
        if not start <= segment.start < stop:  # beyond the end of the tape, so at its beginning
            start, stop = start - total, stop - total
        if not start <= segment.start < stop:  # none of the streams reads it
            return segment
        return Segment(shard=segment.shard, start=max(start, 0), stop=min(stop, records))

    def permutation(self, window: Window) -> npt.NDArray[np.int64]:
        """Return the record that serves each position of a window in natural order, int64 [samples]."""
        return self.full_permutation(window)[: window.samples]

    def full_permutation(self, window: Window) -> npt.NDArray[np.int64]:
        """Return all records of a window: those that it serves in natural order, then those that it drops."""
        if not self.geometry.shuffle:
            return np.arange(window.records)
        return shuffled(self.key("window", window.stream, window.number), window.records)


def coprime_stride(size: int) -> int:
    """Return a stride near size / golden ratio and coprime to `size`: its multiples modulo `size` are spread evenly."""
    stride = max(1, round(size * 0.6180339887498949))
    while math.gcd(stride, size) != 1:
        stride += 1
    return stride

"""The order of samples: a pure function of (seed, epoch, step) that does not know the number of ranks.

Each epoch the shards are put in a keyed random order; their records, end to end, are one tape. The tape is cut into
C equal streams (cuts may fall inside a shard). A stream reads its part of the tape in windows of about W shards, and
shuffles within a window. Global batch i is P = G / C samples of each stream in turn, so position q of a stream
belongs to step q div P; a rank takes a contiguous slice of each global batch.

All ranges are half-open.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..sharding.errors import ConfigError
from ..sharding.keyed import derive_key, shuffled

__all__ = ["EpochOrder", "Geometry", "Remainder", "Segment", "StreamSlice", "Window", "default_streams"]

Remainder = Literal["drop", "pad"]
_DEFAULT_STREAMS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How an epoch is cut, the same for every epoch.

    Attributes:
        records: in the split.
        batch_size: of the global batch, G.
        streams: C, a divisor of G.
        window_shards: shards' worth of records in a window, W; windows are made of whole segments of shards.
        remainder: ``drop`` the records that fill no global batch, or ``pad`` the last batches.

    Raises:
        ConfigError: a value its rule forbids.
    """

    records: int
    batch_size: int
    streams: int
    window_shards: int = 1
    remainder: Remainder = "drop"

    def __post_init__(self) -> None:
        for name in ("batch_size", "streams", "window_shards"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.remainder not in ("drop", "pad"):
            raise ConfigError(f"remainder must be 'drop' or 'pad', got {self.remainder!r}")
        if self.batch_size % self.streams:
            raise ConfigError(f"streams must divide the global batch of {self.batch_size}, got {self.streams}")
        if self.records < self.streams:
            raise ConfigError(f"the split has {self.records} records, fewer than its {self.streams} streams")
        if self.steps == 0:
            raise ConfigError(
                f"the split has {self.records} records, fewer than one global batch of {self.batch_size}; "
                "use a smaller batch_size, or remainder='pad'"
            )

    @property
    def piece(self) -> int:
        """Samples of one stream in one global batch, P."""
        return self.batch_size // self.streams

    @property
    def steps(self) -> int:
        """Global batches in an epoch."""
        if self.remainder == "drop":
            return self.records // self.batch_size
        longest_stream = -(-self.records // self.streams)
        return -(-longest_stream // self.piece)

    @property
    def dropped(self) -> int:
        """Records that an epoch leaves out; which ones changes from epoch to epoch."""
        return 0 if self.remainder == "pad" else self.records - self.steps * self.batch_size

    @property
    def padded(self) -> int:
        """Samples of weight 0 that an epoch adds."""
        return 0 if self.remainder == "drop" else self.steps * self.batch_size - self.records

    def stream_range(self, stream: int) -> tuple[int, int]:
        """The part of the tape that a stream reads."""
        if self.remainder == "drop":
            length = self.steps * self.piece
            return stream * length, (stream + 1) * length
        return stream * self.records // self.streams, (stream + 1) * self.records // self.streams

    def rank_slices(self, rank: int, world_size: int) -> tuple[StreamSlice, ...]:
        """The pieces that make up a rank's contiguous slice of every global batch, in order.

        Raises:
            ConfigError: the ranks cannot share the batch equally.
        """
        if world_size < 1 or not 0 <= rank < world_size:
            raise ConfigError(f"rank must lie in [0, world_size), got rank {rank} of {world_size}")
        if self.batch_size % world_size:
            below = self.batch_size // world_size * world_size
            raise ConfigError(
                f"a global batch of {self.batch_size} cannot be shared by {world_size} ranks; "
                f"use a multiple of {world_size}, such as {below or world_size}"
            )
        share = self.batch_size // world_size
        start, stop = rank * share, (rank + 1) * share
        slices = []
        for stream in range(start // self.piece, -(-stop // self.piece)):
            first = stream * self.piece
            slices.append(StreamSlice(stream=stream, start=max(start - first, 0), stop=min(stop - first, self.piece)))
        return tuple(slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSlice:
    """Samples ``[start, stop)`` of each piece of a stream."""

    stream: int
    start: int
    stop: int


def default_streams(batch_size: int, records: int) -> int:
    """The largest divisor of the global batch up to 16 (and up to the records): most ranks counts divide it."""
    limit = min(_DEFAULT_STREAMS, max(records, 1), max(batch_size, 1))
    return next(count for count in range(limit, 0, -1) if batch_size % count == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Rows ``[start, stop)`` of a shard, by the shard's position in the split."""

    shard: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Segments that a stream has open together, and the positions ``[start, stop)`` of the stream it serves.

    The records of a window are numbered through its segments, from 0 to ``stop - start``.
    """

    stream: int
    number: int
    start: int
    stop: int
    segments: tuple[Segment, ...]

    @property
    def records(self) -> int:
        """Records in the window, and samples that it serves."""
        return self.stop - self.start


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

    def tape(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Shards in the order of the tape, and the tape position at which each ends; int64 [shards] each."""
        return self._tape

    @cached_property
    def _tape(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        order = shuffled(self.key("shards"), len(self.shard_records))
        return order, np.cumsum(np.asarray(self.shard_records, np.int64)[order])

    def windows(self, stream: int) -> list[Window]:
        """The windows of a stream, in order."""
        start, stop = self.geometry.stream_range(stream)
        order, ends = self.tape()
        segments = []
        position = start
        for slot in range(int(np.searchsorted(ends, start, side="right")), len(order)):
            if position >= stop:
                break
            first = int(ends[slot]) - self.shard_records[order[slot]]
            until = min(int(ends[slot]), stop)
            segments.append(Segment(shard=int(order[slot]), start=position - first, stop=until - first))
            position = until
        mean = self.geometry.records / len(order)
        return _group(stream, segments, (self.geometry.window_shards - 0.5) * mean, mean / 2)

    def permutation(self, window: Window) -> npt.NDArray[np.int64]:
        """Which of the window's records each of its positions serves, in natural order; int64 [records]."""
        return shuffled(self.key("window", window.stream, window.number), window.records)


def _group(stream: int, segments: Sequence[Segment], enough: float, sliver: float) -> list[Window]:
    """Windows of whole segments: each closes once it holds `enough` records; a `sliver` that is left joins the last.

    So the slivers that cuts leave make no windows of their own, too small to shuffle or to hold every class.
    """
    groups: list[list[Segment]] = []
    held = enough
    for segment in segments:
        if held >= enough:
            groups.append([])
            held = 0.0
        groups[-1].append(segment)
        held += segment.stop - segment.start
    if held < sliver and len(groups) > 1:
        rest = groups.pop()
        groups[-1] += rest
    lengths = [sum(segment.stop - segment.start for segment in members) for members in groups]
    stops = itertools.accumulate(lengths)
    return [
        Window(stream=stream, number=number, start=stop - length, stop=stop, segments=tuple(members))
        for number, (members, length, stop) in enumerate(zip(groups, lengths, stops, strict=True))
    ]


def coprime_stride(size: int) -> int:
    """A stride near size / golden ratio that is coprime to `size`: its multiples mod `size` are spread evenly."""
    stride = max(1, round(size * 0.6180339887498949))
    while math.gcd(stride, size) != 1:
        stride += 1
    return stride

"""How far the order of an epoch is from a full shuffle, measured on the planned order; no shard is opened.

- The *displacement* of a record is how far it moves from its place in the dataset: Spearman's footrule, whose mean
  under a uniform shuffle of n records is (n^2 - 1) / 3n (Diaconis and Graham, "Spearman's footrule as a measure of
  disarray", J. R. Statist. Soc. B 39, 1977). An order may pass this by moving whole shards.
- The *separation* is how far neighbours in a shard lie apart in the epoch; between two places of n, drawn at random,
  the mean is (n + 1) / 3. Windows bound it: it says how much of the epoch a shard is spread over.
- The *serial correlation* is that of the dataset's positions of samples that follow each other (Knuth, The Art of
  Computer Programming, vol. 2, section 3.3.2, K; its mean under a uniform shuffle is -1 / (n - 1)).
- The *shards of a batch*: under a uniform shuffle a shard of r records has none in a batch of G with the probability
  C(n - r, G) / C(n, G).

Shards in random order, and records in random order within some shards at a time, are the two levels of CorgiPile (Xu et
al., "In-Database Machine Learning with CorgiPile", SIGMOD 2022), which shows how little convergence needs more than
that; here a build has put the records into random shards before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .epoch_order import EpochOrder
from .windows import Window

__all__ = ["ShuffleQuality", "shuffle_quality"]

Int64 = npt.NDArray[np.int64]
_BLOCKS = 8  # that are looked at, evenly spread, where an epoch is too long to look at all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleQuality:
    """The order of an epoch, against a full shuffle.

    Attributes:
        displacement: mean distance of a record from its place in the dataset; 1 is that of a full shuffle, 0 none.
        separation: mean distance in the epoch of records that are neighbours in a shard; 1 is that of a full shuffle.
        serial_correlation: of the places in the dataset of samples that follow each other; 0 in a full shuffle, 1 in
            the order of the dataset.
        batch_shards: mean number of shards that a global batch has records of.
        full_batch_shards: the same in a full shuffle.
        samples: that were looked at.
    """

    displacement: float
    separation: float
    serial_correlation: float
    batch_shards: float
    full_batch_shards: float
    samples: int


def shuffle_quality(order: EpochOrder, most_samples: int = 1 << 20) -> ShuffleQuality:
    """Measure the natural order of an epoch.

    Args:
        order: of the epoch.
        most_samples: to look at, about; of a longer epoch, runs of steps that are evenly spread over it.
    """
    geometry = order.geometry
    runs = _runs(geometry.steps, max(most_samples // geometry.batch_size, _BLOCKS))
    shard_records = np.asarray(order.shard_records, np.int64)
    ends: Int64 = np.cumsum(shard_records)
    found, distance, neighbours = [], 0, 0
    for window in _windows(order, runs):
        records, places = _served(order, window, ends - shard_records)
        inside = np.zeros(len(places), np.bool_)
        for first, stop in runs:
            inside |= (places >= first * geometry.batch_size) & (places < stop * geometry.batch_size)
        found.append((places[inside], records[inside]))
        by_record = places[np.argsort(records)]
        apart = np.abs(np.diff(by_record))[np.diff(np.sort(records)) == 1]
        distance, neighbours = distance + int(apart.sum()), neighbours + len(apart)
    places, records = (np.concatenate(part) for part in zip(*found, strict=True))
    in_time = np.argsort(places)
    places, records = places[in_time], records[in_time]
    return ShuffleQuality(
        displacement=float(np.abs(places - records).mean() * 3 / geometry.records),
        separation=distance / max(neighbours, 1) * 3 / (geometry.records + 1),
        serial_correlation=_serial_correlation(places, records),
        batch_shards=_batch_shards(places // geometry.batch_size, np.searchsorted(ends, records, side="right")),
        full_batch_shards=_expected_shards(order.shard_records, min(geometry.batch_size, geometry.records)),
        samples=len(records),
    )


def _runs(steps: int, most: int) -> list[tuple[int, int]]:
    """All steps; or runs of steps, evenly spread, `most` steps together."""
    if steps <= most:
        return [(0, steps)]
    length = most // _BLOCKS
    return [(first, first + length) for first in np.linspace(0, steps - length, _BLOCKS).astype(int).tolist()]


def _windows(order: EpochOrder, runs: Sequence[tuple[int, int]]) -> Iterator[Window]:
    """The windows of all streams that serve some runs of steps."""
    piece = order.geometry.piece
    for stream in range(order.geometry.streams):
        windows = order.windows(stream)
        last = windows.samples - 1
        touched = (
            range(windows.number_at(min(first * piece, last)), windows.number_at(min(stop * piece - 1, last)) + 1)
            for first, stop in runs
        )
        for number in sorted(set().union(*touched)):
            yield windows[number]


def _served(order: EpochOrder, window: Window, firsts: Int64) -> tuple[Int64, Int64]:
    """The records of a window by their places in the dataset, and their places in the epoch, in the order served.

    Args:
        order: of the epoch.
        window: of it.
        firsts: the place in the dataset of each shard's first record.
    """
    held = [firsts[s.shard] + np.arange(s.start, s.stop) for s in window.segments]
    piece = order.geometry.piece
    position = np.arange(window.start, window.stop)
    places = position // piece * order.geometry.batch_size + window.stream * piece + position % piece
    return np.concatenate(held)[order.permutation(window)], places


def _serial_correlation(places: Int64, records: Int64) -> float:
    following = np.flatnonzero(np.diff(places) == 1)
    if len(following) < 2 or np.ptp(records) == 0:
        return 0.0
    centred = records - records.mean()
    return float((centred[following] * centred[following + 1]).mean() / (centred**2).mean())


def _batch_shards(batches: Int64, shards: Int64) -> float:
    pairs = np.unique(batches * (int(shards.max()) + 1) + shards)
    return len(pairs) / len(np.unique(batches))


def _expected_shards(shard_records: Sequence[int], batch_size: int) -> float:
    sizes, times = np.unique(np.asarray(shard_records), return_counts=True)
    records = int(sum(shard_records))
    chances = [1 - _chance_of_none(records, int(size), batch_size) for size in sizes]
    return float(np.dot(times, chances))


def _chance_of_none(records: int, own: int, drawn: int) -> float:
    """C(records - own, drawn) / C(records, drawn)."""
    if records - own < drawn:
        return 0.0
    logarithms = (records - own, records - drawn), (records, records - own - drawn)
    above, below = (sum(math.lgamma(value + 1) for value in part) for part in logarithms)
    return math.exp(above - below)

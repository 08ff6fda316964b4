"""Measure how close the planned order of an epoch is to a full shuffle. No shard is opened.

- The *displacement* of a record is the distance from its position in the dataset: Spearman's footrule, whose mean under
  a uniform shuffle of n records is (n^2 - 1) / 3n (Diaconis and Graham, "Spearman's footrule as a measure of disarray",
  J. R. Statist. Soc. B 39, 1977). Moving whole shards may exceed this mean.
- The *separation* is the distance in the epoch of records that are neighbours in a shard. Between two of n positions
  drawn at random, its mean is (n + 1) / 3. Windows bound it, so it shows how much of the epoch a shard is spread over.
- The *serial correlation* relates the dataset positions of consecutive samples (Knuth, The Art of Computer Programming,
  vol. 2, section 3.3.2, K); its mean under a uniform shuffle is -1 / (n - 1).
- The *shards of a batch*: under a uniform shuffle, a shard of r records has no record in a batch of G with the
  probability C(n - r, G) / C(n, G).

Random shards, and random records within a few shards at a time, are the two levels of CorgiPile (Xu et al.,
"In-Database Machine Learning with CorgiPile", SIGMOD 2022), which shows that convergence rarely needs more. Here, the
build has already assigned records to shards at random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .epoch_order import EpochOrder
from .windows import Window

Int64 = npt.NDArray[np.int64]
_BLOCKS = 8  # evenly spread runs of steps to measure in an epoch that is too long to measure as a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleQuality:
    """The order of an epoch, compared with a full shuffle.

    Attributes:
        displacement: mean distance of a record from its position in the dataset, relative to a full shuffle.
        separation: mean distance in the epoch of neighbours in a shard, relative to a full shuffle.
        serial_correlation: correlation of the dataset positions of consecutive samples: 0 in a full shuffle, 1 in the
            order of the dataset.
        batch_shards: mean number of shards with records in a global batch.
        full_batch_shards: the same number in a full shuffle.
        samples: measured samples.

    >>> from ringfeed.pipeline import Loader
    >>> quality = Loader("flights", batch_size=64).shuffle_quality(0)
    >>> quality.samples
    320
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
        most_samples: about how many samples to measure; of a longer epoch, evenly spread runs of steps are measured.
    """
    geometry = order.geometry
    runs = _runs(geometry.steps, max(most_samples // geometry.batch_size, _BLOCKS))
    shard_records = np.asarray(order.shard_records, np.int64)
    ends: Int64 = np.cumsum(shard_records)
    samples, distance, neighbours = [], 0, 0
    for window in _windows(order, runs):
        records, places = _samples_of(order, window, ends - shard_records)
        inside = np.zeros(len(places), np.bool_)
        for first, stop in runs:
            inside |= (places >= first * geometry.batch_size) & (places < stop * geometry.batch_size)
        samples.append((places[inside], records[inside]))
        by_record = places[np.argsort(records)]
        apart = np.abs(np.diff(by_record))[np.diff(np.sort(records)) == 1]
        distance, neighbours = distance + int(apart.sum()), neighbours + len(apart)
    places, records = (np.concatenate(part) for part in zip(*samples, strict=True))
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
    """Return all steps as one run; or evenly spread runs that have about `most` steps together."""
    if steps <= most:
        return [(0, steps)]
    length = most // _BLOCKS
    return [(first, first + length) for first in np.linspace(0, steps - length, _BLOCKS).astype(int).tolist()]


def _windows(order: EpochOrder, runs: Sequence[tuple[int, int]]) -> Iterator[Window]:
    """Yield the windows of all streams that serve some runs of steps."""
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


def _samples_of(order: EpochOrder, window: Window, firsts: Int64) -> tuple[Int64, Int64]:
    """Return the dataset position and the epoch position of each sample of a window, in the order served.

    Args:
        firsts: dataset position of each shard's first record.
    """
    records = [firsts[s.shard] + np.arange(s.start, s.stop) for s in window.segments]
    piece = order.geometry.piece
    position = np.arange(window.start, window.stop)
    places = position // piece * order.geometry.batch_size + window.stream * piece + position % piece
    return np.concatenate(records)[order.permutation(window)], places


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
    """Return C(records - own, drawn) / C(records, drawn)."""
    if records - own < drawn:
        return 0.0
    logarithms = (records - own, records - drawn), (records, records - own - drawn)
    above, below = (sum(math.lgamma(value + 1) for value in part) for part in logarithms)
    return math.exp(above - below)

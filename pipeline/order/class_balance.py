"""Class-balanced resampling, planned in advance: the class of each seat of each global batch, and the record of the
window that fills it. No sample is drawn and then discarded.

The seats of a class in a batch follow systematic sampling (Madow 1949): with cumulative targets W_c and a start u in
[0, 1), class c gets floor(W_c + u) - floor(W_(c-1) + u) seats, the floor or the ceiling of its target. Over an epoch
the starts are the multiples of 1 / steps plus an offset, in golden-ratio order, so by Hermite's identity the total of
each class is within one of its target, too. The offset advances by the golden ratio from epoch to epoch, so over many
epochs the totals meet their targets even where one epoch has less than one seat for a class. Within a batch, seat j of
a class sorts by (j + 1/2) / seats, the balanced word of an apportionment (compare Tijdeman's chairman assignment,
1980), so that the piece of each stream is balanced as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from ringfeed.sharding.compute import kernels
from ringfeed.sharding.compute.grouping import stable_order
from ringfeed.sharding.compute.keyed_random import derive_key, shuffled_by_group

from .epoch_order import coprime_stride

Int64 = npt.NDArray[np.int64]
ClassNumbers = npt.NDArray[np.integer]
_GOLDEN = 0.6180339887498949
_ALL_WORDS_SEATS = 1 << 18  # up to so many seats, the words of all patterns are built at once
_CACHED_SEATS = 1 << 20
_SEATS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class ClassSchedule:
    """The class of every seat of every global batch of an epoch.

    A *pattern* is a vector with the seats of each class in a batch; the *word* of a pattern is the class of each seat.
    """

    weights: npt.NDArray[np.float64]  # share of each class, adding up to 1, float64 [classes]
    batch_size: int  # size of the global batch
    steps: int
    key: int  # random key of the epoch
    epoch: int = 0  # number of the epoch
    _turns: tuple[int, int] = field(init=False)  # stride and start, modulo steps
    _rotation: float = field(init=False)  # rotation of the first step's word, in [0, 1)
    _whole: npt.NDArray[np.float64] = field(init=False)  # least cumulative seats, [classes]
    _ups: npt.NDArray[np.float64] = field(init=False)  # start from which the cumulative seats are one more, [classes]
    _starts: npt.NDArray[np.float64] = field(init=False)  # first start of each pattern, from 0, [patterns]
    _words: ClassNumbers | None = field(init=False)  # doubled words of all patterns; None if they are too large
    _word_cache: dict[int, ClassNumbers] = field(init=False, default_factory=dict)  # by number of the pattern

    def __post_init__(self) -> None:
        """Find all patterns: as the start grows, the pattern changes where a cumulative target passes an integer."""
        turn = derive_key(self.key, "turn") % self.steps if self.steps else 0
        object.__setattr__(self, "_turns", (coprime_stride(self.steps), turn))
        object.__setattr__(self, "_rotation", derive_key(self.key, "rotation") / 2**64)
        ends = np.cumsum(self.weights) * self.batch_size
        nearest = np.round(ends)  # undoes rounding errors of integers
        ends = np.where(np.abs(ends - nearest) < 1e-6, nearest, ends)
        whole = np.floor(ends)
        steps_up = 1 - (ends - whole)
        starts = np.concatenate([[0.0], np.unique(steps_up[steps_up < 1])])
        object.__setattr__(self, "_whole", whole)
        object.__setattr__(self, "_ups", steps_up)
        object.__setattr__(self, "_starts", starts)
        few = len(starts) * self.batch_size <= _ALL_WORDS_SEATS
        object.__setattr__(self, "_words", self._doubled_words(np.arange(len(starts))) if few else None)

    def seats(self, steps: Int64) -> Int64:
        """Return the seats of each class in some global batches, int64 [len(steps), classes]."""
        return self._patterns(self._pattern_numbers(steps))

    def seats_of_epoch(self) -> tuple[Int64, Int64, Int64]:
        """Return the seats of each class in the epoch, and the fewest and the most in a batch; int64 [classes] each.

        The patterns themselves would take too much memory with many classes. Instead: a class gains a seat at the
        pattern where its own cumulative target counts one more, and loses one where that of the previous class does.
        """
        later = np.append(self.steps - self._first_turns(), 0)  # batches of each pattern and all patterns after it
        least = np.diff(self._whole, prepend=0).astype(np.int64)
        gains = np.searchsorted(self._starts, self._ups)
        loses = np.concatenate([[len(self._starts)], gains[:-1]])
        between = later[np.minimum(gains, loses)] - later[np.maximum(gains, loses)]  # batches after one of the two
        change = np.sign(loses - gains)
        some, every = np.where(between > 0, change, 0), np.where(between == self.steps, change, 0)
        fewest = least + np.where(some > 0, every, some)
        most = least + np.where(some > 0, some, every)
        return least * self.steps + change * between, fewest, most

    def seats_before(self, step: int, streams: int) -> Int64:
        """Return the seats of each class on each stream, over all global batches before a step; [streams, classes].

        Steps with the same pattern and rotation are computed once, so few of the steps take time.
        """
        piece, classes = self.batch_size // streams, len(self.weights)
        totals = np.zeros(streams * classes, np.int64)
        steps = np.arange(step)
        kinds = self._pattern_numbers(steps) * self.batch_size + self._rotations(steps)
        _, firsts, times = np.unique(kinds, return_index=True, return_counts=True)
        first_of_stream = np.repeat(np.arange(streams) * classes, piece)
        together = max(_SEATS_AT_ONCE // self.batch_size, 1)
        for start in range(0, len(firsts), together):
            some = slice(start, start + together)
            cells = self.classes_at(firsts[some], range(self.batch_size)) + first_of_stream
            weights = np.repeat(times[some], self.batch_size)
            totals += np.bincount(cells.reshape(-1), weights, len(totals)).astype(np.int64)
        return totals.reshape(streams, classes)

    def classes_at(self, steps: Int64, positions: range) -> ClassNumbers:
        """Return the class at a run of positions in some global batches.

        Args:
            steps: global batches, [n].
            positions: positions in the batch, within ``[0, batch_size)``; at least one.

        Returns:
            [n, len(positions)].
        """
        rotations = self._rotations(steps)
        which, words = self._pattern_numbers(steps), self._words
        if words is None:
            present, which = np.unique(which, return_inverse=True)
            words = self._cached_words(present)
        starts = (positions[0] + rotations) % self.batch_size
        if kernels.are_compiled():
            starts = (which * words.shape[1] + starts) * words.itemsize
            return kernels.gather(words.view(np.uint8), starts, len(positions) * words.itemsize).view(words.dtype)
        runs = sliding_window_view(words, len(positions), axis=1)  # [words, starts, m]
        result: ClassNumbers = runs[which, starts]
        return result

    def _patterns(self, numbers: Int64) -> Int64:
        """Return patterns by number, int64 [len(numbers), classes]."""
        reached = self._whole + (self._ups <= self._starts[numbers, None])
        return np.diff(reached, axis=1, prepend=0).astype(np.int64)

    def _cached_words(self, numbers: Int64) -> ClassNumbers:
        """Return `_doubled_words` from a cache, which is much faster."""
        words = dict(self._word_cache)
        new = [number for number in numbers.tolist() if number not in words]
        words |= zip(new, self._doubled_words(np.array(new, np.int64)), strict=True) if new else ()
        if len(words) * self.batch_size <= _CACHED_SEATS:
            self._word_cache.update(words)
        return np.stack([words[number] for number in numbers.tolist()])

    def _doubled_words(self, numbers: Int64) -> ClassNumbers:
        """Return the word of each pattern twice, end to end, so that a rotation is a slice; [patterns, 2 * batch]."""
        narrow = np.uint8 if len(self.weights) <= 256 else np.int32
        words, together = [], max(_SEATS_AT_ONCE // len(self.weights), 1)
        for first in range(0, len(numbers), together):
            for seats in self._patterns(numbers[first : first + together]):
                present = np.flatnonzero(seats)
                words.append(present.astype(narrow)[balanced_word(tuple(seats[present].tolist()))])
        return np.tile(np.reshape(words, (len(words), self.batch_size)), 2)

    def _rotations(self, steps: Int64) -> Int64:
        return ((steps * _GOLDEN + self._rotation) % 1.0 * self.batch_size).astype(np.int64)

    def _pattern_numbers(self, steps: Int64) -> Int64:
        stride, start = self._turns
        return np.searchsorted(self._starts[1:], self._starts_of((steps * stride + start) % self.steps), side="right")

    def _first_turns(self) -> Int64:
        """Return the first turn of each pattern, int64 [patterns]; the turns of a pattern are adjacent."""
        below = np.ceil(self._starts * self.steps - self._starts_of(np.zeros(1)) * self.steps).astype(np.int64) - 1
        return below + sum(self._starts_of(below + more) < self._starts for more in (0, 1))  # `below` is rounded

    def _starts_of(self, turns: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        return (turns + (0.5 + self.epoch * _GOLDEN) % 1.0) / self.steps


@lru_cache(maxsize=1024)
def balanced_word(seats: tuple[int, ...]) -> ClassNumbers:
    """Return a sequence that holds class c ``seats[c]`` times, each class spread evenly; [sum(seats)].

    >>> balanced_word((4, 2)).tolist()
    [0, 1, 0, 0, 1, 0]
    """
    counts = np.asarray(seats, np.int64)
    narrow = np.uint8 if len(counts) <= 256 else np.int32  # bytes sort twice as fast
    classes: ClassNumbers = np.repeat(np.arange(len(counts), dtype=narrow), counts)
    turn = np.arange(len(classes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return classes[np.argsort((turn + 0.5) / np.repeat(counts, counts), kind="stable")]


class RecordSampler:
    """Draws records of a window by class, in pass after pass over the records of a class in keyed random order.

    The draws of any two records of a class differ by at most one, and between two draws of a record each other record
    of its class is drawn.

    Args:
        class_ids: class of each record of the window, int32 [records].
        classes: number of classes in the dataset.
        key: random key of the window.

    Attributes:
        counts: records of each class in the window, int64 [classes].
    """

    def __init__(self, class_ids: npt.NDArray[np.int32], classes: int, key: int) -> None:
        self._members, self._bounds = shuffled_by_group(key, class_ids, classes)
        self.counts = np.diff(self._bounds)
        self._drawn = np.zeros(classes, np.int64)

    def skip(self, classes: ClassNumbers) -> None:
        """Skip samples of the given classes, [samples]."""
        self._drawn += np.bincount(classes, minlength=len(self._drawn))

    def draw(self, classes: ClassNumbers) -> Int64:
        """Draw the records of the next samples.

        Args:
            classes: class of each sample, [samples]; the window must have records of each.

        Returns:
            Numbers of records, int64 [samples].
        """
        if kernels.are_compiled():
            self._drawn %= np.maximum(self.counts, 1)
            return kernels.draw(classes, self._members, self._bounds, self._drawn)
        begin = self._drawn
        self._drawn = begin + np.bincount(classes, minlength=len(begin))
        starts, lengths = self._runs(begin, self._drawn)
        places = np.arange(len(classes))
        places += np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
        result = np.empty(len(classes), np.int64)
        result[stable_order(classes)] = self._members.take(places)  # class by class, each class in the order of draws
        return result

    def _runs(self, begin: Int64, end: Int64) -> tuple[Int64, Int64]:
        """Return the runs of members that draws ``[begin, end)`` of each class cover: starts and lengths."""
        size = np.maximum(self.counts, 1)
        first = begin // size
        passes = np.where(end > begin, (end - 1) // size - first + 1, 0)
        class_id = np.repeat(np.arange(len(begin)), passes)
        number = np.arange(len(class_id)) + np.repeat(first - np.cumsum(passes) + passes, passes)
        size = size[class_id]
        start = np.maximum(begin[class_id] - number * size, 0)
        stop = np.minimum(end[class_id] - number * size, size)
        return self._bounds[class_id] + start, stop - start

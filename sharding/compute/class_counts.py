"""Record counts by class, stored as narrow integers: 100,000 shards of 1,000 classes have 100 million counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ringfeed.sharding.common.fork_safe_locks import renew_lock_in_forks

from .arrays import Integers, Unsigned

Rows = tuple[Integers, Integers]


class ClassCounts(Sequence[int]):
    """A sequence that reads, compares and hashes like a tuple of counts, stored as an array of the narrowest type.

    >>> counts = ClassCounts([3, 0, 250])
    >>> counts == (3, 0, 250), counts[-1], sum(counts), counts
    (True, 250, 253, (3, 0, 250))
    >>> np.asarray(counts)
    array([  3,   0, 250], dtype=uint8)
    """

    __slots__ = ("_counts", "_deferred", "_hash")
    _counts: Unsigned
    _deferred: tuple[_DeferredRows, int] | None
    _hash: int | None

    def __init__(self, counts: Sequence[int] | Integers) -> None:
        array = np.asarray(counts, np.int64)
        if array.ndim != 1:
            raise ValueError(f"counts must be a list, got {counts!r}")
        self._counts = narrow_counts(array)
        self._deferred = None
        self._hash = None

    @classmethod
    def _of(cls, deferred: tuple[_DeferredRows, int]) -> ClassCounts:
        made = cls.__new__(cls)
        made._deferred, made._hash = deferred, None  # without `_counts`
        return made

    def __getattr__(self, name: str) -> Any:
        """Read the counts of a deferred row at first use; they are an ordinary attribute from then on."""
        if name != "_counts" or self._deferred is None:
            raise AttributeError(name)
        rows, number = self._deferred
        self._counts = rows.row(number)
        return self._counts

    def __len__(self) -> int:
        return len(self._counts)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> ClassCounts: ...
    def __getitem__(self, index: int | slice) -> int | ClassCounts:
        if isinstance(index, slice):
            return ClassCounts(self._counts[index])
        return int(self._counts[index])

    def __iter__(self) -> Iterator[int]:
        return iter(self._counts.tolist())

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self._counts, dtype) if copy else np.asarray(self._counts, dtype)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ClassCounts):
            return bool(np.array_equal(self._counts, other._counts))
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(self))
        return self._hash

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return ClassCounts, (self._counts.copy(),)  # the row alone, not the large array that it is a view of


class _DeferredRows:
    """Rows of counts that are all read when one of them is first used."""

    def __init__(self, read: Callable[[], Iterable[Rows]]) -> None:
        self._read = read
        self._rows: list[Unsigned] | None = None
        self._lock = threading.RLock()
        renew_lock_in_forks(self)

    def row(self, number: int) -> Unsigned:
        with self._lock:
            if self._rows is None:
                self._rows = self.rows()
        return self._rows[number]

    def rows(self) -> list[Unsigned]:
        """All rows, read anew unless `row` has kept them."""
        if self._rows is not None:
            return self._rows
        all_rows = []
        for values, offsets in self._read():
            narrow = narrow_counts(values)
            all_rows += [narrow[start:stop] for start, stop in pairwise(offsets.tolist())]
        return all_rows


def deferred_counts(read: Callable[[], Iterable[Rows]], rows: int) -> list[ClassCounts]:
    """Rows of counts that are all read when one of them is first used.

    Args:
        read: yields some rows at a time: their values end to end, and offsets such that row i is
            ``values[offsets[i]:offsets[i + 1]]``.

    >>> deferred_counts(lambda: [(np.array([1, 2, 3]), np.array([0, 2, 3])), (np.array([4]), np.array([0, 1]))], 3)
    [(1, 2), (3,), (4,)]
    """
    deferred = _DeferredRows(read)
    return [ClassCounts._of((deferred, number)) for number in range(rows)]


def count_matrix(rows: Sequence[Sequence[int]]) -> Unsigned:
    """Stack rows of one length to a matrix of the narrowest type that holds them all.

    >>> count_matrix([(1, 2), ClassCounts([3, 300])])
    array([[  1,   2],
           [  3, 300]], dtype=uint16)
    """
    result: Unsigned = np.empty((0, 0), np.uint8)
    for number, row in enumerate(_arrays(rows)):
        if number == 0:
            result = np.empty((len(rows), len(row)), row.dtype)
        if row.dtype.itemsize > result.dtype.itemsize:
            result = result.astype(row.dtype)
        result[number] = row
    return result


def _arrays(rows: Sequence[Sequence[int]]) -> Iterator[Unsigned]:
    """The narrow array of each row. Deferred rows are read but not kept, which would double the memory."""
    source: _DeferredRows | None = None
    read: list[Unsigned] = []
    for row in rows:
        counts = row if isinstance(row, ClassCounts) else ClassCounts(row)
        if counts._deferred is None:
            yield counts._counts
            continue
        deferred, number = counts._deferred
        if deferred is not source:
            source, read = deferred, deferred.rows()
        yield read[number]


def pad_counts(counts: Sequence[int], classes: int) -> Sequence[int]:
    """Append zeros for classes that were added later.

    >>> pad_counts(ClassCounts([3, 1]), 3)
    (3, 1, 0)
    """
    return counts if len(counts) == classes else ClassCounts(np.pad(np.asarray(counts), (0, classes - len(counts))))


def narrow_counts(counts: Integers) -> Unsigned:
    """Convert counts to the narrowest unsigned type that holds them; raises a ValueError if a count is negative."""
    if counts.min(initial=0) < 0:
        raise ValueError(f"counts must be at least 0, got {counts.min()}")
    return counts.astype(np.min_scalar_type(counts.max(initial=0)))

"""Records by class, as narrow integers: 100,000 shards of 1,000 classes are 100 million counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
import numpy.typing as npt

__all__ = ["ClassCounts", "count_matrix", "count_rows"]


class ClassCounts(Sequence[int]):
    """A tuple of counts to look at, equal to one that holds the same; below, an array of the narrowest type.

    >>> counts = ClassCounts([3, 0, 250])
    >>> counts == (3, 0, 250), counts[-1], sum(counts), counts
    (True, 250, 253, (3, 0, 250))
    >>> np.asarray(counts)
    array([  3,   0, 250], dtype=uint8)
    """

    __slots__ = ("_counts", "_hash")
    _counts: npt.NDArray[np.unsignedinteger]
    _hash: int | None

    def __init__(self, counts: Sequence[int] | npt.NDArray[np.integer]) -> None:
        self._counts = _narrowed(np.asarray(counts, np.int64))
        self._hash = None

    @classmethod
    def _over(cls, counts: npt.NDArray[np.unsignedinteger]) -> ClassCounts:
        made = cls.__new__(cls)
        made._counts = counts
        made._hash = None
        return made

    def __len__(self) -> int:
        return len(self._counts)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> ClassCounts: ...
    def __getitem__(self, index: int | slice) -> int | ClassCounts:
        if isinstance(index, slice):
            return ClassCounts._over(self._counts[index])
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
        return ClassCounts, (self._counts.copy(),)  # of a row of a large array, the row alone


def count_rows(values: npt.NDArray[np.integer], offsets: npt.NDArray[np.integer]) -> Iterable[ClassCounts]:
    """The rows ``values[offsets[i]:offsets[i + 1]]``, over one array."""
    narrow = _narrowed(values)
    bounds = offsets.tolist()
    return [ClassCounts._over(narrow[start:stop]) for start, stop in pairwise(bounds)]


def count_matrix(rows: Sequence[Sequence[int]]) -> npt.NDArray[np.unsignedinteger]:
    """Rows of one length as a matrix, of the narrowest type that any of them needs.

    >>> count_matrix([(1, 2), ClassCounts([3, 300])])
    array([[  1,   2],
           [  3, 300]], dtype=uint16)
    """
    narrow = [(row if isinstance(row, ClassCounts) else ClassCounts(row))._counts for row in rows]
    kind = np.result_type(np.uint8, *{row.dtype for row in narrow})
    result = np.empty((len(narrow), len(narrow[0]) if narrow else 0), kind)
    for number, row in enumerate(narrow):
        result[number] = row
    return result


def _narrowed(counts: npt.NDArray[np.integer]) -> npt.NDArray[np.unsignedinteger]:
    if counts.min(initial=0) < 0:
        raise ValueError(f"counts must be at least 0, got {counts.min()}")
    return counts.astype(np.min_scalar_type(counts.max(initial=0)))

"""Rows that were picked out of opened shards, and still lie there.

They are copied when all of a chunk are known, each to its place in it, and once: an array of each stream between would
take large records through memory twice more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...sharding.compute import kernels
from ...sharding.formats.parquet_pages import InPlace
from .buffer_pool import BufferPool, empty_aligned

__all__ = ["RowViews", "has_viewable_rows", "view_rows"]

Int64 = npt.NDArray[np.int64]
Lying: TypeAlias = npt.NDArray[Any] | InPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class RowViews:
    """Rows of one size, by where they lie in memory.

    Attributes:
        addresses: of the first byte of each, int64 [rows].
        dtype: of their values.
        shape: of each.
        owners: of the memory, which is held for them.
    """

    addresses: Int64
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    owners: tuple[Lying, ...]

    def __len__(self) -> int:
        return len(self.addresses)

    def slice(self, start: int, length: int) -> RowViews:
        """So many rows from one on."""
        return replace(self, addresses=self.addresses[start : start + length])

    def copy(self, pool: BufferPool | None = None) -> npt.NDArray[Any]:
        """The rows, [rows, *shape], in memory of a pool if there is one."""
        (copied,) = self.fields([(0, prod(self.shape) * self.dtype.itemsize)], pool)
        return copied.reshape(-1).view(self.dtype).reshape(-1, *self.shape)

    def fields(self, spans: Sequence[tuple[int, int]], pool: BufferPool | None) -> list[npt.NDArray[np.uint8]]:
        """Some bytes of each row, all rows of one span after the other: uint8 [rows, width] each.

        Args:
            spans: which bytes, as first and width.
            pool: of memory, or None.
        """
        fields = [empty_aligned((len(self), width), np.uint8, pool) for _, width in spans]
        kernels.gather_fields(self.addresses, [first for first, _ in spans], fields)
        return fields

    @staticmethod
    def side_by_side(values: Sequence[RowViews | npt.NDArray[Any]], steps: int) -> RowViews:
        """The rows of all, which have as many steps each: step after step, and in a step one after the other."""
        parts = [own if isinstance(own, RowViews) else _all_rows(np.ascontiguousarray(own)) for own in values]
        addresses = np.concatenate([part.addresses.reshape(steps, -1) for part in parts], axis=1).reshape(-1)
        owners = tuple(owner for part in parts for owner in part.owners)
        return RowViews(addresses=addresses, dtype=parts[0].dtype, shape=parts[0].shape, owners=owners)


def has_viewable_rows(values: object) -> bool:
    """Whether rows of a column can be picked: they lie together, and are more than a number each."""
    if not kernels.are_compiled():
        return False
    return isinstance(values, InPlace) or (
        isinstance(values, np.ndarray) and values.ndim > 1 and values.flags.c_contiguous
    )


def view_rows(
    values: Lying, rows: Int64, others: Mapping[int, tuple[Int64, Int64]], segments: Sequence[Lying]
) -> RowViews:
    """Rows of several segments of a column.

    Args:
        values: of the segment that most rows are of.
        rows: their numbers in it; where `others` has places, any.
        others: of each other segment that rows are of, their places among `rows`, and their numbers in it.
        segments: all of them.

    Raises:
        IndexError: there is no such row.
    """
    addresses = _addresses(values, rows.clip(0, len(values) - 1) if others else rows)
    for number, (places, own) in others.items():
        addresses[places] = _addresses(segments[number], own)
    dtype, shape = values.dtype, values.shape if isinstance(values, InPlace) else values.shape[1:]
    return RowViews(addresses=addresses, dtype=dtype, shape=shape, owners=tuple(segments))


def _all_rows(values: npt.NDArray[Any]) -> RowViews:
    return view_rows(values, np.arange(len(values)), {}, [values])


def _addresses(values: Lying, rows: Int64) -> Int64:
    if isinstance(values, InPlace):
        places: Int64 = values.starts.take(rows) + values.data.address
        return places
    return kernels.locate_rows(rows, values)

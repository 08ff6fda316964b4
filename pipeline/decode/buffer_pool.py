"""Memory of large arrays used again: what is fresh from the system costs more to touch for the first time than to fill.

Whoever holds an array holds its buffer, by references that are counted: TensorFlow's tensors too. A buffer that nobody
but the pool refers to is free.
"""

from __future__ import annotations

import sys
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BufferPool", "empty_aligned"]

_POOLED = 1 << 20  # bytes, from which on the allocator asks the system for memory each time, and gives it back
_ALIGNMENT = 64
_KEPT = 16  # buffers: more are let go of, once they are free


class BufferPool:
    """Buffers that are lent by letting them be referred to. For one thread at a time.

    >>> pool = BufferPool()
    >>> first = pool.take(2 << 20)
    >>> address, view = first.ctypes.data, first[:8]
    >>> del first
    >>> pool.take(2 << 20).ctypes.data == address  # the view still lies there
    False
    >>> del view
    >>> pool.take(2 << 20).ctypes.data == address
    True
    """

    def __init__(self) -> None:
        self._buffers: list[npt.NDArray[np.uint8]] = []

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """A buffer of so many bytes, whatever is in them."""
        if size < _POOLED:
            return np.empty(size, np.uint8)
        for number in range(len(self._buffers)):
            if self._buffers[number].size == size and sys.getrefcount(self._buffers[number]) == _UNUSED:
                return self._buffers[number]
        if len(self._buffers) >= _KEPT:
            self._buffers = [buffer for buffer in self._buffers if sys.getrefcount(buffer) > _UNUSED + 1][:_KEPT]
        buffer = np.empty(size, np.uint8)
        if len(self._buffers) < _KEPT:
            self._buffers.append(buffer)
        return buffer


def empty_aligned(shape: tuple[int, ...], dtype: npt.DTypeLike, pool: BufferPool | None = None) -> npt.NDArray[Any]:
    """An array that TensorFlow takes over without a copy: its buffers begin at multiples of 64 bytes."""
    size = prod(shape) * np.dtype(dtype).itemsize
    buffer = np.empty(size + _ALIGNMENT, np.uint8) if pool is None else pool.take(size + _ALIGNMENT)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)


def _references_of_unused() -> int:
    """What is counted of an object that is in one list, and asked for as `BufferPool.take` does."""
    kept = [object()]
    return sys.getrefcount(kept[0])


_UNUSED = _references_of_unused()

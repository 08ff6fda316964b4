"""Reuses the memory of large arrays: touching fresh memory for the first time costs more than filling it.

Arrays, and TensorFlow's tensors, hold references to their buffer. A buffer that only the pool refers to is free.
Tested in tests/pipeline/decode/test_row_views.py.
"""

from __future__ import annotations

import sys
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

_POOLED_BYTES = 1 << 20  # from this size on, the allocator gets memory from the system each time, and returns it
_ALIGNMENT = 64
_KEPT = 16  # buffers; more are dropped once they are free


class BufferPool:
    """Buffers that are free again when nothing refers to them. For one thread at a time.

    >>> pool = BufferPool()
    >>> first = pool.take(2 << 20)
    >>> address, view = first.ctypes.data, first[:8]
    >>> del first
    >>> pool.take(2 << 20).ctypes.data == address  # in use by the view
    False
    >>> del view
    >>> pool.take(2 << 20).ctypes.data == address
    True
    """

    def __init__(self) -> None:
        self._buffers: list[npt.NDArray[np.uint8]] = []

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """An uninitialised buffer of this many bytes."""
        if size < _POOLED_BYTES:
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
    """An uninitialised array that TensorFlow takes over without a copy, as it starts at a multiple of 64 bytes."""
    size = prod(shape) * np.dtype(dtype).itemsize
    buffer = np.empty(size + _ALIGNMENT, np.uint8) if pool is None else pool.take(size + _ALIGNMENT)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)


def _references_of_unused() -> int:
    """The reference count of an object in one list, looked up as `BufferPool.take` does."""
    kept = [object()]
    return sys.getrefcount(kept[0])


_UNUSED = _references_of_unused()

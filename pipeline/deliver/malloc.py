"""The C library's allocator, put back to keep memory between batches.

The first `tf.data` iterator over a Python generator has glibc return whatever is free at the end of a heap beyond
128 KiB, and nothing adapts any more: each batch then takes its memory anew from the system, page fault by page fault,
which costs more than all copies of it (TensorFlow 2.21).
"""

from __future__ import annotations

import ctypes
import functools
import os

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt, as <malloc.h> numbers them
_MMAP_BYTES = 32 << 20  # where glibc's own adapting ends
_SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def keep_freed_memory() -> bool:
    """Set the thresholds to where glibc would have taken them by itself, the highest that it adapts to.

    To be called once the first generator runs. It does nothing where the user has set them, or with another C library.

    Returns:
        Whether they were set.
    """
    if any(name in os.environ for name in _SET_BY_USER):
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 (only glibc has it)
        mallopt = library.mallopt
    except (OSError, TypeError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)) and bool(mallopt(_TRIM_THRESHOLD, 2 * _MMAP_BYTES))

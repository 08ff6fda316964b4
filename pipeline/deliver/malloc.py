"""Sets the C library's allocator to keep freed memory between batches.

The first `tf.data` iterator over a Python generator makes glibc return all free memory beyond 128 KiB at the end of a
heap, and stops glibc from adapting that limit. Each batch then gets its memory from the system again, one page fault at
a time, which costs more than all copies of the batch (TensorFlow 2.21).
Tested in tests/pipeline/deliver/test_to_tensorflow.py.
"""

from __future__ import annotations

import ctypes
import functools
import os

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt, as <malloc.h> numbers them
_MMAP_BYTES = 32 << 20  # up to which glibc adapts by itself
_SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def keep_freed_memory() -> bool:
    """Set the thresholds to the highest values that glibc adapts to by itself.

    Call it once the first generator runs. It does nothing where the user has set them, or with another C library.

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

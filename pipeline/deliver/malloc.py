"""Sets the C library's allocator to keep freed memory between batches.

The first `tf.data` iterator over a Python generator makes glibc return all free memory beyond 128 KiB at the end of a
heap, and stops glibc from adapting that limit. Each batch then gets its memory from the system again, one page fault at
a time, which costs more than all copies of the batch (TensorFlow 2.21).

Threads other than the first get their memory in heaps of 64 MiB, and glibc returns a heap that is free as a whole: with
records of 10 MB, most of a batch. A pad of the size of a heap keeps them: epochs of such records are 1.4 times as fast
(2 cores, 2026-11-28). The price is memory: none with records of 1 kB; with some of 4 MB 150 MiB, for half of the
processor time.
"""

from __future__ import annotations

import ctypes
import functools
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # parameters of mallopt, as <malloc.h> numbers them
_MMAP_BYTES = 32 << 20  # up to which glibc adapts by itself
_SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def keep_freed_memory() -> bool:
    """Set the thresholds to the highest values that glibc adapts to by itself, and the pad to as much as a heap.

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
    settings = {_MMAP_THRESHOLD: _MMAP_BYTES, _TRIM_THRESHOLD: 2 * _MMAP_BYTES, _TOP_PAD: 2 * _MMAP_BYTES}
    return all(bool(mallopt(*setting)) for setting in settings.items())

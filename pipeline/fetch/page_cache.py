"""Brings local files into the page cache by reading them, before they are mapped.

Page faults on a cold mapping read ahead far less than `read` does: a cold file of 16 MB that is mapped and checksummed
arrives at 1.4 GB/s, one that is read first at 1.8 (2 cores, 2026-11-27). A file that is cached is not read again.
"""

from __future__ import annotations

import os

_BLOCK_BYTES = 1 << 20
_PROBES = 16  # pages that are looked for: a file half cached counts as not cached but once in 65,536
_NO_WAIT = getattr(os, "RWF_NOWAIT", None)


def read_into_page_cache(path: str, start: int, stop: int) -> bool:
    """Read bytes ``[start, stop)`` of a local file, unless the page cache holds them.

    Args:
        start: first byte.
        stop: just past the last byte; may lie beyond the end of the file.

    Returns:
        Whether the file was read.

    Raises:
        OSError: the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _is_cached(descriptor, start, stop):
            return False
        block = memoryview(bytearray(min(_BLOCK_BYTES, max(stop - start, 0))))
        while start < stop and (count := os.preadv(descriptor, [block[: stop - start]], start)):
            start += count
        return True
    finally:
        os.close(descriptor)


def _is_cached(descriptor: int, start: int, stop: int) -> bool:
    """Whether evenly spread pages can be read without waiting; False where the file system cannot tell."""
    if _NO_WAIT is None:
        return False
    byte = bytearray(1)
    try:
        for probe in range(_PROBES):
            os.preadv(descriptor, [byte], start + (stop - start - 1) * probe // (_PROBES - 1), _NO_WAIT)
    except OSError:  # EAGAIN: not cached; EOPNOTSUPP: the file system cannot tell
        return False
    return True

"""Files that are not in the page cache, and a plain read of them. Needs only the standard library."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Sequence

_THREADS = 4
_BLOCK_BYTES = 1 << 20
_ATTEMPTS, _PAUSE_SECONDS = 20, 0.1
_LIBRARY = ctypes.CDLL(None)


def drop(files: Sequence[str], most_kept: float = 0.0) -> None:
    """Drop files from the page cache, once the threads of the epoch before have let go of them.

    Args:
        files: their paths.
        most_kept: fraction of their bytes that may stay, as of files that are mapped.

    Raises:
        RuntimeError: the page cache keeps more.
    """
    sizes = {path: os.path.getsize(path) for path in files}
    kept = list(files)
    for left in reversed(range(_ATTEMPTS)):
        kept = [path for path in kept if not _drop_once(path)]
        if sum(sizes[path] for path in kept) <= most_kept * sum(sizes.values()):
            return
        if left:
            time.sleep(_PAUSE_SECONDS)
    raise RuntimeError(f"{kept[0]} stays in the page cache; set TMPDIR to a folder on a disk")


def _drop_once(path: str) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if not size:
            return True
        os.fsync(descriptor)  # pages that are not written cannot be dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        held = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()  # `preadv` would start to read what is not there
        with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapped:
            place = ctypes.c_char.from_buffer(mapped)
            failed = _LIBRARY.mincore(ctypes.c_void_p(ctypes.addressof(place)), ctypes.c_size_t(size), held)
            del place
        return not failed and not any(each & 1 for each in bytes(held))
    finally:
        os.close(descriptor)


def read(files: Sequence[str]) -> None:
    """Read files to their ends, each by one of four threads."""
    left, lock = iter(files), threading.Lock()

    def work() -> None:
        block = bytearray(_BLOCK_BYTES)
        while True:
            with lock:
                path = next(left, None)
            if path is None:
                return
            with open(path, "rb", buffering=0) as file:
                while file.readinto(block):
                    pass

    threads = [threading.Thread(target=work) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

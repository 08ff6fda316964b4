"""Caches of shards: on a local disk, shared by the processes of a machine, or in memory.

A cache never changes a batch: every copy is verified against the checksum in the dataset. A damaged copy is fetched
again, and the loader stops only if the source is damaged, too. The source is never written.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from ringfeed.pipeline.metrics.stage_counters import Counters
from ringfeed.sharding.common.checksums import Checksum, checksum
from ringfeed.sharding.common.fork_safe_locks import renew_lock_in_forks
from ringfeed.sharding.common.validation import integer
from ringfeed.sharding.errors import ConfigError, StorageError
from ringfeed.sharding.storage.client_errors import IncompleteError
from ringfeed.sharding.storage.location import Location

from .disk_cache import DISK_FULL, CacheFolder, CacheKey

_logger = logging.getLogger(__name__)
_MEMORY_BYTES = 1 << 30
_BLOCK_BYTES = 4 << 20
_PIECES_A_CALL = 1024  # IOV_MAX of Linux and macOS
_WAIT_SECONDS = 60.0  # for a shard that another process fetches; a failing store is given up after as long

Fetch = Callable[[], pa.Buffer]
Stream = Callable[[Callable[[Any], None]], bool]


class ShardCache(Protocol):
    """A cache of files."""

    def get(self, key: CacheKey, fetch: Fetch, counters: Counters, stream: Stream | None = None) -> pa.Buffer:
        """Return the bytes of a file.

        Args:
            fetch: reads and verifies the file at the source.
            stream: passes the file on piece by piece as it arrives, unverified; returns False if it cannot.
        """


class Cache:
    """A cache on a local disk, within a limit, shared by all processes of the machine that name the same folder.

    Processes that need the same file fetch it once. The least recently used files are evicted, except those in use; if
    that leaves no room, files bypass the cache. A process may be killed at any moment: the next one removes what it
    left. If the disk is full, the loader warns once and stores no more files.

    Args:
        path: path of the folder, on a local disk; created if missing.
        limit_bytes: limit on the bytes of the folder on disk. It is stored in the folder and holds for all its users
            until one names another. Default: the stored limit; for a new cache, 0.8 of the free disk space.

    Raises:
        ConfigError: the folder cannot be used as a cache.

    >>> from ringfeed.pipeline import Loader
    >>> loader = Loader("flights", batch_size=64, cache=Cache("cache", limit_bytes=1 << 30))
    >>> len(list(loader.numpy_epoch(0)))
    5
    """

    def __init__(self, path: str | os.PathLike[str], limit_bytes: int | None = None) -> None:
        if path == "" or not isinstance(path, str | os.PathLike):
            raise ConfigError(f"cache must be the path of a folder on a local disk, got {path!r}")
        location = Location(os.fspath(path))
        if location.local_path is None:
            raise ConfigError(f"cache must be the path of a folder on a local disk, got {location.locate()}")
        limit_bytes = None if limit_bytes is None else _checked_limit(limit_bytes)
        self._path, self._limit_bytes = location.local_path, limit_bytes
        self._keeps = True
        self._warned: set[str] = set()
        self._folder = self._open(limit_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._path, self._limit_bytes)

    @property
    def path(self) -> Path:
        """Path of the folder."""
        return self._path

    def get(self, key: CacheKey, fetch: Fetch, counters: Counters, stream: Stream | None = None) -> pa.Buffer:
        folder = self._folder
        if folder is None or key.size == 0:  # an empty file cannot be mapped
            return fetch()
        start, pause = time.monotonic(), 0.001
        while True:
            try:
                data = self._hit(folder, key, counters)
                claimed = None if data is not None or not self._keeps else folder.claim(key)
            except OSError as error:
                self._give_up(error)
                return fetch()
            if data is not None:
                return data
            if claimed is not None:
                return self._fill(folder, key, claimed, fetch, counters, stream)
            if not self._keeps or time.monotonic() - start > _WAIT_SECONDS:
                return fetch()
            with counters.waiting("cache"):
                time.sleep(pause)
            pause = min(pause * 2, 0.02)

    def _open(self, limit_bytes: int | None) -> CacheFolder | None:
        try:
            return CacheFolder(self._path, limit_bytes)
        except ConfigError:
            raise
        except ValueError as error:  # not a valid path
            raise ConfigError(f"cannot use {str(self._path)!r} as a cache: {error}") from error
        except OSError as error:
            if error.errno not in DISK_FULL:
                own = "; name a folder of your own" if isinstance(error, PermissionError) else ""
                raise ConfigError(f"cannot use {self._path} as a cache: {error.strerror or error}{own}") from error
            self._give_up(error)
            return None

    def _hit(self, folder: CacheFolder, key: CacheKey, counters: Counters) -> pa.Buffer | None:
        with counters.busy("cache"):
            entry = folder.map(key)
        if entry is None:
            return None
        with counters.busy("verify", items=1, size=key.size):
            whole = checksum(entry.data) == key.checksum
        if whole:
            counters.add("cache", items=1, size=key.size)
            return entry.data
        _logger.warning("%s was damaged in the cache %s; fetching it again", key.path, self._path)
        folder.drop(key, entry.inode)
        return None

    def _fill(
        self, folder: CacheFolder, key: CacheKey, claimed: int, fetch: Fetch, counters: Counters, stream: Stream | None
    ) -> pa.Buffer:
        """Fetch a file, and store it if there is room."""
        published = False
        try:
            fits = self._reserve(folder, key, claimed, counters)
            data = None
            if not (fits and stream is not None and self._take_stream(key, claimed, stream, counters)):
                data = fetch()
                if not fits or not self._keeps:
                    return data
            try:
                if data is not None:
                    with counters.busy("fill"):
                        os.lseek(claimed, 0, os.SEEK_SET)
                        write_pieces(claimed, [data])
                published = True
                mapped = folder.publish(key, claimed)
            except OSError as error:
                self._give_up(error)
                return data or fetch()
            counters.add("fill", items=1, size=key.size)
            return mapped or data or fetch()
        finally:
            if not published:
                with suppress(OSError):  # the fetched bytes are good in any case
                    folder.abandon(key, claimed)

    def _reserve(self, folder: CacheFolder, key: CacheKey, claimed: int, counters: Counters) -> bool:
        try:
            with counters.busy("fill"):
                fits, removed = folder.reserve(claimed, key.size)
        except OSError as error:
            self._give_up(error)
            return False
        counters.add("evict", items=len(removed), size=sum(removed))
        if not fits:
            self._warn("small", f"the cache {self._path} is full of files in use; raise its limit")
        return fits

    def _take_stream(self, key: CacheKey, claimed: int, stream: Stream, counters: Counters) -> bool:
        """Write a file as it arrives, without holding it in memory; return whether it arrived intact."""
        digest, output, left = Checksum(), _PieceWriter(claimed), [key.size]

        def take(piece: Any) -> None:
            view = memoryview(piece)
            left[0] -= view.nbytes
            if left[0] < 0:
                raise IncompleteError("the file is larger than the dataset says")  # and than the reserved room
            digest.update(view)
            output.write(view)

        try:
            with counters.busy("fetch"), counters.waiting("fetch"):
                done = stream(take)
                output.flush()
        except (IncompleteError, StorageError):
            return False
        except OSError as error:  # of the disk
            self._give_up(error)
            return False
        if not done or left[0] or digest.text != key.checksum:
            return False
        counters.add("fetch", items=1, size=key.size)
        return True

    def _give_up(self, error: OSError) -> None:
        self._keeps = False
        reason = "its disk is full" if error.errno in DISK_FULL else str(error)
        self._warn("broken", f"the cache {self._path} stores no more files: {reason}; reading from the source")

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _logger.warning("%s", text)


class _PieceWriter:
    """Writes the pieces of a file in blocks at multiples of their size.

    Linux keeps such blocks in larger pages, so that mapping them takes fewer page faults.
    """

    def __init__(self, descriptor: int, block_bytes: int = _BLOCK_BYTES) -> None:
        self._descriptor, self._block_bytes = descriptor, block_bytes
        self._pieces: list[memoryview] = []
        self._room = block_bytes

    def write(self, piece: memoryview) -> None:
        while piece.nbytes >= self._room:
            rest = piece[self._room :]
            self._pieces.append(piece[: self._room])
            self.flush()
            piece = rest
        self._pieces.append(piece)
        self._room -= piece.nbytes

    def flush(self) -> None:
        write_pieces(self._descriptor, self._pieces)
        self._pieces, self._room = [], self._block_bytes


class MemoryCache:
    """A cache in the memory of this process, which evicts the least recently used files.

    It is pickled as its limit, and arrives empty in another process.

    Args:
        limit_bytes: limit on the bytes of all files together.

    >>> from ringfeed.pipeline import Loader
    >>> Loader("flights", batch_size=64, cache=MemoryCache(1 << 20)).steps_per_epoch
    5
    """

    def __init__(self, limit_bytes: int = _MEMORY_BYTES) -> None:
        self._limit_bytes = _checked_limit(limit_bytes)
        self._buffers: OrderedDict[CacheKey, pa.Buffer] = OrderedDict()
        self._bytes = 0
        self._lock = threading.RLock()
        renew_lock_in_forks(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._limit_bytes,)

    def get(self, key: CacheKey, fetch: Fetch, counters: Counters, stream: Stream | None = None) -> pa.Buffer:
        with self._lock:
            data = self._buffers.get(key)
            if data is not None:
                self._buffers.move_to_end(key)
        if data is not None:
            counters.add("cache", items=1, size=key.size)
            return data
        data = fetch()
        if key.size > self._limit_bytes:
            return data
        counters.add("fill", items=1, size=key.size)
        with self._lock:
            if key not in self._buffers:
                self._buffers[key] = data
                self._bytes += key.size
            removed = []
            while self._bytes > self._limit_bytes:
                oldest, _ = self._buffers.popitem(last=False)
                self._bytes -= oldest.size
                removed.append(oldest.size)
        counters.add("evict", items=len(removed), size=sum(removed))
        return data


def open_cache(cache: str | os.PathLike[str] | ShardCache | None, limit_bytes: int | None = None) -> ShardCache | None:
    """Return the cache that an option names.

    Args:
        cache: None or ``none``, ``memory``, the path of a folder, or a cache.
        limit_bytes: limit of a new cache; None for its default.

    Raises:
        ConfigError: the option names no usable cache.
    """
    if cache is None:
        return None
    if isinstance(cache, (str, os.PathLike)):
        if cache == "none":
            return None
        if cache == "memory":
            return MemoryCache(_MEMORY_BYTES if limit_bytes is None else limit_bytes)
        return Cache(cache, limit_bytes)
    given: object = cache
    if isinstance(given, Mapping | type) or not callable(getattr(given, "get", None)):
        raise ConfigError(f"cache must be 'none', 'memory', the path of a folder, or a cache, got {cache!r}")
    return cache


def _checked_limit(limit_bytes: int) -> int:
    return integer("limit_bytes of a cache", limit_bytes, 1)


def write_pieces(descriptor: int, pieces: Sequence[Any]) -> None:
    """Write pieces without copying them, many per system call."""
    views = list(pieces)
    start = 0
    while start < len(views):
        some = views[start : start + _PIECES_A_CALL]
        count = os.writev(descriptor, some)
        if count == sum(map(len, some)):
            start += len(some)
            continue
        while start < len(views) and count >= len(views[start]):
            count -= len(views[start])
            start += 1
        if count:
            views[start] = memoryview(views[start])[count:]

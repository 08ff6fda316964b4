"""Copies of shards near the loader: on a local disk, shared by the processes of a machine, or in memory; or none.

A cache changes no batch. What it hands out has the checksum that the dataset names: a copy that was damaged is fetched
again, and only if the source is damaged, too, does the loader stop. The source is never written to.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from ...sharding.common.checksums import Checksum, checksum
from ...sharding.common.fork_safe_locks import renew_lock_in_forks
from ...sharding.common.validation import integer
from ...sharding.errors import ConfigError, StorageError
from ...sharding.storage.atomic_files import write_pieces
from ...sharding.storage.location import Location
from ...sharding.storage.retry import IncompleteError
from ..metrics.stage_counters import Counters
from .disk_cache import DISK_FULL, CacheFolder, CacheKey

__all__ = ["Cache", "MemoryCache", "ShardCache", "open_cache"]

_logger = logging.getLogger(__name__)
_MEMORY_BYTES = 1 << 30
_TOGETHER_BYTES = 4 << 20
_PATIENCE_SECONDS = 60.0  # for another process to bring a shard; a store that fails is given up as soon

Fetch = Callable[[], pa.Buffer]
Stream = Callable[[Callable[[Any], None]], bool]


class ShardCache(Protocol):
    """Whatever keeps copies of files."""

    def get(self, key: CacheKey, fetch: Fetch, counters: Counters, stream: Stream | None = None) -> pa.Buffer:
        """The bytes of a file.

        Args:
            key: of the file.
            fetch: brings them from the source, and has checked them.
            counters: of the loader.
            stream: hands them on unchecked, piece by piece as they arrive; or returns False, and `fetch` has to.
        """


class Cache:
    """Copies on a local disk, within a limit, shared by all processes of this machine that name the same folder.

    Two that want the same file fetch it once. What was not used for longest makes room for what is new, except for what
    is in use; where that leaves no room, files are read past the cache. A process may be killed at any moment: what it
    leaves stands in no one's way, and is removed by the next. When the disk is full, the loader warns once and goes on
    without keeping more.

    Args:
        path: of the folder, on a local disk; made if it is missing.
        limit_bytes: what the folder may take on the disk, in use or not; it is kept there and holds for all who use the
            folder, until one names another. Default: as it is; of a new cache, 0.8 of what is free on the disk.

    Raises:
        ConfigError: the folder cannot be used so.
    """

    def __init__(self, path: str | os.PathLike[str], limit_bytes: int | None = None) -> None:
        if path == "" or not isinstance(path, str | os.PathLike):
            raise ConfigError(f"a cache is a folder on a local disk, by its path, got {path!r}")
        location = Location(os.fspath(path))
        if location.local_path is None:
            raise ConfigError(f"a cache is a folder on a local disk, got {location.locate()}")
        limit_bytes = None if limit_bytes is None else _checked_limit(limit_bytes)
        self._path, self._limit_bytes = location.local_path, limit_bytes
        self._keeps = True
        self._warned: set[str] = set()
        self._folder = self._open(limit_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._path, self._limit_bytes)

    @property
    def path(self) -> Path:
        """Of the folder."""
        return self._path

    def get(self, key: CacheKey, fetch: Fetch, counters: Counters, stream: Stream | None = None) -> pa.Buffer:
        """See `ShardCache`."""
        folder = self._folder
        if folder is None or key.size == 0:  # nothing of no size can be mapped
            return fetch()
        asked, pause = time.monotonic(), 0.001
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
            if not self._keeps or time.monotonic() - asked > _PATIENCE_SECONDS:
                return fetch()
            with counters.waiting("cache"):
                time.sleep(pause)
            pause = min(pause * 2, 0.02)

    def _open(self, limit_bytes: int | None) -> CacheFolder | None:
        try:
            return CacheFolder(self._path, limit_bytes)
        except ConfigError:
            raise
        except ValueError as error:  # no path can be so
            raise ConfigError(f"cannot use {str(self._path)!r} as a cache: {error}") from error
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise ConfigError(f"cannot use {self._path} as a cache: {error.strerror or error}") from error
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
        _logger.warning("%s was damaged in the cache %s; it is fetched again", key.path, self._path)
        folder.drop(key, entry.number)
        return None

    def _fill(
        self,
        folder: CacheFolder,
        key: CacheKey,
        claimed: int,
        fetch: Fetch,
        counters: Counters,
        stream: Stream | None,
    ) -> pa.Buffer:
        """Bring a file, and keep it if there is room."""
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
                with suppress(OSError):  # what was fetched is good all the same
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
            self._warn("small", f"the cache {self._path} has no room for more than is in use; raise its limit")
        return fits

    def _take_stream(self, key: CacheKey, claimed: int, stream: Stream, counters: Counters) -> bool:
        """Write a file as it arrives, without holding it in memory; whether its bytes were the right ones."""
        digest, arriving, left = Checksum(), _Arriving(claimed), [key.size]

        def take(piece: Any) -> None:
            view = memoryview(piece)
            left[0] -= view.nbytes
            if left[0] < 0:
                raise IncompleteError("there are more bytes than the dataset says")  # nor is there room for them
            digest.update(view)
            arriving.write(view)

        try:
            with counters.busy("fetch"):
                done = stream(take)
                arriving.flush()
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
        self._warn("broken", f"the cache {self._path} keeps nothing more: {reason}; shards are read from the source")

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _logger.warning("%s", text)


class _Arriving:
    """A file that is written as its pieces arrive, at multiples of `_TOGETHER_BYTES`.

    Linux keeps what is written so in larger pages, which are mapped with fewer faults.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held: list[memoryview] = []
        self._room = _TOGETHER_BYTES

    def write(self, piece: memoryview) -> None:
        while piece.nbytes >= self._room:
            rest = piece[self._room :]
            self._held.append(piece[: self._room])
            self.flush()
            piece = rest
        self._held.append(piece)
        self._room -= piece.nbytes

    def flush(self) -> None:
        write_pieces(self._descriptor, self._held)
        self._held, self._room = [], _TOGETHER_BYTES


class MemoryCache:
    """Copies in the memory of this process; what was not used for longest makes room for what is new.

    To another process it is pickled as its limit, and is empty there.

    Args:
        limit_bytes: of the copies.
    """

    def __init__(self, limit_bytes: int = _MEMORY_BYTES) -> None:
        self._limit_bytes = _checked_limit(limit_bytes)
        self._held: OrderedDict[CacheKey, pa.Buffer] = OrderedDict()
        self._held_bytes = 0
        self._lock = threading.RLock()
        renew_lock_in_forks(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._limit_bytes,)

    def get(self, key: CacheKey, fetch: Fetch, counters: Counters, stream: Stream | None = None) -> pa.Buffer:
        """See `ShardCache`."""
        with self._lock:
            data = self._held.get(key)
            if data is not None:
                self._held.move_to_end(key)
        if data is not None:
            counters.add("cache", items=1, size=key.size)
            return data
        data = fetch()
        if key.size > self._limit_bytes:
            return data
        counters.add("fill", items=1, size=key.size)
        with self._lock:
            if key not in self._held:
                self._held[key] = data
                self._held_bytes += key.size
            removed = []
            while self._held_bytes > self._limit_bytes:
                oldest, _ = self._held.popitem(last=False)
                self._held_bytes -= oldest.size
                removed.append(oldest.size)
        counters.add("evict", items=len(removed), size=sum(removed))
        return data


def open_cache(cache: str | os.PathLike[str] | ShardCache | None, limit_bytes: int | None = None) -> ShardCache | None:
    """The cache that an option names.

    Args:
        cache: None or ``none``, ``memory``, the path of a folder, or a cache.
        limit_bytes: of a new one; None: its default.

    Raises:
        ConfigError: it cannot be used so.
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

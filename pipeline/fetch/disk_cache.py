"""The folder of a disk cache: files and locks by which the processes of a machine share it without a daemon.

```
CACHE/
  ringfeed-cache.json                   the state: the limit and the bytes held; locked to change what is held
  s3%3A%2F%2Fbucket%2Fflights/          a folder for each dataset, named by its URL
    train-00003-of-00016.tfrecord@SIZE-CHECKSUM         an entry; a rename makes it visible only when complete
    train-00003-of-00016.tfrecord@SIZE-CHECKSUM.part    an entry that is being filled
```

All locks are `flock`s, which the kernel releases when their holder dies, however it dies:

- The process that fills a `.part` holds an exclusive lock on it. An unlocked `.part` is debris: the next process to
  fill that entry starts over, and the next to make room removes it.
- A process that maps an entry holds a shared lock on it as long as the mapping lives. Only entries that can be locked
  exclusively are removed. Unlinking a mapped entry would not harm its readers, but its bytes would stay on the disk
  uncounted and break the limit.
- The bytes held are increased before the bytes exist and decreased after they are gone, under the lock of the state
  file. So a process that is killed in between leaves a count that is too high, and the next listing corrects it.

Nothing is synced: an entry damaged by a power cut fails its checksum and is fetched again; a damaged state file is
rewritten. Files that are not named like entries belong to others and are left alone.
Tested in tests/pipeline/fetch/test_shard_cache.py.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa
import xxhash

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.storage.private_folders import check_private, make_private_folder

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
STATE_NAME = "ringfeed-cache.json"
_STATE_BYTES = 256  # fixed size, so that one write replaces it
_PART = ".part"
_ENTRY = re.compile(r"(?P<path>.+)@[0-9]+-[a-z0-9]+-[a-z0-9]+-[0-9a-f]+(?P<filling>\.part)?")  # see `CacheKey.file`
_BLOCK_BYTES = 4096  # a file takes a multiple of this on disk
_NAME_LENGTH = 120  # limit of a quoted part, so that the whole name stays below 255
_DEFAULT_SHARE = 0.8  # of the free space
_EXTRA_SHARE = 64  # eviction lists all entries, so small ones free this fraction (1/64) of the limit in advance
_LOCK_SECONDS = 60.0
_REMEDY = "name a cache folder that only you can write to"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheKey:
    """Identifies a file by its content: another version of the file has another key."""

    dataset: str  # URL of the dataset, without a password
    path: str  # path of the file in the dataset
    size: int  # size in bytes
    checksum: str

    @property
    def file(self) -> str:
        """Path in the cache.

        >>> CacheKey(dataset="s3://b/d", path="g00001/x.tfrecord", size=3, checksum="xxh3-128:c64e").file
        's3%3A%2F%2Fb%2Fd/g00001%2Fx.tfrecord@3-xxh3-128-c64e'
        """
        return f"{dataset_folder(self.dataset)}/{_quoted(self.path)}@{self.size}-{self.checksum.replace(':', '-')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """A file of a cache."""

    file: Path  # path of the file
    dataset: str  # URL of its dataset; of a long URL, the beginning
    path: str  # path in the dataset
    bytes: int  # bytes on disk
    used: float  # time of the last use, in seconds since 1970
    filling: bool  # whether the entry is incomplete

    def in_use(self) -> bool:
        """Return whether a process maps or fills the entry now."""
        with suppress(FileNotFoundError), _opened(self.file, os.O_RDONLY) as descriptor:
            return not _try_lock(descriptor, fcntl.LOCK_EX)
        return False


def dataset_folder(url: str) -> str:
    """Return the name of the folder with a dataset's entries."""
    return _quoted(url)


def _quoted(text: str) -> str:
    quoted = quote(text, safe="")
    return quoted if len(quoted) <= _NAME_LENGTH else f"{quoted[:80]}+{xxhash.xxh3_128_hexdigest(text.encode())}"


@dataclass(slots=True)
class _State:
    """The locked state file."""

    descriptor: int
    limit_bytes: int
    held_bytes: int

    def save(self) -> None:
        text = json.dumps({"version": 1, "limit_bytes": self.limit_bytes, "held_bytes": self.held_bytes})
        os.pwrite(self.descriptor, f"{text:<{_STATE_BYTES - 1}}\n".encode(), 0)


@dataclass(frozen=True, slots=True)
class MappedEntry:
    """The bytes of a mapped entry, and the inode of its file."""

    data: pa.Buffer
    inode: int


class CacheFolder:
    """The folder of a cache.

    Args:
        path: path of the folder; created if missing.
        limit_bytes: new limit for all files together, for all users of the cache; None keeps the limit, which is 0.8
            of the free disk space for a new cache.

    Raises:
        ConfigError: the folder holds other files.
        OSError: the folder is not writable.
    """

    def __init__(self, path: Path, limit_bytes: int | None = None) -> None:
        self.path = path
        path.mkdir(0o700, parents=True, exist_ok=True)
        if (
            not is_cache(path) and any(path.iterdir()) and not is_cache(path)
        ):  # rechecked: another process may just have created the cache
            raise ConfigError(f"{path} holds other files and is no cache; name a new folder or an empty one")
        self._limit_bytes = limit_bytes or 0
        with self._locked() as state:
            state.limit_bytes = limit_bytes or state.limit_bytes or int(shutil.disk_usage(path).free * _DEFAULT_SHARE)
            self._limit_bytes = state.limit_bytes
            self._make_room(state, 0)
            state.save()

    @property
    def limit_bytes(self) -> int:
        """Limit on the bytes of all files together."""
        with self._locked() as state:
            return state.limit_bytes

    def map(self, key: CacheKey) -> MappedEntry | None:
        """Map an entry, and lock it against removal as long as the buffer lives; None if there is no such entry.

        The caller must verify the bytes. A file of the wrong size is removed.
        """
        file = self.path / key.file
        check_private(file.parent, _REMEDY)
        while True:
            try:
                with _opened(file, os.O_RDONLY) as descriptor:
                    _lock(descriptor, fcntl.LOCK_SH)
                    status = os.fstat(descriptor)
                    if status.st_nlink and status.st_size == key.size:
                        _touch(descriptor)
                        return MappedEntry(_mapped(descriptor, key.size), status.st_ino)
            except FileNotFoundError:
                return None
            if status.st_nlink:  # otherwise it was removed before it was locked
                self.drop(key, status.st_ino)

    def drop(self, key: CacheKey, inode: int) -> None:
        """Remove a damaged entry, even if it is in use, since other users find the damage, too.

        Args:
            inode: inode of the damaged file; a file that has replaced it is kept.
        """
        file = self.path / key.file
        with self._locked() as state, suppress(FileNotFoundError):
            if file.lstat().st_ino == inode:
                file.unlink()
                state.held_bytes = _sum(self.entries())  # recounted: the file may not have the size that was counted
                state.save()

    def claim(self, key: CacheKey) -> int | None:
        """Claim an entry to fill it.

        Returns:
            Descriptor of its empty, locked `.part`; None if another process fills it or has just filled it.
        """
        part = self.path / (key.file + _PART)
        while True:
            make_private_folder(part.parent, _REMEDY)
            try:
                descriptor = _open(part, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:  # another process has removed the empty folder
                continue
            if not _try_lock(descriptor, fcntl.LOCK_EX):
                os.close(descriptor)
                return None
            with suppress(FileNotFoundError):
                if os.path.samestat(os.lstat(part), os.fstat(descriptor)):
                    if os.fstat(descriptor).st_size:  # left by a killed process
                        os.ftruncate(descriptor, 0)  # only if needed: ext4 flushes truncated files when they are closed
                    if not (self.path / key.file).exists():
                        return descriptor
                    self.abandon(key, descriptor)
                    return None
            os.close(descriptor)  # filled or removed before it was locked

    def abandon(self, key: CacheKey, claimed: int) -> None:
        """Remove a claimed entry."""
        try:
            with self._locked() as state:  # so that the file and its bytes disappear together
                with suppress(FileNotFoundError):
                    os.unlink(self.path / (key.file + _PART))
                state.held_bytes -= _on_disk(os.fstat(claimed).st_size)
                state.save()
        finally:
            os.close(claimed)

    def reserve(self, claimed: int, size: int) -> tuple[bool, list[int]]:
        """Make room for a claimed entry.

        Returns:
            Whether it fits beside the entries in use, and the sizes of the removed entries.

        Raises:
            OSError: the disk is full.
        """
        needed = _on_disk(size)
        with self._locked() as state:
            removed = self._make_room(state, needed) if state.held_bytes + needed > state.limit_bytes else []
            fits = state.held_bytes + needed <= state.limit_bytes
            state.held_bytes += needed if fits else 0
            state.save()
            if fits:
                os.ftruncate(claimed, size)  # from now on, listings count it, too
        if fits:
            _take_blocks(claimed, size)
        return fits, removed

    def publish(self, key: CacheKey, claimed: int) -> pa.Buffer | None:
        """Make a filled entry visible, and map it as `map` does; None if another process has already removed it."""
        try:
            _touch(claimed)
            with self._locked():  # a concurrent listing could miss both names, and make too little room
                os.rename(self.path / (key.file + _PART), self.path / key.file)
            _lock(claimed, fcntl.LOCK_SH)
            return _mapped(claimed, key.size) if os.fstat(claimed).st_nlink else None
        finally:
            os.close(claimed)

    def entries(self) -> list[CacheEntry]:
        """Return all files except the state, the least recently used first."""
        files = []
        for folder in _listed(self.path):
            dataset = unquote(folder.name.partition("+")[0])
            for file in _listed(Path(folder.path)) if folder.is_dir(follow_symlinks=False) else ():
                named = _ENTRY.fullmatch(file.name)
                if named is None or not file.is_file(follow_symlinks=False):
                    continue
                with suppress(FileNotFoundError):
                    status = file.stat(follow_symlinks=False)
                    files.append(
                        CacheEntry(
                            file=Path(file.path),
                            dataset=dataset,
                            path=unquote(named["path"].partition("+")[0]),
                            bytes=_on_disk(status.st_size),
                            used=status.st_mtime_ns / 1e9,
                            filling=named["filling"] is not None,
                        )
                    )
        return sorted(files, key=lambda entry: (entry.used, entry.file))

    def remove(self, entries: list[CacheEntry]) -> list[CacheEntry]:
        """Remove entries that are not in use, and folders left empty; return the removed entries."""
        with self._locked() as state:
            removed = [entry for entry in entries if _remove_unused(entry.file)]
            state.held_bytes = _sum(self.entries())
            state.save()
            for folder in {entry.file.parent for entry in removed}:
                with suppress(OSError):  # not empty
                    folder.rmdir()
        return removed

    def _make_room(self, state: _State, needed: int) -> list[int]:
        """Remove debris, recount the bytes held, and evict the least recently used; return the sizes of evicted."""
        entries = [entry for entry in self.entries() if not (entry.filling and _remove_unused(entry.file))]
        state.held_bytes = _sum(entries)
        excess = state.held_bytes + needed - state.limit_bytes
        victims: list[CacheEntry] = []
        freed = 0
        for entry in entries:
            extra = max(freed - excess, 0) + entry.bytes
            if excess <= 0 or (freed >= excess and extra > state.limit_bytes // _EXTRA_SHARE):
                break
            if not entry.filling and not entry.in_use():
                victims.append(entry)
                freed += entry.bytes
        if freed < excess and needed:
            return []  # there would still be no room
        removed = [entry.bytes for entry in victims if _remove_unused(entry.file)]
        state.held_bytes -= sum(removed)
        return removed

    @contextmanager
    def _locked(self) -> Iterator[_State]:
        with _opened(self.path / STATE_NAME, os.O_RDWR | os.O_CREAT) as descriptor:
            _lock(descriptor, fcntl.LOCK_EX)
            saved = _parse_state(os.pread(descriptor, _STATE_BYTES, 0))
            if saved is None:  # new, or damaged by a kill or a power cut
                saved = self._limit_bytes, _sum(self.entries())
            yield _State(descriptor, *saved)


def is_cache(path: Path) -> bool:
    """Return whether a folder is a cache."""
    return (path / STATE_NAME).is_file()  # a link is refused when it is opened


def _parse_state(text: bytes) -> tuple[int, int] | None:
    """Return the limit and the bytes held as `_State.save` wrote them; None for any other text."""
    try:
        state = json.loads(text)
        limit_bytes, held_bytes = state["limit_bytes"], state["held_bytes"]
    except (ValueError, TypeError, KeyError):
        return None
    return (limit_bytes, held_bytes) if isinstance(limit_bytes, int) and isinstance(held_bytes, int) else None


def _on_disk(size: int) -> int:
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES


def _sum(entries: list[CacheEntry]) -> int:
    return _BLOCK_BYTES + sum(entry.bytes for entry in entries)  # the state file takes one block


def _listed(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _remove_unused(file: Path) -> bool:
    """Unlink a file unless somebody has locked it; return whether this call removed it."""
    with suppress(FileNotFoundError), _opened(file, os.O_RDONLY) as descriptor:
        # Before it was locked it may have been renamed or removed, and another file may have its name.
        if _try_lock(descriptor, fcntl.LOCK_EX) and os.path.samestat(os.lstat(file), os.fstat(descriptor)):
            file.unlink()
            return True
    return False


def _touch(descriptor: int) -> None:
    """Mark a file as used now, with a finer clock than the kernel's for files."""
    with suppress(PermissionError):  # the file of another user
        os.utime(descriptor, ns=(time.time_ns(), time.time_ns()))


def _take_blocks(descriptor: int, size: int) -> None:
    """Allocate a file's blocks before it is written, which saves time on ext4.

    Not `os.posix_fallocate`, which writes zeros on file systems that cannot allocate. There, this does nothing.

    Raises:
        OSError: the disk is full.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "fallocate"):  # macOS lacks it
        return
    if library.fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size)) and ctypes.get_errno() in DISK_FULL:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _mapped(descriptor: int, size: int) -> pa.Buffer:
    """Map a file. The mapping duplicates the descriptor, and so holds the lock until nobody holds a part of it."""
    return pa.py_buffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))


def _open(path: Path, flags: int) -> int:
    """Open a file of this user alone; follow no link, and don't wait for the other end of a FIFO.

    Raises:
        OSError: another user may have planted it.
    """
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, f"{path} is a link, which another user may have planted; remove it") from error


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = _open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock(descriptor: int, kind: int) -> None:
    """Wait for a lock that is only held briefly; raises a TimeoutError if the holder hangs."""
    pause, deadline = 0.0005, time.monotonic() + _LOCK_SECONDS
    while not _try_lock(descriptor, kind):
        if time.monotonic() > deadline:
            raise TimeoutError(f"another process has held a lock of the cache for {_LOCK_SECONDS:.0f} s")
        time.sleep(pause)
        pause = min(pause * 2, 0.02)

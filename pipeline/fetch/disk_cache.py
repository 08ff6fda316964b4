"""The folder of a disk cache: its files and locks, through which processes of one machine share it without a daemon.

```
CACHE/
  ringfeed-cache.json                   the limit and the bytes held; whoever changes what is held locks it
  s3%3A%2F%2Fbucket%2Fflights/          a folder a dataset, named by its URL
    train-00003-of-00016.tfrecord@SIZE-CHECKSUM         an entry: whole, by the rename that gave it its name
    train-00003-of-00016.tfrecord@SIZE-CHECKSUM.part    one that is being filled
```

All locks are `flock`s, which the kernel lifts when their holder dies, however it dies:

- A `.part` is locked exclusively by whoever fills it. One that nobody locks is debris: the next to fill it begins anew,
  and the next to make room removes it.
- An entry is locked, shared, by everyone who maps it, as long as the mapping lives. Only what can be locked exclusively
  is removed. To unlink what is mapped would be harmless to its readers, but its bytes would stay on the disk and count
  for nothing, and the limit would be broken.
- The bytes held are counted up before they are there and down after they are gone, under the lock of the first file.
  So a process that is killed in between leaves a count that is too high, which the next look at all files puts right.

Nothing is synced: an entry that a power cut has spoilt has another checksum, and is fetched again; the first file, if
that is spoilt, is written anew. Files that are not named as entries are others', and are left alone.
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

from ...sharding.errors import ConfigError

__all__ = ["DISK_FULL", "CacheEntry", "CacheFolder", "CacheKey", "MappedEntry", "dataset_folder", "is_cache"]

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # of a disk
STATE_NAME = "ringfeed-cache.json"
_STATE_BYTES = 256  # always as many, so that one write changes it
_PART = ".part"
_ENTRY = re.compile(
    r"(?P<path>.+)@[0-9]+-[a-z0-9]+-[a-z0-9]+-[0-9a-f]+(?P<filling>\.part)?"
)  # as `CacheKey.file` has it
_BLOCK_BYTES = 4096  # what a file takes on a disk is a multiple
_NAME_LENGTH = 120  # of what a name quotes; with the rest it stays under 255
_DEFAULT_SHARE = 0.8
_EXTRA_SHARE = 64  # room is made for this fraction of the limit more, if entries are as small: all are looked at for it
_LOCK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheKey:
    """What is cached, by its content: another version of a file has another key.

    Attributes:
        dataset: its URL, without a password.
        path: of the file, relative to it.
        size: in bytes.
        checksum: of the bytes.
    """

    dataset: str
    path: str
    size: int
    checksum: str

    @property
    def file(self) -> str:
        """Where it lies in the cache.

        >>> CacheKey(dataset="s3://b/d", path="g00001/x.tfrecord", size=3, checksum="xxh3-128:c64e").file
        's3%3A%2F%2Fb%2Fd/g00001%2Fx.tfrecord@3-xxh3-128-c64e'
        """
        return f"{dataset_folder(self.dataset)}/{_quoted(self.path)}@{self.size}-{self.checksum.replace(':', '-')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """A file of a cache.

    Attributes:
        file: where it is.
        dataset: URL of the dataset that it is from (its beginning, if that is long).
        path: in the dataset.
        bytes: on disk.
        used: when it was last opened, in seconds since 1970.
        filling: it is not whole yet.
    """

    file: Path
    dataset: str
    path: str
    bytes: int
    used: float
    filling: bool

    def in_use(self) -> bool:
        """Whether some process maps or fills it now."""
        with suppress(FileNotFoundError), _opened(self.file, os.O_RDONLY) as descriptor:
            return not _try_lock(descriptor, fcntl.LOCK_EX)
        return False


def dataset_folder(url: str) -> str:
    """The name of the folder of a dataset's entries."""
    return _quoted(url)


def _quoted(text: str) -> str:
    quoted = quote(text, safe="")
    return quoted if len(quoted) <= _NAME_LENGTH else f"{quoted[:80]}+{xxhash.xxh3_128_hexdigest(text.encode())}"


@dataclass(slots=True)
class _State:
    """The first file, locked."""

    descriptor: int
    limit_bytes: int
    held_bytes: int

    def save(self) -> None:
        text = json.dumps({"version": 1, "limit_bytes": self.limit_bytes, "held_bytes": self.held_bytes})
        os.pwrite(self.descriptor, f"{text:<{_STATE_BYTES - 1}}\n".encode(), 0)


@dataclass(frozen=True, slots=True)
class MappedEntry:
    """An entry that is held: its bytes, and the number of its file."""

    data: pa.Buffer
    number: int


class CacheFolder:
    """The folder of a cache.

    Args:
        path: of the folder; it is made.
        limit_bytes: what all its files may take together, from now on and for all who use it; None: as it is, or, of
            a new cache, 0.8 of what is free on the disk.

    Raises:
        ConfigError: the folder holds other files.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, limit_bytes: int | None = None) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        if not is_cache(path) and any(path.iterdir()) and not is_cache(path):  # another may just have made it one
            raise ConfigError(f"{path} holds other files and is no cache; name a new folder or an empty one")
        self._limit_bytes = limit_bytes or 0
        with self._locked() as state:
            state.limit_bytes = limit_bytes or state.limit_bytes or int(shutil.disk_usage(path).free * _DEFAULT_SHARE)
            self._limit_bytes = state.limit_bytes
            self._make_room(state, 0)
            state.save()

    @property
    def limit_bytes(self) -> int:
        """What all files may take together."""
        with self._locked() as state:
            return state.limit_bytes

    def map(self, key: CacheKey) -> MappedEntry | None:
        """An entry, mapped, and locked against removal as long as its buffer lives; None if there is none.

        Its bytes are yet to be checked; a file of another size is removed.
        """
        while True:
            try:
                with _opened(self.path / key.file, os.O_RDONLY) as descriptor:
                    _lock(descriptor, fcntl.LOCK_SH)
                    status = os.fstat(descriptor)
                    if status.st_nlink and status.st_size == key.size:
                        _touch(descriptor)
                        return MappedEntry(_mapped(descriptor, key.size), status.st_ino)
            except FileNotFoundError:
                return None
            if status.st_nlink:  # else it was removed before it was locked
                self.drop(key, status.st_ino)

    def drop(self, key: CacheKey, number: int) -> None:
        """Remove an entry that is damaged, in use or not: whoever maps it finds the damage, too.

        Args:
            key: of the entry.
            number: of the damaged file; another that has come in its place stays.
        """
        file = self.path / key.file
        with self._locked() as state, suppress(FileNotFoundError):
            status = file.stat()
            if status.st_ino == number:
                file.unlink()
                state.held_bytes = _sum(self.entries())  # it may have another size than it was counted with
                state.save()

    def claim(self, key: CacheKey) -> int | None:
        """Become the one who fills an entry.

        Returns:
            The descriptor of its empty, locked `.part`; None if another fills it, or just has.
        """
        part = self.path / (key.file + _PART)
        while True:
            try:
                descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                part.parent.mkdir(parents=True, exist_ok=True)
                continue
            if not _try_lock(descriptor, fcntl.LOCK_EX):
                os.close(descriptor)
                return None
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(part), os.fstat(descriptor)):
                    if os.fstat(descriptor).st_size:  # of one that was killed
                        os.ftruncate(descriptor, 0)  # ext4 writes a file out, when it is closed, that this was done to
                    if not (self.path / key.file).exists():
                        return descriptor
                    self.abandon(key, descriptor)
                    return None
            os.close(descriptor)  # it was filled, or removed, before it was locked

    def abandon(self, key: CacheKey, claimed: int) -> None:
        """Leave nothing of an entry that was to be filled."""
        try:
            with self._locked() as state:  # who counts meanwhile sees the file and what is held for it, or neither
                with suppress(FileNotFoundError):
                    os.unlink(self.path / (key.file + _PART))
                state.held_bytes -= _on_disk(os.fstat(claimed).st_size)
                state.save()
        finally:
            os.close(claimed)

    def reserve(self, claimed: int, size: int) -> tuple[bool, list[int]]:
        """Make room for an entry: whether there is any beside what is in use, and the sizes of the removed entries.

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
                os.ftruncate(claimed, size)  # from now on a look at all files counts it, too
        if fits:
            _take_blocks(claimed, size)
        return fits, removed

    def publish(self, key: CacheKey, claimed: int) -> pa.Buffer | None:
        """Give a filled entry its name, and map it as `map` does; None if another took it away at once."""
        try:
            _touch(claimed)
            with self._locked():  # who lists the folder meanwhile may see neither name, and make too little room
                os.rename(self.path / (key.file + _PART), self.path / key.file)
            _lock(claimed, fcntl.LOCK_SH)
            return _mapped(claimed, key.size) if os.fstat(claimed).st_nlink else None
        finally:
            os.close(claimed)

    def entries(self) -> list[CacheEntry]:
        """Its files but the first, the least recently used first."""
        found = []
        for folder in _listed(self.path):
            dataset = unquote(folder.name.partition("+")[0])
            for file in _listed(Path(folder.path)) if folder.is_dir(follow_symlinks=False) else ():
                if (named := _ENTRY.fullmatch(file.name)) is None:
                    continue
                with suppress(FileNotFoundError):
                    status = file.stat(follow_symlinks=False)
                    found.append(
                        CacheEntry(
                            file=Path(file.path),
                            dataset=dataset,
                            path=unquote(named["path"].partition("+")[0]),
                            bytes=_on_disk(status.st_size),
                            used=status.st_mtime_ns / 1e9,
                            filling=named["filling"] is not None,
                        )
                    )
        return sorted(found, key=lambda entry: (entry.used, entry.file))

    def remove(self, entries: list[CacheEntry]) -> list[CacheEntry]:
        """Remove entries, but for those in use, and the folders that are empty then; returns the removed."""
        with self._locked() as state:
            removed = [entry for entry in entries if _remove_unused(entry.file)]
            state.held_bytes = _sum(self.entries())
            state.save()
            for folder in {entry.file.parent for entry in removed}:
                with suppress(OSError):  # it holds others
                    folder.rmdir()
        return removed

    def _make_room(self, state: _State, needed: int) -> list[int]:
        """Count what is held, and remove debris and what was not used for longest; the sizes of removed entries."""
        entries = [entry for entry in self.entries() if not (entry.filling and _remove_unused(entry.file))]
        state.held_bytes = _sum(entries)
        excess = state.held_bytes + needed - state.limit_bytes
        victims: list[CacheEntry] = []
        found = 0
        for entry in entries:
            extra = max(found - excess, 0) + entry.bytes
            if excess <= 0 or (found >= excess and extra > state.limit_bytes // _EXTRA_SHARE):
                break
            if not entry.filling and not entry.in_use():
                victims.append(entry)
                found += entry.bytes
        if found < excess and needed:
            return []  # there would be no room even so
        removed = [entry.bytes for entry in victims if _remove_unused(entry.file)]
        state.held_bytes -= sum(removed)
        return removed

    @contextmanager
    def _locked(self) -> Iterator[_State]:
        with _opened(self.path / STATE_NAME, os.O_RDWR | os.O_CREAT) as descriptor:
            _lock(descriptor, fcntl.LOCK_EX)
            known = _numbers(os.pread(descriptor, _STATE_BYTES, 0))
            if known is None:  # new, or its maker was killed, or the power was cut
                known = self._limit_bytes, _sum(self.entries())
            yield _State(descriptor, *known)


def is_cache(path: Path) -> bool:
    """Whether a folder is one of a cache."""
    return (path / STATE_NAME).is_file()


def _numbers(text: bytes) -> tuple[int, int] | None:
    """The limit and the bytes held, as `_State.save` wrote them; None if it did not write this."""
    try:
        known = json.loads(text)
        limit_bytes, held_bytes = known["limit_bytes"], known["held_bytes"]
    except (ValueError, TypeError, KeyError):
        return None
    return (limit_bytes, held_bytes) if isinstance(limit_bytes, int) and isinstance(held_bytes, int) else None


def _on_disk(size: int) -> int:
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES


def _sum(entries: list[CacheEntry]) -> int:
    return _BLOCK_BYTES + sum(entry.bytes for entry in entries)  # the first file is one block


def _listed(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _remove_unused(file: Path) -> bool:
    """Unlink a file that nobody has locked; whether it is gone by this."""
    with suppress(FileNotFoundError), _opened(file, os.O_RDONLY) as descriptor:
        # By the time that it is locked it may have been renamed or removed, and another may bear its name.
        if _try_lock(descriptor, fcntl.LOCK_EX) and os.path.samestat(os.stat(file), os.fstat(descriptor)):
            file.unlink()
            return True
    return False


def _touch(descriptor: int) -> None:
    """Mark a file as used now; by a clock that is finer than that of the kernel for files."""
    with suppress(PermissionError):  # another user's
        os.utime(descriptor, ns=(time.time_ns(), time.time_ns()))


def _take_blocks(descriptor: int, size: int) -> None:
    """Have a file's blocks on the disk found before it is written, which on ext4 then takes less time.

    Not by `os.posix_fallocate`, which writes zeros where the file system has no call for it: there, nothing is done.

    Raises:
        OSError: the disk is full.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "fallocate"):  # macOS lacks it
        return
    if library.fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size)) and ctypes.get_errno() in DISK_FULL:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _mapped(descriptor: int, size: int) -> pa.Buffer:
    """A mapping holds a duplicate of its descriptor, and so the lock, until nobody has a part of it any more."""
    return pa.py_buffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
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
    """Wait for a lock that is held for moments only.

    Raises:
        TimeoutError: its holder stands still.
    """
    pause, deadline = 0.0005, time.monotonic() + _LOCK_SECONDS
    while not _try_lock(descriptor, kind):
        if time.monotonic() > deadline:
            raise TimeoutError(f"another process has held a lock of the cache for {_LOCK_SECONDS:.0f} s")
        time.sleep(pause)
        pause = min(pause * 2, 0.02)

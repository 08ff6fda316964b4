"""Files that appear under their names once they are whole: on local disk, and on stores that rename or put files.

`s3/writes.py` does the same for S3.
Tested in tests/sharding/storage/test_storage.py.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias, TypeVar

import fsspec

from .client_errors import IncompleteError
from .retry import RetryPolicy, retry

Bytes: TypeAlias = Any  # bytes, a memoryview or array of single bytes, or an Arrow buffer
T = TypeVar("T")

_ATTEMPTS = 20  # to create a file in a folder that others remove
_SEND_BYTES = 8 << 20  # enough to keep a disk busy
_DESCRIPTORS = "/proc/self/fd"  # paths of this process's open files
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_DRAFT_NAMES = re.compile(r"((?:.+/)?)\.([^/]+)\.[0-9a-f]{8}\.part")  # groups: the folder, the name of the file


def draft_name(name: str) -> str:
    """Return a hidden, unique name for a file while it is written."""
    return f".{name}.{secrets.token_hex(4)}.part"


def draft_target(path: str) -> str:
    """Return the file that a draft, left by a killed write, was to become; empty if the path is no draft.

    >>> draft_target("g00001/.x.tfrecord.0123abcd.part"), draft_target("g00001/x.tfrecord")
    ('g00001/x.tfrecord', '')
    """
    match = _DRAFT_NAMES.fullmatch(path)
    return "" if match is None else "".join(match.groups())


def remove_dead_drafts(folder: str, is_meant: Callable[[str], bool]) -> None:
    """Remove the drafts of the local files that are meant whose writers have died: those that write hold a lock."""
    for entry in os.scandir(folder):
        if not is_meant(draft_target(entry.name)) or not entry.is_file(follow_symlinks=False):
            continue
        with suppress(OSError), open(entry.path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(entry.path)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Create a local folder and its parents if they are missing, all with one mode.

    Raises:
        NotADirectoryError: one of the names belongs to a file, or to a link that leads nowhere. Not a FileExistsError,
            which is kept for the file to be created in the folder.
    """
    try:
        _make_one_folder(folder, mode)
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        make_folder(folder.parent, mode)
        _make_one_folder(folder, mode)


def _make_one_folder(folder: Path, mode: int) -> None:
    try:
        folder.mkdir(mode, exist_ok=True)
    except FileExistsError as error:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):  # a FileNotFoundError if another process has removed it since
            raise _not_a_directory(error) from error


def _not_a_directory(error: FileExistsError) -> NotADirectoryError:
    return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename)


def create_in_folder(folder: Path, create: Callable[[], T]) -> T:
    """Create a local file in a folder, which is made if it is missing.

    Whoever fails, or has only tried, removes the folders that it made. So another process may remove one of them before
    the file is in it: then both are made again.
    """
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            make_folder(folder)
            return create()
    make_folder(folder)
    return create()


class Draft(Protocol):
    """A file that is being written, until `commit` or `discard`; `discard` it after a failed `commit`, too."""

    def write(self, data: Bytes) -> None:
        """Append bytes, whose memory the caller may reuse afterwards."""

    def commit(self, *, exclusive: bool = False) -> None:
        """Make the file appear under its name, whole and durable, in place of an existing one.

        Raises:
            FileExistsError: the file exists, and `exclusive` was asked for.
        """

    def discard(self) -> None:
        """Remove the draft."""


class LocalDraft:
    """A file beside the target, linked or renamed to it; if `durable`, once its bytes are on the disk."""

    def __init__(self, target: Path, *, durable: bool = True) -> None:
        self._durable = durable
        self._target = target
        self._draft = target.with_name(draft_name(target.name))
        self._file = create_in_folder(target.parent, lambda: open(self._draft, "xb"))  # noqa: SIM115
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # see `remove_dead_drafts`
        self._sent_bytes = 0

    def write(self, data: Bytes) -> None:
        self._file.write(data)
        if self._durable:
            self._send()

    def _send(self) -> None:
        """Start writing to the disk early, so that the final fsync is short.

        ``POSIX_FADV_DONTNEED`` makes Linux write dirty pages, which cannot be dropped; they stay in the page cache.
        """
        unsent_bytes = self._file.tell() - self._sent_bytes
        if unsent_bytes >= _SEND_BYTES and hasattr(os, "posix_fadvise"):  # macOS lacks it
            os.posix_fadvise(self._file.fileno(), self._sent_bytes, unsent_bytes, os.POSIX_FADV_DONTNEED)
            self._sent_bytes += unsent_bytes

    def commit(self, *, exclusive: bool = False) -> None:
        if self._durable:
            self._file.flush()
            os.fsync(self._file.fileno())
        else:
            self._file.close()
        if exclusive:
            self._link()
            self._draft.unlink()
        else:
            os.replace(self._draft, self._target)
        self._file.close()  # only now: this gives up the lock

    def discard(self) -> None:
        with suppress(OSError):  # on a full disk the flush fails again
            self._file.close()
        with suppress(OSError):  # the original error matters
            self._draft.unlink()

    def _link(self) -> None:
        """Give the file its name; unlike a rename, this fails if the name is taken."""
        try:
            os.link(self._draft, self._target)
        except FileExistsError:
            if self._draft.stat().st_nlink != 2:  # otherwise NFS lost the reply to a link, and repeated it
                raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with open(self._target, "xb") as file:  # also exclusive, but visible before it is whole
                file.write(self._draft.read_bytes())
                file.flush()
                os.fsync(file.fileno())


class RemoteDraft:
    """A file beside the target, renamed by the store. Only on HDFS is the rename known to be atomic and exclusive."""

    def __init__(self, fs: fsspec.AbstractFileSystem, target: str, policy: RetryPolicy, *, renames_exclusively: bool):
        parent, _, name = target.rpartition("/")
        try:
            fs.makedirs(parent, exist_ok=True)
        except FileExistsError as error:
            raise _not_a_directory(error) from error
        self._fs, self._target, self._policy = fs, target, policy
        self._renames_exclusively = renames_exclusively
        self._draft = f"{parent}/{draft_name(name)}"
        self._file = fs.open(self._draft, "wb")
        self._bytes = 0

    def write(self, data: Bytes) -> None:
        self._file.write(data)
        self._bytes += memoryview(data).nbytes

    def commit(self, *, exclusive: bool = False) -> None:
        self._file.close()
        size = self._fs.info(self._draft)["size"]
        if size != self._bytes:
            raise IncompleteError(f"the store has {size} bytes of {self._bytes}")
        if exclusive and not self._renames_exclusively and self._fs.exists(self._target):
            raise FileExistsError(self._target)
        retry(lambda: self._rename(exclusive), self._policy)

    def discard(self) -> None:
        with suppress(Exception):
            self._file.close()
        with suppress(Exception):  # the original error matters
            self._fs.rm_file(self._draft)

    def _rename(self, exclusive: bool) -> None:
        try:
            how = {"overwrite": not exclusive} if self._renames_exclusively else {}
            self._fs.mv(self._draft, self._target, **how)
        except (FileExistsError, FileNotFoundError):
            if self._fs.exists(self._draft) or not self._fs.exists(self._target):
                raise
            # An earlier attempt renamed it, and its reply was lost.


class SpooledDraft:
    """A temporary local file, put into the store as a whole, for stores where one PUT is atomic.

    On Linux it has no name, so that a killed process leaves nothing.
    """

    def __init__(self, fs: fsspec.AbstractFileSystem, target: str, policy: RetryPolicy) -> None:
        self._fs, self._target, self._policy = fs, target, policy
        nameless = os.path.isdir(_DESCRIPTORS)
        self._file: IO[bytes] = (tempfile.TemporaryFile if nameless else tempfile.NamedTemporaryFile)(
            prefix="ringfeed-"
        )
        self._path = f"{_DESCRIPTORS}/{self._file.fileno()}" if nameless else self._file.name

    def write(self, data: Bytes) -> None:
        self._file.write(data)

    def commit(self, *, exclusive: bool = False) -> None:
        self._file.flush()
        retry(lambda: self._put(exclusive), self._policy)
        self._file.close()

    def discard(self) -> None:
        with suppress(OSError):
            self._file.close()

    def _put(self, exclusive: bool) -> None:
        self._fs.put_file(self._path, self._target, mode="create" if exclusive else "overwrite")
        size, expected = self._fs.info(self._target)["size"], os.path.getsize(self._path)
        if size != expected:
            raise IncompleteError(f"the store has {size} bytes of {expected}")

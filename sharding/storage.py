"""A folder on any file system that fsspec opens: atomic writes, whole reads, and errors that say what to do.

The one place that knows how stores differ, with `clients.py`, and `drafts.py` and `s3.py` for writing. Errors that may
pass are retried (`retry.py`), and what was written remotely is looked at. Not here: checksums, manifests.
"""

from __future__ import annotations

import io
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar, cast
from urllib.parse import urlsplit

import fsspec
import pyarrow as pa

from .clients import OBJECT_STORES, S3, filesystem
from .drafts import Draft, LocalDraft, RemoteDraft, SpooledDraft
from .errors import StorageError
from .explain import explain
from .retry import Exhausted, IncompleteError, RetryPolicy, retry
from .s3 import SINGLE_BYTES, S3Draft, create_object, put_object
from .streams import RangeReader, Sink

__all__ = ["Storage", "public_url"]

T = TypeVar("T")

_INSTALL_HINTS = {"hdfs": "ringfeed[hdfs]", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_CONNECT_SECONDS = 10.0
_READ_AHEAD_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Storage:
    """A folder, by its URL. Every path given to a method is relative to it.

    Attributes:
        url: of the folder.
        options: of the fsspec file system.
        retries: how often and how long each operation is tried where its error may pass.

    Raises:
        StorageError: from any method, when the store refuses or fails; a missing file is FileNotFoundError from
            `read`, `map` and `open_input`.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    retries: RetryPolicy = field(default_factory=RetryPolicy)

    @property
    def protocol(self) -> str:
        """``file``, ``s3``, ``hdfs``, ..."""
        match = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*)(://|::)", self.url)
        return match.group(1).lower() if match else "file"

    @property
    def local_path(self) -> Path | None:
        """The folder as a path of this machine, or None if it is elsewhere."""
        if self.protocol != "file":
            return None
        return Path(os.path.abspath(os.path.expanduser(self.url.removeprefix("file://"))))

    def locate(self, path: str = "") -> str:
        """The URL of a file of the folder, for messages and other programs."""
        base = str(self.local_path or self.url.rstrip("/"))
        return f"{base}/{path}" if path else base

    def check_reachable(self) -> None:
        """Fail early where a first request would hang: an HDFS client waits for minutes for a NameNode that is down."""
        with self.errors("reach", ""):
            if self.protocol == "hdfs" and (address := urlsplit(self.url)).port:
                socket.create_connection((address.hostname or "", address.port), _CONNECT_SECONDS).close()

    def check_writable(self) -> None:
        """`check_reachable`, and that the bucket is there: some S3 servers make one of a mistyped name."""
        self.check_reachable()
        if self.protocol in S3:
            fs, root = self.filesystem()
            bucket, _, prefix = root.partition("/")
            prefix = f"{prefix}/" if prefix else ""
            self._run("reach", "", lambda: fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1))

    def filesystem(self) -> tuple[fsspec.AbstractFileSystem, str]:
        """The fsspec file system, the same for all threads, and the folder's path in it."""
        with self.errors("open", ""):
            return filesystem(self.locate(), self.protocol, self.options)

    def read(self, path: str) -> bytes:
        """The whole of a file."""
        if self.local_path is not None:
            local = self.local_path / path
            return self._run("read", path, local.read_bytes)
        fs, root = self.filesystem()
        data: bytes = self._run("read", path, lambda: fs.cat_file(f"{root}/{path}"))
        return data

    def map(self, path: str) -> pa.Buffer:
        """The whole of a file, memory-mapped where it is local."""
        if self.local_path is None:
            return pa.py_buffer(self.read(path))
        with self.errors("read", path):
            if os.path.getsize(self.local_path / path) == 0:
                return pa.py_buffer(b"")
            return pa.memory_map(str(self.local_path / path)).read_buffer()

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write a file so that it is there whole or not at all; one that exists is replaced."""
        self._run("write", path, lambda: self._put(path, data))

    def create(self, path: str, data: bytes) -> None:
        """Write a file that is not there yet: of many that try at the same time, one succeeds.

        Held by local disks, S3, GCS and HDFS; on other stores two creators may both succeed if neither sees the
        other's file in time.

        Raises:
            FileExistsError: there is such a file; it is left as it is.
        """
        if self.protocol not in S3:
            self._run("create", path, lambda: self._put(path, data, exclusive=True))
            return
        fs, root = self.filesystem()
        with self.errors("create", path):
            create_object(fs, f"{root}/{path}", data, self.retries)

    @contextmanager
    def open_input(self, path: str) -> Iterator[IO[bytes]]:
        """A file to seek and read in, closed when the body ends.

        Reads from remote stores fetch 4 MiB at least, which the next small ones are served from.
        """
        if self.local_path is not None:
            with self.errors("read", path):
                # Not mapped: an I/O error of a mapped file, or its truncation, kills the process.
                file = pa.OSFile(str(self.local_path / path))
            with file:
                yield file
            return
        fs, root = self.filesystem()
        size = self._run("read", path, lambda: fs.info(f"{root}/{path}"))["size"]

        def read_range(start: int, end: int) -> bytes:
            data: bytes = fs.cat_file(f"{root}/{path}", start=start, end=end)
            if len(data) != end - start:
                raise IncompleteError(f"{len(data)} bytes arrived of the {end - start} from byte {start} on")
            return data

        ranges = RangeReader(lambda start, end: self._run("read", path, lambda: read_range(start, end)), size)
        with io.BufferedReader(ranges, _READ_AHEAD_BYTES) as buffered:
            yield buffered

    @contextmanager
    def open_output(self, path: str) -> Iterator[IO[bytes]]:
        """A file to stream into. It is there, whole, once the body has ended; if that fails, nothing is.

        One that exists is replaced. For what fits into memory `write` costs fewer requests.
        """
        with self.errors("write", path):
            draft = self._draft(path)

        def take(data: bytes) -> None:
            with self.errors("write", path):
                draft.write(data)

        try:
            with Sink(take) as sink:
                yield cast(IO[bytes], sink)
            with self.errors("write", path):
                draft.commit()
        except BaseException:
            draft.discard()
            raise

    def write_all(self, files: Mapping[str, bytes | pa.Buffer]) -> None:
        """Write a few files, side by side where each waits for a server (0.5 s a file on HDFS, whatever its size)."""
        if self.local_path is not None:
            for path, data in files.items():
                self.write(path, data)
            return
        with ThreadPoolExecutor(len(files)) as pool:
            for done in [pool.submit(self.write, path, data) for path, data in files.items()]:
                done.result()

    def sync(self) -> None:
        """Make the names of all files written outlast a power cut; their contents do so already."""
        if self.local_path is not None:
            with self.errors("write", ""):
                descriptor = os.open(self.local_path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        fs, root = self.filesystem()
        return bool(self._run("look for", path, lambda: fs.exists(f"{root}/{path}")))

    def list(self) -> list[str]:
        """The paths of all files in the folder and below, sorted; none if there is no folder."""
        return list(self.sizes())

    def sizes(self) -> dict[str, int]:
        """The paths and bytes of all files in the folder and below, by one listing, in the order of `list`."""
        fs, root = self.filesystem()

        def find() -> dict[str, Any]:
            fs.invalidate_cache()
            try:
                found: dict[str, Any] = fs.find(root, detail=True)
            except FileNotFoundError:
                return {}
            return found

        found = sorted(self._run("list", "", find).items())
        files = ((name, info["size"]) for name, info in found if info["type"] == "file")  # S3 stores may keep folders
        return {name[len(root) + 1 :]: size for name, size in files if name.startswith(root + "/")}

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        fs, root = self.filesystem()

        def remove() -> None:
            try:
                fs.rm_file(f"{root}/{path}")
            except FileNotFoundError:
                return

        self._run("remove", path, remove)

    def move(self, path: str, target: str) -> None:
        """Rename a file; the store copies and removes it where it cannot rename."""
        fs, root = self.filesystem()
        source, destination = f"{root}/{path}", f"{root}/{target}"

        def move() -> None:
            try:
                if self.protocol in S3:  # whose `mv` removes by a bulk request, and does not look at its reply
                    fs.cp_file(source, destination)
                    fs.rm_file(source)
                else:
                    fs.mv(source, destination)
            except (FileNotFoundError, FileExistsError):
                if not repeated or fs.exists(source) or not fs.exists(destination):
                    raise  # else it was moved before, and the reply was lost
            except Exception:
                repeated.append(True)
                raise

        repeated: list[bool] = []
        self._run("move", path, move)

    def absent_folders(self) -> tuple[str, ...]:
        """The folder and those above it that are not there yet, the innermost first; object stores have none."""
        if self.protocol in OBJECT_STORES:
            return ()
        with self.errors("look for", ""):
            fs, path = self.filesystem()
            absent = []
            while path and path != "/" and not fs.exists(path):
                absent.append(path)
                path = path.rpartition("/")[0]
            return tuple(absent)

    def remove_folders(self, folders: Sequence[str]) -> None:
        """Remove folders, as `absent_folders` named them, as far as they are there and empty."""
        with self.errors("remove", ""):
            fs, _ = self.filesystem()
            for folder in folders:
                if not fs.exists(folder) or fs.ls(folder, detail=False):
                    return
                fs.rmdir(folder)

    @contextmanager
    def errors(self, verb: str, path: str) -> Iterator[None]:
        """Turn what the many clients raise into one error with one line."""
        where = self.locate(path)
        try:
            yield
        except StorageError:
            raise
        except ImportError as error:
            package = _INSTALL_HINTS.get(self.protocol, self.protocol)
            raise StorageError(f"cannot open {where}: install its client with: pip install '{package}'") from error
        except FileExistsError as error:
            if verb == "create":
                raise FileExistsError(f"there is a file {where} already") from error
            raise self._error(verb, where, error) from error
        except FileNotFoundError as error:
            if verb not in ("write", "create") and path:
                raise FileNotFoundError(f"there is no file {where}") from error
            raise self._error(verb, where, error) from error
        except Exhausted as error:
            cause = error.__cause__ or error
            tried = f"{error}; if the store and the network are well again, start the same command again"
            raise StorageError(f"{self._error(verb, where, cause)} ({tried})") from cause
        except Exception as error:
            raise self._error(verb, where, error) from error

    def _error(self, verb: str, where: str, error: BaseException) -> StorageError:
        reason = explain(error, self.protocol, writing=verb in ("write", "create", "move"))
        return StorageError(f"cannot {verb} {where}: {reason}")

    def _run(self, verb: str, path: str, operation: Callable[[], T]) -> T:
        with self.errors(verb, path):
            return retry(operation, self.retries)

    def _draft(self, path: str) -> Draft:
        if self.local_path is not None:
            return LocalDraft(self.local_path / path)
        fs, root = self.filesystem()
        target = f"{root}/{path}"
        if self.protocol in S3:
            return S3Draft(fs, target, self.retries)
        if self.protocol in OBJECT_STORES:
            return SpooledDraft(fs, target, self.retries)
        return RemoteDraft(fs, target, self.retries, renames_exclusively=self.protocol == "hdfs")

    def _put(self, path: str, data: bytes | pa.Buffer, *, exclusive: bool = False) -> None:
        """Write a file at one attempt."""
        if self.protocol in S3 and len(memoryview(data)) <= SINGLE_BYTES:
            fs, root = self.filesystem()
            put_object(fs, f"{root}/{path}", bytes(data))
            return
        draft = self._draft(path)
        try:
            draft.write(data)
            draft.commit(exclusive=exclusive)
        except BaseException:
            draft.discard()
            raise


def public_url(url: str) -> str:
    """A URL without the password that it may hold, to be written down.

    >>> public_url("https://me:secret@example.org/x.csv")
    'https://me@example.org/x.csv'
    """
    return re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1@", url)

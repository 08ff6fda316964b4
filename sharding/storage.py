"""A folder on any file system that fsspec opens: atomic writes, whole reads, and errors that say what to do.

The one place that knows how stores differ. Not here: checksums, manifests, retries.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import fsspec
import pyarrow as pa

from .errors import StorageError
from .streams import RangeReader, Sink

__all__ = ["Storage", "public_url"]

_INSTALL_HINTS = {"hdfs": "ringfeed[hdfs]", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory"}  # a single PUT is atomic there

_CONNECT_SECONDS = 10.0
_READ_AHEAD_BYTES = 4 << 20
_BUFFER_BYTES = 1 << 20
_PART_BYTES = 16 << 20  # of a multipart upload: 10,000 of them are 156 GiB
_DENIALS = ("NoCredentials", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessControlException")


@dataclass(frozen=True, slots=True)
class Storage:
    """A folder, by its URL. Every path given to a method is relative to it.

    Raises:
        StorageError: from any method, when the store refuses or fails; a missing file is FileNotFoundError from
            `read` and `size`.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)

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

    @property
    def is_object_store(self) -> bool:
        """Whether it has keys and no folders: one write is atomic there, and nothing can be renamed."""
        return self.protocol in _OBJECT_STORES

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
        with self.errors("reach", ""):
            if self.protocol in ("s3", "s3a"):
                fs, root = self.filesystem()
                bucket, _, prefix = root.partition("/")
                fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=f"{prefix}/" if prefix else "", MaxKeys=1)

    def filesystem(self) -> tuple[fsspec.AbstractFileSystem, str]:
        """The fsspec file system and the folder's path in it."""
        with self.errors("open", ""):
            options = {"use_listings_cache": False} if self.protocol in ("s3", "s3a") else {}
            fs, root = fsspec.url_to_fs(self.locate(), **options, **self.options)
        return fs, root.rstrip("/")

    def read(self, path: str) -> bytes:
        """The whole of a file."""
        with self.errors("read", path):
            if self.local_path is not None:
                return (self.local_path / path).read_bytes()
            fs, root = self.filesystem()
            data: bytes = fs.cat_file(f"{root}/{path}")
            return data

    def map(self, path: str) -> pa.Buffer:
        """The whole of a file, memory-mapped where it is local."""
        if self.local_path is None:
            return pa.py_buffer(self.read(path))
        with self.errors("read", path):
            if os.path.getsize(self.local_path / path) == 0:
                return pa.py_buffer(b"")
            return pa.memory_map(str(self.local_path / path)).read_buffer()

    def write(self, path: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        """Write a file so that it is there whole or not at all; one that exists is replaced.

        Args:
            path: of the file.
            data: its content.
            durable: whether it must outlast a power cut; else a local disk need not be waited for.
        """
        with self.errors("write", path):
            if self.local_path is not None:
                with _local_draft(self.local_path / path, exclusive=False, durable=durable) as file:
                    file.write(data)
                return
            fs, root = self.filesystem()
            target = f"{root}/{path}"
            if self.protocol in _OBJECT_STORES:
                fs.pipe_file(target, bytes(data))
                return
            with self._remote_draft(fs, target, exclusive=False) as draft:
                fs.pipe_file(draft, bytes(data))

    def create(self, path: str, data: bytes) -> None:
        """Write a file that is not there yet: of many that try at the same time, one succeeds.

        Held by local disks, S3, GCS, Azure and HDFS; on other stores two creators may both succeed if neither sees the
        other's file in time.

        Raises:
            FileExistsError: there is such a file; it is left as it is.
        """
        with self.errors("create", path):
            if self.local_path is not None:
                with _local_draft(self.local_path / path, exclusive=True) as file:
                    file.write(data)
                return
            fs, root = self.filesystem()
            target = f"{root}/{path}"
            if self.protocol in _OBJECT_STORES:
                try:
                    fs.pipe_file(target, data, mode="create")
                except OSError as error:  # s3fs knows only how AWS puts it
                    if _is_precondition_failed(error):
                        raise FileExistsError(target) from error
                    raise
                return
            if fs.exists(target):
                raise FileExistsError(target)
            with self._remote_draft(fs, target, exclusive=True) as draft:
                fs.pipe_file(draft, data)

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
        with self.errors("read", path):
            fs, root = self.filesystem()
            size = fs.info(f"{root}/{path}")["size"]

        def read_range(start: int, end: int) -> bytes:
            with self.errors("read", path):
                data: bytes = fs.cat_file(f"{root}/{path}", start=start, end=end)
                if len(data) != end - start:
                    raise EOFError(f"got {len(data)} of the {end - start} bytes from {start} on")
                return data

        with io.BufferedReader(RangeReader(read_range, size), _READ_AHEAD_BYTES) as buffered:
            yield buffered

    @contextmanager
    def open_output(self, path: str) -> Iterator[IO[bytes]]:
        """A file to stream into. It is there, whole, once the body has ended; if that fails, nothing is.

        One that exists is replaced. For what fits into memory `write` costs fewer requests.
        """
        with self._output(path) as file:

            def take(data: bytes) -> None:
                with self.errors("write", path):
                    file.write(data)

            with Sink(take) as sink, io.BufferedWriter(sink, _BUFFER_BYTES) as buffered:
                yield buffered

    @contextmanager
    def _output(self, path: str) -> Iterator[IO[bytes]]:
        if self.local_path is not None:
            with _local_draft(self.local_path / path, exclusive=False) as file:
                yield file
            return
        fs, root = self.filesystem()
        target = f"{root}/{path}"
        if self.protocol not in _OBJECT_STORES:
            with self._remote_draft(fs, target, exclusive=False) as draft, fs.open(draft, "wb") as file:
                yield file
            return
        file = fs.open(target, "wb", block_size=_PART_BYTES, autocommit=False)
        try:
            yield file
            file.close()
            file.commit()
        except BaseException:
            with suppress(Exception):  # what made the write fail is what to tell
                file.discard()
            file.closed = True  # else its finalizer writes again
            raise

    @contextmanager
    def _remote_draft(self, fs: fsspec.AbstractFileSystem, target: str, *, exclusive: bool) -> Iterator[str]:
        """A name beside the target; what the body wrote there is renamed to the target, or removed if it failed."""
        parent, _, name = target.rpartition("/")
        fs.makedirs(parent, exist_ok=True)
        draft = f"{parent}/.{name}.{secrets.token_hex(4)}.part"
        try:
            yield draft
            fs.mv(draft, target, **({"overwrite": not exclusive} if self.protocol == "hdfs" else {}))
        except BaseException:
            with suppress(Exception):  # what made the write fail is what to tell
                fs.rm_file(draft)
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
        with self.errors("look for", path):
            fs, root = self.filesystem()
            return bool(fs.exists(f"{root}/{path}"))

    def list(self) -> list[str]:
        """The paths of all files in the folder and below, sorted; none if there is no folder."""
        return list(self.sizes())

    def sizes(self) -> dict[str, int]:
        """The paths and bytes of all files in the folder and below, by one listing, in the order of `list`."""
        with self.errors("list", ""):
            fs, root = self.filesystem()
            fs.invalidate_cache()
            try:
                found = fs.find(root, detail=True)
            except FileNotFoundError:
                return {}
            files = ((name, info) for name, info in found.items() if info["type"] == "file")  # S3 may keep folders, too
            return {name[len(root) + 1 :]: info["size"] for name, info in sorted(files) if name.startswith(root + "/")}

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        with self.errors("remove", path):
            fs, root = self.filesystem()
            try:
                fs.rm_file(f"{root}/{path}")
            except FileNotFoundError:
                return

    def move(self, path: str, target: str) -> None:
        """Rename a file; the store copies and removes it where it cannot rename."""
        with self.errors("move", path):
            fs, root = self.filesystem()
            fs.mv(f"{root}/{path}", f"{root}/{target}")

    def absent_folders(self) -> tuple[str, ...]:
        """The folder and those above it that are not there yet, the innermost first; object stores have none."""
        if self.protocol in _OBJECT_STORES:
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

    def prune(self, folder: str) -> None:
        """Remove a folder of the folder and those within, if no file lies in any; object stores have none."""
        if self.protocol in _OBJECT_STORES:
            return
        with self.errors("remove", folder):
            fs, root = self.filesystem()
            path = f"{root}/{folder}".rstrip("/")
            if fs.exists(path) and not fs.find(path):
                fs.rm(path, recursive=True)

    @contextmanager
    def errors(self, verb: str, path: str) -> Iterator[None]:
        """Turn what the many clients raise into one error with one line."""
        where = self.locate(path)
        try:
            yield
        except StorageError:
            raise
        except FileExistsError as error:
            if verb != "create":
                raise StorageError(f"cannot {verb} {where}: {_explain(error, self.protocol)}") from error
            raise FileExistsError(f"there is a file {where} already") from error
        except FileNotFoundError as error:
            if verb in ("write", "create") or not path:
                raise StorageError(f"cannot {verb} {where}: {_missing(self.protocol)}") from error
            raise FileNotFoundError(f"there is no file {where}") from error
        except PermissionError as error:
            raise StorageError(f"cannot {verb} {where}: permission denied; {_remedy(self.protocol)}") from error
        except ImportError as error:
            package = _INSTALL_HINTS.get(self.protocol, self.protocol)
            raise StorageError(f"cannot open {where}: install its client with: pip install '{package}'") from error
        except Exception as error:
            raise StorageError(f"cannot {verb} {where}: {_explain(error, self.protocol)}") from error


@contextmanager
def _local_draft(target: Path, *, exclusive: bool, durable: bool = True) -> Iterator[IO[bytes]]:
    """A file beside the target; what the body wrote, on disk by then, becomes the target, or is removed if it failed.

    Raises:
        FileExistsError: the target is there, and `exclusive`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with open(draft, "xb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if exclusive:
            os.link(draft, target)  # fails where a rename would replace
            draft.unlink()
        else:
            os.replace(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _is_precondition_failed(error: OSError) -> bool:
    """SeaweedFS and Ceph do not name the condition that failed, so that s3fs makes EINVAL of it."""
    response = getattr(error.__cause__, "response", None) or {}
    return bool(response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 412)


def public_url(url: str) -> str:
    """A URL without the password that it may hold, to be written down.

    >>> public_url("https://me:secret@example.org/x.csv")
    'https://me@example.org/x.csv'
    """
    return re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1@", url)


def _missing(protocol: str) -> str:
    if protocol in ("s3", "s3a"):
        return "the bucket does not exist; create it first, or check its name and the endpoint (AWS_ENDPOINT_URL)"
    return "there is no such file or folder"


def _remedy(protocol: str) -> str:
    if protocol in ("s3", "s3a"):
        return "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_PROFILE, and the rights they have"
    if protocol == "hdfs":
        return "check the folder's owner and mode, and HADOOP_USER_NAME"
    return "check the rights of the folder"


def _explain(error: Exception, protocol: str) -> str:
    name, text = type(error).__name__, str(error)
    if "Permission denied" in text or any(word in f"{name} {text}" for word in _DENIALS):
        return f"permission denied; {_remedy(protocol)}"
    line = " ".join(re.split(r"\n|\\n", text)[0].split())  # HDFS clients append a Java stack trace
    return f"{name}: {line[:300]}" if line else name

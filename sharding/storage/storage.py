"""A folder on any file system of fsspec: atomic writes, whole reads, and errors that say what to do.

Stores differ here and in the modules that this one builds on: `location.py` and `filesystems.py`, and `atomic_files.py`
and `s3/` for writing. Transient errors are retried (`retry.py`), and the size of remote files is checked after a write.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, TypeAlias, cast

import pyarrow as pa
from fsspec import AbstractFileSystem

from ringfeed.sharding.errors import PageError, RangesError, StorageError

from .atomic_files import Draft, LocalDraft, RemoteDraft, SpooledDraft, draft_target, remove_dead_drafts
from .client_errors import IncompleteError
from .location import Location
from .s3.fast_reads import copy_object, read_object
from .s3.listing import list_objects
from .s3.writes import SINGLE_BYTES, S3Draft, abort_upload, create_object, list_uploads, put_object
from .special_files import check_regular
from .streams import ForwardReader, RangeReader, Sink
from .urls import S3_PROTOCOLS, WEB_PROTOCOLS, validate_url

_READ_AHEAD_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, repr=False)
class Storage(Location):
    """A folder and the files in it, by paths relative to it.

    Raises:
        StorageError: by any method, when the store refuses or fails. A missing file is a FileNotFoundError in `read`,
            `map` and `open_input`.

    >>> from ringfeed.sharding import build
    >>> Storage("flights").exists("_ringfeed/dataset.json")
    True
    """

    def folder(self, name: str) -> Storage:
        """A subfolder, with the same options, retries and timings, as a plain `Storage` even if this is a subclass."""
        return Storage(self.address(name), self.options, self.retries, self.timings)

    def read(self, path: str, most_bytes: int | None = None) -> bytes:
        """Return the content of a file; a local one of more than `most_bytes` is refused unread."""
        if self.local_path is not None:
            local = self.local_path / path
            with self.errors("read", path):
                check_regular(local, most_bytes)
            return self.run("read", path, local.read_bytes)
        fs, root = self.filesystem()
        data: bytes = self.run("read", path, lambda: fs.cat_file(f"{root}/{path}"))
        return data

    def map(self, path: str, *, will_need: bool = True) -> pa.Buffer:
        """Return the content of a file, memory-mapped if it is local; from S3 by the fastest installed client.

        Args:
            path: path of the file.
            will_need: whether to advise the system to begin reading all of a local file. It then fills the page cache
                by small pages, beside and before any other read of the file.
        """
        if self.protocol in S3_PROTOCOLS:
            fs, root = self.filesystem()
            data = self.run("read", path, lambda: read_object(fs, f"{root}/{path}") or fs.cat_file(f"{root}/{path}"))
            return pa.py_buffer(data)
        folder = self.local_path
        if folder is None:
            return pa.py_buffer(self.read(path))
        with self.errors("read", path):
            file = os.path.join(folder, path)
            check_regular(file)
            if not os.path.getsize(file):
                return pa.py_buffer(b"")
            mapped = pa.memory_map(file)
            if will_need:
                return mapped.read_buffer()
            first = mapped.read_buffer(1)  # Arrow advises about the bytes that it returns, and maps all of them
            return pa.foreign_buffer(first.address, mapped.size(), base=first)

    def copy_out(self, path: str, take: Callable[[Any], None]) -> bool:
        """Pass on the bytes of a file piece by piece as they arrive, if a client that can do so is installed.

        Args:
            path: path of the file.
            take: called with each piece, which it may keep.

        Returns:
            False if it failed; then `map` succeeds or says why.

        Raises:
            Exception: any error of `take`.
        """
        if self.protocol not in S3_PROTOCOLS:
            return False
        fs, root = self.filesystem()
        return copy_object(fs, f"{root}/{path}", take)

    def write(self, path: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        """Write a file atomically, in place of an existing one.

        Args:
            path: path of the file.
            data: its content.
            durable: whether it must survive a power cut; if not, a local disk need not be waited for.
        """
        self.run("write", path, lambda: self._put(path, data, durable=durable))

    def create(self, path: str, data: bytes) -> None:
        """Write a file that does not exist yet: of concurrent creators, one succeeds.

        Local disks, S3, GCS and HDFS guarantee this; on other stores two creators may both succeed if neither sees
        the other's file in time.

        Raises:
            FileExistsError: the file exists; it is left unchanged.
        """
        if self.protocol not in S3_PROTOCOLS:
            self.run("create", path, lambda: self._put(path, data, exclusive=True))
            return
        fs, root = self.filesystem()
        with self.errors("create", path):
            create_object(fs, f"{root}/{path}", data, self.retries)

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a file, which must have them.

        Raises:
            RangesError: the store ignores the range and sends the whole file.
        """
        data = self._range(path, start, end)
        return data if isinstance(data, bytes) else data.to_pybytes()

    def map_range(self, path: str, start: int, end: int) -> pa.Buffer:
        """`read_range`, in the memory that the client received it in."""
        return pa.py_buffer(self._range(path, start, end))

    def _range(self, path: str, start: int, end: int) -> bytes | pa.Buffer:
        fs, root = self.filesystem()
        url = f"{root}/{path}"

        def read() -> bytes | pa.Buffer:
            data = read_object(fs, url, (start, end)) if self.protocol in S3_PROTOCOLS else None
            data = data or self._cat_range(fs, url, start, end)
            if len(data) > end - start:
                raise self._ranges_error(path)
            if len(data) != end - start:
                size = fs.info(url)["size"]
                if size is not None and size < end:
                    raise EOFError(f"it has {size} bytes, and those from byte {start} to {end} were requested")
                raise IncompleteError(f"only {len(data)} of the {end - start} bytes from byte {start} on arrived")
            return data

        return self.run("read", path, read)

    def _cat_range(self, fs: Any, url: str, start: int, end: int) -> bytes:
        if self.protocol == "hdfs":
            with fs.open(url) as file:
                if start > file.size:  # a seek beyond the end panics in hdfs-native, which is no Exception
                    return b""
                file.seek(start)
                part: bytes = file.read(end - start)
                return part
        data: bytes = fs.cat_file(url, start=start, end=end)
        return data

    @contextmanager
    def open_input(self, path: str, *, read_ahead: bool = True) -> Iterator[IO[bytes]]:
        """Open a seekable file for reading.

        Args:
            path: path of the file.
            read_ahead: whether reads from remote stores fetch at least 4 MiB, which serve the next small reads; if
                not, each read is a request of its size.
        """
        if self.local_path is not None:
            with self.errors("read", path):
                check_regular(self.local_path / path)
                # Not mapped: an I/O error of a mapped file, or its truncation, kills the process.
                file = pa.OSFile(str(self.local_path / path))
            with file:
                yield file
            return
        with self._open_raw(path) as raw:
            if read_ahead:
                with io.BufferedReader(raw, _READ_AHEAD_BYTES) as buffered:
                    yield buffered
            else:
                yield cast(IO[bytes], raw)

    def _open_raw(self, path: str) -> io.RawIOBase:
        """Open a file by ranges; from a web server without ranges as a stream, or as a whole if it is small."""
        fs, root = self.filesystem()
        url = f"{root}/{path}"
        info: dict[str, Any] = self.run("read", path, lambda: fs.info(url))
        size = info["size"]
        is_web = self.protocol in WEB_PROTOCOLS
        if is_web and info.get("mimetype") == "text/html" and self.run("read", path, lambda: fs.serves_html(url)):
            raise PageError.of(self.locate(path))
        if not is_web or (
            size is not None
            and (not size or info.get("partial") or self.run("read", path, lambda: fs.serves_ranges(url)))
        ):
            return RangeReader(partial(self.read_range, path), size)
        if size is not None and size <= _READ_AHEAD_BYTES:
            data = self.read_range(path, 0, size)
            return RangeReader(lambda start, end: data[start:end], size)
        return ForwardReader(
            lambda: fs.stream(url), size, partial(self.run, "read", path), partial(self._ranges_error, path)
        )

    def _ranges_error(self, path: str) -> RangesError:
        return RangesError.of(self.locate(path))

    @contextmanager
    def open_output(self, path: str, *, durable: bool = True) -> Iterator[IO[bytes]]:
        """Open a file for writing that appears, whole, when the body ends, or not at all if the body fails.

        It replaces an existing file. For content that fits into memory `write` takes fewer requests.

        Args:
            path: path of the file.
            durable: as for `write`.
        """
        with self.errors("write", path):
            draft = self._draft(path, durable=durable)

        def take(data: memoryview) -> None:
            try:
                draft.write(data)
            except Exception:
                with self.errors("write", path):
                    raise

        try:
            with Sink(take) as sink:
                yield cast(IO[bytes], sink)
            with self.errors("write", path):
                draft.commit()
        except BaseException:
            draft.discard()
            raise

    def write_all(self, files: Mapping[str, bytes | pa.Buffer]) -> None:
        """Write a few files, in parallel where each waits for a server (0.5 s per file on HDFS, whatever its size)."""
        if self.local_path is not None or not files:
            for path, data in files.items():
                self.write(path, data)
            return
        with ThreadPoolExecutor(len(files)) as pool:
            for done in [pool.submit(self.write, path, data) for path, data in files.items()]:
                done.result()

    def sync(self) -> None:
        """Make the names of all written files survive a power cut, as their contents already do."""
        if self.local_path is not None:
            with self.errors("write", ""):
                descriptor = os.open(self.local_path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        fs, root = self.filesystem()
        return bool(self.run("look for", path, lambda: fs.exists(f"{root}/{path}")))

    def list(self) -> list[str]:
        """The sorted paths of all files in the folder and below; none if the folder does not exist."""
        return list(self.sizes())

    def sizes(self) -> dict[str, int]:
        """The bytes of all files in the folder and below, by path, from one listing, in the order of `list`.

        An empty object whose key ends in ``/`` is no file: the consoles of object stores make these for folders.
        """
        fs, root = self.filesystem()

        def find() -> dict[str, int]:
            fs.invalidate_cache()
            try:
                infos: dict[str, dict[str, Any]] = fs.find(root, detail=True)
            except FileNotFoundError:
                return {}
            return {name: info["size"] for name, info in infos.items() if info["type"] == "file"}

        if self.protocol in S3_PROTOCOLS:
            files = sorted(list_objects(fs, root, partial(self.run, "list", "")))
        else:
            files = sorted(self.run("list", "", find).items())
        sizes = {name[len(root) + 1 :]: size for name, size in files if name.startswith(root + "/")}
        return {name: size for name, size in sizes.items() if size or not f"/{name}".endswith("/")}

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""
        fs, root = self.filesystem()

        def remove() -> None:
            try:
                fs.rm_file(f"{root}/{path}")
            except FileNotFoundError:
                return

        self.run("remove", path, remove)

    def leaves_drafts(self, size: int) -> bool:
        """Whether a process that is killed while it writes a file of so many bytes leaves a draft or an upload."""
        return size > SINGLE_BYTES if self.protocol in S3_PROTOCOLS else not self.is_object_store

    def remove_drafts(self, path: str) -> None:
        """Remove what killed processes have left of a file while they wrote it.

        On a local disk the drafts of living processes stay. Elsewhere no other process may be writing the file.
        """
        parent, _, name = path.rpartition("/")
        if self.local_path is not None:
            if (self.local_path / parent).is_dir():
                with self.errors("remove", path):
                    remove_dead_drafts(str(self.local_path / parent), name.__eq__)
            return
        for other, upload in self.uploads(path):
            if other == path:
                self.abort_upload(path, upload)
        fs, root = self.filesystem()
        folder = f"{root}/{parent}".rstrip("/")

        def names() -> list[str]:
            fs.invalidate_cache()
            with suppress(FileNotFoundError):
                return [each.rpartition("/")[2] for each in fs.ls(folder, detail=False)]
            return []

        drafts = [] if self.is_object_store else self.run("list", parent, names)
        for draft in drafts:
            if draft_target(draft) == name:
                self.remove(f"{parent}/{draft}".lstrip("/"))

    def move(self, path: str, target: str) -> None:
        """Rename a file, by copy and removal where the store cannot rename."""
        fs, root = self.filesystem()
        source, destination = f"{root}/{path}", f"{root}/{target}"

        def move() -> None:
            try:
                if "/" in target and not self.is_object_store:
                    fs.makedirs(destination.rpartition("/")[0], exist_ok=True)
                if self.protocol in S3_PROTOCOLS:  # its `mv` ignores the reply to a bulk removal
                    fs.cp_file(source, destination)
                    fs.rm_file(source)
                else:
                    fs.mv(source, destination)
            except (FileNotFoundError, FileExistsError):
                if not repeated or fs.exists(source) or not fs.exists(destination):
                    raise  # otherwise an earlier attempt succeeded, and its reply was lost
            except Exception:
                repeated.append(True)
                raise

        repeated: list[bool] = []
        self.run("move", path, move)

    def uploads(self, start: str = "") -> Sequence[tuple[str, str]]:
        """The paths and ids of unfinished S3 uploads to the folder and below, of paths that begin with `start`.

        None where the listing is refused: it needs a permission of its own, and some stores do not offer it.
        """
        if self.protocol not in S3_PROTOCOLS:
            return []
        fs, root = self.filesystem()
        with suppress(StorageError):
            return self.run("list", "", lambda: list_uploads(fs, root, start))
        return []

    def abort_upload(self, path: str, upload: str) -> None:
        """Abort an upload and remove its parts; a process that continues it gets an error."""
        fs, root = self.filesystem()
        self.run("remove", path, lambda: abort_upload(fs, f"{root}/{path}", upload))

    def absent_folders(self) -> tuple[str, ...]:
        """The folder and its parents that do not exist yet, innermost first; object stores have no folders."""
        if self.is_object_store:
            return ()
        fs, path = self.filesystem()

        def absent(folder: str) -> bool:
            return bool(folder) and folder != "/" and not fs.exists(folder)

        folders = []
        while self.run("look for", "", partial(absent, path)):
            folders.append(path)
            path = path.rpartition("/")[0]
        return tuple(folders)

    def folders(self) -> Sequence[str]:
        """The names of the folders in the folder; object stores have no folders."""
        if self.is_object_store:
            return []
        fs, root = self.filesystem()

        def find() -> Sequence[str]:
            fs.invalidate_cache()
            with suppress(FileNotFoundError):
                infos = fs.ls(root, detail=True)
                return [each["name"].rpartition("/")[2] for each in infos if each["type"] == "directory"]
            return []

        return self.run("list", "", find)

    def remove_folders(self, folders: Sequence[str]) -> None:
        """Remove folders, given innermost first, until one is not empty."""
        fs, _ = self.filesystem()
        self.run("remove", "", lambda: all(_removed_if_empty(fs, folder) for folder in folders))

    def prune(self, folder: str) -> None:
        """Remove a subfolder with all its folders if it holds no files; object stores have no folders."""
        if self.is_object_store:
            return
        fs, root = self.filesystem()
        path = f"{root}/{folder}".rstrip("/")

        def prune() -> None:
            entries = fs.find(path, withdirs=True, detail=True)
            if all(entry["type"] == "directory" for entry in entries.values()):
                for each in sorted({path, *entries}, reverse=True):  # innermost first
                    _removed_if_empty(fs, each)

        self.run("remove", folder, prune)

    def _draft(self, path: str, *, durable: bool = True) -> Draft:
        if self.local_path is not None:
            return LocalDraft(self.local_path / path, durable=durable)
        fs, root = self.filesystem()
        target = f"{root}/{path}"
        if self.protocol in S3_PROTOCOLS:
            return S3Draft(fs, target, self.retries)
        if self.is_object_store:
            return SpooledDraft(fs, target, self.retries)
        return RemoteDraft(fs, target, self.retries, renames_exclusively=self.protocol == "hdfs")

    def _put(self, path: str, data: bytes | pa.Buffer, *, exclusive: bool = False, durable: bool = True) -> None:
        """Write a file in one attempt."""
        if self.protocol in S3_PROTOCOLS and len(memoryview(data)) <= SINGLE_BYTES:
            fs, root = self.filesystem()
            put_object(fs, f"{root}/{path}", bytes(data))
            return
        draft = self._draft(path, durable=durable)
        try:
            draft.write(data)
            draft.commit(exclusive=exclusive)
        except BaseException:
            draft.discard()
            raise


StorageLike: TypeAlias = str | os.PathLike[str] | Storage  # a folder by URL or path, or with options


def as_storage(place: StorageLike) -> Storage:
    """Return the storage of a folder given as a URL, path or storage; raises a ConfigError if it is none of these."""
    return place if isinstance(place, Storage) else Storage(validate_url(place, "a folder"))


def _removed_if_empty(fs: AbstractFileSystem, folder: str) -> bool:
    """Whether a folder is gone; other processes may remove it, or fill it, at any moment."""
    try:
        if not fs.exists(folder):
            return True
        if fs.ls(folder, detail=False):
            return False
        fs.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return False
    return True

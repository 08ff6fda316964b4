"""Opens the files of a source, decompresses them, and reads many at once, with errors that name the file.

Tested in tests/sharding/sources/files/test_http_listing.py and tests/sharding/sources/files/test_archives.py.
"""

from __future__ import annotations

import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from gzip import BadGzipFile
from typing import IO, cast

import fsspec
import pyarrow as pa
from fsspec.compression import compr

from ringfeed.sharding.errors import RangesError, RingfeedError, SourceError
from ringfeed.sharding.messages import brief
from ringfeed.sharding.storage.retry import RetryPolicy, retry
from ringfeed.sharding.storage.special_files import check_regular
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.urls import OBJECT_STORE_PROTOCOLS, WEB_PROTOCOLS

from .find import compression_of, split_chain, storage_error
from .http_listing import lacks_ranges
from .inflation import BoundedFile, CountedFile

_RANGED = {*OBJECT_STORE_PROTOCOLS, *WEB_PROTOCOLS, "hdfs"} - {"memory"}  # protocols that can send a byte range
_REQUESTS = 16  # at the same time
_HOST = re.compile(r".*?://[^/]*", re.DOTALL)


class MissingFileError(SourceError):
    """A file of a source is missing."""

    @classmethod
    def of(cls, path: str) -> MissingFileError:
        """Return the error for a file."""
        return cls(f"the file is missing, or was removed while the source was read: {path}; check its name")


@contextmanager
def open_file(path: str, compression: str | None = "infer", *, read_ahead: bool = True) -> Iterator[IO[bytes]]:
    """Open a file for reading from its start; .gz, .bz2, .xz and .zst are decompressed.

    Args:
        path: path or URL.
        compression: fsspec's name of the compression, or None for raw bytes; default: by the name's ending.
        read_ahead: False for random access: the store then sends only the requested ranges, without megabytes of
            read-ahead (159 MiB of a 190 MiB Parquet file for one column of 21), and nothing is decompressed.

    Raises:
        StorageError: the store refuses, then or while the body reads.
        SourceError: the compressed data is damaged, or the file is not there.
    """
    codec = compression_of(path) if compression == "infer" else compression
    try:
        with (
            _open_plain(path, read_ahead=read_ahead) as file,
            _store_errors(file),
            _decompressed(file, codec if read_ahead else None, path) as plain,
        ):
            yield plain
    except (RingfeedError, pa.ArrowException):
        raise
    except FileNotFoundError as error:
        raise MissingFileError.of(path) from error
    except (EOFError, zlib.error, lzma.LZMAError, BadGzipFile) as error:
        raise source_error(path, error, "the compressed file is damaged or cut short") from error
    except Exception as error:
        if codec in ("zstd", "bz2") and type(error) is OSError and error.errno is None:
            raise source_error(path, error, "the compressed file is damaged or cut short") from error
        if lacks_ranges(error):
            raise RangesError.of(path) from error
        if not _of_the_store(error):
            raise
        raise storage_error(path, error) from error


@contextmanager
def _store_errors(file: IO[bytes]) -> Iterator[None]:
    """Raise a store's own error where a library that reads from it turns that into an error of damaged data."""
    try:
        yield
    except Exception as error:
        failure = getattr(getattr(file, "raw", file), "failure", None)
        try:
            if failure is None or failure is error:
                raise
            raise failure from failure.__cause__
        finally:
            del failure  # breaks the cycle of traceback and frame, which would keep the library's buffers alive


def _open_plain(path: str, *, read_ahead: bool) -> AbstractContextManager[IO[bytes]]:
    folder, _, name = path.rpartition("/")
    if Storage(path).protocol in WEB_PROTOCOLS and (host := _HOST.match(path)):  # its query may contain slashes
        folder, name = host[0], path[host.end() + 1 :]
    storage = Storage(folder)
    if storage.protocol in _RANGED:
        return storage.open_input(name, read_ahead=read_ahead)
    if (local := Storage(path).local_path) is not None:  # fsspec would take :: in a name for a chained URL
        check_regular(local)
        return local.open("rb")
    return cast(AbstractContextManager[IO[bytes]], fsspec.open(path, "rb"))


@contextmanager
def _decompressed(file: IO[bytes], codec: str | None, path: str) -> Iterator[IO[bytes]]:
    if codec is None:
        yield file
        return
    counted = CountedFile(file)
    with pa.input_stream(counted, compression=codec) if codec == "zstd" else compr[codec](counted, mode="rb") as stream:
        yield cast(IO[bytes], BoundedFile(stream, counted, path))


def size_if_seekable(file: IO[bytes]) -> int | None:
    """Return the size of a file at its start, or None if it cannot seek. The file is at its start again afterwards."""
    try:
        file.seek(0, 2)
        size = file.tell()  # HDFS's seek returns nothing
        file.seek(0)
    except (OSError, ValueError, NotImplementedError):  # HTTP streams claim to be seekable, then raise
        return None
    return size


def _of_the_store(error: Exception) -> bool:
    """Whether a store's client raised an error. Many raise no OSError; Arrow's OSErrors for bad data have no errno."""
    if isinstance(error, OSError):
        return error.errno is not None or type(error) is not OSError
    return isinstance(error, RuntimeError) or type(error).__module__.partition(".")[0] in ("botocore", "aiohttp")


# --- many at once ---------------------------------------------------------------------------------------------


def read_files(paths: Sequence[str]) -> list[bytes]:
    """Read many files, concurrently where they are not local.

    Raises:
        StorageError: the store refuses.
        SourceError: a file is missing.
    """
    local = [place for path in paths if (place := Storage(path).local_path)]
    if len(local) == len(paths):
        with _file_errors(paths):
            for place in local:
                check_regular(place)
            return [place.read_bytes() for place in local]
    contents: dict[str, bytes] = {}
    for some in _by_store(paths):
        with _file_errors(some):
            contents |= _read_from_store(some)
    return [contents[path] for path in paths]


def _read_from_store(paths: Sequence[str]) -> dict[str, bytes]:
    fs, names = _names_of(paths)
    contents: dict[str, bytes] = {}

    def fetch() -> None:
        missing = [name for name in names if name not in contents]
        replies = fs.cat_ranges(missing, None, None, on_error="return")  # `cat` takes names for patterns
        contents.update((name, data) for name, data in zip(missing, replies, strict=True) if isinstance(data, bytes))
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply

    retry(fetch, RetryPolicy())
    return {path: contents[name] for path, name in zip(paths, names, strict=True)}


def stat_files(paths: Sequence[str]) -> list[int]:
    """Return the sizes of many files in bytes, asked for concurrently; raises as `read_files` does."""
    sizes_by_path: dict[str, int] = {}
    for some in _by_store(paths):
        with _file_errors(some):
            fs, names = _names_of(some)
            with ThreadPoolExecutor(_REQUESTS) as threads:
                sizes = threads.map(partial(_size, fs), names)
                for path, size in zip(some, sizes, strict=True):
                    if size is None:
                        raise RangesError.of(path)
                    sizes_by_path[path] = size
    return [sizes_by_path[path] for path in paths]


def _size(fs: fsspec.AbstractFileSystem, name: str) -> int | None:
    size: int | None = retry(partial(fs.size, name), RetryPolicy())
    return size


def _by_store(paths: Sequence[str]) -> list[list[str]]:
    """Group files by file system: a list of images may name several hosts and archives."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        place = _HOST.match(path)
        groups.setdefault(split_chain(path)[1] or (place[0] if place else ""), []).append(path)
    return list(groups.values())


def _names_of(paths: Sequence[str]) -> tuple[fsspec.AbstractFileSystem, list[str]]:
    fs, _ = Storage(paths[0]).filesystem()
    return fs, [fs._strip_protocol(split_chain(path)[0]) for path in paths]


@contextmanager
def _file_errors(paths: Sequence[str]) -> Iterator[None]:
    """Translate errors of reading files of one file system."""
    try:
        yield
    except FileNotFoundError as error:
        path = paths[0] if len(paths) == 1 else _first_missing(paths)
        raise MissingFileError.of(path) from error
    except Exception as error:
        raise storage_error(paths[0], error) from error


def _first_missing(paths: Sequence[str]) -> str:
    fs, names = _names_of(paths)
    return next((path for path, name in zip(paths, names, strict=True) if not fs.exists(name)), paths[0])


def source_error(path: str, error: Exception, remedy: str) -> SourceError | RangesError:
    """Return a one-line error for what a format's reader raised."""
    if lacks_ranges(error):
        return RangesError.of(path)
    return SourceError(f"{path}: {brief(error, 300)}; {remedy}")

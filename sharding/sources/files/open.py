"""What the files of a source hold: opened, decompressed, or read as a whole, with errors that name the file."""

from __future__ import annotations

import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from gzip import BadGzipFile
from typing import IO, cast

import fsspec
import pyarrow as pa
from fsspec.compression import compr

from ...errors import RangesError, RingfeedError, SourceError
from ...messages import brief
from ...storage.retry import RetryPolicy, retry
from ...storage.storage import Storage
from ...storage.urls import OBJECT_STORES, WEB
from .find import compression_of, split_chain, storage_error
from .http_listing import lacks_ranges

__all__ = ["MissingFileError", "open_file", "read_files", "size_if_seekable", "stat_files", "translate_errors"]

_RANGED = {*OBJECT_STORES, *WEB, "hdfs"} - {"memory"}  # protocols that send any range of a file, where the server does
_HOST = re.compile(r".*?://[^/]*", re.DOTALL)


class MissingFileError(SourceError):
    """A file of a source is not there."""

    @classmethod
    def of(cls, path: str) -> MissingFileError:
        """The error of a file, by its URL."""
        return cls(f"a file was never there, or went missing while the source was read: {path}; check its name")


@contextmanager
def open_file(path: str, compression: str | None = "infer", *, read_ahead: bool = True) -> Iterator[IO[bytes]]:
    """Open a file for reading from its start; .gz, .bz2, .xz and .zst are decompressed.

    Args:
        path: or URL.
        compression: fsspec's name of it, or None to read the bytes as they are; by default the name's ending says.
        read_ahead: False for reads here and there: a store then sends what is asked for and no more, where it would
            send megabytes beyond it (159 MiB of a Parquet file of 190 for one column of 21). Nothing is decompressed.

    Raises:
        StorageError: the store refuses, then or while the body reads.
        SourceError: the compressed data is damaged, or the file is not there.
    """
    codec = compression_of(path) if compression == "infer" else compression
    try:
        with (
            _open_plain(path, read_ahead=read_ahead) as file,
            _told_by(file),
            _decompressed(file, codec if read_ahead else None) as plain,
        ):
            yield plain
    except (RingfeedError, pa.ArrowException):
        raise
    except FileNotFoundError as error:
        raise MissingFileError.of(path) from error
    except (EOFError, zlib.error, lzma.LZMAError, BadGzipFile) as error:
        raise translate_errors(path, error, "the compressed file is damaged or cut short") from error
    except Exception as error:
        if codec in ("zstd", "bz2") and type(error) is OSError and error.errno is None:
            raise translate_errors(path, error, "the compressed file is damaged or cut short") from error
        if lacks_ranges(error):
            raise RangesError.of(path) from error
        if not _of_the_store(error):
            raise
        raise storage_error(path, error) from error


@contextmanager
def _told_by(file: IO[bytes]) -> Iterator[None]:
    """Errors of a store as it told them, not as a library that was reading passes them on: some do so as damage."""
    try:
        yield
    except Exception as error:
        failure = getattr(getattr(file, "raw", file), "failure", None)
        try:
            if failure is None or failure is error:
                raise
            raise failure from failure.__cause__
        finally:
            del failure  # else it holds its traceback, that this frame, and all that the library was about


def _open_plain(path: str, *, read_ahead: bool) -> AbstractContextManager[IO[bytes]]:
    folder, _, name = path.rpartition("/")
    if Storage(path).protocol in WEB and (host := _HOST.match(path)):  # a link's query may hold slashes, too
        folder, name = host[0], path[host.end() + 1 :]
    storage = Storage(folder)
    if storage.protocol in _RANGED:
        return storage.open_input(name, read_ahead=read_ahead)
    if (local := Storage(path).local_path) is not None:  # fsspec takes :: in a name for a link of a chain
        return local.open("rb")
    return cast(AbstractContextManager[IO[bytes]], fsspec.open(path, "rb"))


@contextmanager
def _decompressed(file: IO[bytes], codec: str | None) -> Iterator[IO[bytes]]:
    if codec is None:
        yield file
        return
    with pa.input_stream(file, compression=codec) if codec == "zstd" else compr[codec](file, mode="rb") as stream:
        yield stream


def size_if_seekable(file: IO[bytes]) -> int | None:
    """The size of a file that stands at its start and can go elsewhere; else None. It stands at its start again."""
    try:
        file.seek(0, 2)
        size = file.tell()  # HDFS's seek returns nothing
        file.seek(0)
    except (OSError, ValueError, NotImplementedError):  # a stream of HTTP's says that it can, and then raises
        return None
    return size


def _of_the_store(error: Exception) -> bool:
    """Whether a client of a store raised it; many of theirs are no OSError. Arrow's, for bad data, have no errno."""
    if isinstance(error, OSError):
        return error.errno is not None or type(error) is not OSError
    return isinstance(error, RuntimeError) or type(error).__module__.partition(".")[0] in ("botocore", "aiohttp")


# --- many at once ---------------------------------------------------------------------------------------------


def read_files(paths: Sequence[str]) -> list[bytes]:
    """The contents of many files, fetched side by side where they are not local.

    Raises:
        StorageError: the store refuses.
        SourceError: one is not there any more.
    """
    local = [place for path in paths if (place := Storage(path).local_path)]
    if len(local) == len(paths):
        with _errors_of_files(paths):
            return [place.read_bytes() for place in local]
    found: dict[str, bytes] = {}
    for some in _by_store(paths):
        with _errors_of_files(some):
            found |= _read_from_one(some)
    return [found[path] for path in paths]


def _read_from_one(paths: Sequence[str]) -> dict[str, bytes]:
    fs, names = _names_of(paths)
    found: dict[str, bytes] = {}

    def fetch() -> None:
        missing = [name for name in names if name not in found]
        replies = fs.cat_ranges(missing, None, None, on_error="return")  # `cat` takes names for patterns
        found.update((name, data) for name, data in zip(missing, replies, strict=True) if isinstance(data, bytes))
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply

    retry(fetch, RetryPolicy())
    return {path: found[name] for path, name in zip(paths, names, strict=True)}


def stat_files(paths: Sequence[str]) -> list[int]:
    """The sizes of many files in bytes, asked for side by side; errors as of `read_files`."""
    found: dict[str, int] = {}
    for some in _by_store(paths):
        with _errors_of_files(some):
            fs, names = _names_of(some)
            sizes = retry(partial(fs.sizes, names), RetryPolicy())
            if None in sizes:
                raise RangesError.of(some[sizes.index(None)])
            found |= zip(some, sizes, strict=True)
    return [found[path] for path in paths]


def _by_store(paths: Sequence[str]) -> list[list[str]]:
    """Files that one file system opens, together: a list of images may name several hosts, and several archives."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        place = _HOST.match(path)
        groups.setdefault(split_chain(path)[1] or (place[0] if place else ""), []).append(path)
    return list(groups.values())


def _names_of(paths: Sequence[str]) -> tuple[fsspec.AbstractFileSystem, list[str]]:
    fs, _ = Storage(paths[0]).filesystem()
    return fs, [fs._strip_protocol(split_chain(path)[0]) for path in paths]


@contextmanager
def _errors_of_files(paths: Sequence[str]) -> Iterator[None]:
    """Errors of files of one file system."""
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


def translate_errors(path: str, error: Exception, remedy: str) -> SourceError | RangesError:
    """One line for what a format's reader raised."""
    if lacks_ranges(error):
        return RangesError.of(path)
    return SourceError(f"{path}: {brief(error, 300)}; {remedy}")

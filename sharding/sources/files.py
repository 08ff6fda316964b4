"""The files of a source: how they are found, told from others, and opened."""

from __future__ import annotations

import difflib
import lzma
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from gzip import BadGzipFile
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import IO, Any, cast

import fsspec
import pyarrow as pa
from fsspec.compression import compr
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import infer_compression

from ..clients import OBJECT_STORES, WEB
from ..errors import RangesError, RingfeedError, SourceError, StorageError
from ..keyed import derive_key
from ..retry import RetryPolicy, retry
from ..storage import Storage
from .listing import Listing, SourceFile, note
from .web import is_page, is_web, lacks_ranges, plain_url, with_sizes, without_query

__all__ = [
    "MissingFileError", "SourceFile", "base_name", "beside", "check_unchanged", "compression_of", "fingerprint_files",
    "has_pattern", "list_files", "open_file", "plain_name", "read_files", "root_of", "size_if_seekable", "split_chain",
    "stat_files", "translate_errors",
]  # fmt: skip

_OURS = {"hdfs", *WEB}  # protocols whose file systems are not fsspec's
_RANGED = {*OBJECT_STORES, *_OURS} - {"memory"}  # protocols that send any range of a file, where the server does
_HOST = re.compile(r".*?://[^/]*", re.DOTALL)
_IN_ARCHIVE = re.compile(r"((?:\w+::)*(?:zip|tar|libarchive|rar)://.*?)(::.*)", re.DOTALL)


class MissingFileError(SourceError):
    """A file of a source is not there."""

    @classmethod
    def of(cls, path: str) -> MissingFileError:
        """The error of a file, by its URL."""
        return cls(f"a file was never there, or went missing while the source was read: {path}; check its name")


def list_files(url: str, suffixes: Sequence[str]) -> list[SourceFile]:
    """The files of a path, folder or glob whose `plain_name` ends in one of `suffixes`, sorted by name.

    A path that names one file is taken whatever its ending is. A glob stands for the files that match it or, where
    there is none, for those in the folders that do. Files and folders whose names start with ``.`` or ``_`` are passed
    over, as other readers of data folders do.

    Args:
        url: of it.
        suffixes: endings, in lower case.

    Raises:
        SourceError: there is nothing there.
    """
    files = _list(url, suffixes)
    note(url, suffixes, files)
    return files


def check_unchanged(listings: Iterable[Listing]) -> None:
    """Refuse files that are not what they were when they were listed; new ones, and such as are gone, are no matter.

    Raises:
        SourceError: one is another.
    """
    for listing in listings:
        try:
            now = _list(listing.url, listing.suffixes)
        except SourceError:  # all are gone
            continue
        if (url := listing.changed_of(now)) is not None:
            raise SourceError(f"{url}: the file changed while the source was read; build again")


def _list(url: str, suffixes: Sequence[str]) -> list[SourceFile]:
    policy = RetryPolicy() if is_web(url) else RetryPolicy(attempts=1)  # other clients try again themselves
    try:
        fs, path = _filesystem(url)
        return retry(lambda: _listed(fs, path, url, tuple(suffixes)), policy)
    except SourceError:
        raise
    except FileNotFoundError as error:
        if isinstance(cause := error.__cause__, OSError) and not isinstance(cause, FileNotFoundError):
            raise _storage_error(url, cause) from error
        there = str(error) if str(error).startswith(url) else url  # a page may list what is not there
        raise SourceError(f"there is nothing at {there}; {_hint(url)}check the path") from error
    except Exception as error:
        raise _storage_error(url, error) from error


def _listed(fs: fsspec.AbstractFileSystem, path: str, url: str, suffixes: tuple[str, ...]) -> list[SourceFile]:
    chain = split_chain(url)[1]
    root = path.rstrip("/")
    if has_pattern(path) and not fs.exists(path):
        found = _matching(fs, path)
        if not found:
            raise SourceError(f"no file matches {url}; check the pattern, or name a folder")
    elif fs.isfile(path) and (plain_name(path).endswith(tuple(filter(None, suffixes))) or not is_page(fs, path)):
        return [_file(fs, fs.info(path), chain)]
    elif isinstance(fs, LocalFileSystem) and fs.isdir(path):
        return sorted(_find_local(root or "/", suffixes))
    else:
        found = _below(fs, root)
        if not found and not fs.exists(path):
            raise FileNotFoundError(path)
    matching = [info for info in found if plain_name(info["name"]).endswith(suffixes)]
    return sorted((_file(fs, info, chain) for info in with_sizes(fs, matching)), key=lambda file: plain_url(file.url))


def _filesystem(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of a URL, and the path in it; of HDFS ours, which waits for no NameNode for ever."""
    storage = Storage(url)
    fs, path = storage.filesystem() if storage.protocol in _OURS else fsspec.url_to_fs(url)
    fs.invalidate_cache()  # of what was listed before in this process
    return fs, url if is_web(url) else path  # the slash at a link's end may be of its signature


def _matching(fs: fsspec.AbstractFileSystem, pattern: str) -> list[dict[str, Any]]:
    """What fsspec knows of the files that a glob stands for; in hidden folders, of those alone that it names itself."""
    root = re.split(r"[*?[]", pattern)[0].rpartition("/")[0]
    names_hidden = _is_hidden(pattern[len(root) :])
    found = [
        info
        for info in fs.glob(pattern, detail=True).values()
        if not _is_hidden(base_name(info["name"].rstrip("/")))
        and (names_hidden or not info["name"].startswith(root) or not _is_hidden(info["name"][len(root) :]))
    ]
    _check_links(fs, found)
    files = [info for info in found if info["type"] == "file"]
    return files or [info for folder in found for info in _below(fs, folder["name"].rstrip("/"))]


def _below(fs: fsspec.AbstractFileSystem, root: str) -> list[dict[str, Any]]:
    """The same of the files in a folder."""
    found = [info for info in fs.find(root, detail=True).values() if not _is_hidden(info["name"][len(root) :])]
    _check_links(fs, found)
    return [info for info in found if info["type"] == "file"]


def _is_hidden(path: str) -> bool:
    """Whether the name of a file or folder in a path is one that readers of data folders pass over."""
    return any(name[0] in "._" for name in path.split("/") if name)


def split_chain(url: str) -> tuple[str, str]:
    """A URL, and the rest of one of fsspec's chains: where the archive lies that it is of a member of.

    >>> split_chain("zip://a/b.csv::s3://bucket/c.zip"), split_chain("s3://bucket/c.zip")
    (('zip://a/b.csv', '::s3://bucket/c.zip'), ('s3://bucket/c.zip', ''))
    """
    found = _IN_ARCHIVE.fullmatch(url) if "::" in url else None
    return (found[1], found[2]) if found else (url, "")


def plain_name(name: str) -> str:
    """A file's name in lower case, without the number that some writers of shards put after its ending.

    >>> plain_name("Flowers.tfrecord-00003-of-00010"), plain_name("a.tfrecord-00003-of-00010.gz")
    ('flowers.tfrecord', 'a.tfrecord.gz')
    >>> plain_name("https://example.org/a.CSV?Signature=b")
    'https://example.org/a.csv'
    """
    plain = without_query(split_chain(name)[0]).lower()
    return re.sub(r"-\d{3,}-of-\d{3,}(?=(\.\w+)?$)", "", plain) if "-of-" in plain else plain


def _find_local(root: str, suffixes: tuple[str, ...]) -> Iterator[SourceFile]:
    """As `list_files` of a folder of this machine; 4 us a file where fsspec takes 50.

    Links are followed; but none to a folder that holds the one it is met in, or that is read without it.
    """
    folders: list[tuple[str, tuple[str, ...]]] = [(root, (os.path.realpath(root),))]
    while folders:
        folder, trees = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name[0] in "._":
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, trees))
                elif entry.is_dir():
                    target = os.path.realpath(entry.path)
                    if not any(os.path.commonpath([target, tree]) in (target, tree) for tree in trees):
                        folders.append((entry.path, (*trees, target)))
                elif plain_name(entry.name).endswith(suffixes):
                    if not entry.is_file():
                        _check_link(entry.path)
                        continue
                    info = entry.stat()
                    _check_name(entry.path)
                    yield SourceFile(f"file://{entry.path}", info.st_size, str(info.st_mtime or ""))


def _check_links(fs: fsspec.AbstractFileSystem, infos: Sequence[dict[str, Any]]) -> None:
    if isinstance(fs, LocalFileSystem):
        for info in infos:
            _check_link(info["name"])


def _check_link(path: str) -> None:
    """Refuse a link that leads nowhere: what it stood for would be missing without a word."""
    if os.path.islink(path) and not os.path.exists(path):
        raise SourceError(
            f"{path} is a link to what is not there ({os.readlink(path)}); restore that, or remove the link"
        )


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise SourceError(f"the name of the file {path!r} is not UTF-8; rename it") from error


def has_pattern(url: str) -> bool:
    """Whether a URL may be a glob. In one of a web server, a question mark begins a query.

    >>> has_pattern("s3://bucket/a?.csv"), has_pattern("https://host/a.csv?b=[*]"), has_pattern("https://host/*.csv")
    (True, False, True)
    """
    return any(letter in without_query(url) for letter in "*?[")


def root_of(url: str, files: Sequence[str]) -> str:
    """The folder that the names of a source's files are to be read from: the one that a URL names; of a glob, the last
    without a pattern.

    Args:
        url: of the source.
        files: URLs of its files.

    Returns:
        Its URL with a slash at the end, and without the rest of a chain.
    """
    fs, path = _filesystem(url)
    root = str(fs.unstrip_protocol(path)).removesuffix("/") + "/"
    while not all(file.startswith(root) for file in files) and "/" in root[:-1]:  # it is a glob, or a file
        root = root[:-1].rpartition("/")[0] + "/"
        while has_pattern(root):
            root = root[:-1].rpartition("/")[0] + "/"
    return root


def beside(url: str, path: str) -> str:
    """A path that a file gives, relative to its own folder, in full.

    >>> beside("s3://bucket/a/list.csv", "../b/c.jpg"), beside("zip://list.csv::d.zip", "b/c.jpg")
    ('s3://bucket/b/c.jpg', 'zip://b/c.jpg::d.zip')
    """
    name, chain = split_chain(url)
    if not Storage(name).local_path and not {".", ".."}.isdisjoint(path.split("/")):  # here it may lead over a link
        protocol, mark, place = name.partition("://")
        return f"{protocol}{mark}{normpath(join(dirname(place), path))}{chain}"
    return f"{name.rpartition('/')[0]}/{path}{chain}"


def _file(fs: fsspec.AbstractFileSystem, info: dict[str, Any], chain: str) -> SourceFile:
    version = next((info[key] for key in ("ETag", "mtime", "modification_time", "LastModified") if info.get(key)), "")
    return SourceFile(
        url=f"{fs.unstrip_protocol(info['name'])}{chain}", bytes=int(info.get("size") or 0), version=str(version)
    )


def _hint(url: str) -> str:
    """What else may be meant by a URL at which there is nothing."""
    if re.fullmatch(r"[\w.]+:[A-Za-z_]\w*", url):
        return "a function is read with --source-kind python; else "
    if re.search(r"\{.*(,|\.\.).*\}", url):
        return "braces stand for several names of tar archives alone: name a folder, or use * and ?; else "
    path = Storage(url).local_path
    if path is None or not path.parent.is_dir():
        return ""
    others = [entry.name for entry in path.parent.iterdir() if entry.name != path.name]  # itself: a link to nothing
    names = difflib.get_close_matches(path.name, others, n=1)
    return f"did you mean {path.parent / names[0]}? Else " if names else ""


def compression_of(path: str) -> str | None:
    """What a file is compressed with, by its name.

    >>> compression_of("a.csv.gz"), compression_of("A.CSV.ZST"), compression_of("a.csv.gz-00000-of-00002")
    ('gzip', 'zstd', 'gzip')
    """
    name = plain_name(path)
    codec: str | None = infer_compression(name)
    return "zstd" if name.endswith((".zst", ".zstd")) else codec  # fsspec knows it only where another package is


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
        raise _storage_error(path, error) from error


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


def read_files(paths: Sequence[str]) -> list[bytes]:
    """The contents of many files, fetched side by side where they are not local.

    Raises:
        StorageError: the store refuses.
        SourceError: one is not there any more.
    """
    storages = [Storage(path).local_path for path in paths]
    if all(storages):
        with _errors_of_files(paths):
            return [Path(str(path)).read_bytes() for path in storages]
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
        raise _storage_error(paths[0], error) from error


def _first_missing(paths: Sequence[str]) -> str:
    fs, names = _names_of(paths)
    return next((path for path, name in zip(paths, names, strict=True) if not fs.exists(name)), paths[0])


def _storage_error(url: str, error: Exception) -> Exception:
    try:
        with Storage(url).errors("read", ""):
            raise error
    except StorageError as translated:
        return translated
    raise AssertionError("unreachable: the error was raised")


def fingerprint_files(files: Sequence[SourceFile]) -> str:
    """A hash of the files' names, sizes and, where the store knows them, versions or times of change."""
    facts = [fact for file in files for fact in (base_name(file.url), file.bytes, file.version)]
    return f"{derive_key(*facts):016x}"


def base_name(url: str) -> str:
    """A file's name without its folder, the rest of a chain, and what a link asks of a web server.

    >>> base_name("s3://bucket/a/b.csv"), base_name("zip://b.csv::s3://bucket/c.zip")
    ('b.csv', 'b.csv')
    """
    return without_query(split_chain(url)[0]).rpartition("/")[2]


def translate_errors(path: str, error: Exception, remedy: str) -> SourceError | RangesError:
    """One line for what a format's reader raised."""
    if lacks_ranges(error):
        return RangesError.of(path)
    return SourceError(f"{path}: {' '.join(str(error).split())[:300]}; {remedy}")

"""The files of a source: their names, listings and fingerprints. `open.py` reads their contents.

Tested in tests/sharding/sources/files/test_http_listing.py and tests/sharding/sources/files/test_snapshot.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from posixpath import dirname, join, normpath
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import infer_compression

from ringfeed.sharding.compute.keyed_random import derive_key
from ringfeed.sharding.errors import RangesError, SourceError, StorageError
from ringfeed.sharding.messages import closest
from ringfeed.sharding.storage.client_errors import is_busy, is_transient
from ringfeed.sharding.storage.retry import RetryPolicy, retry
from ringfeed.sharding.storage.special_files import SpecialFileError, check_regular
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.urls import WEB_PROTOCOLS
from ringfeed.sharding.url_secrets import public_url

from .http_listing import fill_sizes, is_page, is_web, lacks_ranges, plain_url, without_query
from .snapshot import Listing, SourceFile, record_listing

_OWN_CLIENTS = {"hdfs", *WEB_PROTOCOLS}  # protocols with file systems of ringfeed's own, not fsspec's
_VERSIONS = ("ETag", "mtime", "modification_time", "LastModified", "CRC")  # keys of `info`; CRC: a zip member's
_IN_ARCHIVE = re.compile(r"((?:\w+::)*(?:zip|tar|libarchive|rar)://.*?)(::.*)", re.DOTALL)


def list_files(url: str, suffixes: Sequence[str]) -> list[SourceFile]:
    """List the files of a path, folder or glob whose `plain_name` ends in one of `suffixes`, sorted by name.

    A path of one file gives that file, whatever its ending. A glob gives the files that match it or, if none does,
    the files in the folders that match. Names that start with ``.`` or ``_`` are skipped, as by Spark and Arrow.

    Args:
        url: path or URL of a file or folder, or a glob.
        suffixes: endings in lower case.

    Raises:
        SourceError: there is nothing at the path.
    """
    files = _list(url, suffixes)
    record_listing(url, suffixes, files)
    return files


def list_entries(url: str) -> tuple[list[str], list[str]]:
    """Return the names of the folders and of the files that lie directly in a folder, without hidden ones; sorted.

    Raises:
        OSError, StorageError: the folder cannot be listed.
    """
    fs, path = _filesystem(url)
    names: dict[bool, list[str]] = {True: [], False: []}
    for info in fs.ls(path, detail=True):
        name = base_name(str(info["name"]).rstrip("/"))
        if name and not _is_hidden(name):
            names[fs.isdir(info["name"]) if info["type"] == "other" else info["type"] == "directory"].append(name)
    return sorted(names[True]), sorted(names[False])


def require_files(url: str, suffixes: Sequence[str], what: str) -> list[SourceFile]:
    """Do as `list_files`; raises a SourceError if there is no `what` at the path."""
    files = list_files(url, suffixes)
    if not files:
        raise SourceError(f"there is no {what} ({', '.join(suffixes)}) at {url}")
    return files


def check_unchanged(listings: Iterable[Listing]) -> None:
    """Fail if a file changed since it was listed; new and removed files do not matter.

    Raises:
        SourceError: a file changed.
    """
    for listing in listings:
        try:
            now = _list(listing.url, listing.suffixes)
        except SourceError:  # all were removed
            continue
        if (url := listing.first_changed(now)) is not None:
            raise SourceError(f"{url}: the file changed while the source was read; build again")


def _list(url: str, suffixes: Sequence[str]) -> list[SourceFile]:
    transient = is_transient if is_web(url) else is_busy  # other clients retry by themselves, not for long
    try:
        fs, path = _filesystem(url)
        return retry(lambda: _listed(fs, path, url, tuple(suffixes)), RetryPolicy(), transient=transient)
    except SourceError:
        raise
    except FileNotFoundError as error:
        if isinstance(cause := error.__cause__, OSError) and not isinstance(cause, FileNotFoundError):
            raise storage_error(url, cause) from error
        missing = str(error) if str(error).startswith(url) else url  # a page may list missing files
        raise SourceError(f"there is nothing at {missing}; {_hint(url)}check the path") from error
    except Exception as error:
        if lacks_ranges(error):
            raise RangesError.of(public_url(url)) from error
        raise storage_error(url, error) from error


def _listed(fs: fsspec.AbstractFileSystem, path: str, url: str, suffixes: tuple[str, ...]) -> list[SourceFile]:
    chain = split_chain(url)[1]
    root = path.rstrip("/")
    if isinstance(fs, LocalFileSystem) and os.path.exists(path):
        check_regular(path)
    if has_pattern(path) and not fs.exists(path):
        infos = _matching(fs, path)
        if not infos:
            raise SourceError(f"no file matches {url}; check the pattern, or name a folder")
    elif fs.isfile(path) and (plain_name(path).endswith(tuple(filter(None, suffixes))) or not is_page(fs, path)):
        return [_file(fs, fs.info(path), chain)]
    elif isinstance(fs, LocalFileSystem) and fs.isdir(path):
        return sorted(_find_local(root or "/", suffixes))
    else:
        infos = _below(fs, root)
        if not infos and not fs.exists(path):
            raise FileNotFoundError(path)
    matching = [info for info in infos if plain_name(info["name"]).endswith(suffixes)]
    return sorted((_file(fs, info, chain) for info in fill_sizes(fs, matching)), key=lambda file: plain_url(file.url))


def _filesystem(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the file system of a URL, and the path in it."""
    storage = Storage(url)
    fs, path = storage.filesystem() if storage.protocol in _OWN_CLIENTS else fsspec.url_to_fs(url)
    fs.invalidate_cache()  # drops earlier listings of this process
    return fs, url if is_web(url) else path  # a link's final slash may belong to its signature


def _matching(fs: fsspec.AbstractFileSystem, pattern: str) -> list[dict[str, Any]]:
    """Return fsspec's `info` of the files that a glob stands for; of hidden folders, only those that it names."""
    root = re.split(r"[*?[]", pattern)[0].rpartition("/")[0]
    names_hidden = _is_hidden(pattern[len(root) :])
    infos = [
        info
        for info in fs.glob(pattern, detail=True).values()
        if not _is_hidden(base_name(info["name"].rstrip("/")))
        and (names_hidden or not info["name"].startswith(root) or not _is_hidden(info["name"][len(root) :]))
    ]
    _check_local(fs, infos)
    files = [info for info in infos if info["type"] == "file"]
    return files or [info for folder in infos for info in _below(fs, folder["name"].rstrip("/"))]


def _below(fs: fsspec.AbstractFileSystem, root: str) -> list[dict[str, Any]]:
    """Return fsspec's `info` of the files below a folder."""
    infos = [info for info in fs.find(root, detail=True).values() if not _is_hidden(info["name"][len(root) :])]
    _check_local(fs, infos)
    return [info for info in infos if info["type"] == "file"]


def _is_hidden(path: str) -> bool:
    """Whether a name in a path starts with ``.`` or ``_``."""
    return any(name[0] in "._" for name in path.split("/") if name)


def split_chain(url: str) -> tuple[str, str]:
    """Split a chained URL of fsspec into the member's URL and the rest, which locates the archive.

    >>> split_chain("zip://a/b.csv::s3://bucket/c.zip"), split_chain("s3://bucket/c.zip")
    (('zip://a/b.csv', '::s3://bucket/c.zip'), ('s3://bucket/c.zip', ''))
    """
    match = _IN_ARCHIVE.fullmatch(url) if "::" in url else None
    return (match[1], match[2]) if match else (url, "")


def plain_name(name: str) -> str:
    """Return a file's name in lower case, without the shard number that some writers append after its ending.

    >>> plain_name("Flowers.tfrecord-00003-of-00010"), plain_name("a.tfrecord-00003-of-00010.gz")
    ('flowers.tfrecord', 'a.tfrecord.gz')
    >>> plain_name("a.tfrecord-00003"), plain_name("a.csv-00003")  # the first by tfds.core.SequentialWriter
    ('a.tfrecord', 'a.csv-00003')
    >>> plain_name("https://example.org/a.CSV?Signature=b")
    'https://example.org/a.csv'
    """
    plain = without_query(split_chain(name)[0]).lower()
    plain = re.sub(r"-\d{3,}-of-\d{3,}(?=(\.\w+)?$)", "", plain) if "-of-" in plain else plain
    return re.sub(r"(?<=\.tfrecord)-\d{5}$", "", plain) if ".tfrecord-" in plain else plain


def _find_local(root: str, suffixes: tuple[str, ...]) -> Iterator[SourceFile]:
    """List a local folder as `list_files` does, in 4 us a file where fsspec takes 50.

    Links are followed, except to a folder that contains the link, or that the listing covers anyway.
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
                        _check_file(entry.path)
                        continue
                    info = entry.stat()
                    _check_name(entry.path)
                    yield SourceFile(f"file://{entry.path}", info.st_size, str(info.st_mtime or ""))


def _check_local(fs: fsspec.AbstractFileSystem, infos: Sequence[dict[str, Any]]) -> None:
    if isinstance(fs, LocalFileSystem):
        for info in infos:
            _check_file(info["name"])


def _check_file(path: str) -> None:
    """Refuse a broken link or a special file, which would otherwise be left out silently."""
    if os.path.islink(path) and not os.path.exists(path):
        raise SourceError(f"{path} is a broken link to {os.readlink(path)}; restore its target, or remove the link")
    try:
        check_regular(path)
    except SpecialFileError as error:
        raise SourceError(f"{path}: {error}") from error


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise SourceError(f"the name of the file {path!r} is not UTF-8; rename it") from error


def has_pattern(url: str) -> bool:
    """Whether a URL may be a glob. In a web URL, a question mark starts the query.

    >>> has_pattern("s3://bucket/a?.csv"), has_pattern("https://host/a.csv?b=[*]"), has_pattern("https://host/*.csv")
    (True, False, True)
    """
    return any(letter in without_query(url) for letter in "*?[")


def root_of(url: str, files: Sequence[str]) -> str:
    """Return the folder that the names of a source's files are relative to.

    It is the folder that the URL names; for a glob, the last folder before the first pattern.

    Args:
        url: URL of the source.
        files: URLs of its files.

    Returns:
        The folder's URL with a slash at the end, without the rest of a chain.
    """
    fs, path = _filesystem(url)
    root = str(fs.unstrip_protocol(path)).removesuffix("/") + "/"
    while not all(file.startswith(root) for file in files) and "/" in root[:-1]:  # `url` is a glob or a file
        root = root[:-1].rpartition("/")[0] + "/"
        while has_pattern(root):
            root = root[:-1].rpartition("/")[0] + "/"
    return root


def resolve_relative(url: str, path: str) -> str:
    """Resolve a path that a file gives relative to its own folder.

    >>> resolve_relative("s3://bucket/a/list.csv", "../b/c.jpg"), resolve_relative("zip://list.csv::d.zip", "b/c.jpg")
    ('s3://bucket/b/c.jpg', 'zip://b/c.jpg::d.zip')
    """
    name, chain = split_chain(url)
    if not Storage(name).local_path and not {".", ".."}.isdisjoint(path.split("/")):  # a local .. may cross a link
        protocol, mark, place = name.partition("://")
        return f"{protocol}{mark}{normpath(join(dirname(place), path))}{chain}"
    return f"{name.rpartition('/')[0]}/{path}{chain}"


def _file(fs: fsspec.AbstractFileSystem, info: dict[str, Any], chain: str) -> SourceFile:
    version = next((info[key] for key in _VERSIONS if info.get(key)), "")
    return SourceFile(
        url=f"{fs.unstrip_protocol(info['name'])}{chain}", bytes=int(info.get("size") or 0), version=str(version)
    )


def _hint(url: str) -> str:
    """Guess what was meant by a URL at which there is nothing."""
    if re.fullmatch(r"[\w.]+:[A-Za-z_]\w*", url):
        return "a function is read with --source-kind python; else "
    if re.search(r"\{.*(,|\.\.).*\}", url):
        return "braces expand only in names of tar archives: name a folder, or use * and ?; else "
    path = Storage(url).local_path
    if path is None or not path.parent.is_dir():
        return ""
    others = [entry.name for entry in path.parent.iterdir() if entry.name != path.name]  # itself: a broken link
    name = closest(path.name, others)
    return f"did you mean {path.parent / name}? Else " if name else ""


def compression_of(path: str) -> str | None:
    """Return the compression of a file by its name, as fsspec names it, or None.

    >>> compression_of("a.csv.gz"), compression_of("A.CSV.ZST"), compression_of("a.csv.gz-00000-of-00002")
    ('gzip', 'zstd', 'gzip')
    """
    name = plain_name(path)
    codec: str | None = infer_compression(name)
    return "zstd" if name.endswith((".zst", ".zstd")) else codec  # fsspec knows zstd only with an extra package


def storage_error(url: str, error: Exception) -> Exception:
    """Return a store's error as `Storage.errors` translates it."""
    try:
        with Storage(url).errors("read", ""):
            raise error
    except StorageError as translated:
        return translated
    raise AssertionError("unreachable: the error was raised")


def fingerprint_files(files: Sequence[SourceFile], facts: Iterable[str] = ()) -> str:
    """Hash the files' names, sizes and, where the store knows them, versions or modification times.

    The folder is left out: a source that is moved keeps its fingerprint.

    Args:
        files: files of a source, in order.
        facts: what else determines the records, such as partition values or selected arrays.
    """
    about_files = [fact for file in files for fact in (base_name(file.url), file.bytes, file.version)]
    return f"{derive_key(*about_files, *facts):016x}"


def base_name(url: str) -> str:
    """Return a file's name without its folder, the rest of a chain, or a web URL's query.

    >>> base_name("s3://bucket/a/b.csv"), base_name("zip://b.csv::s3://bucket/c.zip")
    ('b.csv', 'b.csv')
    """
    return without_query(split_chain(url)[0]).rpartition("/")[2]

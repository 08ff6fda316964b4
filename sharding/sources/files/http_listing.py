"""The peculiarities of web servers: HTML pages list their folders, URLs are escaped, and some send no byte ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

import fsspec

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.storage.retry import RetryPolicy, retry

_SCHEMES = ("http://", "https://")
_REQUESTS = 16  # at the same time


def is_web(url: str) -> bool:
    """Whether a URL is ``http`` or ``https``."""
    return url.startswith(_SCHEMES)


def plain_url(url: str) -> str:
    """Decode a web URL's escapes, so that files sort as they do on other stores."""
    return unquote(url) if is_web(url) else url


def decode_name(root: str, path: str) -> str:
    """Return the name of a file at a path below a folder: paths on web servers are escaped.

    Raises:
        SourceError: the name is not UTF-8.

    >>> decode_name("https://example.org/photos/", "golden%20retriever/1.jpg")
    'golden retriever/1.jpg'
    >>> decode_name("s3://photos/", "50%25/1.jpg")
    '50%25/1.jpg'
    """
    try:
        return unquote(path, errors="strict") if is_web(root) else path
    except UnicodeDecodeError as error:
        raise SourceError(f"the name of the file {root}{path} is not UTF-8; rename it") from error


def encode_name(root: str, name: str) -> str:
    """Return a name as a path in a URL, escaped on web servers: the inverse of `decode_name`."""
    return quote(name) if is_web(root) else name


def without_query(url: str) -> str:
    """Return a web URL without its query, such as the signature of a presigned link.

    >>> without_query("https://example.org/a.csv?Signature=1"), without_query("s3://bucket/a?b.csv")
    ('https://example.org/a.csv', 's3://bucket/a?b.csv')
    """
    return url.partition("?")[0] if is_web(url) else url


def is_page(fs: fsspec.AbstractFileSystem, path: str) -> bool:
    """Whether a path is an HTML page, which lists a folder."""
    return is_web(path) and str(fs.info(path).get("mimetype", "")).startswith("text/html")


def is_served_below(url: str, name: str) -> bool:
    """Whether a URL is a file that its server also serves for paths below it, as web applications do."""
    if not is_web(url) or url.endswith("/"):
        return False
    fs = fsspec.url_to_fs(url)[0]
    try:
        file, below = (retry(partial(fs.info, path), RetryPolicy()) for path in (url, f"{url}/{name}"))
    except FileNotFoundError:
        return False  # a folder without a listing
    keys = ("size", "mimetype", "ETag")
    return file.get("size") is not None and all(file.get(key) == below.get(key) for key in keys)


def fill_sizes(fs: fsspec.AbstractFileSystem, infos: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield `info` of files with their sizes, asking the server for each one that its page did not give.

    Raises:
        FileNotFoundError: a listed file is missing.
        Exhausted: the server does not answer.
    """

    def with_size(info: dict[str, Any]) -> dict[str, Any]:
        return info if info.get("size") is not None else retry(lambda: fs.info(info["name"]), RetryPolicy())

    with ThreadPoolExecutor(_REQUESTS) as threads:
        yield from threads.map(with_size, infos)


def lacks_ranges(error: Exception) -> bool:
    """Whether fsspec raised an error, perhaps through Arrow, because a server sends no byte ranges."""
    return "support range requests" in str(error)

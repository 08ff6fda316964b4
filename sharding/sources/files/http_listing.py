"""What web servers need beside other stores: pages list their folders, and some send no parts of files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

import fsspec

from ...errors import SourceError
from ...storage.retry import RetryPolicy, retry

__all__ = [
    "decode_name",
    "encode_name",
    "fill_sizes",
    "is_page",
    "is_served_below",
    "is_web",
    "lacks_ranges",
    "plain_url",
    "without_query",
]  # fmt: skip

_SCHEMES = ("http://", "https://")
_REQUESTS = 16  # at a time


def is_web(url: str) -> bool:
    """Whether a URL is of a web server."""
    return url.startswith(_SCHEMES)


def plain_url(url: str) -> str:
    """A URL without the escapes of web servers: so it is sorted as the file's name is on other stores."""
    return unquote(url) if is_web(url) else url


def decode_name(root: str, path: str) -> str:
    """The name of what lies at a path below a folder: that of a web server is escaped.

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
    """A name below a folder as it stands in a URL: what `decode_name` takes back."""
    return quote(name) if is_web(root) else name


def without_query(url: str) -> str:
    """A URL without what it asks of a web server beside the file, such as the signature of a link that expires.

    >>> without_query("https://example.org/a.csv?Signature=1"), without_query("s3://bucket/a?b.csv")
    ('https://example.org/a.csv', 's3://bucket/a?b.csv')
    """
    return url.partition("?")[0] if is_web(url) else url


def is_page(fs: fsspec.AbstractFileSystem, path: str) -> bool:
    """Whether what is there is a page, which lists the files of a folder."""
    return is_web(path) and str(fs.info(path).get("mimetype", "")).startswith("text/html")


def is_served_below(url: str, name: str) -> bool:
    """Whether a URL is a file that its server also sends for names below it, as programs do that take any path."""
    if not is_web(url) or url.endswith("/"):
        return False
    fs = fsspec.url_to_fs(url)[0]
    try:
        file, below = (retry(partial(fs.info, path), RetryPolicy()) for path in (url, f"{url}/{name}"))
    except FileNotFoundError:
        return False  # a folder that is not listed
    keys = ("size", "mimetype", "ETag")
    return file.get("size") is not None and all(file.get(key) == below.get(key) for key in keys)


def fill_sizes(fs: fsspec.AbstractFileSystem, infos: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What is known of files, with their sizes: pages do not tell them, so the server is asked for each file's.

    Raises:
        FileNotFoundError: it has none.
        Exhausted: it does not answer.
    """

    def asked(info: dict[str, Any]) -> dict[str, Any]:
        return info if info.get("size") is not None else retry(lambda: fs.info(info["name"]), RetryPolicy())

    with ThreadPoolExecutor(_REQUESTS) as threads:
        yield from threads.map(asked, infos)


def lacks_ranges(error: Exception) -> bool:
    """Whether fsspec raised it, by way of Arrow perhaps, for a server that sends no parts of files."""
    return "support range requests" in str(error)

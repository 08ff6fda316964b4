"""Files on web servers: fsspec's file system, but that it tells errors apart, and reads parts and pages exactly.

fsspec takes any refusal for a file that is not there, a part that ends too soon for all of it, and finds the links of
a page by a pattern. Not here: what the pages list (`sources/files.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from glob import escape
from html.parser import HTMLParser
from typing import IO, Any
from urllib.parse import quote, unquote, unquote_to_bytes, urljoin, urlsplit

import aiohttp
from fsspec.asyn import sync
from fsspec.implementations.http import HTTPFileSystem, HTTPStreamFile
from fsspec.utils import glob_translate

from ..errors import PageError, RangesError, StorageError
from .retry import IncompleteError, RetryPolicy, retry
from .timeouts import request_limit_seconds
from .urls import public_url

__all__ = ["WebFileSystem", "page_links"]

_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)  # by default a file has 300 s to arrive
_PAGES = 16  # read at a time
_PAGE = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b",
    re.IGNORECASE | re.DOTALL,
)
_PAGE_BYTES = 1024  # in which a page shows that it is one
_COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".zstd")  # servers may say so of a file that is stored as it is


class HTTPError(OSError):
    """A server's refusal."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status


_REFUSALS = (FileNotFoundError, PermissionError, HTTPError)


class WebFileSystem(HTTPFileSystem):  # type: ignore[misc]
    """The files of all web servers, by their URLs. Takes what fsspec's own takes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        given: dict[str, Any] = kwargs.get("client_kwargs") or {}
        headers = {"Accept-Encoding": "identity", **given.get("headers", {})}
        # What is sent compressed in spite of that is not decompressed: sizes and ranges are of what is sent.
        self.client_kwargs = {"timeout": _TIMEOUT, "auto_decompress": False, **given, "headers": headers}

    def serves_ranges(self, url: str) -> bool:
        """Whether the server sends a part of a file where it is asked for one."""
        return bool(sync(self.loop, self._look, "GET", url)["partial"])

    def serves_html(self, url: str) -> bool:
        """Whether what comes for a file is a page in HTML."""
        return bool(_PAGE.match(sync(self.loop, self._start_of, url, _PAGE_BYTES)))

    def stream(self, url: str) -> IO[bytes]:
        """A file to be read once, from its start to its end; a read returns what is there, nothing at the end."""
        session = sync(self.loop, self.set_session)
        stream: IO[bytes] = HTTPStreamFile(self, url, loop=self.loop, session=session, **self.kwargs)
        return stream

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any
    ) -> Any:
        """The files that a page lists, and the pages below it; each page is asked for again if it fails to come."""
        found: dict[str, dict[str, Any]] = {}
        folders = [path]
        with ThreadPoolExecutor(_PAGES) as threads:
            while folders and (maxdepth is None or maxdepth > 0):
                maxdepth = None if maxdepth is None else maxdepth - 1
                pages = threads.map(lambda folder: retry(partial(self.ls, folder), RetryPolicy()), folders)
                infos = [info for page in pages for info in page]
                folders = [info["name"] for info in infos if info["type"] == "directory"]
                found |= {info["name"]: info for info in infos if withdirs or info["type"] == "file"}
        return dict(sorted(found.items())) if detail else sorted(found)

    def glob(self, path: str, maxdepth: int | None = None, detail: bool = False, **_: Any) -> Any:
        """The files and folders whose names match, without escapes. A question mark begins a query."""
        start = path.find("/", path.find("://") + 3) + 1
        fixed = re.split(r"[*[]", path[start:])[0].rpartition("/")[0]
        root = path[: start + len(fixed) + bool(fixed)]
        rest = path[len(root) :].replace("?", "[?]")
        plain = escape(unquote(root)) + re.sub(r"(%[0-9A-Fa-f]{2})+", lambda codes: escape(unquote(codes[0])), rest)
        pattern = re.compile(glob_translate(plain))
        depth = None if "**" in rest else rest.count("/") + 1
        found = self.find(root, maxdepth=depth or maxdepth, withdirs=True, detail=True)
        matching = {name: info for name, info in found.items() if pattern.match(unquote(name.rstrip("/")))}
        return matching if detail else list(matching)

    async def _info(self, url: str, **_: Any) -> dict[str, Any]:
        try:
            found = await self._look("HEAD", url)
        except (*_REFUSALS, aiohttp.ClientResponseError, aiohttp.ServerDisconnectedError):
            found = {}  # some servers, and signed links, allow GET alone
        if not found.get("size"):
            try:
                found = await self._look("GET", url)
            except HTTPError as error:
                if error.status != 416 or not found:  # an empty file has no first byte
                    raise
        return {"name": url, "type": "file", **found}

    async def _look(self, method: str, url: str) -> dict[str, Any]:
        return await asyncio.wait_for(self._head(method, url), request_limit_seconds(0))

    async def _head(self, method: str, url: str) -> dict[str, Any]:
        """What the server says of a file, by its reply to HEAD or, to GET, of its first byte."""
        session = await self.set_session()
        options = {"allow_redirects": True, **(self._asking_for(0, 1) if method == "GET" else self.kwargs)}
        async with session.request(method, self.encode_url(url), **options) as reply:
            headers = reply.headers
            _, total = _content_range(headers)
            if reply.status != 416 or total is None:
                self._raise_not_found_for_status(reply, url)
                total = _content_range(headers)[1] if reply.status == 206 else _number(headers.get("Content-Length"))
            found = {
                "size": total,
                "partial": reply.status in (206, 416) or (method == "HEAD" and headers.get("Accept-Ranges") == "bytes"),
                "mimetype": _mimetype(headers),
                "ETag": headers.get("ETag"),
                "mtime": headers.get("Last-Modified"),
            }
        return {key: value for key, value in found.items() if value not in (None, "") or key == "size"}

    async def _exists(self, path: str, **_: Any) -> bool:
        try:
            await self._info(path)
        except FileNotFoundError:
            return False
        return True

    async def _isfile(self, path: str, **_: Any) -> bool:
        return await self._exists(path)

    async def _cat_file(self, url: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        if start is None and end is None:
            return await self._whole(url)
        if start is None or end is None or not 0 <= start < end:
            data: bytes = await super()._cat_file(url, start, end, **kwargs)
            return data
        pieces: list[bytes] = []
        position = start
        while position < end:  # a server may send less at a time than it is asked for
            pieces.append(await asyncio.wait_for(self._part(url, position, end), request_limit_seconds(end - position)))
            position += len(pieces[-1])
        return b"".join(pieces)

    async def _whole(self, url: str) -> bytes:
        session = await self.set_session()
        async with session.get(self.encode_url(url), **self.kwargs) as reply:
            self._raise_not_found_for_status(reply, url)
            data: bytes = await reply.read()
        if _mimetype(reply.headers) == "text/html" and _PAGE.match(data):
            raise PageError.of(public_url(url))
        return data

    async def _start_of(self, url: str, size: int) -> bytes:
        """The first bytes of a file, all of them if it has no more."""
        return await asyncio.wait_for(self._first(url, size), request_limit_seconds(size))

    async def _first(self, url: str, size: int) -> bytes:
        session = await self.set_session()
        async with session.get(self.encode_url(url), **self._asking_for(0, size)) as reply:
            self._raise_not_found_for_status(reply, url)
            data = b""
            while len(data) < size and (piece := await reply.content.read(size - len(data))):
                data += piece
        return data

    async def _part(self, url: str, start: int, end: int) -> bytes:
        """Some bytes from `start` on."""
        session = await self.set_session()
        async with session.get(self.encode_url(url), **self._asking_for(start, end)) as reply:
            self._raise_not_found_for_status(reply, url)
            whole = start == 0 and _number(reply.headers.get("Content-Length")) == end
            if reply.status != 206 and not whole:
                raise RangesError.of(public_url(url))
            first, _ = _content_range(reply.headers)
            if reply.status == 206 and first not in (None, start):
                raise OSError(f"bytes from {first} on arrived where those from {start} on were asked for")
            data: bytes = await reply.read()
        if not data:
            raise IncompleteError(f"no bytes arrived of the {end - start} from byte {start} on")
        return data

    def _asking_for(self, start: int, end: int) -> dict[str, Any]:
        """Options of a request for the bytes [start, end)."""
        return {**self.kwargs, "headers": {**self.kwargs.get("headers", {}), "Range": f"bytes={start}-{end - 1}"}}

    async def _ls_real(self, url: str, detail: bool = True, **_: Any) -> Any:
        return await asyncio.wait_for(self._list(url, detail), request_limit_seconds(0))

    async def _list(self, url: str, detail: bool) -> Any:
        session = await self.set_session()
        async with session.get(self.encode_url(url), **self.kwargs) as reply:
            self._raise_not_found_for_status(reply, url)
            is_page = reply.headers.get("Content-Type", "").startswith("text/html")
            links = page_links(await reply.text(errors="replace"), str(reply.url)) if is_page else []
        folder = url.partition("?")[0].rstrip("/")
        names = [f"{folder}/{link}" for link in links]
        if not detail:
            return names
        return [{"name": n, "size": None, "type": "directory" if n.endswith("/") else "file"} for n in names]

    def _raise_not_found_for_status(self, response: aiohttp.ClientResponse, url: str) -> None:
        """Refuse a reply that is none, or not of the file as it is stored."""
        status, reason = response.status, response.reason or ""
        if status in (404, 410):
            raise FileNotFoundError(url)
        if status in (401, 403):
            raise PermissionError(f"{status} {reason}")
        if status >= 300:  # that names no other place: those that do are followed
            raise HTTPError(status, reason)
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding not in ("", "identity") and not urlsplit(url).path.lower().endswith(_COMPRESSED):
            raise StorageError(
                f"cannot read {public_url(url)}: the server sends it compressed (Content-Encoding: {encoding}), though "
                "it is asked not to; have the server send it as it is, or copy the file to a local disk"
            )


def _content_range(headers: Mapping[str, str]) -> tuple[int | None, int | None]:
    """The first byte, and the size of the file, that a reply tells."""
    told = re.match(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", headers.get("Content-Range", ""))
    return (_number(told[1]), _number(told[2])) if told else (None, None)


def _mimetype(headers: Mapping[str, str]) -> str:
    return headers.get("Content-Type", "").partition(";")[0].strip()


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def page_links(page: str, url: str) -> list[str]:
    """What a page links to in the folder that it lists: relative, escaped alike whatever the page does, and sorted.

    Args:
        page: HTML.
        url: of the page.

    >>> page_links("<a href=../>up</a> <a href='./a:b?x=1'> <A HREF='/d/it&#39;s/'>", "http://host/d")
    ['a%3Ab', 'it%27s/']
    """
    base = urlsplit(url)
    root = base.path.rstrip("/") + "/"
    above = _plain_parts(root)[:-1]
    parser = _Links()
    parser.feed(page)
    found = set()
    for link in parser.links:
        try:
            there = urlsplit(urljoin(f"{base.scheme}://{base.netloc}{root}", link))
        except ValueError:  # it is no URL
            continue
        parts = _plain_parts(there.path)
        below = parts[len(above) :]
        if (
            there.scheme in ("http", "https")
            and there.hostname == base.hostname
            and parts[: len(above)] == above
            and any(below)
            and not {b".", b".."} & set(below)
        ):
            found.add("/".join(quote(part, safe="") for part in below))
    return sorted(found)


def _plain_parts(path: str) -> list[bytes]:
    return [unquote_to_bytes(part) for part in path.split("/")]


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value.strip() for name, value in attrs if name == "href" and value]

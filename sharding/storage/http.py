"""Files on web servers: fsspec's file system with exact errors, ranges and directory pages.

fsspec itself takes any refusal for a missing file and a truncated range for a whole one, and finds the links of a page
by a pattern. How listings become sources is in `sources/files/`.
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

from ringfeed.sharding.errors import PageError, RangesError, StorageError
from ringfeed.sharding.url_secrets import public_url

from .client_errors import HTTPError, IncompleteError, is_busy
from .retry import RetryPolicy, retry
from .special_files import SpecialFileError
from .timings import StoreTimings

_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)  # by default 300 s for a whole file
_PAGES = 16  # read in parallel
_PAGE = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b",
    re.IGNORECASE | re.DOTALL,
)
_PAGE_BYTES = 1024  # enough to recognize a page
_LISTING_BYTES = 64 << 20  # longest page that is read for its links
_UNSIZED_BYTES = 1 << 30  # longest file that is held in memory although its server does not tell its size
# Servers may declare these as encoded, although they are stored so.
_COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".zstd")


_REFUSALS = (FileNotFoundError, PermissionError, HTTPError)


class WebFileSystem(HTTPFileSystem):  # type: ignore[misc]
    """The files of all web servers, by URL; takes the options of fsspec's file system, and the limits of requests."""

    def __init__(self, *args: Any, timings: StoreTimings | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limit_seconds = (timings or StoreTimings()).request_limit_seconds
        given: dict[str, Any] = kwargs.get("client_kwargs") or {}
        headers = {"Accept-Encoding": "identity", **given.get("headers", {})}
        # Replies that are compressed nevertheless are not decompressed: sizes and ranges count the bytes sent.
        self.client_kwargs = {"timeout": _TIMEOUT, "auto_decompress": False, **given, "headers": headers}

    def serves_ranges(self, url: str) -> bool:
        """Whether the server honours a range request for a file."""
        return bool(sync(self.loop, self._look, "GET", url)["partial"])

    def serves_html(self, url: str) -> bool:
        """Whether the server sends an HTML page for a file."""
        return bool(_PAGE.match(sync(self.loop, self._start_of, url, _PAGE_BYTES)))

    def stream(self, url: str) -> IO[bytes]:
        """Open a file for one sequential read; `read` returns what has arrived, and nothing at the end."""
        session = sync(self.loop, self.set_session)
        stream: IO[bytes] = HTTPStreamFile(self, url, loop=self.loop, session=session, **self.kwargs)
        return stream

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any
    ) -> Any:
        """List the files on a page and on the pages below it, with retries."""
        infos_by_name: dict[str, dict[str, Any]] = {}
        folders = [path]
        with ThreadPoolExecutor(_PAGES) as threads:
            while folders and (maxdepth is None or maxdepth > 0):
                maxdepth = None if maxdepth is None else maxdepth - 1
                pages = threads.map(lambda folder: retry(partial(self.ls, folder), RetryPolicy()), folders)
                infos = [info for page in pages for info in page]
                folders = [info["name"] for info in infos if info["type"] == "directory"]
                infos_by_name |= {info["name"]: info for info in infos if withdirs or info["type"] == "file"}
        return dict(sorted(infos_by_name.items())) if detail else sorted(infos_by_name)

    def glob(self, path: str, maxdepth: int | None = None, detail: bool = False, **_: Any) -> Any:
        """Find the files and folders whose unescaped names match; a question mark starts a query."""
        start = path.find("/", path.find("://") + 3) + 1
        fixed = re.split(r"[*[]", path[start:])[0].rpartition("/")[0]
        root = path[: start + len(fixed) + bool(fixed)]
        rest = path[len(root) :].replace("?", "[?]")
        plain = escape(unquote(root)) + re.sub(r"(%[0-9A-Fa-f]{2})+", lambda codes: escape(unquote(codes[0])), rest)
        pattern = re.compile(glob_translate(plain))
        depth = None if "**" in rest else rest.count("/") + 1
        infos = self.find(root, maxdepth=depth or maxdepth, withdirs=True, detail=True)
        matching = {name: info for name, info in infos.items() if pattern.match(unquote(name.rstrip("/")))}
        return matching if detail else list(matching)

    async def _info(self, url: str, **_: Any) -> dict[str, Any]:
        try:
            info = await self._look("HEAD", url)
        except (*_REFUSALS, aiohttp.ClientResponseError, aiohttp.ServerDisconnectedError) as error:
            if is_busy(error):
                raise
            info = {}  # some servers, and signed links, allow only GET
        if not info.get("size"):
            try:
                info = await self._look("GET", url)
            except HTTPError as error:
                if error.status != 416 or not info:  # an empty file has no first byte
                    raise
        return {"name": url, "type": "file", **info}

    async def _look(self, method: str, url: str) -> dict[str, Any]:
        return await asyncio.wait_for(self._head(method, url), self._limit_seconds(0))

    async def _head(self, method: str, url: str) -> dict[str, Any]:
        """Read a file's metadata from the reply to HEAD, or to GET for its first byte."""
        session = await self.set_session()
        options = {"allow_redirects": True, **(self._range_options(0, 1) if method == "GET" else self.kwargs)}
        async with session.request(method, self.encode_url(url), **options) as reply:
            headers = reply.headers
            _, total = _content_range(headers)
            if reply.status != 416 or total is None:
                self._raise_not_found_for_status(reply, url)
                total = _content_range(headers)[1] if reply.status == 206 else _number(headers.get("Content-Length"))
            info = {
                "size": total,
                "partial": reply.status in (206, 416) or (method == "HEAD" and headers.get("Accept-Ranges") == "bytes"),
                "mimetype": _mimetype(headers),
                "ETag": headers.get("ETag"),
                "mtime": headers.get("Last-Modified"),
            }
        return {key: value for key, value in info.items() if value not in (None, "") or key == "size"}

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
        while position < end:  # a server may send less than requested
            pieces.append(await asyncio.wait_for(self._part(url, position, end), self._limit_seconds(end - position)))
            position += len(pieces[-1])
        return b"".join(pieces)

    async def _whole(self, url: str) -> bytes:
        session = await self.set_session()
        async with session.get(self.encode_url(url), **self.kwargs) as reply:
            self._raise_not_found_for_status(reply, url)
            is_sized = "Content-Length" in reply.headers
            data: bytes = await reply.read() if is_sized else await _read_up_to(reply, _UNSIZED_BYTES)
        if _mimetype(reply.headers) == "text/html" and _PAGE.match(data):
            raise PageError.of(public_url(url))
        return data

    async def _start_of(self, url: str, size: int) -> bytes:
        """Return the first `size` bytes of a file, or all of a smaller one."""
        return await asyncio.wait_for(self._first(url, size), self._limit_seconds(size))

    async def _first(self, url: str, size: int) -> bytes:
        session = await self.set_session()
        async with session.get(self.encode_url(url), **self._range_options(0, size)) as reply:
            self._raise_not_found_for_status(reply, url)
            data = b""
            while len(data) < size and (piece := await reply.content.read(size - len(data))):
                data += piece
        return data

    async def _part(self, url: str, start: int, end: int) -> bytes:
        """Return at least one byte from `start` on."""
        session = await self.set_session()
        async with session.get(self.encode_url(url), **self._range_options(start, end)) as reply:
            self._raise_not_found_for_status(reply, url)
            whole = start == 0 and _number(reply.headers.get("Content-Length")) == end
            if reply.status != 206 and not whole:
                raise RangesError.of(public_url(url))
            first, _ = _content_range(reply.headers)
            if reply.status == 206 and first not in (None, start):
                raise OSError(f"bytes from {first} on arrived where those from {start} on were requested")
            data = await _read_up_to(reply, end - start)
        if not data:
            raise IncompleteError(f"none of the {end - start} bytes from byte {start} on arrived")
        return data

    def _range_options(self, start: int, end: int) -> dict[str, Any]:
        """Request options for the bytes [start, end)."""
        return {**self.kwargs, "headers": {**self.kwargs.get("headers", {}), "Range": f"bytes={start}-{end - 1}"}}

    async def _ls_real(self, url: str, detail: bool = True, **_: Any) -> Any:
        return await asyncio.wait_for(self._list(url, detail), self._limit_seconds(0))

    async def _list(self, url: str, detail: bool) -> Any:
        session = await self.set_session()
        async with session.get(self.encode_url(url), **self.kwargs) as reply:
            self._raise_not_found_for_status(reply, url)
            is_page = reply.headers.get("Content-Type", "").startswith("text/html")
            page = await _read_up_to(reply, _LISTING_BYTES) if is_page else b""
            links = page_links(page.decode(reply.charset or "utf-8", "replace"), str(reply.url))
        folder = url.partition("?")[0].rstrip("/")
        names = [f"{folder}/{link}" for link in links]
        if not detail:
            return names
        return [{"name": n, "size": None, "type": "directory" if n.endswith("/") else "file"} for n in names]

    def _raise_not_found_for_status(self, response: aiohttp.ClientResponse, url: str) -> None:
        """Raise for an error status, or a reply that is not the file as stored."""
        status, reason = response.status, response.reason or ""
        if status in (404, 410):
            raise FileNotFoundError(url)
        if status in (401, 403):
            raise PermissionError(f"{status} {reason}")
        if status >= 300:  # redirects to another place were followed already
            raise HTTPError(status, reason, response.headers)
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding not in ("", "identity") and not urlsplit(url).path.lower().endswith(_COMPRESSED):
            raise StorageError(
                f"cannot read {public_url(url)}: the server sends it compressed (Content-Encoding: {encoding}), though "
                "asked not to; have the server send it uncompressed, or copy the file to a local disk"
            )


async def _read_up_to(reply: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the body of a reply, which may never end; raises a SpecialFileError if it is longer than `most`."""
    pieces: list[bytes] = []
    size = 0
    while piece := await reply.content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise SpecialFileError(
                f"the server sends more than {most} bytes, and perhaps without an end; check the URL, or copy the file "
                "to a local disk"
            )
    return b"".join(pieces)


def _content_range(headers: Mapping[str, str]) -> tuple[int | None, int | None]:
    """The first byte and the file size from the Content-Range header; None if absent."""
    match = re.match(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", headers.get("Content-Range", ""))
    return (_number(match[1]), _number(match[2])) if match else (None, None)


def _mimetype(headers: Mapping[str, str]) -> str:
    return headers.get("Content-Type", "").partition(";")[0].strip()


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def page_links(page: str, url: str) -> list[str]:
    """Return the sorted links of a page into the folder that it lists, relative and uniformly escaped.

    >>> page_links("<a href=../>up</a> <a href='./a:b?x=1'> <A HREF='/d/it&#39;s/'>", "http://host/d")
    ['a%3Ab', 'it%27s/']
    """
    base = urlsplit(url)
    root = base.path.rstrip("/") + "/"
    above = _plain_parts(root)[:-1]
    parser = _Links()
    parser.feed(page)
    names = set()
    for link in parser.links:
        try:
            target = urlsplit(urljoin(f"{base.scheme}://{base.netloc}{root}", link))
        except ValueError:  # not a URL
            continue
        parts = _plain_parts(target.path)
        below = parts[len(above) :]
        if (
            target.scheme in ("http", "https")
            and target.hostname == base.hostname
            and parts[: len(above)] == above
            and any(below)
            and not {b".", b".."} & set(below)
        ):
            names.add("/".join(quote(part, safe="") for part in below))
    return sorted(names)


def _plain_parts(path: str) -> list[bytes]:
    return [unquote_to_bytes(part) for part in path.split("/")]


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value.strip() for name, value in attrs if name == "href" and value]

"""A folder served over HTTP, by a server that can send parts of files, or one that cannot; and by such as misbehave."""

from __future__ import annotations

import html
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, urlsplit


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What a server does.

    Attributes:
        ranges: whether it sends parts of files.
        most_bytes: of a part, whatever is asked for.
        lost: this share of each file is not there when it is asked for, though its size says so.
        shifted: parts begin so many bytes earlier than is asked for, and say so.
        sized: whether it tells sizes.
        heads: whether it answers HEAD.
        validators: whether it tells when files changed.
        encoding: that it says its files have.
        refusals: by the end of a path, the statuses of the first requests for it; None after the last: of all.
        busy: this share of all requests is refused with 429, chosen at random by a fixed seed.
        retry_after: the header of that name in every refusal, if any.
        cut: bodies that end half-way, by the end of the path.
        endless: ends of the paths whose bodies go on, chunk after chunk, until the client leaves.
        page: sent instead of every file, as by servers that ask for a login.
        bytes_per_second: rate of all bodies together.
        latency_seconds: before each answer.
        links: how a page links to a name.
        asked: the requests that came: method, path and headers.
        link: which one body passes at a time, if there is a rate.
        random: chooses what is refused as `busy`.
    """

    ranges: bool = True
    most_bytes: int | None = None
    lost: float = 0
    shifted: int = 0
    sized: bool = True
    heads: bool = True
    validators: bool = True
    encoding: str = ""
    refusals: dict[str, list[int | None]] = field(default_factory=dict)
    busy: float = 0
    retry_after: str = ""
    cut: dict[str, int] = field(default_factory=dict)
    endless: tuple[str, ...] = ()
    page: str = ""
    bytes_per_second: float | None = None
    latency_seconds: float = 0.0
    links: Callable[[str], str] = quote
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    link: threading.Lock = field(default_factory=threading.Lock)
    random: Random = field(default_factory=lambda: Random(0))


@contextmanager
def served(folder: Path, *, ranges: bool = True, behaviour: Behaviour | None = None) -> Iterator[str]:
    """The URL of a folder, while it is served."""
    behaviour = behaviour or Behaviour(ranges=ranges)
    with serving(partial(_Handler, behaviour=behaviour, directory=str(folder))) as url:
        yield url


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a server with such handlers, while it runs."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients leave when they have seen enough
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the body waits 40 ms for the client to acknowledge the head

    def __init__(self, *args: Any, behaviour: Behaviour, **options: Any) -> None:
        self._does = behaviour
        super().__init__(*args, **options)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        does, name = self._does, urlsplit(self.path).path
        does.asked.append((self.command, self.path, dict(self.headers)))
        time.sleep(does.latency_seconds)
        if (status := self._refusal(name)) is not None:
            self._reply(status, b"no", {"Retry-After": does.retry_after} if does.retry_after else {})
            return
        path = Path(self.translate_path(self.path))
        if not does.heads and self.command == "HEAD":
            self._reply(HTTPStatus.METHOD_NOT_ALLOWED, b"no")
        elif not path.exists():
            self._reply(HTTPStatus.NOT_FOUND, b"no")
        elif path.is_dir() and not name.endswith("/"):
            self._reply(HTTPStatus.MOVED_PERMANENTLY, b"", {"Location": f"{name}/"})
        elif path.is_dir():
            names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in path.iterdir())
            page = "".join(f'<a href="{does.links(entry)}">{html.escape(entry)}</a>\n' for entry in names)
            self._reply(HTTPStatus.OK, page.encode(), {"Content-Type": "text/html; charset=utf-8"})
        else:
            self._send_file(name, path)

    def _refusal(self, name: str) -> int | None:
        for end, statuses in self._does.refusals.items():
            if name.endswith(end) and statuses:
                return statuses[0] if statuses[1:] == [None] else statuses.pop(0)
        return HTTPStatus.TOO_MANY_REQUESTS if self._does.random.random() < self._does.busy else None

    def _send_file(self, name: str, path: Path) -> None:
        does, data = self._does, self._does.page.encode() or path.read_bytes()
        if self.command == "GET":
            data = data[: round(len(data) * (1 - does.lost))]
        headers = {"Content-Type": "text/html" if does.page else "application/octet-stream"}
        if does.ranges:
            headers["Accept-Ranges"] = "bytes"
        if does.validators:
            headers["Last-Modified"] = formatdate(path.stat().st_mtime, usegmt=True)
        if does.encoding:
            headers["Content-Encoding"] = does.encoding
        if name.endswith(does.endless or ("\0",)):
            self._send_endlessly(data)
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if does.ranges else None
        status = HTTPStatus.OK
        if asked:
            start, stop = max(0, int(asked[1]) - does.shifted), min(int(asked[2]) + 1, len(data))
            if int(asked[1]) >= len(data):
                headers["Content-Range"] = f"bytes */{len(data)}"
                self._reply(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, b"", headers)
                return
            stop = min(stop, start + (does.most_bytes or stop))
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            data, status = data[start:stop], HTTPStatus.PARTIAL_CONTENT
        end = next(
            (end for end, times in does.cut.items() if name.endswith(end) and times and self.command == "GET"), ""
        )
        if end:
            does.cut[end] -= 1
        self._reply(status, data, headers, sent=len(data) // 2 if end else None)

    def _send_endlessly(self, data: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        data = data or bytes(1)
        data *= -(-(1 << 20) // len(data))
        with suppress(OSError):
            while self.command == "GET":
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.close_connection = True

    def _reply(self, status: int, data: bytes, headers: dict[str, str] | None = None, sent: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self._does.sized or status != HTTPStatus.OK:
            self.send_header("Content-Length", str(len(data)))
        else:
            self.send_header("Transfer-Encoding", "chunked")
            data = (b"%x\r\n%s\r\n" % (len(data), data) if data else b"") + b"0\r\n\r\n"
        self.end_headers()
        if self.command == "GET":
            if self._does.bytes_per_second:
                with self._does.link:
                    time.sleep(len(data) / self._does.bytes_per_second)
            self.wfile.write(data[:sent])
        if sent is not None:
            self.close_connection = True

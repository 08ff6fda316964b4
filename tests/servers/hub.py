"""A stand-in for the Hugging Face Hub: answers the requests with which `HfFileSystem` lists and reads one dataset."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from .web import serving

_COMMIT = "0" * 40


@contextmanager
def hub(folder: Path, repository: str, refusals: list[int] | None = None) -> Iterator[str]:
    """Serve a folder as the dataset repository of that name, and yield the endpoint (``HF_ENDPOINT``).

    Args:
        folder: the files of the repository.
        repository: namespace and name.
        refusals: statuses of the first requests.
    """
    with serving(partial(_Handler, folder=folder, repository=repository, refusals=refusals or [])) as url:
        yield url


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *args: Any, folder: Path, repository: str, refusals: list[int]) -> None:
        self._folder, self._repository, self._refusals = folder, repository, refusals
        super().__init__(*args)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        api, files = f"/api/datasets/{self._repository}", f"/datasets/{self._repository}/resolve/main/"
        if self._refusals:
            self._reply(self._refusals.pop(0), b"{}", {"Retry-After": "0"})
        elif path.startswith(f"{api}/tree/main"):
            below = path.removeprefix(f"{api}/tree/main").strip("/")
            self._list(self._folder / below, recursive="recursive=True" in self.path or "recursive=true" in self.path)
        elif path in (api, f"{api}/revision/main"):
            self._reply(HTTPStatus.OK, json.dumps({"id": self._repository, "sha": _COMMIT}).encode())
        elif path.startswith(files) and (self._folder / path.removeprefix(files)).is_file():
            self._send((self._folder / path.removeprefix(files)).read_bytes())
        else:
            code = "EntryNotFound" if path.startswith((files, api)) else "RepoNotFound"
            self._reply(HTTPStatus.NOT_FOUND, b"{}", {"X-Error-Code": code})

    def do_POST(self) -> None:
        """Information on some paths."""
        body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        paths = [self._folder / path for path in body["paths"]]
        self._reply(HTTPStatus.OK, json.dumps([self._entry(path) for path in paths if path.exists()]).encode())

    def _list(self, folder: Path, *, recursive: bool) -> None:
        if not folder.is_dir():
            self._reply(HTTPStatus.NOT_FOUND, b"{}", {"X-Error-Code": "EntryNotFound"})
            return
        paths = sorted(folder.rglob("*") if recursive else folder.iterdir())
        self._reply(HTTPStatus.OK, json.dumps([self._entry(path) for path in paths]).encode())

    def _entry(self, path: Path) -> dict[str, Any]:
        entry = {"path": str(path.relative_to(self._folder)), "oid": f"{path.stat().st_mtime_ns:040x}", "size": 0}
        return entry | ({"type": "file", "size": path.stat().st_size} if path.is_file() else {"type": "directory"})

    def _send(self, data: bytes) -> None:
        headers = {"ETag": '"1"', "X-Repo-Commit": _COMMIT, "Accept-Ranges": "bytes"}
        span = self.headers.get("Range", "").removeprefix("bytes=")
        if not span:
            self._reply(HTTPStatus.OK, data, headers)
            return
        start, stop = int(span.split("-")[0]), min(int(span.split("-")[1]) + 1, len(data))
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        self._reply(HTTPStatus.PARTIAL_CONTENT, data[start:stop], headers)

    def _reply(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

"""Requests of s3fs that end: its HTTP library bounds neither how long a body is sent, nor how long a whole reply takes.

Not here: when a store that sends nothing is given up, which are timeouts of the client (`clients.py`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import fsspec

from ..timeouts import request_limit_seconds

__all__ = ["NotS3Error", "limit_requests"]


class NotS3Error(OSError):
    """What answers is no S3 store, for all that it says is well."""


def limit_requests(fs: fsspec.AbstractFileSystem) -> None:
    """Have each request of a new s3fs client end in `request_limit_seconds`, and none wait for leave to send its body.

    That leave (``Expect: 100-continue``) is waited for without any timeout, and some servers do not give it. The header
    is not part of the signature.
    """
    connect = fs.set_session

    async def set_session(*args: Any, **kwargs: Any) -> Any:
        client = await connect(*args, **kwargs)
        session = client._endpoint.http_session
        if "send" not in vars(session):
            session.send = partial(_send, session.send)
        return client

    fs.set_session = set_session


async def _send(send: Any, request: Any) -> Any:
    """A reply: all of it, or what begins one that is to be read as it comes."""
    request.headers.pop("Expect", None)
    reply = await asyncio.wait_for(send(request), request_limit_seconds(_told_bytes(request.headers)))
    page = str(reply.headers.get("content-type", "")).startswith("text/html")
    if page and reply.status_code == 200 and "etag" not in reply.headers:  # which an object has that is a page
        raise NotS3Error("a web page")
    if request.stream_output:
        reply.raw = _Reply(reply.raw, request_limit_seconds(_told_bytes(reply.headers)))
    return reply


def _told_bytes(headers: Any) -> int:
    told = str(headers.get("Content-Length", ""))
    return int(told) if told.isdecimal() else 0


class _Reply:
    """A reply of aiohttp, of which each read ends within `seconds`; so does its `content`."""

    def __init__(self, raw: Any, seconds: float) -> None:
        self._raw, self._seconds = raw, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    @property
    def content(self) -> _Reply:
        return _Reply(self._raw.content, self._seconds)

    async def read(self, *args: Any) -> bytes:
        data: bytes = await asyncio.wait_for(self._raw.read(*args), self._seconds)
        return data

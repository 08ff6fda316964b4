"""Time limits for requests of s3fs, whose HTTP library limits neither the sending of a body nor a whole reply.

The timeouts for a store that sends nothing are the client's (`filesystems.py`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import fsspec

from ringfeed.sharding.storage.timings import StoreTimings


class NotS3Error(OSError):
    """The server is no S3 store, although it reports success."""


def limit_requests(fs: fsspec.AbstractFileSystem, timings: StoreTimings) -> None:
    """Limit each request of a new s3fs client in time, and send bodies without waiting for permission.

    There is no timeout for that permission (``Expect: 100-continue``), and some servers never give it. The header is
    not part of the signature. The client keeps the timings as `ringfeed_timings`, for `fast_reads.py`.
    """
    connect, fs.ringfeed_timings = fs.set_session, timings

    async def set_session(*args: Any, **kwargs: Any) -> Any:
        client = await connect(*args, **kwargs)
        session = client._endpoint.http_session
        if "send" not in vars(session):
            session.send = partial(_send, session.send, timings)
        return client

    fs.set_session = set_session


async def _send(send: Any, timings: StoreTimings, request: Any) -> Any:
    """Send a request within the time limit; return the whole reply, or a stream whose reads are limited."""
    request.headers.pop("Expect", None)
    limit = timings.request_limit_seconds
    reply = await asyncio.wait_for(send(request), limit(_content_length(request.headers)))
    page = str(reply.headers.get("content-type", "")).startswith("text/html")
    if page and reply.status_code == 200 and "etag" not in reply.headers:  # an HTML object in S3 has one
        raise NotS3Error("a web page")
    if request.stream_output:
        reply.raw = _Reply(reply.raw, limit(_content_length(reply.headers)))
    return reply


def _content_length(headers: Any) -> int:
    length = str(headers.get("Content-Length", ""))
    return int(length) if length.isdecimal() else 0


class _Reply:
    """Wraps a reply of aiohttp: each read of it, or of its `content`, ends within `seconds`."""

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

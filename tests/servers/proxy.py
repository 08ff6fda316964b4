"""A proxy that misbehaves by plan, in front of a real S3 server: the faults of a network and of a store in trouble.

It knows of HTTP only where a message begins and ends, and changes nothing that it is not told to: signatures hold,
since clients sign the address of the proxy. It listens on 127.0.0.1 alone and lives in a thread of the test's process.
"""

import asyncio
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

PIECE_BYTES = 1 << 16
NO_BODY = (204, 304)

Kind = Literal[
    "reply",  # with a status and an error code of S3, instead of asking the server
    "reset upload",  # the connection, once so many bytes of the request's body were forwarded
    "reset download",  # the connection, once so many bytes of the reply's body were forwarded
    "cut download",  # close the connection there in order: the length in the reply's head is not reached
    "damage upload",  # flip a bit of the request's body
    "damage download",  # flip a bit of the reply's body
    "lose reply",  # the server does what it is asked to, and the client never hears of it
    "stall",  # for so many seconds, before the reply
    "stall download",  # for so many seconds, once so many bytes of the reply's body were forwarded
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong with some of the requests.

    Attributes:
        kind: what.
        method: regular expression of the requests' methods.
        path: regular expression that is found in the requests' path or query.
        first: the first of these requests that it happens to, from 1 on.
        times: to how many from there on.
        at_bytes: where in the body.
        status: of a reply.
        code: of a reply.
        seconds: of a stall.
        share: of these requests that it happens to, chosen at random by a fixed seed.
        retry_after: the header of that name in a reply, if any.
    """

    kind: Kind
    method: str = "[A-Z]+"
    path: str = ""
    first: int = 1
    times: int = 1
    at_bytes: int = 0
    status: int = 503
    code: str = "SlowDown"
    seconds: float = 0.0
    share: float = 1.0
    retry_after: str = ""


@dataclass(slots=True, kw_only=True)
class Proxy:
    """A running proxy, without faults at first.

    Attributes:
        server_url: of the real server.
        url: where it listens.
        happened: how many times each fault of the plan did.
    """

    server_url: str
    url: str = ""
    happened: Counter[Fault] = field(default_factory=Counter)
    _matched: Counter[Fault] = field(default_factory=Counter)
    _plan: tuple[Fault, ...] = ()
    _random: random.Random = field(default_factory=random.Random)

    def begin(self, *plan: Fault) -> None:
        """From now on these faults, and no others; all counts begin anew."""
        self._plan = plan
        self.happened.clear()
        self._matched.clear()
        self._random = random.Random(0)

    async def serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        """Serve one connection of a client, request after request."""
        try:
            while await self._exchange(client_in, client_out):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # one of the two has gone
        except asyncio.CancelledError:  # the test has ended
            client_out.transport.abort()  # who has not read all will not do so now, and `close` would wait for that
        finally:
            client_out.close()

    def _choose(self, method: str, path: str) -> Fault | None:
        chosen = None
        for fault in self._plan:
            if re.fullmatch(fault.method, method) and re.search(fault.path, path):
                self._matched[fault] += 1
                in_turn = fault.first <= self._matched[fault] < fault.first + fault.times
                if chosen is None and in_turn and (fault.share == 1 or self._random.random() < fault.share):
                    chosen = fault
                    self.happened[fault] += 1
        return chosen

    async def _exchange(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> bool:
        """Serve one request; return whether the connection is still of use."""
        head = await client_in.readuntil(b"\r\n\r\n")
        method, path = head.split(b" ", 2)[:2]
        fault = self._choose(method.decode(), path.decode())
        kind = fault.kind if fault else None
        at = fault.at_bytes if fault else 0
        if b"\r\nexpect: 100-continue\r\n" in head.lower():
            client_out.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = re.sub(rb"\r\nexpect:[^\r]*", b"", head, flags=re.IGNORECASE)
        request = _body(client_in, head, reply=False)
        if fault and kind == "reply":
            async for _ in request:
                pass
            client_out.write(_error(fault, method == b"HEAD"))
            await client_out.drain()
            return True
        address = urlsplit(self.server_url)
        server_in, server_out = await asyncio.open_connection(address.hostname, address.port)
        try:
            server_out.write(head)
            async for piece, start in request:
                if kind == "reset upload" and start + len(piece) >= at:
                    server_out.write(piece[: at - start])
                    await server_out.drain()
                    return _reset(client_out)
                server_out.write(_damaged(piece, start, at) if kind == "damage upload" else piece)
                await server_out.drain()
            if kind == "reset upload":  # the body was shorter, or there was none
                return _reset(client_out)
            head = await server_in.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            silent = method == b"HEAD" or status in NO_BODY
            if fault and kind == "stall":
                await asyncio.sleep(fault.seconds)
            if kind != "lose reply":
                client_out.write(head)
            async for piece, start in _no_pieces() if silent else _body(server_in, head, reply=True):
                if kind == "lose reply":
                    continue
                if kind in ("reset download", "cut download") and start + len(piece) >= at:
                    client_out.write(piece[: at - start])
                    await client_out.drain()
                    return kind == "reset download" and _reset(client_out)
                if fault and kind == "stall download" and start <= at < start + len(piece):
                    client_out.write(piece[: at - start])
                    await client_out.drain()
                    await asyncio.sleep(fault.seconds)
                    piece = piece[at - start :]
                client_out.write(_damaged(piece, start, at) if kind == "damage download" else piece)
                await client_out.drain()
            if kind == "lose reply":
                return _reset(client_out)
            await client_out.drain()
            return True
        except asyncio.CancelledError:
            server_out.transport.abort()
            raise
        finally:
            server_out.close()


@contextmanager
def proxied(server_url: str) -> Iterator[Proxy]:
    """Run a proxy in front of the server until the body ends."""
    proxy = Proxy(server_url=server_url)
    ready = threading.Event()
    ended: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        end = asyncio.Event()
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
        proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ended.append((asyncio.get_running_loop(), end))
        ready.set()
        await end.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield proxy
    finally:
        loop, end = ended[0]
        loop.call_soon_threadsafe(end.set)
        thread.join(10)


async def _body(reader: asyncio.StreamReader, head: bytes, *, reply: bool) -> AsyncIterator[tuple[bytes, int]]:
    """The pieces of a message's body as they are on the wire, each with its place."""
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    start = 0
    if re.search(rb"\r\ntransfer-encoding:[^\r]*chunked", head, re.IGNORECASE):
        size = -1
        while size:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            piece = line + await (reader.readexactly(size + 2) if size else _trailers(reader))
            yield piece, start
            start += len(piece)
    elif length or reply:
        end = int(length.group(1)) if length else None
        while end is None or start < end:
            piece = await reader.read(PIECE_BYTES if end is None else min(PIECE_BYTES, end - start))
            if not piece:
                if end is not None:
                    raise ConnectionResetError(f"the body ended at {start} of {end} bytes")
                return
            yield piece, start
            start += len(piece)


async def _no_pieces() -> AsyncIterator[tuple[bytes, int]]:
    return
    yield b"", 0


async def _trailers(reader: asyncio.StreamReader) -> bytes:
    lines = [await reader.readuntil(b"\r\n")]
    while lines[-1] != b"\r\n":
        lines.append(await reader.readuntil(b"\r\n"))
    return b"".join(lines)


def _damaged(piece: bytes, start: int, at: int) -> bytes:
    if not start <= at < start + len(piece):
        return piece
    damaged = bytearray(piece)
    damaged[at - start] ^= 1
    return bytes(damaged)


def _reset(writer: asyncio.StreamWriter) -> bool:
    """Break a connection so that the other side sees ECONNRESET; returns that it is of no more use."""
    connection = writer.get_extra_info("socket")
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


def _error(fault: Fault, without_body: bool) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>as planned</Message></Error>".encode()
    head = f"HTTP/1.1 {fault.status} Planned\r\n"
    head += f"Retry-After: {fault.retry_after}\r\n" if fault.retry_after else ""
    head += "Content-Type: application/xml\r\nContent-Length: "
    return f"{head}{0 if without_body else len(body)}\r\n\r\n".encode() + (b"" if without_body else body)

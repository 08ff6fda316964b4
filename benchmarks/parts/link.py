"""A link of so many bytes a second, each way, to a server on this machine: a relay in a process of its own.

Without it a server shares its cores, and memory, with what is measured; behind it the link is what all wait for.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

GIGABIT = 125_000_000  # bytes a second
_CHUNK = 256 << 10


@contextmanager
def link(url: str, rate: int) -> Iterator[str]:
    """The URL at which the server behind `url` is reached at so many bytes a second."""
    server = urlsplit(url)
    command = [sys.executable, __file__, str(server.hostname), str(server.port), str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as relay:
        assert relay.stdout
        try:
            yield f"{server.scheme}://127.0.0.1:{int(relay.stdout.readline())}"
        finally:
            relay.kill()


class _Direction:
    """What all connections send one way, together no faster than the link."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._free = 0.0  # when all that was sent has arrived

    async def send(self, source: socket.socket, target: socket.socket) -> None:
        loop, buffer = asyncio.get_running_loop(), memoryview(bytearray(_CHUNK))
        while count := await loop.sock_recv_into(source, buffer):
            self._free = max(self._free, loop.time()) + count / self._rate
            await asyncio.sleep(self._free - loop.time())
            await loop.sock_sendall(target, buffer[:count])
        target.shutdown(socket.SHUT_WR)


async def _relay(host: str, port: int, rate: int) -> None:
    loop, there, back, tasks = asyncio.get_running_loop(), _Direction(rate), _Direction(rate), set()

    async def connect(client: socket.socket) -> None:
        with client, socket.create_connection((host, port)) as server:
            server.setblocking(False)
            await asyncio.gather(there.send(client, server), back.send(server, client), return_exceptions=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = await loop.sock_accept(listener)
            client.setblocking(False)
            tasks.add(task := asyncio.create_task(connect(client)))
            task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    asyncio.run(_relay(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))

"""Lines of JSON between the processes of a run, behind the run's key: a stranger's connection is closed, silently.

The watchdog of a ring and the board of a chief talk this way. A port is scanned sooner or later, also on loopback: who
does not know the key changes nothing, and prints nothing. The key keeps strangers out, but not readers of the network.
Tested in tests/training/test_listeners.py and tests/training/servers/board/test_board.py.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import socketserver
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO, cast

_HELLO_SECONDS = 10.0  # a scanner may connect and send nothing; a process of the run sends its key at once
_LINE_BYTES = 1 << 16  # longest message: an error of 1,000 characters

log = logging.getLogger(__name__)


class QuietServer(socketserver.ThreadingMixIn):
    """A server whose clients' errors are no errors of this process: `socketserver` would print a traceback of each."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Log what went wrong with a client, for debugging."""
        log.debug("a connection from %s failed", client_address, exc_info=True)


class Connection:
    """Sends messages to a socket, one a line, and receives what the other side sends."""

    def __init__(self, reader: BinaryIO, connection: socket.socket) -> None:
        self._reader, self._socket = reader, connection

    def send(self, message: object) -> None:
        """Send a message; an OSError if the other side has gone."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def __iter__(self) -> Iterator[Any]:
        """Yield the messages, up to the first that is none, or the end; an OSError if the connection breaks."""
        while (line := self._reader.readline(_LINE_BYTES)).endswith(b"\n"):
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                return
            yield message


class _Handler(socketserver.StreamRequestHandler):
    server: LineServer

    def handle(self) -> None:
        self.request.settimeout(_HELLO_SECONDS)
        with suppress(OSError):  # the other side has gone
            if hmac.compare_digest(self.rfile.readline(_LINE_BYTES).strip(), self.server.key.encode()):
                self.request.settimeout(None)
                self.server.talk(Connection(cast(BinaryIO, self.rfile), self.request))


class LineServer(QuietServer, socketserver.TCPServer):
    """Serves the processes of a run at a free port, each on a thread.

    `talk` is called with each connection that knows the key; it may raise OSError when that breaks.
    """

    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(self, host: str, talk: Callable[[Connection], None]) -> None:
        self.key = secrets.token_hex(16)
        self.talk = talk
        super().__init__((host, 0), _Handler)

    @property
    def address(self) -> str:
        """``host:port/key`` of this server, for `connect`."""
        return f"{self.server_address[0]!s}:{self.server_address[1]}/{self.key}"


def connect(address: str, seconds: float) -> socket.socket:
    """Connect to a `LineServer` by its address, and send the key; an OSError if nothing listens there."""
    place, _, key = address.rpartition("/")
    host, _, port = place.rpartition(":")
    connection = socket.create_connection((host, int(port)), seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(key.encode() + b"\n")
    return connection

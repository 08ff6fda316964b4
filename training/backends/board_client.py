"""A task's connections to the chief's board."""

from __future__ import annotations

import json
import os
import socket
import threading
from typing import Any

__all__ = ["STOP", "BoardClient", "ChiefLine"]

STOP = b"stop\n"

_CONNECT_SECONDS = 60.0


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), _CONNECT_SECONDS)
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class BoardClient:
    """One worker's connection.

    Args:
        address: ``host:port`` of the board.
        worker: number of the worker.
    """

    def __init__(self, address: str, worker: int) -> None:
        self._socket = _connected(address)
        self._file = self._socket.makefile("rwb")
        self._send({"worker": worker})

    def _send(self, message: dict[str, Any]) -> None:
        self._file.write(json.dumps(message).encode() + b"\n")
        self._file.flush()

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return the answer.

        Raises:
            OSError: the chief has ended.
        """
        self._send(message)
        line = self._file.readline()
        if not line:
            raise ConnectionResetError("the chief has closed its board")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()


class ChiefLine:
    """A task's line to the chief: this process ends with the chief, with status 0 if that says so, else with 1.

    Args:
        address: ``host:port`` of the board.
    """

    def __init__(self, address: str) -> None:
        self._socket = _connected(address)
        self._socket.sendall(b"{}\n")
        threading.Thread(target=self._wait, name="ringfeed-chief", daemon=True).start()

    def ask_to_stop(self) -> None:
        """Ask the chief to save a checkpoint and end the run."""
        self._socket.sendall(STOP)

    def _wait(self) -> None:
        try:
            os._exit(0 if self._socket.recv(16) else 1)
        except OSError:
            os._exit(1)

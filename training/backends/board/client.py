"""A task's connections to the chief's board.

Tested in tests/training/backends/board/test_board.py.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from ringfeed.training.loop.leaving import leave
from ringfeed.training.ring.watchdog import user_place

__all__ = ["BYE", "STOP", "BoardClient", "ChiefLine"]

STOP, BYE = b"stop\n", b"bye\n"

_CONNECT_SECONDS = 60.0
_REPORT_SECONDS = 1.0


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
        name: that of the task, such as "worker 1".
        seconds: time after which a chief that does not answer counts as stalled; 0: never.
    """

    def __init__(self, address: str, name: str, seconds: float) -> None:
        self._socket = _connected(address)
        self._socket.settimeout(seconds or None)
        self._socket.sendall(json.dumps({"task": name}).encode() + b"\n")
        for work in (self._wait, self._report):
            threading.Thread(target=work, name="ringfeed-chief", daemon=True).start()

    def ask_to_stop(self) -> None:
        """Ask the chief to save a checkpoint and end the run."""
        self._socket.sendall(STOP)

    def _report(self) -> None:
        with suppress(OSError):  # the chief has ended
            while True:
                self._socket.sendall(json.dumps(user_place()).encode() + b"\n")
                time.sleep(_REPORT_SECONDS)

    def _wait(self) -> None:
        try:
            for line in self._socket.makefile("rb"):  # an answer to each report
                if line == BYE:
                    os._exit(0)
        except TimeoutError:
            # TensorFlow may wait for another task, and let no thread of the chief's run meanwhile.
            seconds = self._socket.gettimeout()
            message = f"the chief has not answered for {seconds:.0f} s: stopped, or waiting for a task"
            leave("ringfeed train", message, 1, as_json="--json" in sys.argv, is_stall=True)
        except OSError:
            pass
        os._exit(1)

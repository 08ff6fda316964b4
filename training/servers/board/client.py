"""A task's connections to the chief's board.

Tested in tests/training/servers/board/test_board.py.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from ringfeed.sharding.storage.temporary_folder import end_process
from ringfeed.training.ring.run_lines import Connection, connect
from ringfeed.training.ring.watchdog import user_place
from ringfeed.training.run.leaving import leave

STOP, HEARD, BYE = "stop", "heard", "bye"

_CONNECT_SECONDS = 60.0
_REPORT_SECONDS = 1.0


def _connected(address: str) -> socket.socket:
    connection = connect(address, _CONNECT_SECONDS)
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connection


class BoardClient:
    """The connection of one worker, by its number, to the board."""

    def __init__(self, address: str, worker: int) -> None:
        self._socket = _connected(address)
        self._file = self._socket.makefile("rb")
        self._connection = Connection(self._file, self._socket)
        self._answers = iter(self._connection)
        self._connection.send({"worker": worker})

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return the answer; an OSError if the chief has ended."""
        self._connection.send(message)
        answer: dict[str, Any] | None = next(self._answers, None)
        if answer is None:
            raise ConnectionResetError("the chief has closed its board")
        return answer

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class ChiefLine:
    """A task's line to the chief: this process ends with the chief, with status 0 if that says so, else with 1.

    A chief that does not answer for so many seconds counts as stalled; 0: never.
    """

    def __init__(self, address: str, name: str, seconds: float) -> None:
        self._socket = _connected(address)
        self._socket.settimeout(seconds or None)
        self._connection = Connection(self._socket.makefile("rb"), self._socket)
        self._connection.send({"task": name})
        for work in (self._wait, self._report):
            threading.Thread(target=work, name="ringfeed-chief", daemon=True).start()

    def ask_to_stop(self) -> None:
        """Ask the chief to save a checkpoint and end the run."""
        self._connection.send(STOP)

    def _report(self) -> None:
        with suppress(OSError):  # the chief has ended
            while True:
                self._connection.send({"place": user_place()})
                time.sleep(_REPORT_SECONDS)

    def _wait(self) -> None:
        try:
            for answer in self._connection:  # one to each report
                if answer == BYE:
                    end_process(0)
        except TimeoutError:
            # TensorFlow may wait for another task, and let no thread of the chief's run meanwhile.
            seconds = self._socket.gettimeout()
            message = f"the chief has not answered for {seconds:.0f} s: stopped, or waiting for a task"
            leave("ringfeed train", message, 1, as_json="--json" in sys.argv, is_stall=True)
        except OSError:
            pass
        end_process(1)

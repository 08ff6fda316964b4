"""How a rank of an elastic run learns its place among the ranks: from `ringfeed launch`, or from `horovodrun`.

Tested in tests/training/test_launch.py.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence

from ringfeed.training.ring.horovod import on_hosts_changed
from ringfeed.training.ring.launched import CHANNEL
from ringfeed.training.ring.run_lines import Connection

_HOROVODRUN = "HOROVOD_ELASTIC"
_GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
_LEAST_TIMEOUT = 120  # seconds; a new rank imports TensorFlow while the others wait for it, under horovodrun


def open_members() -> Members | None:
    """Return the members of the elastic run that this process belongs to; None if it belongs to none."""
    if CHANNEL in os.environ:
        return _Launched(int(os.environ[CHANNEL]))
    if os.environ.get(_HOROVODRUN) == "1":
        os.environ[_GLOO_TIMEOUT] = str(max(_LEAST_TIMEOUT, int(os.environ.get(_GLOO_TIMEOUT, "0"))))
        return _Discovered()
    return None


class _Launched:
    """Those of `ringfeed launch --elastic`. Messages are lines of JSON.

    To the launcher: {"step": S}, waits for a place; {"joined": RANK}; {"lost": RANKS}, which do not answer. From it:
    {"environment": ...}, the place, null if there is none; {"regroup": true}.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._connection = Connection(self._socket.makefile("rb"), self._socket)

    def wait(self, step: int) -> bool:
        """Wait for a place in the next ring, and put it into the environment; return whether there is one.

        `step` is the step of this rank's newest commit, or -1.
        """
        self._connection.send({"step": step})
        # A message without one asks to regroup, as this rank does.
        places = (message["environment"] for message in self._connection if "environment" in message)
        place = next(places, None)
        os.environ.update(place or {})
        return place is not None

    def joined(self, rank: int, size: int) -> None:
        """Take note that this rank has joined the ring."""
        self._connection.send({"joined": rank})

    def lost(self, ranks: Sequence[int]) -> None:
        """Take note, from any thread, that some ranks of this ring do not answer any more."""
        self._connection.send({"lost": list(ranks)})

    def is_change_due(self) -> bool:
        """Whether the ranks shall leave this ring for another one. Costs microseconds."""
        return bool(select.select([self._socket], [], [], 0)[0])  # the launcher sends nothing else to members


class _Discovered:
    """Those of `horovodrun --host-discovery-script`, whose place `hvd.init` gets."""

    def __init__(self) -> None:
        self._is_registered, self._is_due = False, False

    def wait(self, step: int) -> bool:
        self._is_due = False
        return True

    def joined(self, rank: int, size: int) -> None:
        os.environ.update({"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size)})  # Horovod has it from its driver
        if not self._is_registered:
            self._is_registered = True
            on_hosts_changed(self._note)

    def lost(self, ranks: Sequence[int]) -> None:
        """Nothing to do: `horovodrun` notices when ssh to their host ends."""

    def _note(self) -> None:
        self._is_due = True

    def is_change_due(self) -> bool:
        return self._is_due


Members = _Launched | _Discovered
"""The ranks of an elastic run, as one of them sees them."""

"""How a rank of an elastic run learns its place among the ranks: from `ringfeed launch`, or from `horovodrun`.

Tested in tests/training/test_launch.py.
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import MutableMapping, Sequence

from ringfeed.training.ring.horovod import on_hosts_changed
from ringfeed.training.ring.launched import CHANNEL

_HOROVODRUN = "HOROVOD_ELASTIC"
_GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
_LEAST_TIMEOUT = 120  # seconds; a new rank imports TensorFlow while the others wait for it, under horovodrun


def open_members(environ: MutableMapping[str, str] = os.environ) -> Members | None:
    """Return the members of the elastic run that this process belongs to; None if it belongs to none."""
    if CHANNEL in environ:
        return _Launched(int(environ[CHANNEL]), environ)
    if environ.get(_HOROVODRUN) == "1":
        environ[_GLOO_TIMEOUT] = str(max(_LEAST_TIMEOUT, int(environ.get(_GLOO_TIMEOUT, "0"))))
        return _Discovered(environ)
    return None


class _Launched:
    """Those of `ringfeed launch --elastic`. Messages are lines of JSON.

    To the launcher: {"step": S}, waits for a place; {"joined": RANK}; {"lost": RANKS}, which do not answer. From it:
    {"environment": ...}, the place, null if there is none; {"regroup": true}.
    """

    def __init__(self, descriptor: int, environ: MutableMapping[str, str]) -> None:
        self._environ = environ
        self._socket = socket.socket(fileno=descriptor)
        self._lines = self._socket.makefile("rb")

    def wait(self, step: int) -> bool:
        """Wait for a place in the next ring, and put it into the environment; return whether there is one.

        `step` is the step of this rank's newest commit, or -1.
        """
        self._send({"step": step})
        while "environment" not in (message := json.loads(self._lines.readline() or b'{"environment": null}')):
            pass  # asked to regroup, which this rank does
        if message["environment"] is None:
            return False
        self._environ.update(message["environment"])
        return True

    def joined(self, rank: int, size: int) -> None:
        """Take note that this rank has joined the ring."""
        self._send({"joined": rank})

    def lost(self, ranks: Sequence[int]) -> None:
        """Take note, from any thread, that some ranks of this ring do not answer any more."""
        self._send({"lost": list(ranks)})

    def is_change_due(self) -> bool:
        """Whether the ranks shall leave this ring for another one. Costs microseconds."""
        return bool(select.select([self._socket], [], [], 0)[0])  # the launcher sends nothing else to members

    def _send(self, message: object) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")


class _Discovered:
    """Those of `horovodrun --host-discovery-script`, whose place `hvd.init` gets."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._environ, self._is_registered, self._is_due = environ, False, False

    def wait(self, step: int) -> bool:
        self._is_due = False
        return True

    def joined(self, rank: int, size: int) -> None:
        self._environ.update({"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size)})  # Horovod has it from its driver
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

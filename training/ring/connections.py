"""The TCP connections that Horovod opens, and ways to end them.

Horovod keeps them after `shutdown`. A rank that has noticed a death, and has left the ring, thus looks alive to a rank
that waits for it, which notices nothing until Gloo's timeout (seen with 3 ranks: 120 s; trial of 2026-11-26).
Tested in tests/training/test_launch.py.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress

_PROBES = 4  # in the time after which a peer counts as gone

Connections = frozenset[tuple[int, int]]
"""Sockets of this process: file descriptor and inode, since descriptors are used again."""


def open_sockets() -> Connections:
    """Return all sockets that this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            status = os.stat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found.add((int(name), status.st_ino))
    return frozenset(found)


def hang_up(connections: Connections) -> None:
    """End the connections that are still open: either side reads their end, and writes fail."""
    _for_each(connections, lambda connection: connection.shutdown(socket.SHUT_RDWR))


def expect_answers(connections: Connections, seconds: float) -> None:
    """Have the kernel end those of the connections whose peer acknowledges nothing for some seconds, also when idle.

    Without it, Linux waits 15 minutes for a peer whose machine is gone, and for ever if there is nothing to send.
    """
    period = max(1, round(seconds / _PROBES))

    def watch(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            connection.setsockopt(socket.IPPROTO_TCP, option, period)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * seconds))

    _for_each(connections, watch)


def _for_each(connections: Connections, act: Callable[[socket.socket], None]) -> None:
    """Act on each connection that is still open and is TCP."""
    for descriptor, _ in connections & open_sockets():
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                act(connection)

"""The TCP connections that Horovod opens, and a way to end them.

Horovod keeps them after `shutdown`. A rank that has noticed a death, and has left the ring, thus looks alive to a rank
that waits for it, which notices nothing until Gloo's timeout (seen with 3 ranks: 120 s; trial of 2026-11-26).
Tested in tests/training/test_launch.py.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress

__all__ = ["Connections", "hang_up", "open_sockets"]

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
    """End those of the connections that are still open and are TCP: either side reads their end, and writes fail."""
    for descriptor, _ in connections & open_sockets():
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.shutdown(socket.SHUT_RDWR)

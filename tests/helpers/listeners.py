"""The ports that processes listen at, and those that docs/security.md names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

import psutil


def documented() -> dict[str, str]:
    """What listens beyond loopback by command, from the page's table."""
    page = (Path(__file__).parents[2] / "docs/security.md").read_text()
    (table,) = re.findall(r"\| on one machine \|.*?\n\n", page, re.S)
    rows = [re.findall(r"[^|]+", line)[:2] for line in table.strip().splitlines()[2:]]
    return {name: cell.strip() for cells, cell in rows for name in re.findall("`([^`]+)`", cells)}


class Listener(NamedTuple):
    """A port that a process listens at."""

    pid: int
    address: str
    port: int

    @property
    def is_beyond_loopback(self) -> bool:
        """Whether other machines reach it."""
        return not (self.address.startswith("127.") or self.address == "::1")


def listeners(root: psutil.Process) -> Iterator[Listener]:
    """The ports that a process and its descendants listen at now."""
    with suppress(psutil.Error):
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.Error):
                for found in process.net_connections("tcp"):
                    if found.status == psutil.CONN_LISTEN:
                        yield Listener(process.pid, found.laddr.ip, found.laddr.port)


@contextmanager
def noted_listeners(pid: int) -> Iterator[set[Listener]]:
    """Yield a set that gathers the ports which a process itself listens at during the body and did not before."""
    root, is_over = psutil.Process(pid), Event()
    before = set(listeners(root))
    found: set[Listener] = set()

    def watch() -> None:
        while not is_over.wait(0.05):
            found.update(listener for listener in set(listeners(root)) - before if listener.pid == pid)

    thread = Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()

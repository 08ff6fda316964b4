"""Memory, processor time and disk reads of a process and all that it started, from /proc."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

_SAMPLE_SECONDS = 0.02
_TICK = 1 / os.sysconf("SC_CLK_TCK")


def _tree(pid: int) -> Iterator[int]:
    """A process and all that it, and they, started."""
    yield pid
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has ended
        return
    for child in children:
        yield from _tree(int(child))


def held_mib(pid: int) -> tuple[float, float]:
    """The proportional set size of a process and all that it started, and what of it is anonymous or shared memory."""
    total = own = 0.0
    for each in _tree(pid):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()[1:]
        except OSError:  # it has ended
            continue
        sizes = {name: int(rest.split()[0]) / 1024 for name, _, rest in (line.partition(":") for line in lines)}
        total, own = total + sizes["Pss"], own + sizes["Pss_Anon"] + sizes["Pss_Shmem"]
    return total, own


@contextmanager
def peak_mib(pid: int) -> Iterator[list[float]]:
    """The most of each of `held_mib` during the body, sampled every 20 ms."""
    peak, ended = [0.0, 0.0], threading.Event()

    def sample() -> None:
        while not ended.wait(_SAMPLE_SECONDS):
            peak[:] = np.maximum(peak, held_mib(pid)).tolist()

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def usage(pid: int) -> tuple[float, int]:
    """Processor seconds of a process and all that it started, and the bytes that they have read from disks."""
    seconds, size = 0.0, 0
    for each in _tree(pid):
        try:
            times = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[11:15]
            lines = dict(line.split(": ") for line in Path(f"/proc/{each}/io").read_text().splitlines())
        except OSError:  # it has ended
            continue
        seconds, size = seconds + _TICK * sum(map(int, times)), size + int(lines["read_bytes"])
    return seconds, size

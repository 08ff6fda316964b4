"""What the launchers of ranks share: signals, how a rank is started, and words for how it ended.

Tested in tests/training/test_launch.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..ring.launched import REPORT, SIBLINGS

__all__ = ["SAVE_SECONDS", "Asked", "Ending", "cause_of_death", "start_rank"]

SAVE_SECONDS = 60.0  # after SIGTERM


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the ranks ended: the exit status, and the line to print (empty after success)."""

    status: int
    line: str = ""


class Asked:
    """The signals that the launcher has received: the last of Ctrl-C and SIGTERM, or none."""

    def __init__(self) -> None:
        self.number = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        def note(number: int, frame: object) -> None:
            self.number = signal.SIGINT if self.number else number  # a second signal ends at once

        numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
        before = {number: signal.signal(number, note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def start_rank(
    command: Sequence[str], environment: Mapping[str, str], holder: int, others: Sequence[int] = ()
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a rank; return its process, and the end of a pipe from which its `Report` can be read.

    Args:
        command: the arguments of `ringfeed`.
        environment: variables beside those of this process.
        holder: the ranks end when the other end of this pipe closes.
        others: further files that the rank inherits.
    """
    reader, writer = os.pipe()
    defaults = {"HOROVOD_LOG_LEVEL": "fatal", "HOROVOD_GLOO_TIMEOUT_SECONDS": "120", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "ringfeed.tools.cli", *command],
        env={**defaults, **os.environ, **environment, REPORT: str(writer), SIBLINGS: str(holder)},
        stdin=subprocess.DEVNULL,
        pass_fds=(writer, holder, *others),
        process_group=0,  # Ctrl-C reaches the launcher alone
    )
    os.close(writer)
    return process, reader


def cause_of_death(process: int | str, code: int | None) -> str:
    """Return in words how a process ended that reported nothing: a rank, by its number, or another, by its name.

    >>> cause_of_death(1, -9)
    'rank 1 was killed by SIGKILL (as the kernel does when memory runs out)'
    """
    name = f"rank {process}" if isinstance(process, int) else process
    if code is None or code >= 0:
        return f"{name} ended with status {code}"
    hint = " (as the kernel does when memory runs out)" if -code == signal.SIGKILL else ""
    return f"{name} was killed by {signal.Signals(-code).name}{hint}"

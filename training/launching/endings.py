"""How a launched run ends: by a signal to the launcher, or by its processes.

Tested in tests/training/test_launch.py.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ringfeed.training.ring.launched import EndReport
from ringfeed.training.run.stopping import INTERRUPTED, TERMINATED


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended: the exit status, the line to print (empty after success), and whether a process was killed."""

    status: int
    line: str = ""
    was_killed: bool = False


class LauncherSignals:
    """The signals that the launcher has received.

    `number` is SIGINT once Ctrl-C has come, or else that of the first signal; 0 for none. A second SIGTERM does not cut
    short the checkpoint of the first: `timeout` sends two, and a machine that shuts down SIGTERM and SIGHUP. After it
    processes have `save_seconds` to save.
    """

    def __init__(self, save_seconds: float = 60.0) -> None:
        self.number = 0
        self._save_seconds = save_seconds
        self._deadline = math.inf

    @contextmanager
    def listening(self) -> Iterator[None]:

        def note(number: int, frame: object) -> None:
            self.number = number if number == signal.SIGINT else self.number or number

        numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
        before = {number: signal.signal(number, note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @property
    def is_passed_on(self) -> bool:
        """Whether the run was told to end."""
        return self._deadline < math.inf

    def ending(self, pass_on: Callable[[], None], who: str = "the ranks") -> Ending | None:
        """Return how the run ends if that is now: at once after Ctrl-C, else when the time to save is over.

        `pass_on` tells the processes, called `who`, to save and end; it is called once, after the first signal.
        """
        if self.number == signal.SIGINT:
            return Ending(status=INTERRUPTED, line="interrupted")
        if self.number and not self.is_passed_on:
            self._deadline = time.monotonic() + self._save_seconds
            pass_on()
        if time.monotonic() <= self._deadline:
            return None
        line = f"killed, since {who} still ran {self._save_seconds:.0f} s after SIGTERM"
        return Ending(status=TERMINATED, line=line)


def cause_of_death(name: str, code: int | None) -> str:
    """Return in words how a process ended that reported nothing.

    >>> cause_of_death("rank 1", -9)
    'rank 1 was killed by SIGKILL (as the kernel does when memory runs out)'
    """
    if code is None or code >= 0:
        return f"{name} ended with status {code}"
    hint = " (as the kernel does when memory runs out)" if -code == signal.SIGKILL else ""
    return f"{name} was killed by {signal.Signals(-code).name}{hint}"


def ending_of(
    codes: Sequence[int | None],
    reports: Mapping[int, EndReport],
    *,
    first: int,
    was_asked: bool,
    names: Sequence[str] = (),
) -> Ending:
    """Return how ranks ended after one failed: by its own report, or by a signal.

    By rank: exit statuses (None: still runs), reports, and names if they have any. The rank `first` ended first;
    `was_asked` says whether they were told to end, by SIGTERM.

    >>> lost = EndReport(message="rank 1 is gone", status=1, is_echo=True)
    >>> bad = EndReport(message="no column x", status=1)
    >>> ending_of([1, 1], {0: lost, 1: bad}, first=0, was_asked=False).line
    'rank 1: no column x'
    >>> ending_of([1, -9], {0: lost}, first=0, was_asked=False).line
    'rank 1 was killed by SIGKILL (as the kernel does when memory runs out)'
    """

    def name_of(rank: int) -> str:
        return names[rank] if names else f"rank {rank}"

    causes = {rank: report for rank, report in reports.items() if not report.is_echo}
    by_signal = [rank for rank, code in enumerate(codes) if (code or 0) < 0]
    if causes and not by_signal:
        rank, report = min(causes.items(), key=lambda item: item[0])
        is_common = [other.message for other in causes.values()].count(report.message) > 1
        is_whole = is_common or report.is_stall or report.status != 1
        return Ending(status=report.status, line=report.message if is_whole else f"{name_of(rank)}: {report.message}")
    # Horovod aborts ranks whose peers are gone.
    rank = min(by_signal, key=lambda rank: codes[rank] == -signal.SIGABRT, default=first)
    if codes[rank] == TERMINATED and was_asked:
        return Ending(status=TERMINATED, line="interrupted")  # before the first step
    return Ending(status=1, line=cause_of_death(name_of(rank), codes[rank]), was_killed=(codes[rank] or 0) < 0)

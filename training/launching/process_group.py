"""The processes of a launched run: each reports how it ends through a pipe, and none outlives this process.

Tested in tests/training/launching/test_process_group.py.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from ringfeed.training.ring.launched import REPORT, SIBLINGS, EndReport

from .endings import Ending, LauncherSignals, ending_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Process", "ProcessGroup", "ringfeed_command", "run_together"]

_POLL_SECONDS = 0.05
_REPORT_SECONDS = 1.0  # a process that ends tells why within milliseconds
_ENVIRONMENT = {"HOROVOD_LOG_LEVEL": "fatal", "HOROVOD_GLOO_TIMEOUT_SECONDS": "120", "PYTHONUNBUFFERED": "1"}

Key = TypeVar("Key")


@dataclass(slots=True, kw_only=True)
class Process:
    """A process of the group.

    Attributes:
        popen: the process.
        report: how it said it would end; None: it has said nothing.
        sources: its pipes and sockets that are still open.
    """

    popen: subprocess.Popen[bytes]
    report: EndReport | None = None
    sources: list[int | socket.socket] = field(default_factory=list)

    @property
    def code(self) -> int | None:
        """Its exit status; below 0 that of a signal, None while it runs."""
        return self.popen.poll()


def ringfeed_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of `ringfeed` in this Python."""
    return [sys.executable, "-m", "ringfeed.tools.cli", *arguments]


class ProcessGroup(Generic[Key]):
    """Processes of one command, by a key of the caller's. As a context manager, it kills at its end those that run.

    Args:
        command: program and arguments of each.

    Attributes:
        processes: those that were started and not dropped.
        first_report: the report that came first, of any process.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self.processes: dict[Key, Process] = {}
        self.first_report: EndReport | None = None
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        self._holder, self._held = os.pipe()  # the processes end when this one's end of it closes
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            if process.code is None:
                process.popen.kill()
        for process in self.processes.values():
            process.popen.wait()
        for key in list(self.processes):
            self.drop(key)
        os.close(self._holder)
        os.close(self._held)
        self._selector.close()
        if os.isatty(2):
            sys.stderr.write("\x1b[?25h")  # the progress bar of a process hid the cursor

    def start(self, key: Key, environment: Mapping[str, str], passed: Sequence[int] = ()) -> Process:
        """Start a process.

        Args:
            key: its key, which may be that of a process that was dropped.
            environment: variables beside those of this process.
            passed: further files that it inherits.
        """
        reader, writer = os.pipe()
        process = Process(
            popen=subprocess.Popen(
                self._command,
                env={**_ENVIRONMENT, **os.environ, **environment, REPORT: str(writer), SIBLINGS: str(self._holder)},
                stdin=subprocess.DEVNULL,
                pass_fds=(writer, self._holder, *passed),
                process_group=0,  # Ctrl-C reaches the launcher alone
            )
        )
        os.close(writer)
        self.processes[key] = process

        def take(text: bytes) -> None:  # a report is smaller than what a pipe writes at once
            process.report = process.report or EndReport.decode(text)
            self.first_report = self.first_report or process.report

        self.watch(process, reader, take)
        return process

    def watch(self, process: Process, source: int | socket.socket, take: Callable[[bytes], None]) -> None:
        """Let `listen` pass on what comes from a pipe or socket of a process, until that closes its end."""
        process.sources.append(source)
        self._selector.register(source, selectors.EVENT_READ, (process, take))

    def drop(self, key: Key) -> Process:
        """Let go of a process, and return it."""
        process = self.processes.pop(key)
        for source in list(process.sources):
            self._close(process, source)
        return process

    def _close(self, process: Process, source: int | socket.socket) -> None:
        self._selector.unregister(source)
        process.sources.remove(source)
        if isinstance(source, socket.socket):
            source.close()
        else:
            os.close(source)

    def listen(self, seconds: float = _POLL_SECONDS) -> None:
        """Take what the processes say, and wait for it at most so long."""
        for key, _ in self._selector.select(seconds):
            process, take = key.data
            try:
                data = os.read(key.fd, 65536)
            except OSError:
                data = b""
            if data:
                take(data)
            else:
                self._close(process, key.fileobj)  # type: ignore[arg-type]  # what was registered

    def listen_until(self, condition: Callable[[], bool], seconds: float = _REPORT_SECONDS) -> bool:
        """Listen until a condition holds, at most so long; return whether it does."""
        deadline = time.monotonic() + seconds
        while not (holds := condition()) and time.monotonic() < deadline:
            self.listen()
        return holds

    def reports(self) -> dict[Key, EndReport]:
        """What processes have reported."""
        return {key: each.report for key, each in self.processes.items() if each.report is not None}

    def terminate(self) -> None:
        """Send all SIGTERM."""
        for process in self.processes.values():
            process.popen.send_signal(signal.SIGTERM)


def run_together(
    command: Sequence[str], places: AbstractContextManager[Iterable[Mapping[str, str]]], signals: LauncherSignals
) -> Ending:
    """Run ranks that all live or end together.

    Args:
        command: program and arguments of each rank.
        places: their environments, by rank.
        signals: the launcher's signals.
    """
    group: ProcessGroup[int] = ProcessGroup(command)
    with group, places as environments:
        for rank, environment in enumerate(environments):
            group.start(rank, environment)
        while True:
            group.listen()
            codes = [process.code for process in group.processes.values()]
            if any(codes):
                first = next(rank for rank, code in enumerate(codes) if code)
                group.listen_until(lambda: any(not report.is_echo for report in group.reports().values()))
                codes = [process.code for process in group.processes.values()]
                return ending_of(codes, group.reports(), first=first, was_asked=signals.is_passed_on)
            if all(code == 0 for code in codes):
                return Ending(status=0)
            if ending := signals.ending(group.terminate):
                return ending

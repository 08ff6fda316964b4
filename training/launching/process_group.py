"""The processes of a launched run: each reports how it ends through a pipe, and none outlives this process."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

from ringfeed.training.ring.launched import CHANNEL, REPORT, SIBLINGS, EndReport

from .endings import Ending, LauncherSignals, ending_of

if TYPE_CHECKING:
    from typing_extensions import Self

_REPORT_SECONDS = 1.0  # a process that ends tells why within milliseconds
_ENVIRONMENT = {"HOROVOD_LOG_LEVEL": "fatal", "HOROVOD_GLOO_TIMEOUT_SECONDS": "120", "PYTHONUNBUFFERED": "1"}

Key = TypeVar("Key")
Source = int | socket.socket | IO[bytes]


class Lines:
    """Splits what comes from a stream into messages, which are lines of JSON."""

    def __init__(self) -> None:
        self._rest = b""

    def __call__(self, data: bytes) -> list[Any]:
        """Return the messages that are complete with these bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


@dataclass(slots=True, kw_only=True)
class Process:
    """A process of the group."""

    popen: subprocess.Popen[bytes]
    report: EndReport | None = None  # how it said it would end
    sources: list[Source] = field(default_factory=list)  # its pipes and sockets that are still open
    channel: socket.socket | None = None  # socket to it, for messages; None: it gets none
    host: str = ""  # name of its host; empty: this machine

    @property
    def loss(self) -> str | None:
        """Why it cannot be reached, in words; None if it can."""
        return None

    @property
    def code(self) -> int | None:
        """Its exit status; below 0 that of a signal, None while it runs."""
        return self.popen.poll()

    def kill(self) -> None:
        self.popen.kill()

    def terminate(self) -> None:
        self.popen.send_signal(signal.SIGTERM)

    def send(self, message: object) -> None:
        """Send it a message, a line of JSON."""
        assert self.channel is not None
        with suppress(OSError):  # it is dead
            self.channel.sendall(json.dumps(message).encode() + b"\n")

    def named(self, rank: int) -> str:
        """Return the words for the rank that it is."""
        return f"rank {rank} on {self.host}" if self.host else f"rank {rank}"


def ringfeed_command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "ringfeed.tools.cli", *arguments]


class ProcessGroup(Generic[Key]):
    """Processes of one command on this machine, by a key of the caller's.

    As a context manager, it kills at its end those that run. `first_report` is the report that came first, of any
    process.
    """

    POLL_SECONDS = 0.05

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
                process.kill()
        for process in self.processes.values():
            process.popen.wait()
        for key in list(self.processes):
            self.drop(key)
        os.close(self._holder)
        os.close(self._held)
        self._selector.close()
        if os.isatty(2):
            sys.stderr.write("\x1b[?25h")  # the progress bar of a process hid the cursor

    def start(self, key: Key, environment: Mapping[str, str], hear: Callable[[Any], None] | None = None) -> Process:
        """Start a process, with variables beside those of this process; its key may be that of one that was dropped.

        `hear` takes the messages of the process, to which `Process.send` sends others; None: there are none. The
        process has the number of its socket in `CHANNEL`.
        """
        reader, writer = os.pipe()
        mine, theirs = socket.socketpair() if hear else (None, None)
        passed = {CHANNEL: str(theirs.fileno())} if theirs else {}
        passed |= {REPORT: str(writer), SIBLINGS: str(self._holder)}
        popen = subprocess.Popen(
            self._command,
            env={**_ENVIRONMENT, **os.environ, **environment, **passed},
            stdin=subprocess.DEVNULL,
            pass_fds=[int(descriptor) for descriptor in passed.values()],
            process_group=0,  # Ctrl-C reaches the launcher alone
        )
        process = Process(popen=popen)
        os.close(writer)
        self.processes[key] = process

        def take(text: bytes) -> None:  # a report is smaller than what a pipe writes at once
            process.report = process.report or EndReport.decode(text)
            self.first_report = self.first_report or process.report

        self.watch(process, reader, take)
        if mine and theirs and hear:
            theirs.close()
            process.channel, split = mine, Lines()
            self.watch(process, mine, lambda data: [hear(message) for message in split(data)])
        return process

    def watch(self, process: Process, source: Source, take: Callable[[bytes], object]) -> None:
        """Let `listen` pass on what comes from a pipe or socket of a process, until that closes its end."""
        process.sources.append(source)
        self._selector.register(source, selectors.EVENT_READ, (process, take))

    def drop(self, key: Key) -> Process:
        """Let go of a process, and return it."""
        process = self.processes.pop(key)
        for source in list(process.sources):
            self._close(process, source)
        return process

    def _close(self, process: Process, source: Source) -> None:
        self._selector.unregister(source)
        process.sources.remove(source)
        if isinstance(source, int):
            os.close(source)
        else:
            source.close()

    def listen(self, seconds: float = POLL_SECONDS) -> None:
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
        return {key: each.report for key, each in self.processes.items() if each.report is not None}

    def terminate(self) -> None:
        for process in self.processes.values():
            process.terminate()


def run_together(
    group: ProcessGroup[int], places: AbstractContextManager[Iterable[Mapping[str, str]]], signals: LauncherSignals
) -> Ending:
    """Run ranks that all live or end together, in places: their environments, by rank."""
    with group, places as environments:
        for rank, environment in enumerate(environments):
            group.start(rank, environment)
        while True:
            group.listen()
            codes = [process.code for process in group.processes.values()]
            if any(codes):
                first = next(rank for rank, code in enumerate(codes) if code)
                group.listen_until(lambda: any(not report.is_echo for report in group.reports().values()))
                return _ended(group, first, was_asked=signals.is_passed_on)
            if all(code == 0 for code in codes):
                return Ending(status=0)
            if ending := signals.ending(group.terminate):
                return ending


def _ended(group: ProcessGroup[int], first: int, *, was_asked: bool) -> Ending:
    """Return how ranks ended after `first` failed, or could not be reached."""
    losses = [f"{process.named(rank)}: {process.loss}" for rank, process in group.processes.items() if process.loss]
    if losses:
        return Ending(status=1, line=losses[0])
    codes = [process.code for process in group.processes.values()]
    names = [process.named(rank) for rank, process in group.processes.items()]
    return ending_of(codes, group.reports(), first=first, was_asked=was_asked, names=names)

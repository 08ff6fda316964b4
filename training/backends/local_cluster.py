"""Starts the cluster of a run on parameter servers on one machine, and starts a worker again that dies.

A parameter server holds variables that are nowhere else, so its death ends the run, as the chief's does.
Tested in tests/training/backends/test_parameter_server.py.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

from ringfeed.training.elastic.processes import SAVE_SECONDS, Asked, Ending, cause_of_death
from ringfeed.training.loop.stopping import INTERRUPTED, TERMINATED
from ringfeed.training.ring.launched import REPORT, SIBLINGS, Report
from ringfeed.training.ring.workers import free_ports

from .cluster import CHIEF, PS, WORKER, Cluster

__all__ = ["LocalCluster"]

_POLL_SECONDS = 0.1
_END_SECONDS = 5.0  # in which workers and servers follow the chief
_MOST_STARTS = 10  # of one worker; one that never comes up would else be started for ever

Task = tuple[str, int]


class LocalCluster:
    """The processes of one run: a chief, which writes to the terminal, parameter servers and workers.

    Args:
        servers, workers: their numbers.
        command: the command of each process.
        asked: the launcher's signals.
    """

    def __init__(self, servers: int, workers: int, command: Sequence[str], asked: Asked) -> None:
        ports = iter(free_ports(1 + servers + workers))
        counts = {CHIEF: 1, PS: servers, WORKER: workers}
        tasks = {kind: tuple(f"127.0.0.1:{next(ports)}" for _ in range(count)) for kind, count in counts.items()}
        self._cluster = Cluster(tasks=tasks, kind=CHIEF, index=0)
        self._command, self._asked = command, asked
        self._processes: dict[Task, subprocess.Popen[bytes]] = {}
        self._starts: dict[Task, int] = {}
        self._report: Report | None = None

    def run(self) -> Ending:
        """Start the processes, and wait for the chief's end."""
        holder, held = os.pipe()  # all end when the launcher's end of it closes
        reader, writer = os.pipe()
        with selectors.DefaultSelector() as selector:
            selector.register(reader, selectors.EVENT_READ)
            try:
                for kind, addresses in self._cluster.tasks.items():
                    for index in range(len(addresses)):
                        self._start((kind, index), holder, writer)
                os.close(writer)
                return self._wait(selector, reader, holder)
            finally:
                self._kill()
                for pipe in (holder, held, reader):
                    os.close(pipe)
                if os.isatty(2):
                    sys.stderr.write("\x1b[?25h")  # the progress bar hid the cursor

    def _start(self, task: Task, holder: int, writer: int | None) -> None:
        kind, index = task
        pipes, passed = {SIBLINGS: str(holder)}, [holder]
        if writer is not None:
            pipes[REPORT] = str(writer)
            passed.append(writer)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **self._cluster.environment(kind, index), **pipes}
        self._starts[task] = self._starts.get(task, 0) + 1
        self._processes[task] = subprocess.Popen(
            [sys.executable, "-m", "ringfeed.tools.cli", *self._command],
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=passed,
            process_group=0,  # Ctrl-C reaches the launcher alone
        )

    def _wait(self, selector: selectors.BaseSelector, reader: int, holder: int) -> Ending:
        chief, deadline = self._processes[CHIEF, 0], float("inf")
        while True:
            if selector.get_map() and selector.select(_POLL_SECONDS):
                self._read(selector, reader)
            if chief.poll() is not None:
                return self._ended(selector, reader, chief.returncode)
            for task, process in list(self._processes.items()):
                code = process.poll()
                if not code or task[0] == CHIEF:  # 0: the chief has dismissed it, and is about to end
                    continue
                if task[0] == PS and code == TERMINATED:
                    return Ending(status=TERMINATED, line="interrupted")  # before the first step
                has_failed = code > 0 and code != TERMINATED
                if task[0] == PS or has_failed or self._starts[task] == _MOST_STARTS:
                    if selector.get_map() and selector.select(0.0):
                        self._read(selector, reader)
                    return self._report_ending() or Ending(status=1, line=_cause(task, code))
                sys.stderr.write(f"ringfeed launch: {_cause(task, code)}; starting it again\n")
                self._start(task, holder, None)
            asked = self._asked.number
            if asked == signal.SIGINT:
                return Ending(status=INTERRUPTED, line="interrupted")
            if asked and deadline == float("inf"):
                deadline = time.monotonic() + SAVE_SECONDS
                chief.send_signal(signal.SIGTERM)
            if time.monotonic() > deadline:
                line = f"killed, since the chief still ran {SAVE_SECONDS:.0f} s after SIGTERM"
                return Ending(status=TERMINATED, line=line)

    def _read(self, selector: selectors.BaseSelector, reader: int) -> None:
        text = os.read(reader, 65536)
        if text:
            self._report = self._report or Report.decode(text)
        else:
            selector.unregister(reader)

    def _report_ending(self) -> Ending | None:
        if self._report is None:
            return None
        line = self._report.message
        if self._report.is_stall:  # of the chief, perhaps, which has waited for another task
            stopped = [task for task, process in self._processes.items() if _is_stopped(process.pid)]
            line = f"{_name(stopped[0])} is stopped, as by SIGSTOP, and the others wait for it" if stopped else line
        return Ending(status=self._report.status, line=line)

    def _ended(self, selector: selectors.BaseSelector, reader: int, code: int) -> Ending:
        if selector.get_map() and selector.select(_POLL_SECONDS):
            self._read(selector, reader)
        if code == 0:
            self._let_follow()
            return Ending(status=0)
        if code == TERMINATED and self._report is None:
            return Ending(status=TERMINATED, line="interrupted")  # before the first step
        return self._report_ending() or Ending(status=1, line=_cause((CHIEF, 0), code))

    def _let_follow(self) -> None:
        deadline = time.monotonic() + _END_SECONDS
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))

    def _kill(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
        for process in self._processes.values():
            process.wait()


def _name(task: Task) -> str:
    return {CHIEF: "the chief", PS: f"parameter server {task[1]}", WORKER: f"worker {task[1]}"}[task[0]]


def _cause(task: Task, code: int) -> str:
    return cause_of_death(_name(task), code)


def _is_stopped(pid: int) -> bool:
    with suppress(psutil.Error):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False

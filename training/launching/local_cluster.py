"""Runs the cluster of a run on parameter servers on one machine, and starts a worker again that dies.

A parameter server holds variables that are nowhere else, so its death ends the run, as the chief's does.
Tested in tests/training/servers/test_parameter_server.py.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import psutil

from ringfeed.training.ring.tf_config import WORKER, free_ports
from ringfeed.training.run.stopping import TERMINATED
from ringfeed.training.servers.cluster import CHIEF, PS, Cluster, Task, task_name

from .endings import Ending, LauncherSignals, cause_of_death
from .process_group import ProcessGroup

_END_SECONDS = 5.0  # workers and servers have this long to follow the chief
_MOST_STARTS = 10  # a worker that never comes up would else be started for ever
_CHIEF = (CHIEF, 0)
_STOPPED_EARLY = Ending(status=TERMINATED, line="interrupted")  # before the first step


class LocalCluster:
    """The processes of one run: a chief, which writes to the terminal, parameter servers and workers."""

    def __init__(self, servers: int, workers: int, command: Sequence[str], signals: LauncherSignals) -> None:
        ports = iter(free_ports(1 + servers + workers))
        counts = {CHIEF: 1, PS: servers, WORKER: workers}
        tasks = {kind: tuple(f"127.0.0.1:{next(ports)}" for _ in range(count)) for kind, count in counts.items()}
        self._cluster = Cluster(tasks=tasks, kind=CHIEF, index=0)
        self._group: ProcessGroup[Task] = ProcessGroup(command)
        self._signals = signals
        self._starts: Counter[Task] = Counter()

    def run(self) -> Ending:
        """Start the processes, and wait for the chief's end."""
        with self._group as group:
            for kind, addresses in self._cluster.tasks.items():
                for index in range(len(addresses)):
                    self._start((kind, index))
            chief = group.processes[_CHIEF]
            while True:
                group.listen()
                if (code := chief.code) is not None:
                    return self._ended(code)
                if ending := self._replace_the_dead():
                    return ending
                if ending := self._signals.ending(lambda: chief.popen.send_signal(signal.SIGTERM), "the chief"):
                    return ending

    def _start(self, task: Task) -> None:
        self._starts[task] += 1
        self._group.start(task, self._cluster.environment(*task))

    def _replace_the_dead(self) -> Ending | None:
        """Start workers again that have died; return how the run ends, if it does."""
        for task, process in list(self._group.processes.items()):
            code = process.code
            if not code or task == _CHIEF:  # 0: the chief has dismissed it, and is about to end
                continue
            if task[0] == PS and code == TERMINATED:
                return _STOPPED_EARLY
            has_failed = code > 0 and code != TERMINATED
            if task[0] == PS or has_failed or self._starts[task] == _MOST_STARTS:
                return self._reported(task, code)
            sys.stderr.write(f"ringfeed launch: {_cause(task, code)}; starting it again\n")
            self._group.drop(task)
            self._start(task)
        return None

    def _reported(self, task: Task, code: int) -> Ending:
        """How a run ends after one of its tasks: by the first report, or else by the task's status."""
        self._group.listen()
        report = self._group.first_report  # the errors of other tasks follow from it
        if report is None:
            return Ending(status=1, line=_cause(task, code), was_killed=code < 0)
        line, processes = report.message, self._group.processes.items()
        if report.is_stall:  # perhaps the chief reports it, since it has waited for another task
            for stopped in [task for task, process in processes if _is_stopped(process.popen.pid)][:1]:
                line = f"{task_name(*stopped)} is stopped, as by SIGSTOP, and the others wait for it"
        return Ending(status=report.status, line=line)

    def _ended(self, code: int) -> Ending:
        if code == 0:
            others = self._group.processes.values()
            self._group.listen_until(lambda: all(process.code is not None for process in others), _END_SECONDS)
            return Ending(status=0)
        ending = self._reported(_CHIEF, code)
        return _STOPPED_EARLY if code == TERMINATED and self._group.first_report is None else ending


def _cause(task: Task, code: int) -> str:
    return cause_of_death(task_name(*task), code)


def _is_stopped(pid: int) -> bool:
    with suppress(psutil.Error):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False

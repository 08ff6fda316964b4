"""A watchdog of a run on parameter servers: names the task that the run waits for.

A thread of each task reports to the chief's board every second, and where its user's code stands. What the death
of a task costs is decided elsewhere; this is for tasks that live on, but stand still.
Tested in tests/training/servers/board/test_board.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_PERIODS = 10  # the watch looks at least so often before a task counts as stalled
_LONGEST_PERIOD = 2.0  # seconds
_GIVE_UP = 5  # all workers may be in a step for so many times longer: the first one compiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The last report of a task."""

    seen: float  # when it came, in seconds
    place: str = ""  # where the user's code stood; empty if nowhere


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStates:
    """What the board knows of the tasks."""

    heard: Mapping[str, Heard]  # the last reports of those that are connected, by name
    busy: frozenset[int]  # numbers of the workers that have a step
    waiting: int  # number of workers that wait for one
    moved: float  # when a worker last took or finished a step


def judge_tasks(states: TaskStates, now: float, seconds: float) -> str | None:
    """Return which task has stalled, in words; None if none has.

    >>> heard = {"worker 0": Heard(seen=99), "worker 1": Heard(seen=99, place="net.py:3 in f")}
    >>> at_work = TaskStates(heard=heard, busy=frozenset({0, 1}), waiting=0, moved=30)
    >>> judge_tasks(at_work, 100, 60) is None
    True
    >>> judge_tasks(TaskStates(heard=heard, busy=frozenset({1}), waiting=1, moved=30), 100, 60)
    'worker 1 has stalled in net.py:3 in f: the others have waited for 70 s'
    >>> judge_tasks(at_work, 180, 60)
    'worker 0 has not answered for 81 s: stopped, or its machine is gone'
    """
    for name, report in states.heard.items():
        if now - report.seen > seconds:
            return f"{name} has not answered for {now - report.seen:.0f} s: stopped, or its machine is gone"
    idle = now - states.moved
    if not states.busy or idle <= seconds or (not states.waiting and idle <= _GIVE_UP * seconds):
        return None
    name = f"worker {min(states.busy)}"
    place = states.heard[name].place if name in states.heard else ""
    where = f" in {place}" if place else ""
    if states.waiting:
        return f"{name} has stalled{where}: the others have waited for {idle:.0f} s"
    return f"no worker has finished a step for {idle:.0f} s; {name} is{where or ' in one'}"


def watch_tasks(task_states: Callable[[], TaskStates], seconds: float, end: Callable[[str], None]) -> None:
    """Judge the tasks from a thread, as long as this process lives, and call `end` with which task has stalled.

    A task counts as stalled after so many seconds; 0: never.
    """

    def watch() -> None:
        while (verdict := judge_tasks(task_states(), time.monotonic(), seconds)) is None:
            time.sleep(min(_LONGEST_PERIOD, seconds / _PERIODS))
        end(verdict)

    if seconds:
        threading.Thread(target=watch, name="ringfeed-watchdog", daemon=True).start()

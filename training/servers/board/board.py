"""The chief's board: hands steps to workers, collects their reports, and notices when one dies.

A worker keeps a connection of its own, over which lines of JSON go back and forth; it closes with the worker, however
that ends. Without it the chief would learn of a death only from TensorFlow, minutes later where another worker waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ringfeed.training.ring.run_lines import Connection, LineServer

from .client import BYE, HEARD, STOP
from .part_plan import OVER, PartPlan, WorkerStep
from .round_plan import RoundPlan
from .task_watch import Heard, TaskStates

Plan = PartPlan | RoundPlan

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a worker reports of an update."""

    loss: float  # mean loss of its batch, before the update
    gradient_norm: float  # global norm of its gradient
    staleness: int  # number of updates of other workers between its reading of the weights and its own update
    wait_seconds: float  # time that it waited for its input
    sent_share: float = 1.0  # share of the gradient's entries that it has sent; 0 if its gradient came too late


@dataclass(slots=True)
class Board:
    """The plan of the present phase, behind a lock."""

    failure: str | None = None  # what a worker said when it failed, in one line; None if none has
    deaths: int = 0  # number of deaths of workers within a phase so far
    is_stop_asked: bool = False  # whether a parameter server was asked to end, which the run cannot do without
    _epoch: int = 0
    _plan: Plan | None = None
    _first: int = 0
    _reports: list[Done] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _connections: dict[int, int] = field(default_factory=dict)
    _away: set[int] = field(default_factory=set)  # workers that have died, and are not back
    _busy: set[int] = field(default_factory=set)  # workers that have a step
    _waiting: int = 0  # workers that wait for one
    _moved: float = 0.0  # when a worker last took or finished one
    _heard: dict[str, Heard] = field(default_factory=dict)

    def begin(self, epoch: int, plan: Plan, first: int) -> None:
        """Start a phase within an epoch; `first` is the number of its first update."""
        with self._changed:
            self._epoch, self._plan, self._first = epoch, plan, first
            for worker in self._away:  # none waits for one that died between phases
                plan.leave(worker)
            self._changed.notify_all()

    def cut(self) -> int:
        """End the phase early, after the same step of all parts; return that step."""
        with self._changed:
            stop = self._plan.cut() if self._plan else 0
            self._changed.notify_all()
            return stop

    def reports(self, timeout_seconds: float) -> list[Done]:
        """Return what was reported since the last call, after a wait if there is nothing yet."""
        with self._changed:
            if not self._reports and self.failure is None:
                self._changed.wait(timeout_seconds)
            found, self._reports = self._reports, []
            return found

    def fail(self, message: str) -> None:
        """End the run's steps, for a reason."""
        with self._changed:
            self.failure = self.failure or message
            self._changed.notify_all()

    # -- of one task, each on a thread of its own ------------------------------------------------------------------

    def hear(self, name: str, report: Heard | None) -> None:
        """Note a task's report; None: its connection has closed."""
        with self._changed:
            self._heard.pop(name, None)
            if report is not None:
                self._heard[name] = report

    def task_states(self) -> TaskStates:
        with self._changed:
            busy = frozenset(self._busy)
            return TaskStates(heard=dict(self._heard), busy=busy, waiting=self._waiting, moved=self._moved)

    def attach(self, worker: int) -> int:
        """Note a worker's connection, and return its number: a worker that was started again has a new one."""
        with self._changed:
            if worker in self._connections and worker not in self._away:
                self._leave(worker)  # its old connection has not closed yet
            self._away.discard(worker)
            self._connections[worker] = self._connections.get(worker, 0) + 1
            return self._connections[worker]

    def detach(self, worker: int, connection: int) -> None:
        """Note that a worker's connection has closed."""
        with self._changed:
            if self._connections[worker] == connection:
                self._leave(worker)

    def _leave(self, worker: int) -> None:
        self._away.add(worker)
        self._busy.discard(worker)
        if self._plan is None or self._plan.is_over:
            return
        self.deaths += 1
        step = self._plan.leave(worker)
        if step is not None:
            log.warning(
                "worker %d has died in step %d of epoch %d: the batch of part %d is read again, so it may count twice",
                worker,
                step.step,
                self._epoch,
                step.part,
            )
        self._changed.notify_all()

    def handle(self, worker: int, message: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a worker's message; a worker that asks for a step may wait."""
        match message:
            case {"take": _}:
                with self._changed:
                    self._waiting += 1
                    try:
                        return self._next_step(worker)
                    finally:
                        self._waiting -= 1
            case {"vote": _}:
                with self._changed:
                    return {"counts": self._plan is not None and self._plan.vote(worker)}
            case {"added": _}:
                with self._changed:
                    return {"applies": self._plan is not None and self._plan.add(worker)}
            case {"done": report}:
                with self._changed:
                    self._busy.discard(worker)
                    self._moved = time.monotonic()
                    if self._plan is not None:
                        self._plan.finish(worker)
                    self._reports.append(Done(**report))
                    self._changed.notify_all()
            case {"error": str(text)}:
                self.fail(f"worker {worker}: {text}")
        return {}

    def _next_step(self, worker: int) -> dict[str, Any]:
        while True:
            plan = self._plan
            step = OVER if plan is None or self.failure is not None else plan.take(worker)
            if plan is not None and isinstance(step, WorkerStep):
                self._busy.add(worker)
                self._moved = time.monotonic()
                update = self._first + plan.number(worker)
                return {"epoch": self._epoch, "part": step.part, "step": step.step, "update": update}
            if step is OVER:
                return {"over": True}
            self._changed.wait()


class _Server(LineServer):
    """The chief's end of all connections: of workers, and of tasks that only want to know when the chief ends."""

    def __init__(self, host: str, board: Board) -> None:
        self._board = board
        self._listeners: list[Connection] = []
        super().__init__(host, self._talk)

    def _talk(self, connection: Connection) -> None:
        messages = iter(connection)
        hello: Mapping[str, Any] = next(messages, {})
        if "worker" in hello:
            self._serve_worker(int(hello["worker"]), connection, messages)
        elif "task" in hello:
            self._listeners.append(connection)
            self._listen(str(hello["task"]), connection, messages)

    def _serve_worker(self, worker: int, connection: Connection, messages: Iterator[Any]) -> None:
        number = self._board.attach(worker)
        try:
            for message in messages:
                connection.send(self._board.handle(worker, message))
        finally:
            self._board.detach(worker, number)  # what it had is given back

    def _listen(self, name: str, connection: Connection, messages: Iterator[Any]) -> None:
        try:
            for message in messages:
                if message == STOP:
                    self._board.is_stop_asked = True
                else:
                    self._board.hear(name, Heard(seen=time.monotonic(), place=message["place"]))
                    connection.send(HEARD)
        finally:
            self._board.hear(name, None)

    def dismiss(self) -> None:
        for listener in self._listeners:
            with suppress(OSError):  # it has ended already
                listener.send(BYE)


def serve_board(host: str, board: Board) -> _Server:
    """Serve a board on a free port of one of this machine's addresses, on a thread; call `dismiss` at the end."""
    server = _Server(host, board)
    threading.Thread(target=server.serve_forever, name="ringfeed-board", daemon=True).start()
    return server

"""Passes the events of a run to all that subscribe to them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ringfeed.sharding.messages import brief
from ringfeed.training.checkpoint.snapshot import Position

from .events import ActivityDone, EvaluationDone, Event, RunBegan, StepsLogged
from .tracker import Tracker


class History(Tracker):
    """The entries of a run, also those of its earlier processes, as `tree` returned them, and trackers' states."""

    is_essential = True

    def __init__(self, restored: Mapping[str, Any] | None = None) -> None:
        restored = restored or {}
        self.step_entries: list[Mapping[str, Any]] = list(restored.get("steps", ()))
        self.evaluations: list[Mapping[str, Any]] = list(restored.get("evaluations", ()))
        self.states: dict[str, Any] = dict(restored.get("trackers", {}))

    def steps(self, event: StepsLogged) -> None:
        self.step_entries.append(event.entry)

    def evaluation(self, event: EvaluationDone) -> None:
        self.evaluations.append(event.entry)

    def tree(self) -> dict[str, Any]:
        """Return all entries so far, in JSON's types."""
        states = {"trackers": self.states} if self.states else {}
        return {"steps": list(self.step_entries), "evaluations": list(self.evaluations), **states}


log = logging.getLogger(__name__)


class Reports:
    """The subscribers of a run, who get its events in this order.

    One that fails is left out from then on, with a warning. An error as a run begins, or of an essential one, ends the
    run instead.
    """

    def __init__(self, subscribers: Sequence[Tracker]) -> None:
        self._subscribers = list(subscribers)
        self._handlers: dict[type[Event], list[tuple[Tracker, Callable[[Any], None]]]] = {}

    def emit(self, event: Event) -> None:
        """Give an event to all; an error of an essential subscriber, or of one that cannot begin, is raised."""
        for subscriber, handle in self._handlers_of(type(event)):
            try:
                handle(event)
            except Exception as error:
                begins = isinstance(event, RunBegan)
                self._drop(self._subscribers[self._subscribers.index(subscriber) :] if begins else [subscriber])
                if begins or subscriber.is_essential:
                    raise
                log.warning("%s gets no more of this run: %s", subscriber.label, brief(error))

    def _handlers_of(self, kind: type[Event]) -> list[tuple[Tracker, Callable[[Any], None]]]:
        """The subscribers that override the method of an event: most steps are of no interest to most of them."""
        if (found := self._handlers.get(kind)) is None:
            name = kind.handler
            plain = getattr(Tracker, name)
            found = [(s, getattr(s, name)) for s in self._subscribers if getattr(type(s), name) is not plain]
            self._handlers[kind] = found
        return found

    def _drop(self, dropped: Sequence[Tracker]) -> None:
        self._subscribers = [each for each in self._subscribers if each not in dropped]
        self._handlers.clear()  # a new list: another one may be walked

    def states(self) -> dict[str, Any]:
        """Return what checkpoints hold of the subscribers, by name."""
        return {each.name: state for each in self._subscribers if (state := each.state()) is not None}

    @contextmanager
    def timed(self, name: str, position: Position) -> Iterator[None]:
        """Report how long the body takes, such as an evaluation; nothing if it fails."""
        started = time.monotonic()
        yield
        self.emit(ActivityDone(name, position.step, position.epoch, started, time.monotonic() - started))

"""What a tracker of a run is told, and the trackers of a run as one.

Tested in tests/training/trackers/test_trackers.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringfeed.sharding.messages import brief

__all__ = ["RunStart", "Tracker", "Trackers"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """The run that a tracker follows, from its first step or from the one where it resumes.

    Attributes:
        config: the configuration, in JSON's types, without secrets.
        ranks: number of ranks.
        first_step, total_steps: steps done before, and at the end.
        history: `steps` and `evaluations` so far.
    """

    config: Mapping[str, Any]
    ranks: int
    first_step: int
    total_steps: int
    history: Mapping[str, Any] = field(default_factory=dict)


class Tracker:
    """Follows a run on rank 0; a subclass overrides what it needs.

    Attributes:
        name: key of its state in checkpoints.

    >>> class Printer(Tracker):
    ...     def evaluation(self, entry):
    ...         print(entry["loss"])
    >>> Printer().evaluation({"loss": 0.5})
    0.5
    """

    name = ""

    def begin(self, start: RunStart, state: Any) -> None:
        """Begin, or go on from the state that `state` returned in an earlier process, else None. May raise."""

    def state(self) -> Any:
        """Return what a resumed run has to know, in JSON's types; None: nothing."""

    def step(self, step: int) -> None:
        """Take note that `step` steps are done; called after each."""

    def steps(self, entry: Mapping[str, Any]) -> None:
        """Take an entry of the log, about the steps since the last one."""

    def evaluation(self, entry: Mapping[str, Any]) -> None:
        """Take an evaluation."""

    def close(self, *, is_finished: bool) -> None:
        """End: no more entries come.

        Args:
            is_finished: whether the run has done all of its steps.
        """


class Trackers:
    """The trackers of a run. One that fails after the beginning is left out from then on, with a warning.

    Args:
        trackers: the trackers of this rank.
    """

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self._all, self._active = list(trackers), list[Tracker]()
        self.states: dict[str, Any] = {}

    def begin(self, start: RunStart) -> None:
        """Begin all trackers, with their states of earlier processes.

        Raises:
            Exception: a tracker cannot begin.
        """
        for tracker in self._all:
            tracker.begin(start, self.states.get(tracker.name))
            self._active.append(tracker)
            if (state := tracker.state()) is not None:
                self.states[tracker.name] = state

    def step(self, step: int) -> None:
        """Tell all that `step` steps are done."""
        if self._active:
            self._each(lambda tracker: tracker.step(step))

    def steps(self, entry: Mapping[str, Any]) -> None:
        """Give all an entry of the log."""
        self._each(lambda tracker: tracker.steps(entry))

    def evaluation(self, entry: Mapping[str, Any]) -> None:
        """Give all an evaluation."""
        self._each(lambda tracker: tracker.evaluation(entry))

    def close(self, *, is_finished: bool) -> None:
        """Close all."""
        self._each(lambda tracker: tracker.close(is_finished=is_finished))
        self._active.clear()

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for tracker in list(self._active):
            try:
                act(tracker)
            except Exception as error:
                self._active.remove(tracker)
                log.warning("track.%s gets no more of this run: %s", tracker.name, brief(error))

"""The history of a run: all entries of its log and its evaluations, as metrics and checkpoints hold them.

Every rank keeps it, since any may become rank 0 of an elastic run.
Tested in tests/training/reports/test_reports.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .events import EvaluationDone, StepsLogged
from .tracker import Tracker

__all__ = ["History"]


class History(Tracker):
    """The entries so far.

    Args:
        restored: the history of the run's earlier processes, as `tree` returned it.

    Attributes:
        step_entries: entries of the log.
        evaluations: evaluations.
        states: what trackers keep in checkpoints, by name.
    """

    is_essential = True

    def __init__(self, restored: Mapping[str, Any] | None = None) -> None:
        restored = restored or {}
        self.step_entries: list[Mapping[str, Any]] = list(restored.get("steps", ()))
        self.evaluations: list[Mapping[str, Any]] = list(restored.get("evaluations", ()))
        self.states: dict[str, Any] = dict(restored.get("trackers", {}))

    def steps(self, event: StepsLogged) -> None:
        """Keep an entry."""
        self.step_entries.append(event.entry)

    def evaluation(self, event: EvaluationDone) -> None:
        """Keep an evaluation."""
        self.evaluations.append(event.entry)

    def tree(self) -> dict[str, Any]:
        """Return all entries so far, in JSON's types."""
        states = {"trackers": self.states} if self.states else {}
        return {"steps": list(self.step_entries), "evaluations": list(self.evaluations), **states}

"""Subscribers to the events of a run: a method for each kind of event; a subclass overrides some."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from . import events

GROUPS = {"steps": "train", "evaluation": "evaluation"}
"""Where dashboards show the numbers of an entry, by its kind."""


class Tracker:
    """Follows a run, on rank 0 if it is a user's own; a subclass overrides what it needs.

    An error in `begin` ends the run. One in a later method leaves the tracker out from then on, with a warning.

    Attributes:
        name: key of its state in checkpoints.
        is_essential: whether an error in any method ends the run.

    >>> class Printer(Tracker):
    ...     def evaluation(self, event):
    ...         print(event.entry["loss"])
    >>> Printer().evaluation(events.EvaluationDone({"loss": 0.5}))
    0.5
    """

    name = ""
    is_essential = False

    @property
    def label(self) -> str:
        """What a warning calls it: its key of the configuration."""
        return f"track.{self.name}"

    def state(self) -> Any:
        """Return what a resumed run has to know, in JSON's types; None: nothing. Called after `begin`."""

    def begin(self, event: events.RunBegan) -> None:
        """The run begins. What `state` returned in an earlier process is in `event.states`."""

    def begin_epoch(self, event: events.EpochBegan) -> None:
        """An epoch begins."""

    def step(self, event: events.StepDone) -> None:
        """A step is done. Called after each: what it takes, every step takes."""

    def steps(self, event: events.StepsLogged) -> None:
        """The log has a new entry, about the steps since the last one."""

    def begin_evaluation(self, event: events.EvaluationBegan) -> None:
        """An evaluation begins."""

    def evaluation(self, event: events.EvaluationDone) -> None:
        """An evaluation is done."""

    def activity(self, event: events.ActivityDone) -> None:
        """An evaluation or a checkpoint is done, and took so long."""

    def end_epoch(self, event: events.EpochEnded) -> None:
        """An epoch is over."""

    def stop_early(self, event: events.StoppedEarly) -> None:
        """The run ends before its last step."""

    def close(self, event: events.RunEnded) -> None:
        """The process trains no more, also after an error: no more events come."""

    def rows(self, event: events.RowsRecorded) -> None:
        """The recorder has new rows; only its own files get these."""


class EntryTracker(Tracker):
    """A tracker that writes the entries of the log and the evaluations, an earlier process's first."""

    def open(self, event: events.RunBegan) -> None:
        """Get ready to write."""

    def write(self, kind: str, entry: Mapping[str, Any]) -> None:
        """Write an entry; its kind is ``steps`` or ``evaluation``."""

    def flush(self) -> None:
        """Let what was written be seen; called after the history and after each evaluation."""

    def begin(self, event: events.RunBegan) -> None:
        self.open(event)
        both = [("steps", entry) for entry in event.history.get("steps", ())]
        both += [("evaluation", entry) for entry in event.history.get("evaluations", ())]
        for kind, entry in sorted(both, key=lambda item: item[1]["step"]):  # steps before their evaluation
            self.write(kind, entry)
        self.flush()

    def steps(self, event: events.StepsLogged) -> None:
        self.write("steps", event.entry)

    def evaluation(self, event: events.EvaluationDone) -> None:
        self.write("evaluation", event.entry)
        self.flush()


def finite(value: Any) -> Any:
    """Return a value in JSON's types, with None for numbers that are not finite.

    >>> finite({"loss": math.nan, 3: (1, 2.5)})
    {'loss': None, '3': [1, 2.5]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in value.items()}
    return [finite(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def scalars(entry: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of an entry but step and epoch; a group's with its name.

    >>> scalars({"step": 3, "loss": 0.5, "auc": None, "recall": {"late": 1.0}, "confusion": [[1, 2]]})
    {'loss': 0.5, 'recall/late': 1.0}
    """
    found: dict[str, float] = {}
    for name, value in entry.items():
        if isinstance(value, Mapping):
            found |= scalars(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and name not in ("step", "epoch"):
            found[f"{prefix}{name}"] = float(value)
    return found

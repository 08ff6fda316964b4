"""What happens in a run, as its reports learn of it. Each event names the method of `Tracker` that it calls.

Tested in tests/training/reports/test_reports.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from ringfeed.training.records.record_format import Row, StageRow


class StepTimes(NamedTuple):
    """Times of one step, by `time.monotonic`: a host's clock may be set back meanwhile."""

    requested: float  # the loop asked for the batch
    received: float  # it got the batch
    returned: float  # the compiled step returned
    synchronised: float  # the ranks were synchronised, where that takes more than the compiled step
    # This rank's gradients were ready, and were reduced: float64 [2], which stays on the device until it is written
    stamps: Any


class Event:
    """Something that happened; `handler` is the method that takes it."""

    __slots__ = ()
    handler: ClassVar[str] = ""

    def __init_subclass__(cls, handler: str = "") -> None:
        cls.handler = handler or cls.handler


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBegan(Event, handler="begin"):
    """A run begins, at its first step or where it resumes."""

    config: Mapping[str, Any] = field(default_factory=dict)  # the configuration, in JSON's types, without secrets
    # This rank's number, and the number of all ranks
    rank: int = 0
    ranks: int = 1
    epoch: int = 0
    # Steps that are done before, and at the end
    first_step: int = 0
    total_steps: int
    batch_size: int = 0  # samples of a step over all ranks
    history: Mapping[str, Any] = field(default_factory=dict)  # `steps` and `evaluations` so far
    # What trackers returned as their `state` in an earlier process, by name
    states: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EpochBegan(Event, handler="begin_epoch"):
    """An epoch begins, or what is left of it."""

    epoch: int
    stats: Callable[[], Mapping[str, Any]] | None = None  # what the loader of the epoch counts


@dataclass(frozen=True, slots=True)
class StepDone(Event, handler="step"):
    """Step `epoch_step` of an epoch is done, `step` in all; its loss, a float32 scalar, is on the device until read."""

    step: int
    epoch: int
    epoch_step: int = 0
    loss: Any = None
    times: StepTimes | None = None


@dataclass(frozen=True, slots=True)
class StepsLogged(Event, handler="steps"):
    """The steps since the last entry of the log became one, with the keys of docs/training.md."""

    entry: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EvaluationBegan(Event, handler="begin_evaluation"):
    """An evaluation begins, which may take long."""


@dataclass(frozen=True, slots=True)
class EvaluationDone(Event, handler="evaluation"):
    """An evaluation is done; `entry` holds epoch, step, samples, loss and metrics."""

    entry: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ActivityDone(Event, handler="activity"):
    """An ``evaluation`` or ``checkpoint`` after `step` steps took so long, from a time of `time.monotonic` on."""

    name: str
    step: int
    epoch: int
    started: float
    seconds: float


@dataclass(frozen=True, slots=True)
class EpochEnded(Event, handler="end_epoch"):
    """An epoch is over, with the loss of the log's last entry, and the evaluation at its end if there was one."""

    epoch: int
    loss: float | None
    evaluation: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class StoppedEarly(Event, handler="stop_early"):
    """The run ends before its last step, for a reason; `best` is its best evaluation, if any has the metric."""

    step: int
    best: Mapping[str, Any] | None
    reason: str


@dataclass(frozen=True, slots=True)
class RunEnded(Event, handler="close"):
    """The process trains no more; `is_finished` says whether the run has done all of its steps."""

    step: int
    epoch: int
    is_finished: bool


@dataclass(frozen=True, slots=True)
class RowsRecorded(Event, handler="rows"):
    """The recorder has rows for its files; also without any, each second."""

    rows: Sequence[Row]
    stages: Sequence[StageRow] = ()

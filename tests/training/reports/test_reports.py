"""Events reach all that subscribe to them, and one rule says what becomes of a subscriber that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ringfeed.training.checkpoint.snapshot import Position
from ringfeed.training.reports.events import (
    ActivityDone,
    EvaluationDone,
    Event,
    RunBegan,
    RunEnded,
    StepDone,
    StepsLogged,
)
from ringfeed.training.reports.reports import History, Reports
from ringfeed.training.reports.tracker import Tracker

BEGAN, ENDED = RunBegan(total_steps=9), RunEnded(9, 1, is_finished=True)


class _Seen(Tracker):
    """Keeps its events, and fails at those of some kinds."""

    name = "seen"

    def __init__(self, *fails_at: type[Event]) -> None:
        self.events: list[Event] = []
        self._fails_at = fails_at

    def _take(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, self._fails_at):
            raise OSError("no space left")

    begin = steps = evaluation = activity = close = _take  # type: ignore[assignment]


class _Essential(_Seen):
    is_essential = True


def test_one_that_fails_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    failing, other = _Seen(StepsLogged), _Seen()
    reports = Reports([failing, other])
    given: list[Event] = [BEGAN, StepsLogged({"loss": 1.0}), StepDone(1, 0), StepsLogged({"loss": 0.5}), ENDED]
    for event in given:
        reports.emit(event)
    assert failing.events == given[:2]
    assert other.events == [event for event in given if not isinstance(event, StepDone)]  # of no interest to it
    assert caplog.messages == ["track.seen gets no more of this run: no space left"]


def test_one_that_cannot_begin_ends_the_run_and_those_that_have_begun_are_closed() -> None:
    first, failing, last = _Seen(), _Seen(RunBegan), _Seen()
    reports = Reports([first, failing, last])
    with pytest.raises(OSError, match="no space left"):
        reports.emit(BEGAN)
    reports.emit(ENDED)
    assert (first.events, failing.events, last.events) == ([BEGAN, ENDED], [BEGAN], [])


def test_an_essential_one_ends_the_run_whenever_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    reports = Reports([_Essential(EvaluationDone)])
    reports.emit(BEGAN)
    with pytest.raises(OSError, match="no space left"):
        reports.emit(EvaluationDone({}))
    assert caplog.messages == []


def test_what_takes_time_is_timed_and_what_fails_is_not() -> None:
    seen = _Seen()
    reports = Reports([seen])
    with reports.timed("checkpoint", Position(step=7, epoch=2)):
        pass
    with pytest.raises(ZeroDivisionError), reports.timed("evaluation", Position()):
        raise ZeroDivisionError
    (event,) = seen.events
    assert isinstance(event, ActivityDone)
    assert (event.name, event.step, event.epoch) == ("checkpoint", 7, 2)
    assert event.started > event.seconds >= 0


def test_a_history_goes_on_where_it_was_restored() -> None:
    history = History()
    reports = Reports([history])
    reports.emit(StepsLogged({"step": 1}))
    reports.emit(EvaluationDone({"step": 1, "auc": 0.5}))
    history.states = {"mlflow": "run-1"}
    tree: dict[str, Any] = history.tree()
    again = History(tree)
    Reports([again]).emit(StepsLogged({"step": 2}))
    assert again.tree() == {**tree, "steps": [{"step": 1}, {"step": 2}]}
    assert tree["steps"] == [{"step": 1}]
    assert "trackers" not in History().tree()


def test_states_are_those_of_trackers_that_have_one(tmp_path: Path) -> None:
    class Numbered(Tracker):
        name = "numbered"

        def state(self) -> int:
            return 7

    assert Reports([Tracker(), Numbered()]).states() == {"numbered": 7}

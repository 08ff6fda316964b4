"""The reports of a run without a terminal."""

import io
import json
import logging
import re

import pytest
from rich.console import Console as Terminal

from ringfeed.training.reports import console as module
from ringfeed.training.reports.console import Console, configure_logging
from ringfeed.training.reports.events import (
    EvaluationBegan,
    EvaluationDone,
    RunBegan,
    RunEnded,
    StepDone,
    StepsLogged,
    StoppedEarly,
)  # fmt: skip

ENTRY = {"epoch": 0, "step": 1, "loss": 0.5, "learning_rate": 0.1, "input_wait_fraction": 0.0}
FINISHED = RunEnded(1, 0, is_finished=True)


@pytest.fixture(autouse=True)
def _plain(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    caplog.set_level(logging.INFO, logger="ringfeed")


def test_slow_steps_are_logged_between_entries_and_fast_ones_are_not(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: clock)
    console = Console()
    console.begin(RunBegan(ranks=2, batch_size=256, total_steps=9))
    for step in range(1, 5):
        clock += module.QUIET_SECONDS * 0.6
        console.step(StepDone(step, 0))
    assert [line.partition(";")[0] for line in caplog.messages] == [
        "epoch 0  step 0/9  starts with 256 samples per step over 2 ranks",
        "epoch 0  step 2/9  0:01:03 left",
        "epoch 0  step 4/9  0:00:45 left",
    ]


def test_a_run_that_is_over_announces_nothing(caplog: pytest.LogCaptureFixture) -> None:
    Console().begin(RunBegan(first_step=9, total_steps=9))
    assert caplog.messages == []


def test_steps_without_a_throughput_show_none(caplog: pytest.LogCaptureFixture) -> None:
    console = Console()
    console.begin(RunBegan(total_steps=1))
    console.steps(StepsLogged(ENTRY | {"samples_per_second": 0.0}))
    console.steps(StepsLogged(ENTRY | {"samples_per_second": 1500.0}))
    assert caplog.messages[1:] == [
        "epoch 0  step 1/1  loss 0.5000  lr 0.1",
        "epoch 0  step 1/1  loss 0.5000  lr 0.1  1,500 samples/s  input wait 0%",
    ]


@pytest.mark.parametrize(("waited", "seconds", "warned"), [(3.0, 10.0, True), (1.0, 10.0, False), (2.0, 4.0, False)])
def test_a_run_that_waited_for_its_input_names_the_profiler(
    caplog: pytest.LogCaptureFixture, waited: float, seconds: float, warned: bool
) -> None:
    console = Console()
    console.begin(RunBegan(total_steps=1))
    console.steps(StepsLogged(ENTRY | {"samples_per_second": 0.0, "seconds": seconds, "input_wait_seconds": waited}))
    console.close(FINISHED)
    message = "training waited for its input for 30% of the time; to learn why: ringfeed profile --config FILE"
    assert (caplog.messages[-1] == message) is warned


def test_a_long_run_says_so_once_while_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    console = Console()
    console.begin(RunBegan(total_steps=9))
    for _ in range(9):
        console.steps(StepsLogged(ENTRY | {"samples_per_second": 9.0, "seconds": 10.0, "input_wait_seconds": 4.0}))
    console.close(FINISHED)
    found = [number for number, line in enumerate(caplog.messages) if "ringfeed profile" in line]
    assert found == [3]  # after 30 s
    assert caplog.messages[3].startswith("training waited for its input for 40% of the time")


def test_datasets_of_a_mixture_are_profiled_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    console = Console(["/a b/web", "/books"])
    console.begin(RunBegan(total_steps=1))
    console.steps(StepsLogged(ENTRY | {"samples_per_second": 0.0, "seconds": 10.0, "input_wait_seconds": 3.0}))
    console.close(FINISHED)
    assert caplog.messages[-1].endswith("to learn why: ringfeed profile '/a b/web', and so each dataset")


@pytest.mark.parametrize(
    ("quiet", "verbose", "levels"), [(False, False, (20, 30)), (True, False, (30, 30)), (False, True, (10, 10))]
)
def test_what_each_rank_logs(
    monkeypatch: pytest.MonkeyPatch, quiet: bool, verbose: bool, levels: tuple[int, int]
) -> None:
    logger = logging.getLogger("ringfeed")
    for rank in (1, 0):
        configure_logging(rank, quiet=quiet, verbose=verbose)
        assert logger.level == levels[rank]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    console = Console()
    console.begin(RunBegan(total_steps=9))
    assert (console._bar is None) == quiet
    console.close(FINISHED)


def test_events_for_programs_are_one_object_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    configure_logging(0, as_json=True)
    console = Console()
    console.begin(RunBegan(total_steps=9))
    assert console._bar is None
    console.steps(StepsLogged(ENTRY | {"samples_per_second": 9.0, "loss": float("nan")}))
    console.evaluation(EvaluationDone({"epoch": 0, "step": 3, "samples": 7, "loss": 0.5}))
    console.stop_early(StoppedEarly(5, None, "enough"))
    console._warn_once(0.5)
    started, *found, warned = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (started["event"], warned["event"]) == ("info", "warning")
    assert "input for 50% of the time" in warned["message"]
    progress = {"event": "progress", "stage": "train", "done": ENTRY["step"], "total": 9, "loss": None}
    assert found[0] == ENTRY | {"samples_per_second": 9.0} | progress
    assert found[1:] == [
        {"event": "evaluation", "epoch": 0, "step": 3, "samples": 7, "loss": 0.5},
        {"event": "stopped_early", "step": 5, "reason": "enough", "best": None},
    ]


@pytest.mark.parametrize("total", [131, 100_000])
@pytest.mark.parametrize(("columns", "has_rate"), [(80, False), (160, True)])
def test_a_bar_leaves_room_for_steps_time_loss_speed_and_wait(
    monkeypatch: pytest.MonkeyPatch, total: int, columns: int, has_rate: bool
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        module, "Terminal", lambda **_: Terminal(file=screen, width=columns, force_terminal=True, color_system=None)
    )
    logging.getLogger("ringfeed").setLevel(logging.INFO)
    console = Console()
    console.begin(RunBegan(total_steps=total))
    assert console._bar is not None
    console._bar.refresh()
    console.step(StepDone(100, 0))
    console.steps(StepsLogged(ENTRY | {"samples_per_second": 61_531.0}))
    console._bar.refresh()
    console.begin_evaluation(EvaluationBegan())
    console.close(FINISHED)
    texts = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip() for line in screen.getvalue().split("\r")]
    line = next(text for text in texts if "loss" in text)
    assert len(line) <= columns
    assert re.search(rf"100/{total} +-:--:-- left +loss 0.5000  61,531 samples/s  input wait 0%", line)
    assert ("lr 0.1" in line) == has_rate
    assert any("the first step compiles" in text for text in texts)
    assert "evaluating" in texts[-1]

"""What workers report becomes entries that count each step once, whenever the reports arrive."""

from __future__ import annotations

import time

import pytest

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.config.backend import ParameterServerConfig
from ringfeed.training.config.data import DataConfig
from ringfeed.training.config.outputs import OutputConfig
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.reports.reports import History, Reports
from ringfeed.training.servers.board.board import Done
from ringfeed.training.servers.server_log import ServerLog, UpdateRate

DONE = Done(loss=1.0, gradient_norm=2.0, staleness=1, wait_seconds=0.5)


def _log(mode: str = "async") -> tuple[ServerLog, History]:
    """Reports of two workers, in a run that resumed after step 4."""
    config = TrainConfig(
        data=DataConfig(url="data", batch_size=10),
        output=OutputConfig(log_every=4),
        backend="parameter_server",
        parameter_server=ParameterServerConfig(mode=mode),
    )
    history = History()
    return ServerLog(config, Reports([history]), 2, UpdateRate(lambda step: 0.1, 2, "linear"), 4), history


def test_entries_count_all_steps_and_time_all_updates_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    log, history = _log()
    now = 60.0
    log.add([DONE], 4)
    assert not log.is_due(7)
    now = 62.0
    log.add([DONE] * 7, 8)
    assert log.is_due(8)
    log.report(8, 0, 3)
    now = 63.0
    log.add([DONE] * 4, 10)
    assert not log.is_due(10)
    log.report(10, 0, 2)
    first, second = history.step_entries
    assert (first["steps"], second["steps"]) == (4, 2)
    assert (first["samples_per_second"], second["samples_per_second"]) == (17.5, 20.0)  # 5 samples an update
    assert (first["input_wait_seconds"], second["input_wait_seconds"]) == (1.75, 1.0)  # of each worker
    assert log.totals() == {
        "updates": 12, "dropped_updates": 0, "staleness": {"mean": 1.0, "largest": 1}, "most_ahead": 3,
    }  # fmt: skip


def test_late_gradients_are_counted_apart() -> None:
    log, history = _log("sync")
    log.add([Done(loss=9.0, gradient_norm=2.0, staleness=7, wait_seconds=0.0, sent_share=0.0), DONE], 5)
    log.report(5, 0, 0)
    assert history.step_entries[0]["loss"] == 1.0
    assert log.totals()["dropped_updates"] == 1
    assert log.totals()["staleness"] == {"mean": 1.0, "largest": 1}


def test_an_update_that_is_not_finite_ends_the_run() -> None:
    with pytest.raises(TrainingError, match="an update after step 5 are not finite in float32"):
        _log()[0].add([Done(loss=float("nan"), gradient_norm=2.0, staleness=0, wait_seconds=0.0)], 5)

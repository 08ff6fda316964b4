"""Plots of a training run, from its metrics."""

import json
from pathlib import Path
from typing import Any

import pytest

from ringfeed.sharding import ConfigError
from ringfeed.tools.report import run_plots


@pytest.fixture
def metrics() -> dict[str, Any]:
    """Those of ten steps on two ranks, a fifth of whose time was spent waiting; the loss of one is missing."""
    steps = [
        {
            "step": step, "loss": None if step == 3 else 1 / step, "learning_rate": 0.1 * step, "seconds": 2.0,
            "samples_per_second": 0.0 if step == 1 else 1000.0 + step, "input_wait_seconds": 0.4,
            "input_wait_fraction": 0.2,
        }
        for step in range(1, 11)
    ]  # fmt: skip
    evaluation = {"step": 10, "loss": 0.25, "recall": {"a": 0.75, "b": 0.5, "c": None}}
    return {
        "format": "ringfeed-metrics-1", "ranks": 2, "final": evaluation,
        "history": {"steps": steps, "evaluations": [evaluation]},
    }  # fmt: skip


def test_titles_say_what_there_is_to_see(metrics: dict[str, Any]) -> None:
    assert run_plots.plot_loss(metrics).title == "The loss ends at 0.1 in training and 0.25 in evaluation"
    assert run_plots.plot_learning_rate(metrics).title == "The learning rate: 1 at most, 1 at the end"
    assert run_plots.plot_rate(metrics).title == "2 ranks: 1,006 samples a second, as the median"
    waits = run_plots.plot_run_waits(metrics).title
    assert waits == "Training waited for its input for 20.0% of the time; ringfeed profile says why"
    assert run_plots.plot_recall(metrics).title == "Recall by class: 'b' is found least, 50.0% of it"


def test_a_class_that_does_not_occur_has_no_recall(metrics: dict[str, Any]) -> None:
    assert ">c<" not in run_plots.plot_recall(metrics).svg
    with pytest.raises(ConfigError, match="needs a run with an evaluation"):
        run_plots.plot_recall(metrics | {"final": None})
    with pytest.raises(ConfigError, match="needs a run of classes whose metrics have recall"):
        run_plots.plot_recall(metrics | {"final": {"rmse": 2.0}})


def test_metrics_are_found_in_a_folder(metrics: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match="no metrics of a run"):
        run_plots.read_metrics(str(tmp_path))
    (tmp_path / "run.json").write_text(json.dumps(metrics))
    assert run_plots.read_metrics(str(tmp_path)) == run_plots.read_metrics(str(tmp_path / "run.json")) == metrics
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json does not hold JSON"):
        run_plots.read_metrics(str(tmp_path / "run.json"))
    with pytest.raises(ConfigError, match=r"there is no file at .*absent\.json"):
        run_plots.read_metrics(str(tmp_path / "absent.json"))
    with pytest.raises(ConfigError, match="the run has no steps"):
        run_plots.plot_loss(metrics | {"history": {"steps": [], "evaluations": []}})

"""Plots of a training run for notebooks, from the metrics that `ringfeed train` writes (`output.metrics`).

Plots of its ranks, from their records (`output.records`), are in `rank_plots`, and can be had here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.storage.untrusted_files import guarded, load_json, read_untrusted
from ringfeed.tools.charts.drawing import Plot, curves, named_bars
from ringfeed.tools.measure.run_records import read_run
from ringfeed.training.run.state.outputs import METRICS_FORMAT

from .rank_plots import plot_rank_lateness, plot_rank_waits, plot_step_parts
from .run_result import profile_records

__all__ = [
    "plot_learning_rate", "plot_loss", "plot_rank_lateness", "plot_rank_waits", "plot_rate", "plot_recall",
    "plot_run_waits", "plot_step_parts", "profile_records", "read_metrics", "read_run",
]  # fmt: skip

_MOST_BYTES = 256 << 20  # metrics hold the history of a run
_BOUND = 0.05  # share of the time spent waiting, from which on a run is input-bound


def read_metrics(path: str) -> dict[str, Any]:
    """Read the metrics file of a run, or the first one in a folder.

    Raises:
        ConfigError: there is no such file, or it holds no metrics.
    """
    found = Path(path)
    files = sorted(found.glob("*.json")) if found.is_dir() else [found]
    for file in files:
        with guarded(str(file), "JSON"):
            metrics = load_json(read_untrusted(str(file), _MOST_BYTES))
        if isinstance(metrics, dict) and metrics.get("format") == METRICS_FORMAT:
            return metrics
    raise ConfigError(f"{path}: no metrics of a run; `ringfeed train` writes them where output.metrics says")


def plot_loss(metrics: Mapping[str, Any]) -> Plot:
    """The loss of training, and of each evaluation."""
    steps, evaluations = _steps(metrics), metrics["history"]["evaluations"]
    lines = {"training": ([entry["step"] for entry in steps], [entry["loss"] for entry in steps])}
    if evaluations:
        lines["evaluation"] = (
            [entry["step"] for entry in evaluations],
            [entry["loss"] for entry in evaluations],
        )
    last = " and ".join(f"{values[-1]:.4g} in {name}" for name, (_, values) in lines.items() if values[-1] is not None)
    return curves(lines, f"The loss ends at {last}", "step", "loss")


def plot_learning_rate(metrics: Mapping[str, Any]) -> Plot:
    """The learning rate of each step."""
    steps = _steps(metrics)
    rates = [entry["learning_rate"] for entry in steps]
    title = f"The learning rate: {max(rates):.3g} at most, {rates[-1]:.3g} at the end"
    return curves({"": ([entry["step"] for entry in steps], rates)}, title, "step", "learning rate")


def plot_rate(metrics: Mapping[str, Any]) -> Plot:
    """Samples a second of all ranks together."""
    steps = [entry for entry in _steps(metrics) if entry["samples_per_second"]]
    rates = [entry["samples_per_second"] for entry in steps]
    middle = sorted(rates)[len(rates) // 2] if rates else 0
    title = f"{metrics['ranks']} rank{'s' * (metrics['ranks'] != 1)}: {middle:,.0f} samples a second, as the median"
    return curves({"": ([entry["step"] for entry in steps], rates)}, title, "step", "samples a second")


def plot_run_waits(metrics: Mapping[str, Any]) -> Plot:
    """The share of the time that rank 0 waited for input."""
    steps = _steps(metrics)
    seconds = sum(entry["seconds"] for entry in steps)
    waited = sum(entry["input_wait_seconds"] for entry in steps) / max(seconds, 1e-9)
    remedy = "" if waited < _BOUND else "; ringfeed profile says why"
    title = f"Training waited for its input for {waited:.1%} of the time{remedy}"
    shares = [100 * entry["input_wait_fraction"] for entry in steps]
    return curves({"": ([entry["step"] for entry in steps], shares)}, title, "step", "% of the time")


def plot_recall(metrics: Mapping[str, Any]) -> Plot:
    """The recall of each class that occurs in the last evaluation.

    Raises:
        ConfigError: the run was not evaluated, or without recall, as one of numbers or labels.
    """
    if not metrics["final"]:
        raise ConfigError("plot_recall needs a run with an evaluation; set data.eval_split")
    if "recall" not in metrics["final"]:
        raise ConfigError("plot_recall needs a run of classes whose metrics have recall")
    recall = {name: value for name, value in metrics["final"]["recall"].items() if value is not None}
    worst = min(recall, key=recall.__getitem__)
    title = f"Recall by class: {worst!r} is found least, {recall[worst]:.1%} of it"
    return named_bars(recall, [f"{value:.1%}" for value in recall.values()], worst, title, "recall")


def _steps(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = metrics["history"]["steps"]
    if not steps:
        raise ConfigError("the run has no steps: it was resumed after its last one, or ended before")
    return steps

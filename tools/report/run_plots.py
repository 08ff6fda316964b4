"""Plots of a training run, from its metrics (`output.metrics`) and the records of its ranks (`output.records`).

Records show where the ranks' time goes, and which rank the others wait for, over the run.
Tested in tests/tools/report/test_run_plots.py and tests/tools/profile/test_run_command.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.storage.untrusted_files import guarded, load_json, read_untrusted
from ringfeed.tools.charts.bars import Bars
from ringfeed.tools.charts.drawing import COLOURS, HATCHES, Drawing, Plot, curves
from ringfeed.tools.measure.run_records import RunRecords, read_run
from ringfeed.tools.verdict.run_verdict import judge_run, rank_times, step_parts
from ringfeed.training.run.state.outputs import METRICS_FORMAT

from .run_result import profile_records

__all__ = [
    "plot_learning_rate", "plot_loss", "plot_rank_lateness", "plot_rank_waits", "plot_rate", "plot_recall",
    "plot_run_waits", "plot_step_parts", "profile_records", "read_metrics", "read_run",
]  # fmt: skip

_PARTS = {
    "input": "input", "compute": "computing", "straggler": "slowest rank", "collective": "all-reduce",
    "overhead": "loop",
}  # fmt: skip
_MOST_LINES = 8
_POINTS = 100
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
    lines = {
        name: ([entry["step"] for entry in entries], [entry["loss"] for entry in entries])
        for name, entries in (("training", steps), ("evaluation", evaluations))
        if entries
    }
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
    texts = [f"{value:.1%}" for value in recall.values()]
    return Bars(title=title, values=recall, texts=texts, highlighted=worst, x_label="recall").draw()


def _steps(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = metrics["history"]["steps"]
    if not steps:
        raise ConfigError("the run has no steps: it was resumed after its last one, or ended before")
    return steps


def plot_rank_waits(records: RunRecords) -> Plot:
    """The parts of a mean step of each rank, as bars: what it waits for, and for how long it computes."""
    _require_steps(records)
    times, verdict = rank_times(records), judge_run(records)
    drawing = Drawing(0.36 * len(times) + 1.5)
    places, begun = np.arange(len(times)), np.zeros(len(times))
    for i, name in enumerate(_PARTS.values()):
        colour, hatch = COLOURS[(1, 0, 3, 2, 7)[i]], HATCHES[(1, 0, 2, 3, 4)[i]]
        widths = np.array([1000 * each.parts[name] for each in times])
        drawing.axes.barh(places, widths, left=begun, color=colour, edgecolor="white", hatch=hatch, label=name)
        begun += widths
    drawing.axes.set_yticks(places, [f"rank {each.rank}" for each in times])
    drawing.axes.invert_yaxis()
    drawing.axes.grid(visible=False)
    drawing.legend()
    return drawing.finish(verdict.headline.partition(";")[0].rstrip("."), "ms of a step", "")


def plot_rank_lateness(records: RunRecords) -> Plot:
    """How long the first rank in the all-reduce of each step waits for each rank, over the run.

    Of more than eight ranks, the ones that are late for longest.
    """
    _require_steps(records)
    late = 1000 * (records.collective_seconds.max(axis=0) - records.collective_seconds)
    order = np.argsort(-late.mean(axis=1))
    lines = {
        f"rank {records.ranks[place]}": _smoothed(records.steps, late[place])
        for place in sorted(order[:_MOST_LINES].tolist())
    }
    worst = order[0]
    if len(records.ranks) == 1:
        title = "One rank: no other waits for it"
    else:
        share = rank_times(records)[worst].last_share
        title = f"Rank {records.ranks[worst]} is latest on average: the last in {share:.0%} of the steps"
    return curves(lines, title, "step", "ms after the first rank")


def plot_step_parts(records: RunRecords) -> Plot:
    """The parts of a step over the run, as the verdict counts them: the slowest rank of a step is left out."""
    _require_steps(records)
    parts = {_PARTS[part]: seconds for part, seconds in step_parts(records).items()}
    sums = {name: float(seconds @ records.weights) for name, seconds in parts.items()}
    longest = max(sums, key=sums.__getitem__)
    lines = {name: _smoothed(records.steps, 1000 * seconds) for name, seconds in parts.items()}
    share = sums[longest] / sum(sums.values())
    return curves(lines, f"The longest part of a step is {longest!r}: {share:.0%}", "step", "ms")


def _smoothed(steps: np.ndarray, values: np.ndarray) -> tuple[list[float], list[float]]:
    """At most 100 points, each a mean."""
    groups = min(_POINTS, len(steps))
    return (
        [float(each.mean()) for each in np.array_split(steps, groups)],
        [float(each.mean()) for each in np.array_split(values, groups)],
    )


def _require_steps(records: RunRecords) -> None:
    if not records.steps.size:
        raise ConfigError(f"{records.folder}: the records hold no steps after the first yet")

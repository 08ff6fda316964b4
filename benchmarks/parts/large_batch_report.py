"""What came out of `train/large_batch.py`: the tuned rates, a table, the largest batches, a plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["batch_limits", "draw", "linear_rate", "table", "tuned"]

LABELS = {
    "linear": "SGD, linear scaling",
    "sgd": "SGD, tuned",
    "nesterov": "Nesterov, tuned",
    "adam": "Adam, tuned",
    "lars": "LARS, tuned",
    "lamb": "LAMB, tuned",
}
COLOURS = {"linear": "#0072b2", "sgd": "#56b4e9", "nesterov": "#009e73", "adam": "#999999", "lars": "#d55e00",
           "lamb": "#cc79a7"}  # fmt: skip  # of Okabe and Ito
TITLES = {"epochs": "Equal epochs", "steps": "Equal steps"}
NEAR = 0.003  # of the baseline
_INK = "#808890"  # readable on white and on black

Run = Mapping[str, Any]
Series = dict[int, list[float]]


def tuned(run: Run) -> tuple[int, float, float, list[float]]:
    """The best rate (a power of 2) and knob by mean validation accuracy, that accuracy, and test accuracy by seed."""
    best = max(
        (sum(seeds) / len(seeds), -row, -column)  # of equals the smallest rate
        for row, columns in enumerate(run["validation"])
        for column, seeds in enumerate(columns)
    )
    row, column = -best[1], -best[2]
    return run["powers"][row], run["knobs"][column], best[0], run["test"][row][column]


def linear_rate(runs: Sequence[Run], study: str, batch: int) -> tuple[int, float] | None:
    """SGD's rate (a power of 2) by linear scaling, and momentum, tuned at the smallest batch; None: not tuned yet."""
    found = [run for run in runs if run["study"] == study and run["optimizer"] == "sgd"]
    if not found:
        return None
    smallest = min(found, key=lambda run: run["batch"])
    power, knob, *_ = tuned(smallest)
    return power + round(math.log2(batch / smallest["batch"])), knob


def series(results: Run, study: str) -> dict[str, Series]:
    """Test accuracies of the seeds, by optimizer and batch."""
    found: dict[str, Series] = {name: {} for name in LABELS}
    for run in sorted(results["runs"], key=lambda run: run["batch"]):
        if run["study"] != study:
            continue
        found[run["optimizer"]][run["batch"]] = tuned(run)[3]
        if run["optimizer"] == "sgd":
            rate = linear_rate(results["runs"], study, run["batch"])
            if rate is not None and rate[0] in run["powers"]:
                place = run["powers"].index(rate[0]), run["knobs"].index(rate[1])
                found["linear"][run["batch"]] = run["test"][place[0]][place[1]]
    return {name: values for name, values in found.items() if values}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def baseline(found: Mapping[str, Series]) -> float:
    """SGD's mean accuracy at the smallest batch."""
    return _mean(found["linear"][min(found["linear"])])


def table(results: Run) -> str:
    """Mean test accuracies in percent with the range over the seeds, and the tuned rates, in Markdown."""
    lines = ["{date}, {device}, JAX {jax}; {samples:,} samples, {validation:,} held out".format(**results)]
    for study, title in TITLES.items():
        found = series(results, study)
        if not found:
            continue
        batches = sorted({batch for values in found.values() for batch in values})
        steps = {run["batch"]: run["steps"] for run in results["runs"] if run["study"] == study}
        lines += ["", f"{title}: {results[study]:g}", ""]
        lines.append("| batch | steps | " + " | ".join(LABELS[name] for name in found) + " |")
        lines.append("| ---: " * (len(found) + 2) + "|")
        for batch in batches:
            cells = [_cell(results, study, name, batch, found[name].get(batch)) for name in found]
            lines.append(f"| {batch} | {steps[batch]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(results: Run, study: str, name: str, batch: int, seeds: Sequence[float] | None) -> str:
    if seeds is None:
        return ""
    if name == "linear":
        rate = linear_rate(results["runs"], study, batch)
        assert rate is not None
        chosen: tuple[float, float] = rate
    else:
        (run,) = [
            run for run in results["runs"] if (run["study"], run["batch"], run["optimizer"]) == (study, batch, name)
        ]
        chosen = tuned(run)[:2]
    return f"{_mean(seeds):.2%} ({min(seeds):.1%} to {max(seeds):.1%}; {2.0 ** chosen[0]:.3g}, {chosen[1]:g})"


def batch_limits(results: Run) -> str:
    """The largest batch of each optimizer, at equal epochs, within 0.3 points of SGD's accuracy at the smallest."""
    found = series(results, "epochs")
    if "linear" not in found:
        return ""
    floor = baseline(found) - NEAR
    lines = [f"Equal epochs: the largest batch with at least {floor:.2%}, {100 * NEAR:g} points below SGD's first"]
    for name, values in found.items():
        near = [batch for batch, seeds in values.items() if _mean(seeds) > floor - 1e-6]  # of equals, both count
        lines.append(f"  {LABELS[name]}: {max(near, default=0)}")
    return "\n".join(lines)


def draw(results: Run, path: Path) -> None:
    """Plot test accuracy over the batch, a panel for each study, as an SVG that suits light and dark pages."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    style = {"svg.fonttype": "none", "svg.hashsalt": "large_batch", "font.size": 10, "text.color": _INK,
             "axes.edgecolor": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK}  # fmt: skip
    studies = [study for study in TITLES if series(results, study)]
    with pyplot.rc_context(style):
        figure, panels = pyplot.subplots(1, len(studies), figsize=(4.8 * len(studies), 4), squeeze=False)
        for panel, study in zip(panels[0], studies, strict=True):
            _panel(panel, series(results, study), study)
            panel.set_title(f"{TITLES[study]} ({results[study]:g})")
        panels[0][0].set_ylabel("test accuracy, %")
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False)
        figure.tight_layout(rect=(0, 0.12, 1, 1))
        figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def _panel(panel: Any, found: Mapping[str, Series], study: str) -> None:
    means = [100 * _mean(seeds) for name, values in found.items() if name != "linear" for seeds in values.values()]
    top = max(means) + 0.7
    bottom = min(*means, top - 3) - 0.7
    for name, values in found.items():
        batches = sorted(values)
        heights = [100 * _mean(values[batch]) for batch in batches]
        panel.plot(batches, heights, marker="o", markersize=4, linewidth=1.6, color=COLOURS[name], label=LABELS[name])
        if name == "linear":  # some seeds diverge
            continue
        lows, highs = ([100 * pick(values[batch]) for batch in batches] for pick in (min, max))
        panel.fill_between(batches, lows, highs, color=COLOURS[name], alpha=0.15, linewidth=0)
    if study == "epochs" and "linear" in found:
        floor = 100 * (baseline(found) - NEAR)
        panel.axhline(floor, color=_INK, linewidth=1, linestyle="--")
        panel.text(1, floor, f"SGD at {min(found['linear'])} less 0.3 points ", ha="right", va="bottom", fontsize=8,
                   transform=panel.get_yaxis_transform())  # fmt: skip
    ticks = sorted({batch for values in found.values() for batch in values})
    panel.set_xscale("log", base=2)
    panel.set_xticks(ticks, [f"{tick // 1024}k" if tick >= 1024 else str(tick) for tick in ticks])
    panel.set(ylim=(bottom, top), xlabel="batch")
    panel.grid(color=_INK, alpha=0.25, linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)

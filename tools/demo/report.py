"""The demo's page: balance, throughput, training and results in one self-contained HTML file.

Pure: results in, text out. `run` measures, `charts` draws, and `templates/report.html` has the layout and the colours.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from ringfeed.tools.console import human_bytes, human_seconds
from ringfeed.tools.shard_dataset.balance_report import SplitBalance

from . import charts
from .samples import SampleImage

_STAGES = ("fetch", "verify", "open", "plan", "gather")
_METRICS_SHOWN = 4  # decimals


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRecord:
    """A command that was run: its purpose, its text and its duration."""

    purpose: str
    command: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltDataset:
    """A dataset: the documents of `shard-dataset build` and `ringfeed profile`, and the balance of its shards."""

    name: str
    shard_format: str
    build: Mapping[str, Any]
    classes: Sequence[str]
    balance: Sequence[SplitBalance]
    profile: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The content of the page.

    Attributes:
        created: date and time, as text.
        seconds: duration of the whole demo.
        is_quick: whether only a part of the data was used, for tests; the figures then mean nothing.
        machine: properties of the machine and its software, by name.
        commands: the commands in the order they ran.
        datasets: each dataset in each format.
        natural: metrics (`output.metrics`) of the training on the flights as they are.
        uniform: metrics of the training on batches with both classes equally often.
        digits: metrics of the convolutional network.
        right_images: test images that it reads right, one of each class.
        wrong_images: test images that it takes for another digit, the surest first.
    """

    created: str
    seconds: float
    is_quick: bool
    machine: Mapping[str, str]
    commands: Sequence[CommandRecord]
    datasets: Sequence[BuiltDataset]
    natural: Mapping[str, Any]
    uniform: Mapping[str, Any]
    digits: Mapping[str, Any]
    right_images: Sequence[SampleImage]
    wrong_images: Sequence[SampleImage]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """A metric of two runs; `better` is the index of the better run, None if they are equal."""

    metric: str
    natural: float
    uniform: float
    better: int | None

    @property
    def values(self) -> tuple[str, str]:
        """Both values, to four decimals."""
        return f"{self.natural:.{_METRICS_SHOWN}f}", f"{self.uniform:.{_METRICS_SHOWN}f}"


def compare_runs(natural: Mapping[str, Any], uniform: Mapping[str, Any]) -> list[MetricComparison]:
    """Compare the last evaluations of two runs: recalls, balanced accuracy, AUC, average precision, accuracy, loss.

    >>> keys = ("balanced_accuracy", "auc", "average_precision", "accuracy", "loss")
    >>> one = {"recall": {"late": 0.1}} | dict.fromkeys(keys, 0.2)
    >>> [(row.metric, row.better) for row in compare_runs(one, one | {"average_precision": 0.9, "loss": 0.5})][-3:]
    [('average precision', 1), ('accuracy', None), ('loss', 0)]
    """
    pairs = [(f"recall of {name}", natural["recall"][name], uniform["recall"][name]) for name in natural["recall"]]
    keys = ("balanced_accuracy", "auc", "average_precision", "accuracy", "loss")
    names = ("balanced accuracy", "AUC", "average precision", "accuracy", "loss")
    pairs += [(name, natural[key], uniform[key]) for name, key in zip(names, keys, strict=True)]
    rows = []
    for metric, first, second in pairs:
        gain = (first - second) if metric == "loss" else (second - first)
        rows.append(
            MetricComparison(metric=metric, natural=first, uniform=second, better=None if gain == 0 else int(gain > 0)),
        )
    return rows


def render_report(result: DemoResult) -> str:
    """Render the page as HTML."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {
        "bytes": human_bytes, "duration": human_seconds, "format_count": "{:,.0f}".format, "data_url": _data_url,
    }  # fmt: skip
    template = environment.from_string((files(__package__) / "templates" / "report.html").read_text("utf-8"))
    flights, digits = (
        [dataset for dataset in result.datasets if dataset.name == name] for name in ("flights", "digits")
    )
    return template.render(
        result=result,
        rows=compare_runs(result.natural["final"], result.uniform["final"]),
        late_flights=_late_flights(result.natural["final"], result.uniform["final"]),
        spread=_largest_spread(result.datasets),
        wrong=_errors(result.digits["final"]),
        charts={
            name: Markup(svg)
            for name, svg in {
                "results": _results_chart(result),
                "precision_recall": _precision_chart(result),
                "flights_balance": _flights_balance(flights[0]),
                "digits_balance": _digits_balance(digits[0]),
                "flights_stages": _stage_chart("flights", flights),
                "digits_stages": _stage_chart("digits", digits),
                "flights_loss": _loss_chart("flights", {"natural": result.natural, "uniform": result.uniform}),
                "flights_rate": _rate_chart("flights", result.uniform),
                "digits_loss": _loss_chart("digits", {"loss": result.digits}),
                "digits_rate": _rate_chart("digits", result.digits),
                "flights_speed": _speed_chart("flights", {"natural": result.natural, "uniform": result.uniform}),
                "flights_wait": _wait_chart("flights", {"natural": result.natural, "uniform": result.uniform}),
                "digits_speed": _speed_chart("digits", {"digits": result.digits}),
                "digits_wait": _wait_chart("digits", {"digits": result.digits}),
                "confusion": _confusion_chart(result.digits),
            }.items()
        },
    )


def _errors(final: Mapping[str, Any]) -> int:
    """Count the wrong predictions of a confusion matrix."""
    cells = np.asarray(final["confusion"])
    return int(cells.sum() - np.trace(cells))


def _data_url(png: bytes) -> str:
    return f"data:image/png;base64,{b64encode(png).decode()}"


def _late_flights(natural: Mapping[str, Any], uniform: Mapping[str, Any]) -> dict[str, int]:
    """Count late flights of the test split: all of them, those that each model finds, and its false alarms."""
    late = list(natural["recall"]).index("late")
    counts = [np.asarray(final["confusion"]) for final in (natural, uniform)]
    return {
        "late": int(counts[0][late].sum()),
        "natural_found": int(counts[0][late, late]),
        "uniform_found": int(counts[1][late, late]),
        "natural_false": int(counts[0][1 - late, late]),
        "uniform_false": int(counts[1][1 - late, late]),
    }


def _largest_spread(datasets: Sequence[BuiltDataset]) -> tuple[int, int]:
    """Return the largest difference between two shards of a split, in records and in records of a class."""
    splits = [split for dataset in datasets for split in dataset.balance]
    records, of_a_class = zip(*(split.largest_difference for split in splits), strict=True)
    return max(records), max(of_a_class)


# --- charts ----------------------------------------------------------------------------------------------------


def _results_chart(result: DemoResult) -> str:
    rows = [row for row in compare_runs(result.natural["final"], result.uniform["final"]) if row.metric != "loss"]
    described = "; ".join(f"{row.metric} {row.natural:.1%} and {row.uniform:.1%}" for row in rows)
    return charts.grouped_bars(
        {"natural": [row.natural for row in rows], "uniform": [row.uniform for row in rows]},
        [row.metric for row in rows],
        title="Flights: results on the test split",
        description=f"Natural and uniform: {described}.",
        x_label="percent",
    )


def _precision_chart(result: DemoResult) -> str:
    """Draw precision over recall of late flights, with a mark at the probability of a half, by which a run decides."""
    lines = []
    for label, metrics in {"natural": result.natural, "uniform": result.uniform}.items():
        final = metrics["final"]
        curve = {name: [100 * value for value in final["precision_recall"][name]] for name in ("recall", "precision")}
        counts, late = np.asarray(final["confusion"]), metrics["classes"].index("late")
        found, called = float(counts[late, late]), float(counts[:, late].sum())
        mark = (100 * found / counts[late].sum(), 100 * found / called) if called else None
        lines.append(charts.Curve(label=label, x=curve["recall"], y=curve["precision"], mark=mark))
    marks = {line.label: line.mark for line in lines if line.mark is not None}
    return charts.curves(
        lines,
        title="Flights: precision and recall of late flights",
        description="; ".join(
            f"{label} finds {found:.1f} % at a precision of {right:.1f} %" for label, (found, right) in marks.items()
        ),
        x_label="recall: late flights found, %",
        y_label="precision: late among those, %",
    )


def _flights_balance(dataset: BuiltDataset) -> str:
    names, stacks = [], []
    for split in dataset.balance:
        names += [f"{split.name} {number}" for number in range(len(split.shard_records))]
        stacks.append(split.shard_class_counts)
    counts = np.concatenate(stacks)
    order = np.argsort(-counts.sum(axis=0, dtype=np.int64))
    return charts.stacked_bars(
        {str(dataset.classes[c]): counts[:, c].tolist() for c in order},
        names,
        title="Flights: records of each class in each shard",
        description="; ".join(
            f"{dataset.classes[c]}: {counts[:, c].min():,} to {counts[:, c].max():,} per shard" for c in order
        ),
        y_label="records",
    )


def _digits_balance(dataset: BuiltDataset) -> str:
    counts = np.concatenate([split.shard_class_counts for split in dataset.balance]).T  # [classes, shards]
    columns = [f"{split.name[:2]}{n}" for split in dataset.balance for n in range(len(split.shard_records))]
    return charts.heatmap(
        counts,
        [str(name) for name in dataset.classes],
        columns,
        title="Digits: images of each class in each shard",
        description=f"Every class has {counts.min()} to {counts.max()} images in each shard.",
        x_label="shard (tr: train, te: test)",
        y_label="class",
        darkest=2.5 * float(counts.max()),
    )


def _stage_chart(name: str, datasets: Sequence[BuiltDataset]) -> str:
    parts: dict[str, dict[str, float]] = {}
    for dataset in datasets:
        profile = dataset.profile
        rates = {
            stage["name"]: profile["samples"] / stage["busy_seconds"]
            for stage in profile["stages"]
            if stage["name"] in _STAGES and stage["busy_seconds"] > 0
        }
        parts[dataset.shard_format] = rates | {"whole loader": profile["samples_per_second"]}
    described = "; ".join(f"{form}: {rates['whole loader']:,.0f} samples/s in all" for form, rates in parts.items())
    return charts.log_bars(
        parts,
        [*_STAGES, "whole loader"],
        title=f"{name.capitalize()}: throughput of each stage",
        description=described,
        x_label="samples per busy second (log scale)",
    )


def _loss_chart(name: str, runs: Mapping[str, Mapping[str, Any]]) -> str:
    losses = {label: _curve(label, metrics, "loss") for label, metrics in runs.items()}
    return charts.curves(
        list(losses.values()),
        title=f"{name.capitalize()}: training loss",
        description="; ".join(
            f"{label} from {loss.y[0]:.3f} at step {loss.x[0]:,} to {loss.y[-1]:.3f} at step {loss.x[-1]:,}"
            for label, loss in losses.items()
        ),
        x_label="step",
        y_label="cross entropy",
    )


def _rate_chart(name: str, metrics: Mapping[str, Any]) -> str:
    curve = _curve("learning rate", metrics, "learning_rate")
    return charts.curves(
        [curve],
        title=f"{name.capitalize()}: learning rate",
        description=f"Rises to {max(curve.y):.3g} in the warm-up, then falls along a cosine to {curve.y[-1]:.3g}.",
        x_label="step",
        y_label="learning rate (LARS)",
    )


def _speed_chart(name: str, runs: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [_curve(label, metrics, "samples_per_second") for label, metrics in runs.items()]
    return _step_chart(f"{name.capitalize()}: samples per second", lines, "samples/s, all ranks", "{:,.0f}")


def _wait_chart(name: str, runs: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [_curve(label, metrics, "input_wait_fraction", scale=100) for label, metrics in runs.items()]
    title = f"{name.capitalize()}: time spent waiting for input"
    return _step_chart(title, lines, "input wait, % of the time", "{:.1f} %")


def _step_chart(title: str, lines: Sequence[charts.Curve], y_label: str, shown: str) -> str:
    return charts.curves(
        lines,
        title=title,
        description="; ".join(f"{line.label}: median {shown.format(np.median(line.y))}" for line in lines),
        x_label="step",
        y_label=y_label,
        starts_at_zero=True,
    )


def _confusion_chart(metrics: Mapping[str, Any]) -> str:
    final = metrics["final"]
    return charts.heatmap(
        np.asarray(final["confusion"]),
        metrics["classes"],
        metrics["classes"],
        title="Digits: confusion matrix of the test split",
        description=f"{final['accuracy']:.2%} of {final['samples']} images lie on the diagonal.",
        x_label="predicted class",
        y_label="true class",
        is_confusion=True,
    )


def _curve(label: str, metrics: Mapping[str, Any], key: str, *, scale: float = 1) -> charts.Curve:
    steps = [entry for entry in metrics["history"]["steps"] if entry[key] is not None]
    return charts.Curve(label=label, x=[entry["step"] for entry in steps], y=[scale * entry[key] for entry in steps])

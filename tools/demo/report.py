"""The demo's page: balance, throughput, training and results in one self-contained HTML file.

Pure: results in, text out. `run` measures, `charts.drawing` draws, and `templates/report.html` has layout and colours.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeAlias

import jinja2
import numpy as np
from markupsafe import Markup

from ringfeed.tools.charts.drawing import Drawing, counts, curves, groups, short, stack
from ringfeed.tools.console import human_bytes, human_seconds
from ringfeed.tools.shard_dataset.balance_report import SplitBalance

from .samples import SampleImage

_STAGES = ("fetch", "verify", "open", "plan", "gather")
_METRICS_SHOWN = 4  # decimals
_OF_LATE = ("recall", "precision")
_Line: TypeAlias = tuple[list[float], list[float]]


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
    runs = {"flights": {"natural": result.natural, "uniform": result.uniform}, "digits": {"digits": result.digits}}
    drawn = {
        "results": _results_chart(result),
        "precision_recall": _precision_chart(result),
        "flights_balance": _flights_balance(flights[0]),
        "digits_balance": _digits_balance(digits[0]),
        "flights_stages": _stage_chart("flights", flights),
        "digits_stages": _stage_chart("digits", digits),
        "flights_rate": _rate_chart("flights", result.uniform),
        "digits_rate": _rate_chart("digits", result.digits),
        "confusion": _confusion_chart(result.digits),
    }
    for name, of_dataset in runs.items():
        drawn[f"{name}_loss"] = _loss_chart(name, of_dataset)
        drawn[f"{name}_speed"] = _speed_chart(name, of_dataset)
        drawn[f"{name}_wait"] = _wait_chart(name, of_dataset)
    return template.render(
        result=result,
        rows=compare_runs(result.natural["final"], result.uniform["final"]),
        late_flights=_late_flights(result.natural["final"], result.uniform["final"]),
        spread=_largest_spread(result.datasets),
        wrong=_errors(result.digits["final"]),
        charts={name: Markup(svg) for name, svg in drawn.items()},
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
    counted = [np.asarray(final["confusion"]) for final in (natural, uniform)]
    return {
        "late": int(counted[0][late].sum()),
        "natural_found": int(counted[0][late, late]),
        "uniform_found": int(counted[1][late, late]),
        "natural_false": int(counted[0][1 - late, late]),
        "uniform_false": int(counted[1][1 - late, late]),
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
    drawing = Drawing(0.62 * len(rows) + 0.75, in_page=True)
    parts = {
        "natural": {row.metric: 100 * row.natural for row in rows},
        "uniform": {row.metric: 100 * row.uniform for row in rows},
    }
    groups(drawing.axes, parts, lambda value: f"{value:.1f} %")
    drawing.axes.set_xlim(0, 114)
    drawing.legend()
    plot = drawing.finish("Flights: results on the test split", "percent", "")
    return plot.themed(f"Natural and uniform: {described}.")


def _precision_chart(result: DemoResult) -> str:
    """Draw precision over recall of late flights, with a mark at the probability of a half, by which a run decides."""
    lines, marks = {}, {}
    for label, metrics in {"natural": result.natural, "uniform": result.uniform}.items():
        final = metrics["final"]
        recall, precision = ([100 * value for value in final["precision_recall"][name]] for name in _OF_LATE)
        lines[label] = recall, precision
        counted, late = np.asarray(final["confusion"]), metrics["classes"].index("late")
        found, called = float(counted[late, late]), float(counted[:, late].sum())
        if called:
            marks[label] = 100 * found / counted[late].sum(), 100 * found / called
    plot = curves(
        lines, "Flights: precision and recall of late flights", "recall: late flights found, %",
        "precision: late among those, %", marks=marks, in_page=True,
    )  # fmt: skip
    return plot.themed(
        "; ".join(
            f"{label} finds {found:.1f} % at a precision of {right:.1f} %" for label, (found, right) in marks.items()
        )
    )


def _flights_balance(dataset: BuiltDataset) -> str:
    names = [f"{split.name} {number}" for split in dataset.balance for number in range(len(split.shard_records))]
    records = np.concatenate([split.shard_class_counts for split in dataset.balance])  # [shards, classes]
    order = np.argsort(-records.sum(axis=0, dtype=np.int64))
    drawing = Drawing(2.9, in_page=True)
    stack(drawing.axes, [str(dataset.classes[c]) for c in order], records[:, order])
    drawing.axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 6 else 0)
    drawing.axes.yaxis.set_major_formatter("{x:,.0f}")
    drawing.legend()
    return drawing.finish("Flights: records of each class in each shard", "", "records").themed(
        "; ".join(f"{dataset.classes[c]}: {records[:, c].min():,} to {records[:, c].max():,} per shard" for c in order)
    )


def _digits_balance(dataset: BuiltDataset) -> str:
    images = np.concatenate([split.shard_class_counts for split in dataset.balance]).T  # [classes, shards]
    columns = [f"{split.name[:2]}{n}" for split in dataset.balance for n in range(len(split.shard_records))]
    plot = counts(
        images, [str(name) for name in dataset.classes], columns, "Digits: images of each class in each shard",
        "shard (tr: train, te: test)", "class", darkest=2.5 * float(images.max()),
    )  # fmt: skip
    return plot.themed(f"Every class has {images.min()} to {images.max()} images in each shard.")


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
    drawing = Drawing(0.5 * (len(_STAGES) + 1) + 1, in_page=True)
    groups(drawing.axes, parts, short)
    shown = [rate for rates in parts.values() for rate in rates.values()]
    drawing.axes.set_xscale("log")
    drawing.axes.set_xlim(min(shown) / 3, max(shown) * 12)  # room for the texts
    drawing.legend()
    plot = drawing.finish(f"{name.capitalize()}: throughput of each stage", "samples per busy second (log scale)", "")
    return plot.themed(
        "; ".join(f"{form}: {rates['whole loader']:,.0f} samples/s in all" for form, rates in parts.items())
    )


def _loss_chart(name: str, runs: Mapping[str, Mapping[str, Any]]) -> str:
    lines = {label: _curve(metrics, "loss") for label, metrics in runs.items()}
    plot = curves(lines, f"{name.capitalize()}: training loss", "step", "cross entropy", in_page=True)
    return plot.themed(
        "; ".join(
            f"{label} from {losses[0]:.3f} at step {steps[0]:,} to {losses[-1]:.3f} at step {steps[-1]:,}"
            for label, (steps, losses) in lines.items()
        )
    )


def _rate_chart(name: str, metrics: Mapping[str, Any]) -> str:
    steps, rates = _curve(metrics, "learning_rate")
    title = f"{name.capitalize()}: learning rate"
    plot = curves({"learning rate": (steps, rates)}, title, "step", "learning rate (LARS)", in_page=True)
    return plot.themed(f"Rises to {max(rates):.3g} in the warm-up, then falls along a cosine to {rates[-1]:.3g}.")


def _speed_chart(name: str, runs: Mapping[str, Mapping[str, Any]]) -> str:
    lines = {label: _curve(metrics, "samples_per_second") for label, metrics in runs.items()}
    return _step_chart(f"{name.capitalize()}: samples per second", lines, "samples/s, all ranks", "{:,.0f}")


def _wait_chart(name: str, runs: Mapping[str, Mapping[str, Any]]) -> str:
    lines = {label: _curve(metrics, "input_wait_fraction", scale=100) for label, metrics in runs.items()}
    title = f"{name.capitalize()}: time spent waiting for input"
    return _step_chart(title, lines, "input wait, % of the time", "{:.1f} %")


def _step_chart(title: str, lines: Mapping[str, _Line], y_label: str, shown: str) -> str:
    plot = curves(lines, title, "step", y_label, from_zero=True, in_page=True)
    return plot.themed("; ".join(f"{label}: median {shown.format(np.median(y))}" for label, (_, y) in lines.items()))


def _confusion_chart(metrics: Mapping[str, Any]) -> str:
    final, classes = metrics["final"], metrics["classes"]
    plot = counts(
        np.asarray(final["confusion"]), classes, classes, "Digits: confusion matrix of the test split",
        "predicted class", "true class", is_confusion=True,
    )  # fmt: skip
    return plot.themed(f"{final['accuracy']:.2%} of {final['samples']} images lie on the diagonal.")


def _curve(metrics: Mapping[str, Any], key: str, *, scale: float = 1) -> _Line:
    steps = [entry for entry in metrics["history"]["steps"] if entry[key] is not None]
    return [entry["step"] for entry in steps], [scale * entry[key] for entry in steps]

"""Plots that compare: orders batch by batch, rates by an option, predictions with measurements.

Tested in tests/tools/report/test_plots.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ringfeed.pipeline import Loader
from ringfeed.sharding.errors import ConfigError
from ringfeed.tools.charts.drawing import COLOURS, HATCHES, Drawing, Plot

from .profile_result import Profile

__all__ = ["plot_batches", "plot_predictions", "plot_rates"]

_MOST_CLASSES = 8  # of different colours; the rest is drawn together


def plot_batches(loaders: Mapping[str, Loader], batches: int = 30) -> Plot:
    """The classes in each of the first batches, of several loaders side by side.

    Args:
        loaders: loaders of one dataset, by their names.
        batches: the most batches to draw of each.

    Raises:
        ConfigError: the dataset has no classes.
    """
    drawing = Drawing(2.9, len(loaders))
    spreads = []
    for axes, (name, loader) in zip(drawing.panels, loaders.items(), strict=True):
        mix = loader.plan().class_mix
        if not mix:
            raise ConfigError("plot_batches needs a dataset with a label")
        records = np.array([mix[value].records if value in mix else 0 for value in loader.manifest.classes])
        order = np.argsort(-records, kind="stable")
        shares = _class_shares(loader, batches)[:, order]
        below = np.zeros(len(shares))
        for i, (label, heights) in enumerate(_grouped([str(loader.manifest.classes[k]) for k in order], shares)):
            axes.bar(
                range(len(shares)), heights, 0.9, bottom=below, color=COLOURS[i], hatch=HATCHES[i],
                label=label if axes is drawing.axes else None,
            )  # fmt: skip
            below += heights
        axes.set_title(name, fontsize=10, loc="left")
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        rare = shares[:, np.flatnonzero(records[order])[-1]]
        spreads.append(f"{rare.min():.1%} to {rare.max():.1%} {name}")
    drawing.legend()
    rarest = str(loader.manifest.classes[order[np.flatnonzero(records[order])[-1]]])
    return drawing.finish(f"Classes of each batch. The rarest, {rarest!r}: {', '.join(spreads)}", "batch", "share")


def _class_shares(loader: Loader, batches: int) -> Any:
    """Shares of the classes in the first batches, float64 [batches, classes]."""
    classes = len(loader.manifest.classes)
    rows = [
        np.bincount(batch["class_id"], minlength=classes) / len(batch["class_id"])
        for _, batch in zip(range(batches), loader.numpy_epoch(0), strict=False)
    ]
    return np.array(rows)


def _grouped(names: list[str], shares: Any) -> list[tuple[str, Any]]:
    """Name and shares of each class, the last of many together."""
    if len(names) <= _MOST_CLASSES:
        return list(zip(names, shares.T, strict=True))
    kept = _MOST_CLASSES - 1
    rest = (f"{len(names) - kept} other classes", shares[:, kept:].sum(1))
    return [*zip(names[:kept], shares[:, :kept].T, strict=True), rest]


def plot_rates(results: Mapping[Any, Profile], what: str) -> Plot:
    """The rates of an epoch and after its first batch, by some option or state of the loader.

    Args:
        results: profiles by the option's value.
        what: the option.
    """
    epochs = {name: result.epoch_samples_per_second for name, result in results.items()}
    steady = {name: result.samples_per_second for name, result in results.items()}
    best = max(epochs, key=epochs.__getitem__)
    title = f"By {what}: {best} is the fastest, {epochs[best] / min(epochs.values()):.2f} x the slowest"
    return _side_by_side({"whole epoch": epochs, "after the first batch": steady}, title, what)


def plot_predictions(predicted: Mapping[Any, float], measured: Mapping[Any, float], what: str) -> Plot:
    """Rates as predicted and as measured, by some option or state of the loader.

    Args:
        predicted: samples a second by the option's value.
        measured: the same, of the same values.
        what: the option.
    """
    errors = {name: predicted[name] / measured[name] - 1 for name in measured}
    worst = max(errors.values(), key=abs)
    best, found = (max(rates, key=rates.__getitem__) for rates in (predicted, measured))
    agreed = f"{best} is the fastest, as measured" if best == found else f"{best} is the fastest, measured {found}"
    title = f"Predicted by {what}: {agreed}; the largest error is {worst:+.0%}"
    return _side_by_side({"predicted": predicted, "measured": measured}, title, what)


def _side_by_side(series: Mapping[str, Mapping[Any, float]], title: str, what: str) -> Plot:
    """Draw bars of several series beside each other for each value of an option."""
    names = list(next(iter(series.values())))
    drawing = Drawing()
    width = 0.8 / len(series)
    for i, (label, rates) in enumerate(series.items()):
        places = np.arange(len(names)) + (i - (len(series) - 1) / 2) * width
        bars = drawing.axes.bar(
            places, [rates[name] for name in names], width * 0.95, label=label, color=COLOURS[i], hatch=HATCHES[i]
        )
        drawing.axes.bar_label(bars, [_short(rates[name]) for name in names], padding=2, fontsize=9)
    drawing.axes.set_xticks(range(len(names)), [str(name) for name in names])
    drawing.axes.margins(y=0.15)
    drawing.axes.yaxis.set_major_formatter(lambda value, _: _short(value))
    drawing.legend()
    return drawing.finish(title, what, "samples a second")


def _short(rate: float) -> str:
    """A rate in two or three digits.

    >>> [_short(rate) for rate in (0.0, 7.31, 999.6, 1234.0, 2_500_000.0)]
    ['0', '7.3', '1000', '1.23k', '2.5M']
    """
    if rate < 10:
        return f"{rate:.2g}"
    if rate < 1000:
        return f"{rate:.0f}"
    power = min(int(math.log10(rate)) // 3, 3)
    return f"{rate / 1000**power:.3g}{'kMG'[power - 1]}"

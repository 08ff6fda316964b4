"""Plots that compare: orders batch by batch, rates by an option or by ranks, predictions with measurements.

Tested in tests/tools/report/test_plots.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ringfeed.pipeline import Loader
from ringfeed.sharding.errors import ConfigError
from ringfeed.tools.charts.drawing import Drawing, Plot, curves, groups, short, stack
from ringfeed.tools.measure.estimates import Estimate, exactly
from ringfeed.tools.predict.simulation import Simulation

from .profile_result import Profile


def plot_batches(loaders: Mapping[str, Loader], batches: int = 30) -> Plot:
    """The classes in each of the first batches, of several loaders side by side.

    Args:
        loaders: loaders of one dataset, by their names.
        batches: the most batches to draw of each.

    Raises:
        ConfigError: the dataset has no classes.
    """
    drawing = Drawing(2.9, len(loaders))
    spreads, rarest = [], ""
    for axes, (name, loader) in zip(drawing.panels, loaders.items(), strict=True):
        mix, classes = loader.plan().class_mix, loader.manifest.classes
        if not mix:
            raise ConfigError("plot_batches needs a dataset with a label")
        records = np.array([mix[value].records if value in mix else 0 for value in classes])
        order = np.argsort(-records, kind="stable")
        shares = np.array(
            [
                np.bincount(batch["class_id"], minlength=len(classes))[order] / len(batch["class_id"])
                for _, batch in zip(range(batches), loader.numpy_epoch(0), strict=False)
            ]
        )
        stack(axes, [str(classes[k]) for k in order], shares, width=0.9, labelled=axes is drawing.axes)
        axes.set_title(name, fontsize=10, loc="left")
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        last = np.flatnonzero(records[order])[-1]
        rare, rarest = shares[:, last], str(classes[order[last]])
        spreads.append(f"{rare.min():.1%} to {rare.max():.1%} {name}")
    drawing.legend()
    return drawing.finish(f"Classes of each batch. The rarest, {rarest!r}: {', '.join(spreads)}", "batch", "share")


def plot_rates(results: Mapping[Any, Profile], what: str) -> Plot:
    """The rates of an epoch and after its first batch, by some option or state of the loader.

    Args:
        results: profiles by the option's value.
        what: the option.
    """
    rates = {name: result.epoch_rate for name, result in results.items()}
    steady = {name: result.steady_rate for name, result in results.items()}
    title = f"By {what}: {_fastest(rates)}"
    return _side_by_side({"whole epoch": rates, "after the first batch": steady}, title, what)


def _fastest(rates: Mapping[Any, Estimate]) -> str:
    """What is the fastest, if it is faster than all others beyond the spread of the measurements."""
    best, *others = sorted(rates, key=lambda name: -rates[name].value)
    if any(rates[name].high >= rates[best].low for name in others):
        return "no difference beyond the spread of the measurements"
    return f"{best} is the fastest, {rates[best].value / min(rate.value for rate in rates.values()):.2f} x the slowest"


def plot_predictions(predicted: Mapping[Any, float], measured: Mapping[Any, Estimate], what: str) -> Plot:
    """Rates as predicted and as measured, by some option or state of the loader.

    Args:
        predicted: samples a second by the option's value.
        measured: the same, of the same values, with their intervals.
        what: the option.
    """
    errors = {name: predicted[name] / measured[name].value - 1 for name in measured}
    worst = max(errors.values(), key=abs)
    title = f"Predicted by {what}: the largest error is {worst:+.0%}; measured: {_fastest(measured)}"
    series = {"predicted": {name: exactly(rate) for name, rate in predicted.items()}, "measured": measured}
    return _side_by_side(series, title, what)


def plot_scaling(simulations: Sequence[Simulation]) -> Plot:
    """Draw the rate by the number of ranks, beside ranks that cost nothing."""
    ranks = [float(each.setup.ranks) for each in simulations]
    rates = [each.samples_per_second for each in simulations]
    ideal = [rates[0] / ranks[0] * n for n in ranks]
    last, times = rates[-1] / ideal[-1], ranks[-1] / ranks[0]
    title = f"Predicted: {ranks[-1]:,.0f} ranks reach {last:.0%} of {times:,.3g} times the rate of {ranks[0]:,.0f}"
    lines: dict[str, tuple[Sequence[float], Sequence[float]]] = {"simulated": (ranks, rates), "ideal": (ranks, ideal)}
    return curves(lines, title, "ranks", "samples/s")


def _side_by_side(series: Mapping[str, Mapping[Any, Estimate]], title: str, what: str) -> Plot:
    """Draw bars of several series beside each other for each value of an option, with their intervals."""
    drawing = Drawing(0.25 * sum(map(len, series.values())) + 1.2)
    groups(
        drawing.axes,
        {label: {name: rate.value for name, rate in rates.items()} for label, rates in series.items()},
        short,
        {label: {name: (rate.low, rate.high) for name, rate in rates.items()} for label, rates in series.items()},
    )
    drawing.axes.xaxis.set_major_formatter(lambda value, _: short(value))
    drawing.legend()
    return drawing.finish(title, "samples a second", what)

"""Plots of simulations: where an epoch's time goes, and how the rate grows with the ranks. They need matplotlib.

Tested in tests/tools/simulation/test_measure.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringfeed.tools.profile.drawing import Drawing, Plot, curves, draw_bars

from .result import Simulation

__all__ = ["plot_epochs", "plot_scaling"]


def plot_epochs(simulation: Simulation) -> Plot:
    """Draw how long each epoch takes, and how much of that the first batch and later waits are."""
    values: dict[str, float] = {}
    for number, epoch in enumerate(simulation.epochs):
        name = f"epoch {number}: " if len(simulation.epochs) > 1 else ""
        waited = max(epoch.wait_seconds)
        values[f"{name}first batch"] = epoch.first_batch_seconds
        values[f"{name}later waits"] = max(waited - epoch.first_batch_seconds, 0.0)
        values[f"{name}steps"] = max(epoch.seconds - max(waited, epoch.first_batch_seconds), 0.0)
    drawing = Drawing(0.36 * len(values) + 1)
    draw_bars(drawing, values, [f"{value:,.3g} s" for value in values.values()], max(values, key=lambda k: values[k]))
    share = max(epoch.input_share for epoch in simulation.epochs)
    title = f"Predicted: {simulation.samples_per_second:,.0f} samples/s; up to {share:.0%} of an epoch is input wait"
    return drawing.finish(title, "seconds", "")


def plot_scaling(simulations: Sequence[Simulation]) -> Plot:
    """Draw the rate by the number of ranks, beside ranks that cost nothing."""
    ranks = [float(each.setup.ranks) for each in simulations]
    rates = [each.samples_per_second for each in simulations]
    ideal = [rates[0] / ranks[0] * n for n in ranks]
    last, times = rates[-1] / ideal[-1], ranks[-1] / ranks[0]
    title = f"Predicted: {ranks[-1]:,.0f} ranks reach {last:.0%} of {times:,.3g} times the rate of {ranks[0]:,.0f}"
    lines: dict[str, tuple[Sequence[float], Sequence[float]]] = {"simulated": (ranks, rates), "ideal": (ranks, ideal)}
    return curves(lines, title, "ranks", "samples/s")

"""Plots of simulations: where an epoch's time goes, and how the rate grows with the ranks. They need matplotlib.

Tested in tests/tools/measure/test_cost_trials.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringfeed.tools.charts.drawing import Plot, curves
from ringfeed.tools.predict.simulation import Simulation

__all__ = ["plot_epochs", "plot_scaling"]


def plot_epochs(simulation: Simulation) -> Plot:
    """Draw how long each epoch takes, and how much of that the first batch and later waits are."""
    return simulation.chart.draw()


def plot_scaling(simulations: Sequence[Simulation]) -> Plot:
    """Draw the rate by the number of ranks, beside ranks that cost nothing."""
    ranks = [float(each.setup.ranks) for each in simulations]
    rates = [each.samples_per_second for each in simulations]
    ideal = [rates[0] / ranks[0] * n for n in ranks]
    last, times = rates[-1] / ideal[-1], ranks[-1] / ranks[0]
    title = f"Predicted: {ranks[-1]:,.0f} ranks reach {last:.0%} of {times:,.3g} times the rate of {ranks[0]:,.0f}"
    lines: dict[str, tuple[Sequence[float], Sequence[float]]] = {"simulated": (ranks, rates), "ideal": (ranks, ideal)}
    return curves(lines, title, "ranks", "samples/s")

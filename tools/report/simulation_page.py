"""Simulations as one HTML page that needs no other file; needs matplotlib.

Tested in tests/tools/measure/test_cost_trials.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ringfeed.pipeline.order.plan_table import html_table
from ringfeed.sharding.url_secrets import public_url
from ringfeed.tools.charts.html_page import write_html
from ringfeed.tools.predict.simulation import Simulation, advice_on, table_of

from .simulation_plots import plot_epochs, plot_scaling

__all__ = ["write_page"]


def write_page(simulations: Sequence[Simulation], url: str, path: str) -> None:
    """Write simulations of a dataset as a page, at a path or URL: a table, where the time goes, and the scaling curve.

    Raises:
        StorageError: the page cannot be written.
    """
    drawn = [plot_epochs(each) for each in simulations]
    if len(simulations) > 1:
        drawn.insert(0, plot_scaling(simulations))
    lines = "".join(f"<p>{escape(line)}</p>" for line in advice_on(simulations))
    body = f"{html_table(*table_of(simulations))}\n{lines}"
    write_html(path, f"Simulation of {public_url(url)}", body, drawn)

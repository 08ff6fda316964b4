"""Simulations as one HTML page that needs no other file; needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ...pipeline.order.plan_table import html_table
from ...sharding.url_secrets import public_url
from ...training.loop.outputs import write_file
from .plots import plot_epochs, plot_scaling
from .result import Simulation, advice_on, table_of

__all__ = ["write_page"]

_STYLE = """\
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; }
th, td { padding: .15rem .6rem; text-align: right; white-space: nowrap; }
svg { max-width: 100%; height: auto; }
"""


def write_page(simulations: Sequence[Simulation], url: str, path: str) -> None:
    """Write simulations of a dataset as a page, at a path or URL: a table, where the time goes, and the scaling curve.

    Raises:
        StorageError: the page cannot be written.
    """
    drawn = [plot_epochs(each) for each in simulations]
    if len(simulations) > 1:
        drawn.insert(0, plot_scaling(simulations))
    figures = "\n".join(f"<figure>{plot.svg[plot.svg.index('<svg') :]}</figure>" for plot in drawn)
    name = f"Simulation of {escape(public_url(url))}"
    lines = "".join(f"<p>{escape(line)}</p>" for line in advice_on(simulations))
    page = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{name}</title>\n<style>{_STYLE}</style>\n'
        f"<h1>{name}</h1>\n{html_table(*table_of(simulations))}\n{lines}\n{figures}\n</html>\n"
    )
    write_file(path, page.encode())

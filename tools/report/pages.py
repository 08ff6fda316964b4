"""Results as HTML pages that need no other file; they need matplotlib.

Tested in tests/tools/report/test_plots.py and tests/tools/measure/test_loader_costs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from html import escape

from ringfeed.pipeline.order.plan_table import html_table
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.url_secrets import public_url
from ringfeed.tools.charts.drawing import Plot
from ringfeed.tools.measure.run_records import RunRecords
from ringfeed.tools.predict.simulation import Simulation, advice_on, table_of
from ringfeed.training.run.state.outputs import write_file

from . import plots
from .comparisons import plot_scaling
from .profile_result import Profile
from .run_plots import plot_rank_lateness, plot_rank_waits, plot_step_parts
from .run_result import RunProfile

_STYLE = """\
body { font: 15px/1.45 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; color: #222;
       background: #fff; }
h1 { font-size: 1.4rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .15rem .8rem .15rem 0; text-align: right; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 1px solid #bbb; }
svg { max-width: 100%; height: auto; }
"""


def write_page(result: Profile, path: str) -> None:
    """Write a profile as a page, at a path or URL: its verdict, its tables, and a plot of each thing that was measured.

    Raises:
        StorageError: the page cannot be written.
    """
    drawn = [result.chart.draw()]
    for plot in (
        plots.plot_training, plots.plot_tried, plots.plot_epoch, plots.plot_stages, plots.plot_queues,
        plots.plot_store, plots.plot_latencies,
    ):  # fmt: skip
        with suppress(ConfigError):  # it was not measured
            drawn.append(plot(result))
    _write(path, f"Profile of {result.url}", result.html(), drawn)


def write_run_page(result: RunProfile, records: RunRecords, path: str) -> None:
    """Write the profile of a run as a page, at a path or URL.

    Raises:
        StorageError: the page cannot be written.
    """
    drawn = [plot(records) for plot in (plot_rank_waits, plot_rank_lateness, plot_step_parts)]
    _write(path, f"Run in {records.folder}", result.html(), drawn)


def write_simulation_page(simulations: Sequence[Simulation], url: str, path: str) -> None:
    """Write simulations of a dataset as a page, at a path or URL: a table, where the time goes, and the scaling curve.

    Raises:
        StorageError: the page cannot be written.
    """
    drawn = [plot_scaling(simulations)] if len(simulations) > 1 else []
    drawn += [each.chart.draw() for each in simulations]
    lines = "".join(f"<p>{escape(line)}</p>" for line in advice_on(simulations))
    _write(path, f"Simulation of {public_url(url)}", f"{html_table(*table_of(simulations))}\n{lines}", drawn)


def _write(url: str, title: str, body: str, drawn: Sequence[Plot]) -> None:
    """Write a page of a heading, HTML, and plots."""
    figures = "\n".join(f"<figure>{plot.element}</figure>" for plot in drawn)
    name = escape(title)
    page = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{name}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{name}</h1>\n{body}\n{figures}\n</html>\n"
    )
    write_file(url, page.encode())

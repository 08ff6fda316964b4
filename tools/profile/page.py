"""A profile as one HTML page that needs no other file; needs matplotlib."""

from __future__ import annotations

from html import escape

from ...training.loop.outputs import write_file
from . import plots
from .result import Profile

__all__ = ["write_page"]

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
    drawn = [plots.plot_waterfall(result)]
    if result.training is not None:
        drawn.append(plots.plot_training(result))
    if result.verdict.knob is not None:
        drawn.append(plots.plot_tried(result))
    drawn += [plots.plot_epoch(result), plots.plot_stages(result)]
    if result.queue_depths:
        drawn.append(plots.plot_queues(result))
    if result.parts.store is not None:
        drawn += [plots.plot_store(result), plots.plot_latencies(result)]
    figures = "\n".join(f"<figure>{plot.svg[plot.svg.index('<svg') :]}</figure>" for plot in drawn)
    name = escape(result.url)
    page = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Profile of {name}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>Profile of {name}</h1>\n{result._repr_html_()}\n{figures}\n</html>\n"
    )
    write_file(path, page.encode())

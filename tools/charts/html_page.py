"""One HTML page of text, tables and plots that needs no other file; needs matplotlib.

Tested in tests/tools/report/test_plots.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ringfeed.training.run.state.outputs import write_file

from .drawing import Plot

__all__ = ["write_html"]

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


def write_html(url: str, title: str, body: str, drawn: Sequence[Plot]) -> None:
    """Write a page at a path or URL.

    Args:
        url: where to.
        title: its heading, as text.
        body: what stands above the plots, as HTML.
        drawn: the plots.

    Raises:
        StorageError: the page cannot be written.
    """
    figures = "\n".join(f"<figure>{plot.svg[plot.svg.index('<svg') :]}</figure>" for plot in drawn)
    name = escape(title)
    page = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{name}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{name}</h1>\n{body}\n{figures}\n</html>\n"
    )
    write_file(url, page.encode())

"""The report's charts: SVG elements, drawn by matplotlib, to put inside an HTML page.

A chart's colours are CSS variables of the page, so they follow its light or dark scheme; its text stays text; and a
title and a description describe it to those who cannot see it. Sizes suit a column of about 440 pixels. The palette is
Okabe's and Ito's, which colour-blind readers can tell apart; series also differ in line style or hatching.
Tested in tests/tools/demo/test_report.py.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

# Placeholder colours that matplotlib can draw with -> CSS variables of the page.
_COLOURS = {
    "#010203": "var(--ink)", "#020304": "var(--muted)", "#030405": "var(--line)",
    "#040506": "var(--series-1)", "#050607": "var(--series-2)", "#060708": "var(--page)",
}  # fmt: skip
_INK, _MUTED, _LINE, _FIRST, _SECOND, _PAGE = _COLOURS
_SERIES = (_FIRST, _SECOND)
_STYLES = ("-", (0, (4, 1.5)))
_HATCHES = (None, "////")
_WIDTH_INCHES = 4.8
# Opacity of the lightest and the darkest cell of a heat map: the page's ink stays readable on both, in either scheme
# (contrast 4.4 at least).
_LIGHTEST, _DARKEST = 0.1, 0.55

_SETTINGS: Any = {
    "svg.fonttype": "none", "font.size": 9.5, "axes.titlesize": 10.5, "axes.edgecolor": _LINE, "axes.linewidth": 0.8,
    "axes.labelcolor": _MUTED, "xtick.color": _LINE, "ytick.color": _LINE, "xtick.labelcolor": _MUTED,
    "ytick.labelcolor": _MUTED, "text.color": _INK, "axes.spines.top": False, "axes.spines.right": False,
    "grid.color": _LINE, "grid.linewidth": 0.6, "legend.frameon": False, "legend.fontsize": 9.5,
    "hatch.color": _PAGE, "hatch.linewidth": 0.7,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line of a chart: its label and points, and a point to mark."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    mark: tuple[float, float] | None = None


def curves(
    lines: Sequence[Curve], *, title: str, description: str, x_label: str, y_label: str, starts_at_zero: bool = False
) -> str:
    """Draw lines over a common axis, such as losses over steps."""
    with _drawing(title, description, height_inches=2.7) as (axes, result):
        for index, line in enumerate(lines):
            axes.plot(line.x, line.y, color=_SERIES[index], linestyle=_STYLES[index], linewidth=1.8, label=line.label)
            if line.mark is not None:
                axes.plot(*line.mark, marker="o", markersize=8, color=_SERIES[index], markeredgecolor=_PAGE)
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.set_xlim(left=0)
        if starts_at_zero:
            axes.set_ylim(0, 1.12 * max(max(line.y) for line in lines))
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value == int(value) else f"{value:g}")
        axes.grid(axis="y")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        if len(lines) > 1:
            axes.legend(loc="best")
    return result[0]


def stacked_bars(
    parts: Mapping[str, Sequence[float]], names: Sequence[str], *, title: str, description: str, y_label: str
) -> str:
    """Draw one bar for each name, with the parts stacked from below."""
    with _drawing(title, description, height_inches=2.9) as (axes, result):
        below = np.zeros(len(names))
        for index, (label, values) in enumerate(parts.items()):
            axes.bar(
                range(len(names)), values, 0.78, bottom=below, label=label,
                color=_SERIES[index], hatch=_HATCHES[index], edgecolor=_PAGE, linewidth=0,
            )  # fmt: skip
            below += np.asarray(values, float)
        axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 6 else 0)
        axes.tick_params(axis="x", length=0)
        axes.set_ylabel(y_label)
        axes.set_ylim(0, below.max() * 1.22)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.legend(loc="upper center", ncols=2)
    return result[0]


def grouped_bars(
    parts: Mapping[str, Sequence[float]], names: Sequence[str], *, title: str, description: str, x_label: str
) -> str:
    """Draw fractions in [0, 1]: for each name a bar of each part, labelled in percent."""
    with _drawing(title, description, height_inches=0.62 * len(names) + 0.75) as (axes, result):
        by_name = {label: dict(zip(names, values, strict=True)) for label, values in parts.items()}
        _draw_groups(axes, by_name, names, lambda value: f"{100 * value:.1f} %")
        axes.set_xlim(0, 1.14)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
        axes.set_xlabel(x_label)
        axes.legend(loc="lower center", bbox_to_anchor=(0.45, 1), ncols=2)
    return result[0]


def log_bars(
    parts: Mapping[str, Mapping[str, float]], names: Sequence[str], *, title: str, description: str, x_label: str
) -> str:
    """Draw rates on a logarithmic axis: for each name a bar of each part that has a rate for it."""
    with _drawing(title, description, height_inches=0.5 * len(names) + 1.0) as (axes, result):
        rates = [value for values in parts.values() for value in values.values()]
        axes.set_xscale("log")
        axes.set_xlim(10 ** np.floor(np.log10(min(rates) / 3)), max(rates) * 12)
        _draw_groups(axes, parts, names, _short)
        axes.tick_params(axis="x", which="minor", length=0)
        axes.xaxis.set_major_formatter(lambda value, _: _short(value))
        axes.set_xlabel(x_label)
        axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=2)
    return result[0]


def _draw_groups(
    axes: Axes, parts: Mapping[str, Mapping[str, float]], names: Sequence[str], text: Callable[[float], str]
) -> None:
    """Draw for each name, from top to bottom, the horizontal bars of the parts, with their values as text."""
    for index, (label, values) in enumerate(parts.items()):
        shown = [name for name in names if name in values]
        places = np.array([names.index(name) for name in shown]) + (index - 0.5) * 0.36
        bars = axes.barh(
            places, [values[name] for name in shown], 0.33, color=_SERIES[index], hatch=_HATCHES[index],
            edgecolor=_PAGE, linewidth=0, label=label,
        )  # fmt: skip
        axes.bar_label(bars, [text(values[name]) for name in shown], padding=3)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0, labelcolor=_INK)


def heatmap(
    cells: npt.NDArray[Any], rows: Sequence[str], columns: Sequence[str], *,
    title: str, description: str, x_label: str, y_label: str, darkest: float | None = None, is_confusion: bool = False,
) -> str:  # fmt: skip
    """Draw counts as a table of shaded cells with numbers.

    Args:
        cells: [rows, columns], the counts.
        rows: names, from top to bottom.
        columns: names, from left to right.
        title: of the chart.
        description: what it shows, in words.
        x_label: of the columns.
        y_label: of the rows.
        darkest: the count of the darkest shade; None: the largest.
        is_confusion: cells off the diagonal are errors, which have a colour of their own, and their own darkest count.
    """
    rows_of, columns_of = np.indices(cells.shape)
    errors = is_confusion & (rows_of != columns_of)
    tops = [max(float(cells[errors == part].max(initial=0)), 1.0) for part in (False, True)]
    if darkest:
        tops[0] = darkest
    with _drawing(title, description, height_inches=0.27 * len(rows) + 0.75) as (axes, result):
        for (row, column), value in np.ndenumerate(cells):
            kind = int(errors[row, column])
            opacity = _LIGHTEST + (_DARKEST - _LIGHTEST) * float(value) / tops[kind] if value else 0.0
            fill = to_rgba(_SERIES[kind], opacity)
            axes.add_patch(mpl.patches.Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=fill, edgecolor=_PAGE))
            ink = _INK if value else _MUTED
            axes.text(column, row, f"{value:,}", ha="center", va="center", color=ink, fontsize=9)
        axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5), xlabel=x_label, ylabel=y_label)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return result[0]


@contextmanager
def _drawing(title: str, description: str, *, height_inches: float) -> Iterator[tuple[Axes, list[str]]]:
    """Yield axes to draw on, and a list that holds the chart once the body has ended."""
    result: list[str] = []
    settings = _SETTINGS | {"svg.hashsalt": title + description}  # two charts on one page need different ids
    with mpl.rc_context(settings):
        figure = Figure(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        axes.set_axisbelow(True)
        yield axes, result
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    result.append(_for_page(file.getvalue(), title, description))


def _for_page(svg: str, title: str, description: str) -> str:
    """Reduce an SVG file to its `<svg>` element, with the page's colours and font, a title and a description.

    >>> _for_page('<?xml?><svg xmlns="x" width="9pt" height="9pt" viewBox="0 0 9 9"><g id="a"/></svg>', "T", "D & d")
    '<svg viewBox="0 0 9 9" role="img" aria-label="T. D &amp; d"><title>T</title><desc>D &amp; d</desc><g/></svg>'
    """
    svg = svg[svg.index("<svg") :].strip()
    view = re.search(r'viewBox="[^"]*"', svg)
    opening = f'<svg {view.group() if view else ""} role="img" aria-label="{escape(f"{title}. {description}")}">'
    opening += f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"
    body = svg[svg.index(">") + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)  # ids such as axes_1, which would be the same in every chart
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.DOTALL)
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)  # would apply to the whole page
    body = body.replace("xlink:href", "href")
    for placeholder, colour in _COLOURS.items():
        body = body.replace(placeholder, colour)
    return opening + body


def _short(value: float) -> str:
    """Format a number with three digits and a unit prefix.

    >>> _short(549_075), _short(1_267_508), _short(6_923), _short(12), _short(999_700)
    ('549 k', '1.27 M', '6.92 k', '12', '1 M')
    """
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= 0.9995 * limit:  # rounds to the limit in three digits
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"

"""The style of all plots: a figure that a notebook shows as SVG, bars, curves, counts.

The palette is by Okabe and Ito: colour-blind readers can tell its colours apart; series also differ in hatching.
Tested in tests/tools/report/test_plots.py and tests/tools/demo/test_report.py.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from ringfeed.sharding.errors import ConfigError

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.colors import to_rgba
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ConfigError("plots need matplotlib; install it with: pip install 'ringfeed[report]'") from error

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442", "#999999")
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo")
MUTED = "#999999"
_INK, _PAPER, _LINE = "#000000", "#ffffff", "#dddddd"
_VARIABLES = {
    COLOURS[0]: "series-1", COLOURS[1]: "series-2", MUTED: "muted", _INK: "ink", _PAPER: "page", _LINE: "line",
}  # fmt: skip
_WIDTH_INCHES, _PAGE_WIDTH_INCHES = 7.2, 4.8
_MARKED_POINTS = 30  # a line of no more has its points marked
# Opacity of the lightest and the darkest cell of counts: a page's ink stays readable on both, in a light or dark scheme
# (contrast 4.4 at least).
_LIGHTEST, _DARKEST = 0.1, 0.55
_SETTINGS: Any = {
    "svg.fonttype": "none", "font.size": 10, "axes.titlesize": 11, "axes.titlelocation": "left", "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y",
    "grid.color": _LINE, "legend.frameon": False, "hatch.color": _PAPER, "figure.constrained_layout.use": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawn plot, which a notebook shows."""

    title: str
    svg: str

    def __repr__(self) -> str:
        return f"Plot: {self.title}"

    def _repr_svg_(self) -> str:
        return self.svg

    @property
    def element(self) -> str:
        """The element to put inside an HTML page, without what would apply to all of that."""
        svg = re.sub(r'<g id="[^"]*"', "<g", self.svg[self.svg.index("<svg") :])  # axes_1, as in every plot
        svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
        return svg.replace("xlink:href", "href")

    def themed(self, description: str) -> str:
        """The element for a page with a font and colours of its own, which are CSS variables.

        Args:
            description: what there is to see, for those who cannot.
        """
        svg = re.sub(r"font-family: [^;\"]*;? ?", "", self.element)
        for colour, variable in _VARIABLES.items():
            svg = svg.replace(colour, f"var(--{variable})")
        return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(f"{self.title}. {description}")}" ', 1)


class Drawing:
    """A figure with one pair of axes, or several of one height side by side, in the style of all plots.

    Args:
        height_inches: its height.
        columns: number of axes.
        in_page: whether it is for a narrow column of a page, which has its title.
    """

    def __init__(self, height_inches: float = 2.8, columns: int = 1, *, in_page: bool = False) -> None:
        self._in_page = in_page
        with rc_context(_SETTINGS):
            self._figure = Figure((_PAGE_WIDTH_INCHES if in_page else _WIDTH_INCHES, height_inches))
            self.panels: list[Axes] = list(self._figure.subplots(1, columns, sharey=True, squeeze=False)[0])
            self.axes: Axes = self.panels[0]
            for patch in (self._figure.patch, self.axes.patch) if in_page else ():
                patch.set_visible(False)

    def legend(self) -> None:
        """Name the series below the plot."""
        with rc_context(_SETTINGS):
            self._figure.legend(loc="outside lower left", ncols=4)

    def finish(self, title: str, x_label: str, y_label: str) -> Plot:
        """Label the axes, and draw."""
        with rc_context(_SETTINGS | {"svg.hashsalt": title}):  # plots on one page need different ids
            self.axes.set_ylabel(y_label)
            for axes in self.panels:
                axes.set_xlabel(x_label)
            if len(self.panels) > 1:
                self._figure.suptitle(title, x=0.01, ha="left", size=_SETTINGS["axes.titlesize"])
            elif not self._in_page:
                self.axes.set_title(title, wrap=True)
            written = io.StringIO()
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            self._figure.savefig(written, format="svg", metadata=nothing)
        return Plot(title, written.getvalue())


def histogram(values: Sequence[float], title: str, x_label: str, y_label: str) -> Plot:
    """Count positive values along a logarithmic axis, with lines at the median (full) and the 99th percentile."""
    drawing, known = Drawing(), np.maximum(np.array(values, np.float64), 1e-3)
    drawing.axes.hist(known, bins=np.geomspace(known.min(), known.max() * 1.001, 40).tolist(), color=COLOURS[0])
    drawing.axes.set_xscale("log")
    for value, style in zip(np.percentile(known, [50, 99]), ("-", "--"), strict=True):
        drawing.axes.axvline(value, color=COLOURS[3], linestyle=style)
    return drawing.finish(title, x_label, y_label)


def stack(axes: Axes, names: Sequence[str], heights: Any, *, width: float = 0.8, labelled: bool = True) -> None:
    """Draw a column for each row of `heights`, one part above the other, the last of many together.

    Args:
        axes: where to draw.
        names: names of the parts, the largest first.
        heights: float64 [columns, parts].
        width: width of a column.
        labelled: whether the legend names them.
    """
    if len(names) > len(COLOURS):
        kept = len(COLOURS) - 1
        names = [*names[:kept], f"{len(names) - kept} other classes"]
        heights = np.column_stack([heights[:, :kept], heights[:, kept:].sum(1)])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    below = np.cumsum(heights, axis=1) - heights
    for i, name in enumerate(names):
        axes.bar(
            range(len(heights)), heights[:, i], width, bottom=below[:, i], color=COLOURS[i], hatch=HATCHES[i],
            label=name if labelled else None,
        )  # fmt: skip


def curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], title: str, x_label: str, y_label: str, *,
    marks: Mapping[str, tuple[float, float]] | None = None, from_zero: bool = False, in_page: bool = False,
) -> Plot:  # fmt: skip
    """Draw lines, given by their name as x and y; what is no number leaves a gap.

    Args:
        lines: x and y by the line's name.
        title, x_label, y_label: what there is to see, and of what.
        marks: a point to mark, by the line's name.
        from_zero: whether the vertical axis begins at 0.
        in_page: see `Drawing`.
    """
    drawing = Drawing(in_page=in_page)
    for i, (name, (x, y)) in enumerate(lines.items()):
        places, heights = np.array(x, np.float64), np.array(y, np.float64)
        marker = "o" if i % 3 == 1 and len(places) <= _MARKED_POINTS else ""
        style = ("-", "--", ":")[i % 3]
        drawing.axes.plot(
            places, heights, style, marker=marker, color=COLOURS[i], label=name, linewidth=1.6, markersize=4
        )
        if marks and name in marks:
            drawing.axes.plot(*marks[name], marker="o", markersize=8, color=COLOURS[i], markeredgecolor=_PAPER)
    if max(float(np.nanmax(np.array(y, np.float64), initial=0)) for _, y in lines.values()) >= 10_000:
        drawing.axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if from_zero:
        drawing.axes.set_ylim(bottom=0)
    if len(lines) > 1:
        drawing.legend()
    return drawing.finish(title, x_label, y_label)


def groups(
    axes: Axes, series: Mapping[str, Mapping[Any, float]], text: Callable[[float], str],
    intervals: Mapping[str, Mapping[Any, tuple[float, float]]] | None = None,
) -> None:  # fmt: skip
    """Draw for each name, from top to bottom, the horizontal bar of each series that has a value for it.

    Args:
        axes: where to draw.
        series: values by name, of each series.
        text: what stands at the end of a bar.
        intervals: lowest and highest value by name, of each series.
    """
    names = list(dict.fromkeys(name for values in series.values() for name in values))
    width = 0.8 / len(series)
    for i, (label, values) in enumerate(series.items()):
        places = [names.index(name) + (i - (len(series) - 1) / 2) * width for name in values]
        ends = [(value, *(intervals[label][name] if intervals else (value, value))) for name, value in values.items()]
        errors = [[max(value - low, 0) for value, low, _ in ends], [max(high - value, 0) for value, _, high in ends]]
        bars = axes.barh(
            places, [*values.values()], width * 0.95, label=label, color=COLOURS[i], hatch=HATCHES[i],
            xerr=errors if intervals else None, capsize=3,
        )  # fmt: skip
        axes.bar_label(bars, [text(value) for value in values.values()], padding=3, fontsize=9)
    axes.set_yticks(range(len(names)), [str(name) for name in names])
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.margins(x=0.15)


def short(rate: float) -> str:
    """A rate in two or three digits.

    >>> [short(rate) for rate in (0.0, 7.31, 999.6, 1234.0, 2_500_000.0)]
    ['0', '7.3', '1000', '1.23k', '2.5M']
    """
    if rate < 10:
        return f"{rate:.2g}"
    if rate < 1000:
        return f"{rate:.0f}"
    power = min(int(math.log10(rate)) // 3, 3)
    return f"{rate / 1000**power:.3g}{'kMG'[power - 1]}"


def counts(
    cells: npt.NDArray[Any], rows: Sequence[str], columns: Sequence[str], title: str, x_label: str, y_label: str, *,
    darkest: float | None = None, is_confusion: bool = False,
) -> Plot:  # fmt: skip
    """Draw counts as a table of shaded cells with numbers, for a page.

    Args:
        cells: [rows, columns], the counts.
        rows: names, from top to bottom.
        columns: names, from left to right.
        title, x_label, y_label: what there is to see, and of what.
        darkest: the count of the darkest shade; None: the largest.
        is_confusion: cells off the diagonal are errors, which have a colour of their own, and their own darkest count.
    """
    drawing = Drawing(0.27 * len(rows) + 0.75, in_page=True)
    axes, (rows_of, columns_of) = drawing.axes, np.indices(cells.shape)
    errors = is_confusion & (rows_of != columns_of)
    tops = [max(float(cells[errors == part].max(initial=0)), 1.0) for part in (False, True)]
    tops[0] = darkest or tops[0]
    for (row, column), value in np.ndenumerate(cells):
        kind = int(errors[row, column])
        opacity = _LIGHTEST + (_DARKEST - _LIGHTEST) * float(value) / tops[kind] if value else 0.0
        fill = to_rgba(COLOURS[kind], opacity)
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=fill, edgecolor=_PAPER))
        ink = _INK if value else MUTED
        axes.text(column, row, f"{value:,}", ha="center", va="center", color=ink, fontsize=9)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    return drawing.finish(title, x_label, y_label)

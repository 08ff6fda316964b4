"""The style of all plots: a figure that a notebook shows as SVG, bars, curves.

The palette is by Okabe and Ito: colour-blind readers can tell its colours apart; series also differ in hatching.
Tested in tests/tools/report/test_plots.py and tests/tools/report/test_run_plots.py.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringfeed.sharding.errors import ConfigError

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ConfigError("plots need matplotlib; install it with: pip install 'ringfeed[report]'") from error

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442", "#999999")
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo")
MUTED = "#999999"
_SETTINGS: Any = {
    "svg.fonttype": "none", "font.size": 10, "axes.titlesize": 11, "axes.titlelocation": "left", "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y",
    "grid.color": "#dddddd", "legend.frameon": False, "hatch.color": "white", "figure.constrained_layout.use": True,
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
        """The element to put inside an HTML page."""
        return self.svg[self.svg.index("<svg") :]


class Drawing:
    """A figure with one pair of axes, or several of one height side by side, in the style of all plots."""

    def __init__(self, height_inches: float = 2.8, columns: int = 1) -> None:
        with rc_context(_SETTINGS):
            self._figure = Figure((7.2, height_inches))
            self.panels: list[Axes] = list(self._figure.subplots(1, columns, sharey=True, squeeze=False)[0])
            self.axes: Axes = self.panels[0]

    def legend(self) -> None:
        """Name the series below the plot."""
        with rc_context(_SETTINGS):
            self._figure.legend(loc="outside lower left", ncols=4)

    def finish(self, title: str, x_label: str, y_label: str) -> Plot:
        """Label the axes, and draw."""
        with rc_context(_SETTINGS):
            self.axes.set_ylabel(y_label)
            for axes in self.panels:
                axes.set_xlabel(x_label)
            if len(self.panels) > 1:
                self._figure.suptitle(title, x=0.01, ha="left", size=_SETTINGS["axes.titlesize"])
            else:
                self.axes.set_title(title, wrap=True)
            written = io.StringIO()
            self._figure.savefig(written, format="svg", metadata={"Date": None})
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
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], title: str, x_label: str, y_label: str
) -> Plot:
    """Draw lines, given by their name as x and y; what is no number leaves a gap."""
    drawing = Drawing()
    for i, (name, (x, y)) in enumerate(lines.items()):
        places, heights = np.array(x, np.float64), np.array(y, np.float64)
        style = ("-", "--o", ":")[i % 3]
        drawing.axes.plot(places, heights, style, color=COLOURS[i], label=name, linewidth=1.6, markersize=4)
    if max(float(np.nanmax(np.array(y, np.float64), initial=0)) for _, y in lines.values()) >= 10_000:
        drawing.axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if len(lines) > 1:
        drawing.legend()
    return drawing.finish(title, x_label, y_label)

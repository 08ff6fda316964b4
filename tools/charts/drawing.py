"""The style of all plots: a figure that a notebook shows as SVG, bars, curves.

The palette is that of Okabe and Ito, which colour-blind readers can tell apart; series also differ in hatching.
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

__all__ = ["COLOURS", "HATCHES", "MUTED", "Drawing", "Plot", "curves", "draw_bars", "named_bars"]

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

    def count_along_x(self) -> None:
        """Put whole numbers only below the axis."""
        self.axes.xaxis.set_major_locator(MaxNLocator(integer=True))

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


def draw_bars(
    drawing: Drawing, values: Mapping[str, float], texts: Sequence[str], highlighted: str | None = None
) -> None:
    """Draw horizontal bars from top to bottom, each with its name and a text at its end."""
    axes = drawing.axes
    axes.grid(visible=False)
    places, lengths = range(len(values)), list(values.values())
    bars = axes.barh(
        places,
        lengths,
        color=[COLOURS[3 if name == highlighted else 0] for name in values],
        hatch=[HATCHES[1 if name == highlighted else 0] for name in values],
    )
    axes.bar_label(bars, texts, padding=4)
    axes.set_yticks(places, list(values))
    axes.invert_yaxis()
    axes.set_xlim(0, max(lengths) * 1.25 or 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if max(lengths) > 10 else f"{value:.3g}")


def named_bars(
    values: Mapping[str, float],
    texts: Sequence[str],
    highlighted: str | None,
    title: str,
    x_label: str,
    *,
    is_log: bool = False,
    marked: float | None = None,
) -> Plot:
    """Draw `Bars`: horizontal bars, each with its name and a text at its end."""
    drawing = Drawing(0.36 * len(values) + 1)
    draw_bars(drawing, values, texts, highlighted)
    if is_log:
        drawing.axes.set_xscale("log")
        low = 10 ** np.floor(np.log10(max(min(values.values()), 1e-3)) - 0.3)
        drawing.axes.set_xlim(low, (max(values.values()) / low) ** 1.8 * low)  # room for the texts
    if marked is not None:
        drawing.axes.axvline(marked, color=MUTED, linestyle="--", linewidth=1)
    return drawing.finish(title, x_label, "")


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

"""A bar chart as data: results describe what they have to show, and need matplotlib only when it is drawn.

Tested in tests/tools/report/test_plots.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from ringfeed.sharding.errors import ConfigError

if TYPE_CHECKING:
    from .drawing import Plot


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Horizontal bars, each with its name and a text at its end.

    Attributes:
        title: what there is to see.
        values: length of each bar by its name, from top to bottom.
        texts: what stands at the end of each bar.
        highlighted: name of the bar in another colour.
        x_label: what the lengths are.
        is_log: whether the axis is logarithmic.
        marked: where a dashed line stands.
        intervals: lowest and highest value by the name of a bar.
    """

    title: str
    values: Mapping[str, float]
    texts: Sequence[str]
    x_label: str
    highlighted: str | None = None
    is_log: bool = False
    marked: float | None = None
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def draw(self) -> Plot:
        """Draw them.

        Raises:
            ConfigError: matplotlib is not installed.
        """
        from .drawing import COLOURS, HATCHES, MUTED, Drawing

        drawing, lengths = Drawing(0.36 * len(self.values) + 1), [*self.values.values()]
        places = range(len(lengths))
        axes, lit = drawing.axes, [name == self.highlighted for name in self.values]
        axes.grid(visible=False)
        drawn = axes.barh(places, lengths, color=[COLOURS[3 * on] for on in lit], hatch=[HATCHES[on] for on in lit])
        axes.bar_label(drawn, self.texts, padding=4)
        axes.set_yticks(places, [*self.values])
        axes.invert_yaxis()
        for place, name in enumerate(self.values):
            axes.plot(self.intervals.get(name, ()), [place] * (2 * (name in self.intervals)), color=COLOURS[3])
        most = max([*lengths, *(high for _, high in self.intervals.values())])
        if self.is_log:
            axes.set_xscale("log")
            low = 10 ** math.floor(math.log10(max(min(lengths), 1e-3)) - 0.3)
            axes.set_xlim(low, (most / low) ** 1.8 * low)  # room for the texts
        else:
            axes.set_xlim(0, most * (1.6 if self.intervals else 1.25) or 1)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if most > 10 else f"{value:.3g}")
        if self.marked is not None:
            axes.axvline(self.marked, color=MUTED, linestyle="--", linewidth=1)
        return drawing.finish(self.title, self.x_label, "")

    def html(self) -> str:
        """The drawing as SVG; without matplotlib, how to install it."""
        try:
            return self.draw().element
        except ConfigError as error:
            return f"<p>{escape(str(error))}</p>"

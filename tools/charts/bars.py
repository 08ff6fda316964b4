"""A bar chart as data: results describe what they have to show, and need matplotlib only when it is drawn.

Tested in tests/tools/report/test_plots.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from ringfeed.sharding.errors import ConfigError

if TYPE_CHECKING:
    from .drawing import Plot

__all__ = ["Bars"]


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
    """

    title: str
    values: Mapping[str, float]
    texts: Sequence[str]
    highlighted: str
    x_label: str
    is_log: bool = False
    marked: float | None = None

    def draw(self) -> Plot:
        """Draw them.

        Raises:
            ConfigError: matplotlib is not installed.
        """
        from .drawing import named_bars

        return named_bars(
            self.values, self.texts, self.highlighted, self.title, self.x_label, is_log=self.is_log, marked=self.marked
        )

    def html(self) -> str:
        """The drawing as SVG; without matplotlib, how to install it."""
        try:
            svg = self.draw().svg
        except ConfigError as error:
            return f"<p>{escape(str(error))}</p>"
        return svg[svg.index("<svg") :]

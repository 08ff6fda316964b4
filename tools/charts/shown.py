"""How results show themselves: the same lines and tables as text and as HTML.

Tested in tests/tools/verdict/test_conclusion.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from html import escape
from typing import TypeAlias

from ringfeed.pipeline.order.plan_table import html_table
from ringfeed.tools.console import align

Table: TypeAlias = tuple[Sequence[str], Sequence[Sequence[str]]]
"""A header, and rows."""


class Shown(ABC):
    """Lines, tables, and conclusions; the last conclusion is the answer."""

    __slots__ = ()

    @abstractmethod
    def headlines(self) -> list[str]:
        """The lines above the tables."""

    @abstractmethod
    def tables(self) -> list[Table]:
        """The tables."""

    @abstractmethod
    def conclusions(self) -> list[str]:
        """The lines below the tables."""

    def __str__(self) -> str:
        tables = [line for header, rows in self.tables() for line in (*align(header, rows), "")]
        return "\n".join([*self.headlines(), "", *tables, *self.conclusions()])

    def html(self) -> str:
        """What `print` shows, as HTML."""
        return "".join(
            [
                *(f"<p>{escape(line)}</p>" for line in self.headlines()),
                *(html_table(header, rows) for header, rows in self.tables()),
                *(f"<p><b>{escape(line)}</b></p>" for line in self.conclusions()),
            ]
        )

    def _repr_html_(self) -> str:
        return self.html()

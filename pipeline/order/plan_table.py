"""A plan as a short table, in text for `print` and in HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["PlanTable", "html_table", "mix_rows"]

_ROWS = 20  # a plan of many classes shows the first ones


@dataclass(frozen=True, slots=True)
class PlanTable:
    """Facts in lines, and rows of cells under a header.

    >>> print(PlanTable(["epoch 0: 2 steps"], ["class", "records"], [["late", "90"], ["on time", "1,000"]]))
    epoch 0: 2 steps
    <BLANKLINE>
    class    records
    late          90
    on time    1,000
    """

    lines: Sequence[str]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        if not self.rows:
            return "\n".join(self.lines)
        table = [self.header, *self.rows[:_ROWS]]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        shown = [
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in table
        ]
        return "\n".join([*self.lines, "", *(line.rstrip() for line in shown), *self._more()])

    def html(self) -> str:
        """The same as HTML."""
        text = "<br>".join(map(escape, self.lines))
        if not self.rows:
            return f"<p>{text}</p>"
        more = "".join(f"<p>{line}</p>" for line in self._more())
        return f"<p>{text}</p>{html_table(self.header, self.rows[:_ROWS])}{more}"

    def _more(self) -> list[str]:
        return [f"and {len(self.rows) - _ROWS:,} more"] if len(self.rows) > _ROWS else []


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells under a header as an HTML table."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def mix_rows(mix: Sequence[tuple[str, int, float, tuple[float, float], float]]) -> list[list[str]]:
    """Cells of name, records, samples, fewest and most per batch, and repeats.

    >>> mix_rows([("late", 50, 96.0, (8, 9), 1.92)])
    [['late', '50', '96', '8 to 9', '1.92']]
    """
    return [
        [name, f"{records:,}", _number(samples), " to ".join(dict.fromkeys(map(_number, per_batch))), f"{repeats:.2f}"]
        for name, records, samples, per_batch, repeats in mix
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"

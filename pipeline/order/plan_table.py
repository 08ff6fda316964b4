"""A plan as a short table, in text for `print` and in HTML for notebooks.

Tested in tests/pipeline/test_iteration.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

_ROWS = 20  # a plan of many classes shows the first ones
_WIDTH, _BAR, _NAME = 560, 11, 150  # pixels: of the plot, of a bar, of the longest name beside it
_GREY, _BLUE = "#999999", "#0072b2"  # of Okabe and Ito's palette, which colour-blind readers can tell apart

MixRow: TypeAlias = tuple[str, int, float, tuple[float, float], float]
"""Name, records, samples, fewest and most samples in a batch, repeats."""


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


def mix_rows(mix: Sequence[MixRow]) -> list[list[str]]:
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


def share_bars(mix: Sequence[MixRow], what: str) -> str:
    """Draw as SVG the share that each class or dataset has of the records, and of the samples in an epoch."""
    records, samples = max(sum(row[1] for row in mix), 1), max(sum(row[2] for row in mix), 1)
    shares = [(row[0], row[1] / records, row[2] / samples) for row in mix[:_ROWS]]
    longest = max((max(pair) for _, *pair in shares), default=0) or 1
    parts, top = [], 30
    for name, of_records, of_samples in shares:
        shown = name if len(name) <= 22 else f"{name[:21]}…"
        parts.append(f'<text x="{_NAME}" y="{top + _BAR + 4}" text-anchor="end">{escape(shown)}</text>')
        for share, colour in ((of_records, _GREY), (of_samples, _BLUE)):
            width = share / longest * (_WIDTH - _NAME - 60)
            parts.append(f'<rect x="{_NAME + 8}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>')
            parts.append(f'<text x="{_NAME + 14 + width:.1f}" y="{top + _BAR - 1}">{share:.1%}</text>')
            top += _BAR + 1
        top += 6
    title = (
        f'<text x="0" y="14" font-size="13">Each {what}: share of the records '
        f'(<tspan fill="{_GREY}">■</tspan>) and of the epoch (<tspan fill="{_BLUE}">■</tspan>)</text>'
    )
    style = 'font-family="sans-serif" font-size="11" fill="currentColor"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top}" {style}>{title}{"".join(parts)}</svg>'
    )

"""The plan of a `TabularTransform`: which columns become numbers or categories, and with what statistics.

Tested in tests/pipeline/transforms/test_tabular.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericColumn:
    """A column to standardise: ``(value - mean) / std``. A missing value becomes the mean."""

    name: str
    mean: float
    std: float  # their standard deviation
    has_missing: bool  # whether values are missing in the train split; if so, the model gets an indicator column
    elements: int = 1  # numbers in each value
    masked: bool = False  # whether a mask marks missing values, which elements then must hold; missing floats are NaN


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryColumn:
    """A column to embed. Id 0 stands for missing values and those not in the train split."""

    name: str
    size: int  # number of ids
    vocabulary: tuple[str, ...] | None = None  # texts with ids 1, 2, ... in this order; None for integer codes.
    smallest: int = 0  # the smallest code; the id of a code is ``code - smallest + 1``
    masked: bool = False  # whether a mask marks missing values, which elements then must hold


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularPlan:
    """How each column becomes an input; made by `plan_columns`.

    Attributes:
        numeric: columns to standardise, in the order of the numeric input.
        categories: columns to look up, in the order of the category input.

    >>> from ringfeed.pipeline import plan_columns
    >>> from ringfeed.sharding import open_dataset
    >>> plan = plan_columns(open_dataset("flights").manifest)
    >>> [column.name for column in plan.numeric]
    ['hours', 'miles', 'hour']
    """

    numeric: tuple[NumericColumn, ...]
    categories: tuple[CategoryColumn, ...]

    @property
    def masked(self) -> list[str]:
        """Columns whose missing values a mask marks: the loader's `masks`."""
        columns: tuple[NumericColumn | CategoryColumn, ...] = (*self.numeric, *self.categories)
        return [column.name for column in columns if column.masked]

    @property
    def numeric_width(self) -> int:
        """Width of the numeric input, including indicators of missing values."""
        return sum(c.elements * (2 if c.has_missing else 1) for c in self.numeric)

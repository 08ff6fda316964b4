"""Which columns become numbers and which become categories, with what statistics."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CategoryColumn", "NumericColumn", "TabularPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericColumn:
    """A column to be standardised: `(value - mean) / std`; a missing value becomes the mean.

    `has_missing`: the train split has missing values, so the model is also told, in a column of its own, where.
    `missing_code`: the integer that the loader puts where an integer is missing; floats have NaN.
    """

    name: str
    mean: float
    std: float
    has_missing: bool
    elements: int = 1
    missing_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryColumn:
    """A column to be embedded. Id 0 is what the train split did not hold, or is missing.

    Either `vocabulary` (ids 1... in its order) or `smallest` (id = value - smallest + 1) is given.
    `missing_code`: the integer that the loader puts where a code is missing.
    """

    name: str
    size: int
    vocabulary: tuple[str, ...] | None = None
    smallest: int = 0
    missing_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularPlan:
    """What becomes of each column; see `plan_columns`.

    Attributes:
        numeric: columns that are standardised, in the order of the numeric input.
        categories: columns that are looked up, in the order of the input of ids.
    """

    numeric: tuple[NumericColumn, ...]
    categories: tuple[CategoryColumn, ...]

    @property
    def numeric_width(self) -> int:
        """Columns of the numeric input, indicators included."""
        return sum(c.elements * (2 if c.has_missing else 1) for c in self.numeric)

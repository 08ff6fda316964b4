"""A summary of the values at one path of JSON records, and the type that holds them all."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ringfeed.sharding.schema import Feature

from .declared_types import exceeds_more

MOST_LEVELS = 32  # of nested objects, and of nested lists
FLOAT = object()  # stands for any number with a fraction
_KINDS = {str: "string", bool: "bool", int: "int", object: "float"}


class UnfitError(ValueError):
    """No column can hold a value together with those before it; the message describes the value."""


class PathValues:
    """A summary of the values at one path.

    Attributes:
        kinds: kinds of the elements: ``string``, ``bool``, ``int``, ``float``.
        low, high: bounds of the integers.
        excess: first integer beyond 64 bits, or else the first beyond int64, or else 0.
        excess_place: file of `excess`, and place in it, such as ``line 3``.
        sizes: least and greatest length of the lists at each level; None: there was no value yet.
        gaps: levels at which a list was missing.
        fixed: declared type: values are not looked at.
    """

    __slots__ = ("excess", "excess_place", "fixed", "gaps", "high", "kinds", "low", "sizes")

    def __init__(self, fixed: pa.DataType | None = None) -> None:
        self.kinds: set[str] = set()
        self.low = self.high = 0
        self.excess = 0
        self.excess_place = ("", "")
        self.sizes: list[tuple[int, int]] | None = None
        self.gaps: set[int] = set()
        self.fixed = fixed

    def add(self, value: Any, path: str, place: str) -> None:
        """Add a value of a record; raises an UnfitError if no column can hold it together with the others."""
        if value is None or self.fixed is not None:
            return
        if self.sizes is not None and bool(self.sizes) != isinstance(value, list):
            raise UnfitError("a list in one record, and none in another")
        self.sizes = [] if self.sizes is None else self.sizes
        self._add(value, 0)
        if self.excess and not self.excess_place[1]:
            self.excess_place = (path, place)

    def _add(self, value: Any, level: int) -> None:
        if not isinstance(value, list):
            if isinstance(value, dict):
                raise UnfitError("a list of objects")
            if value is None:
                self.gaps.add(level)
            else:
                self._add_scalar(value, level)
            return
        if level == MOST_LEVELS:
            raise UnfitError(f"lists within lists, more than {MOST_LEVELS}")
        self.widen(level, len(value), len(value))
        for entry in value:
            self._add(entry, level + 1)

    def _add_scalar(self, value: Any, level: int) -> None:
        if self.sizes is not None and level != len(self.sizes):
            raise UnfitError("a list of values and lists")
        kind = _KINDS.get(type(value), "float")
        self.kinds.add(kind)
        if kind == "int":
            if not -(1 << 63) <= value < 1 << 63 and (not self.excess or exceeds_more(value, self.excess)):
                self.excess, self.excess_place = value, ("", "")
            self.low, self.high = min(self.low, value), max(self.high, value)

    def widen(self, level: int, low: int, high: int) -> None:
        """Add lists of lengths from `low` to `high` at a level."""
        assert self.sizes is not None
        if level == len(self.sizes):
            if level and self.kinds:
                raise UnfitError("a list of values and lists")
            self.sizes.append((low, high))
        self.sizes[level] = (min(low, self.sizes[level][0]), max(high, self.sizes[level][1]))

    @property
    def dtype(self) -> str:
        """The narrowest type of the elements; a mixture becomes text. See `overflows` for its exception."""
        if self.kinds == {"int"}:
            return "uint64" if self.low >= 0 and 1 << 63 <= self.high < 1 << 64 else "int64"
        if self.kinds <= {"int", "float"} and self.kinds:
            return "float64"
        return next(iter(self.kinds)) if len(self.kinds) == 1 else "string"

    @property
    def overflows(self) -> bool:
        """Whether all elements are integers that no integer type holds: the user must choose how to round them."""
        fits = self.low >= -(1 << 63) and self.high < 1 << (63 if self.low < 0 else 64)
        return self.kinds == {"int"} and not fits

    @property
    def arrow_type(self) -> pa.DataType:
        """The type that Arrow's parser should confirm for further values."""
        if self.fixed is not None:
            return self.fixed
        kind = Feature(name="", dtype=self.dtype).primitive if self.kinds else pa.null()
        for _ in self.sizes or ():
            kind = pa.list_(kind)
        return kind

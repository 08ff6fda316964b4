"""What the values at one path of JSON records were, and the type that holds them all."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ...schema import Feature
from .declared_types import is_farther

__all__ = ["FLOAT", "MOST_LEVELS", "Seen", "UnfitError"]

MOST_LEVELS = 32  # of objects within objects, and of lists within lists
FLOAT = object()  # stands for any number with a fraction
_KINDS = {str: "string", bool: "bool", int: "int", object: "float"}


class UnfitError(ValueError):
    """A value that no column holds besides the others; it says what it is."""


class Seen:
    """What the values at one path were.

    Attributes:
        kinds: of their elements: ``string``, ``bool``, ``int``, ``float``.
        low, high: bounds of the integers.
        far: the first integer beyond int64; of those beyond 64 bits at all the first, if there is one. Else 0.
        place: file and line of that.
        sizes: least and greatest length of the lists, a pair a level; None: there was no value yet.
        gaps: levels at which a list was missing.
        fixed: a type that the user gave: no value is looked at.
    """

    __slots__ = ("far", "fixed", "gaps", "high", "kinds", "low", "place", "sizes")

    def __init__(self, fixed: pa.DataType | None = None) -> None:
        self.kinds: set[str] = set()
        self.low = self.high = 0
        self.far = 0
        self.place = ("", 0)
        self.sizes: list[tuple[int, int]] | None = None
        self.gaps: set[int] = set()
        self.fixed = fixed

    def add(self, value: Any, path: str, line: int) -> None:
        """Look at one value.

        Raises:
            UnfitError: no column holds it besides the others.
        """
        if value is None or self.fixed is not None:
            return
        if self.sizes is not None and bool(self.sizes) != isinstance(value, list):
            raise UnfitError("a list in one record, and none in another")
        self.sizes = [] if self.sizes is None else self.sizes
        self._add(value, 0)
        if self.far and not self.place[1]:
            self.place = (path, line)

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
            if not -(1 << 63) <= value < 1 << 63 and (not self.far or is_farther(value, self.far)):
                self.far, self.place = value, ("", 0)
            self.low, self.high = min(self.low, value), max(self.high, value)

    def widen(self, level: int, low: int, high: int) -> None:
        """Lists of such lengths were seen at a level."""
        assert self.sizes is not None
        if level == len(self.sizes):
            if level and self.kinds:
                raise UnfitError("a list of values and lists")
            self.sizes.append((low, high))
        self.sizes[level] = (min(low, self.sizes[level][0]), max(high, self.sizes[level][1]))

    @property
    def dtype(self) -> str:
        """The narrowest that holds all but what is `too_far`; a mixture becomes text."""
        if self.kinds == {"int"}:
            return "uint64" if self.low >= 0 and 1 << 63 <= self.high < 1 << 64 else "int64"
        if self.kinds <= {"int", "float"} and self.kinds:
            return "float64"
        return next(iter(self.kinds)) if len(self.kinds) == 1 else "string"

    @property
    def too_far(self) -> bool:
        """Whether all are integers, and no type holds each of them: what would be rounded is left to the user."""
        fits = self.low >= -(1 << 63) and self.high < 1 << (63 if self.low < 0 else 64)
        return self.kinds == {"int"} and not fits

    @property
    def arrow_type(self) -> pa.DataType:
        """What Arrow's parser reads it as, if it goes on like this."""
        if self.fixed is not None:
            return self.fixed
        kind = Feature(name="", dtype=self.dtype).primitive if self.kinds else pa.null()
        for _ in self.sizes or ():
            kind = pa.list_(kind)
        return kind

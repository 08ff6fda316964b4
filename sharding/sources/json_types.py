"""The columns of JSON lines: every key of every record, and the narrowest type that holds all of its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import SourceError
from ..schema import Feature
from .base import BATCH_BYTES, BATCH_ROWS, BadRecord, Reject
from .json_columns import Column, plant
from .json_records import Lines, Tree, decode_lines, make_decoder, parse_fast

__all__ = ["Columns"]

_MOST_COLUMNS = 10_000
_MOST_LEVELS = 32  # of objects within objects, and of lists within lists
_FIRST_LINES = 512  # to be looked at one by one, before Arrow's parser is asked whether the others are like them
_FLOAT = object()
_DECODER = make_decoder(lambda _: _FLOAT, int)
_KINDS = {str: "string", bool: "bool", int: "int", object: "float"}


class _Seen:
    """What the values at one path were.

    Attributes:
        kinds: of their elements: ``string``, ``bool``, ``int``, ``float``.
        low, high: bounds of the integers.
        sizes: least and greatest length of the lists, a pair a level; None: there was no value yet.
        gaps: levels at which a list was missing.
        fixed: a type that the user gave: no value is looked at.
    """

    __slots__ = ("fixed", "gaps", "high", "kinds", "low", "sizes")

    def __init__(self, fixed: pa.DataType | None = None) -> None:
        self.kinds: set[str] = set()
        self.low = self.high = 0
        self.sizes: list[tuple[int, int]] | None = None
        self.gaps: set[int] = set()
        self.fixed = fixed

    def add(self, value: Any) -> None:
        """Look at one value.

        Raises:
            ValueError: no column holds it besides the others.
        """
        if value is None or self.fixed is not None:
            return
        if self.sizes is not None and bool(self.sizes) != isinstance(value, list):
            raise ValueError("a list in one record, and none in another")
        self.sizes = [] if self.sizes is None else self.sizes
        self._add(value, 0)

    def _add(self, value: Any, level: int) -> None:
        if not isinstance(value, list):
            if isinstance(value, dict):
                raise ValueError("a list of objects")
            if value is None:
                self.gaps.add(level)
            else:
                self._add_scalar(value, level)
            return
        if level == _MOST_LEVELS:
            raise ValueError(f"lists within lists, more than {_MOST_LEVELS}")
        self.widen(level, len(value), len(value))
        for entry in value:
            self._add(entry, level + 1)

    def _add_scalar(self, value: Any, level: int) -> None:
        if self.sizes is not None and level != len(self.sizes):
            raise ValueError("a list of values and lists")
        kind = _KINDS.get(type(value), "float")
        self.kinds.add(kind)
        if kind == "int":
            self.low, self.high = min(self.low, value), max(self.high, value)

    def widen(self, level: int, low: int, high: int) -> None:
        """Lists of such lengths were seen at a level."""
        assert self.sizes is not None
        if level == len(self.sizes):
            if level and self.kinds:
                raise ValueError("a list of values and lists")
            self.sizes.append((low, high))
        self.sizes[level] = (min(low, self.sizes[level][0]), max(high, self.sizes[level][1]))

    @property
    def dtype(self) -> str:
        """The narrowest that holds all; a mixture becomes text."""
        if self.kinds == {"int"}:
            return "int64" if self.low >= -(1 << 63) and self.high < 1 << 63 else self._beyond_int64
        if self.kinds <= {"int", "float"} and self.kinds:
            return "float64"
        return next(iter(self.kinds)) if len(self.kinds) == 1 else "string"

    @property
    def _beyond_int64(self) -> str:
        return "uint64" if self.low >= 0 and self.high < 1 << 64 else "float64"

    @property
    def arrow_type(self) -> pa.DataType:
        """What Arrow's parser reads it as, if it goes on like this."""
        if self.fixed is not None:
            return self.fixed
        kind = Feature(name="", dtype=self.dtype).primitive if self.kinds else pa.null()
        for _ in self.sizes or ():
            kind = pa.list_(kind)
        return kind


class Columns:
    """The columns of the lines seen so far.

    Args:
        given: types of columns that are not to be inferred, by name.
    """

    def __init__(self, given: Mapping[str, Feature]) -> None:
        self._given = given
        self._seen: dict[tuple[str, ...], _Seen] = {}
        self._objects: set[tuple[str, ...]] = set()
        self._paths: dict[tuple[str, ...], None] = {}  # of both, in the order in which they were met

    def add(self, path: str, lines: Lines, reject: Reject) -> tuple[int, bool]:
        """Look at every value of some lines.

        Args:
            path: of their file.
            lines: to look at.
            reject: called with each line that is no object.

        Returns:
            The number of records, and whether no line was rejected.

        Raises:
            SourceError: no columns hold these records.
        """
        bad: list[BadRecord] = []

        def note(record: BadRecord) -> None:
            reject(record)
            bad.append(record)

        start, step, records = 0, _FIRST_LINES, 0
        while start < len(lines):
            if self._seen:
                some = lines.part(start, start + self._rows_at_once)
                table = parse_fast(some, self._tree(), closed=True)
                if table is not None:
                    self._widen(table)
                    records += table.num_rows
                    start += len(some)
                    continue
            for number, record in decode_lines(path, lines.part(start, start + step), _DECODER, note):
                records += 1
                self._add_record(path, number, record, ())
            start, step = start + step, step * 4
        return records, not bad

    @property
    def _rows_at_once(self) -> int:
        return max(1, min(BATCH_ROWS, BATCH_BYTES // (8 * len(self._paths))))

    def _add_record(self, path: str, line: int, record: Mapping[str, Any], prefix: tuple[str, ...]) -> None:
        for key, value in record.items():
            keys = (*prefix, key)
            if isinstance(value, dict) and ".".join(keys) not in self._given:
                if keys not in self._objects:
                    self._add_object(path, line, keys)
                self._add_record(path, line, value, keys)
                continue
            seen = self._seen.get(keys) or self._add_column(path, line, keys)
            try:
                if value is not None and keys in self._objects:
                    raise ValueError("an object in one record, and none in another")
                seen.add(value)
            except ValueError as error:
                raise self._unfit(path, line, keys, str(error)) from error

    def _unfit(self, path: str, line: int, keys: tuple[str, ...], reason: str) -> SourceError:
        return SourceError(
            f"{path}: line {line}: {'.'.join(keys)!r} is {reason}, which no column can hold; make the records alike"
        )

    def _add_object(self, path: str, line: int, keys: tuple[str, ...]) -> None:
        before = self._seen.get(keys)
        if before is not None and before.sizes is not None:
            raise self._unfit(path, line, keys, "an object in one record, and none in another")
        self._meet(path, line, keys)
        self._objects.add(keys)

    def _add_column(self, path: str, line: int, keys: tuple[str, ...]) -> _Seen:
        self._meet(path, line, keys)
        feature = self._given.get(".".join(keys))
        fixed = None if feature is None else Column(path=keys, feature=feature).parsed_type or pa.float64()
        return self._seen.setdefault(keys, _Seen(fixed))

    def _meet(self, path: str, line: int, keys: tuple[str, ...]) -> None:
        """A path that is new."""
        self._paths[keys] = None
        if len(self._paths) > _MOST_COLUMNS:
            raise SourceError(
                f"{path}: line {line}: the key {keys[-1][:50]!r} is one of more than {_MOST_COLUMNS:,} different keys; "
                "put what differs from record to record into values"
            )
        if len(keys) > _MOST_LEVELS:
            raise self._unfit(path, line, keys[:3], f"objects within objects, more than {_MOST_LEVELS}")
        if "\0" in keys[-1]:
            raise SourceError(f"{path}: line {line}: the key {keys[-1]!r} holds a zero byte; rename it")

    def _tree(self) -> Tree:
        tree: Tree = {}
        for keys in self._paths:
            if keys not in self._objects:
                plant(tree, keys, self._seen[keys].arrow_type)
                continue
            inner = tree
            for key in keys:  # an object may be empty
                inner = inner.setdefault(key, {})
        return tree

    def _widen(self, table: pa.Table) -> None:
        """Look at what Arrow's parser read: the types are known to be right, sizes and bounds may be new."""
        for keys, seen in self._seen.items():
            if keys in self._objects or seen.fixed is not None:
                continue
            values = table.column(keys[0])
            for key in keys[1:]:
                values = pc.struct_field(values, key)
            if values.null_count == len(values):
                continue
            for level in range(len(seen.sizes or ())):
                bounds = pc.min_max(pc.list_value_length(values)).as_py()
                if bounds["max"] is not None:
                    seen.widen(level, bounds["min"], bounds["max"])
                if values.null_count:
                    seen.gaps.add(level)
                values = pc.list_flatten(values)
            if seen.kinds == {"int"}:
                bounds = pc.min_max(values).as_py()
                if bounds["max"] is not None:
                    seen.low, seen.high = min(seen.low, int(bounds["min"])), max(seen.high, int(bounds["max"]))

    def columns(self, url: str) -> tuple[Column, ...]:
        """All columns, those of one object side by side, in the order in which they were first met.

        Raises:
            SourceError: there is none, two have one name, or one holds lists of lists of different lengths.
        """
        order: dict[str, tuple[str, ...]] = {}
        for keys in _in_order(self._tree(), ()):
            name = ".".join(keys)
            if name in order:
                raise SourceError(
                    f"{url}: the keys {list(order[name])} and {list(keys)} both make column {name!r}; rename one"
                )
            order[name] = keys
        if not order:
            raise SourceError(f"{url}: there is no key in any record; JSON Lines need one object a line")
        return tuple(self._column(url, name, keys) for name, keys in order.items())

    def _column(self, url: str, name: str, keys: tuple[str, ...]) -> Column:
        if name in self._given:
            return Column(path=keys, feature=self._given[name], given=True)
        seen = self._seen[keys]
        sizes = seen.sizes or []
        gaps = seen.gaps - {0}
        shape: tuple[int | None, ...] = tuple(
            low for level, (low, high) in enumerate(sizes) if low == high > 0 and level not in gaps
        )
        if len(shape) < len(sizes):
            if len(sizes) > 1:
                raise SourceError(
                    f"{url}: column {name!r} holds lists of lists that differ in length, which no feature can hold; "
                    "flatten or pad them"
                )
            shape = (None,)
        return Column(path=keys, feature=Feature(name=name, dtype=seen.dtype, shape=shape))


def _in_order(tree: Tree, prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, entry in tree.items():
        if isinstance(entry, dict):
            yield from _in_order(entry, (*prefix, name))
        else:
            yield (*prefix, name)

"""Infers the columns of JSON lines: every key of every record, with the narrowest type that holds all its values.

A key whose values no column can hold is an error, unless the key or an object around it is unwanted: then that is
left out as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.compute.batches import BATCH_BYTES, BATCH_ROWS
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.schema import Feature
from ringfeed.sharding.sources.base import BadRecord, Reject

from .declared_types import beyond_integers
from .json_columns import Column, set_type
from .json_parse import Lines, Tree, decode_lines, make_decoder, parse_fast
from .json_values import FLOAT, MOST_LEVELS, PathValues, UnfitError

_MOST_COLUMNS = 10_000
_FIRST_LINES = 512  # read one by one, before Arrow's parser is tried on the rest
_DECODER = make_decoder(lambda _: FLOAT, int)


class InferredColumns:
    """The columns of the lines added so far.

    Args:
        declared: features of columns whose types are not inferred, by name.
        wanted: whether the build needs a column of this name.
    """

    def __init__(self, declared: Mapping[str, Feature], wanted: Callable[[str], bool] = lambda _: True) -> None:
        self._declared = declared
        self._wanted = wanted
        self._left_out: dict[tuple[str, ...], None] = {}
        self._values: dict[tuple[str, ...], PathValues] = {}
        self._objects: set[tuple[str, ...]] = set()
        self._paths: dict[tuple[str, ...], None] = {}  # of values and objects, in order of their first appearance

    def add(self, path: str, lines: Lines, reject: Reject) -> tuple[int, bool]:
        """Widen the columns by every value of some lines.

        Args:
            path: path or URL of their file.
            reject: called with each line that is not an object.

        Returns:
            The number of records, and whether no line was rejected.

        Raises:
            SourceError: no columns can hold these records.
        """
        bad: list[BadRecord] = []

        def note(record: BadRecord) -> None:
            reject(record)
            bad.append(record)

        start, step, records = 0, _FIRST_LINES, 0
        while start < len(lines):
            if self._values:
                some = lines.part(start, start + self._rows_at_once)
                table = parse_fast(some, self._tree(), closed=True)
                if table is not None:
                    self._widen(table)
                    records += table.num_rows
                    start += len(some)
                    continue
            for number, record in decode_lines(path, lines.part(start, start + step), _DECODER, note):
                records, place = records + 1, f"{lines.unit} {number}"
                try:
                    self._add_record(path, place, record, ())
                except UnfitError as error:
                    raise SourceError(f"{path}: {place}: {error}") from error
            start, step = start + step, step * 4
        return records, not bad

    @property
    def _rows_at_once(self) -> int:
        return max(1, min(BATCH_ROWS, BATCH_BYTES // (8 * len(self._paths))))

    def _add_record(self, path: str, place: str, record: Mapping[str, Any], prefix: tuple[str, ...]) -> None:
        for key, value in record.items():
            keys = (*prefix, key)
            if keys in self._left_out:
                continue
            try:
                self._add_value(path, place, value, keys)
            except UnfitError:
                if self._unwanted(keys) != keys:
                    raise
                self._leave_out(keys)

    def _add_value(self, path: str, place: str, value: Any, keys: tuple[str, ...]) -> None:
        if isinstance(value, dict) and ".".join(keys) not in self._declared:
            if keys not in self._objects:
                self._add_object(keys)
            self._add_record(path, place, value, keys)
            return
        values = self._values.get(keys) or self._add_column(keys)
        if value is not None and keys in self._objects:
            raise _unfit(keys, "an object in one record, and none in another")
        try:
            values.add(value, path, place)
        except UnfitError as error:
            raise _unfit(keys, str(error)) from error

    def _add_object(self, keys: tuple[str, ...]) -> None:
        before = self._values.get(keys)
        if before is not None and before.sizes is not None:
            raise _unfit(keys, "an object in one record, and none in another")
        self._add_path(keys)
        self._objects.add(keys)

    def _add_column(self, keys: tuple[str, ...]) -> PathValues:
        self._add_path(keys)
        feature = self._declared.get(".".join(keys))
        fixed = None if feature is None else Column(path=keys, feature=feature).parsed_type or pa.float64()
        return self._values.setdefault(keys, PathValues(fixed))

    def _add_path(self, keys: tuple[str, ...]) -> None:
        """Add a new path; if there are too many, leave out all unwanted ones first."""
        self._paths[keys] = None
        if len(self._paths) > _MOST_COLUMNS:
            for path in {unwanted for known in self._paths if (unwanted := self._unwanted(known))}:
                self._leave_out(path)
        if keys not in self._paths or len(self._paths) > _MOST_COLUMNS:
            raise UnfitError(
                f"the key {keys[-1][:50]!r} is one of more than {_MOST_COLUMNS:,} different keys; move what differs "
                f"from record to record from keys to values{_leave_out_hint(keys[:-1])}"
            )
        if len(keys) > MOST_LEVELS:
            raise _unfit(keys[:3], f"objects within objects, more than {MOST_LEVELS}")
        if "\0" in keys[-1]:
            raise UnfitError(f"the key {keys[-1]!r} holds a zero byte; rename it")

    def _unwanted(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        """Return the outermost unwanted object around a key, or the key itself if it is unwanted, or ``()``."""
        outer = (keys[:level] for level in range(1, len(keys) + 1))
        return next((path for path in outer if not self._needs(".".join(path))), ())

    def _leave_out(self, keys: tuple[str, ...]) -> None:
        """Forget a key and all keys below it, and skip them from now on."""
        self._left_out[keys] = None
        for path in [path for path in self._paths if path[: len(keys)] == keys]:
            del self._paths[path]
            self._values.pop(path, None)
            self._objects.discard(path)

    def _tree(self) -> Tree:
        tree: Tree = {}
        for keys in self._paths:
            if keys not in self._objects:
                set_type(tree, keys, self._values[keys].arrow_type)
                continue
            inner = tree
            for key in keys:  # an object may be empty
                inner = inner.setdefault(key, {})
        return tree

    def _widen(self, table: pa.Table) -> None:
        """Widen sizes and bounds by a table that Arrow parsed; it confirmed the types."""
        for keys, known in self._values.items():
            if keys in self._objects or known.fixed is not None:
                continue
            values = table.column(keys[0])
            for key in keys[1:]:
                values = pc.struct_field(values, key)
            if values.null_count == len(values):
                continue
            for level in range(len(known.sizes or ())):
                bounds = pc.min_max(pc.list_value_length(values)).as_py()
                if bounds["max"] is not None:
                    known.widen(level, bounds["min"], bounds["max"])
                if values.null_count:
                    known.gaps.add(level)
                values = pc.list_flatten(values)
            if known.kinds == {"int"}:
                bounds = pc.min_max(values).as_py()
                if bounds["max"] is not None:
                    known.low, known.high = min(known.low, int(bounds["min"])), max(known.high, int(bounds["max"]))

    def columns(self, url: str) -> tuple[Column, ...]:
        """Return all columns in order of their first appearance, with those of one object together.

        Raises:
            SourceError: there is no column, two have the same name, or no type holds the values of one.
        """
        for keys in [keys for keys in self._objects if not self._needs(".".join(keys))]:
            self._leave_out(keys)
        order: dict[str, tuple[str, ...]] = {}
        columns: dict[str, Column] = {}
        for keys in _in_order(self._tree(), ()):
            name = ".".join(keys)
            try:
                if name in order:
                    raise UnfitError(
                        f"{url}: the keys {list(order[name])} and {list(keys)} both make column {name!r}; "
                        f"rename one{_leave_out_hint(keys)}"
                    )
                order[name] = keys
                columns[name] = self._column(url, name, keys)
            except UnfitError as error:
                if not (path := self._unwanted(keys)):
                    raise SourceError(str(error)) from error
                self._leave_out(path)
                columns.pop(name, None)
        if not columns:
            if self._left_out:
                raise ConfigError(f"{url}: no column is left; leave fewer out")
            raise SourceError(f"{url}: no record has a key; JSON Lines need one object a line")
        return tuple(columns.values())

    def _needs(self, name: str) -> bool:
        """Whether a column or an object is wanted, or a type is declared for it or for a key in it."""
        return self._wanted(name) or any(other == name or other.startswith(f"{name}.") for other in self._declared)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The names of the keys that were left out."""
        return tuple(".".join(keys) for keys in self._left_out)

    def _column(self, url: str, name: str, keys: tuple[str, ...]) -> Column:
        if name in self._declared:
            return Column(path=keys, feature=self._declared[name], declared=True)
        values = self._values[keys]
        if values.overflows:
            raise UnfitError(beyond_integers(*values.excess_place, name, values.excess, values.low))
        sizes = values.sizes or []
        gaps = values.gaps - {0}
        shape: tuple[int | None, ...] = tuple(
            low for level, (low, high) in enumerate(sizes) if low == high > 0 and level not in gaps
        )
        if len(shape) < len(sizes):
            if len(sizes) > 1:
                raise UnfitError(
                    f"{url}: column {name!r} holds lists of lists that differ in length, which no feature can hold; "
                    f"flatten or pad them{_leave_out_hint(keys)}"
                )
            shape = (None,)
        return Column(path=keys, feature=Feature(name=name, dtype=values.dtype, shape=shape))


def _unfit(keys: tuple[str, ...], reason: str) -> UnfitError:
    return UnfitError(
        f"{'.'.join(keys)!r} is {reason}, which no column can hold; make the records alike{_leave_out_hint(keys)}"
    )


def _leave_out_hint(keys: tuple[str, ...]) -> str:
    return f", or leave {'.'.join(keys)!r} out by the first --drop-columns or --select" if keys else ""


def _in_order(tree: Tree, prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, entry in tree.items():
        if isinstance(entry, dict):
            yield from _in_order(entry, (*prefix, name))
        else:
            yield (*prefix, name)

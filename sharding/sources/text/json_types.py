"""The columns of JSON lines: every key of every record, and the narrowest type that holds all of its values.

A key whose values no column holds ends it, unless the key, or an object that it lies in, is not wanted: then that is
left out, with all that lies in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...compute.batches import BATCH_BYTES, BATCH_ROWS
from ...errors import ConfigError, SourceError
from ...schema import Feature
from ..base import BadRecord, Reject
from .declared_types import beyond_integers
from .json_columns import Column, plant
from .json_parse import Lines, Tree, decode_lines, make_decoder, parse_fast
from .json_values import FLOAT, MOST_LEVELS, Seen, UnfitError

__all__ = ["Columns"]

_MOST_COLUMNS = 10_000
_FIRST_LINES = 512  # to be looked at one by one, before Arrow's parser is asked whether the others are like them
_DECODER = make_decoder(lambda _: FLOAT, int)


class Columns:
    """The columns of the lines seen so far.

    Args:
        given: types of columns that are not to be inferred, by name.
        wanted: whether a column is, by its name.
    """

    def __init__(self, given: Mapping[str, Feature], wanted: Callable[[str], bool] = lambda _: True) -> None:
        self._given = given
        self._wanted = wanted
        self._left_out: dict[tuple[str, ...], None] = {}
        self._seen: dict[tuple[str, ...], Seen] = {}
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
                try:
                    self._add_record(path, number, record, ())
                except UnfitError as error:
                    raise SourceError(f"{path}: line {number}: {error}") from error
            start, step = start + step, step * 4
        return records, not bad

    @property
    def _rows_at_once(self) -> int:
        return max(1, min(BATCH_ROWS, BATCH_BYTES // (8 * len(self._paths))))

    def _add_record(self, path: str, line: int, record: Mapping[str, Any], prefix: tuple[str, ...]) -> None:
        for key, value in record.items():
            keys = (*prefix, key)
            if keys in self._left_out:
                continue
            try:
                self._add_value(path, line, value, keys)
            except UnfitError:
                if self._unwanted(keys) != keys:
                    raise
                self._leave_out(keys)

    def _add_value(self, path: str, line: int, value: Any, keys: tuple[str, ...]) -> None:
        if isinstance(value, dict) and ".".join(keys) not in self._given:
            if keys not in self._objects:
                self._add_object(keys)
            self._add_record(path, line, value, keys)
            return
        seen = self._seen.get(keys) or self._add_column(keys)
        if value is not None and keys in self._objects:
            raise _unfit(keys, "an object in one record, and none in another")
        try:
            seen.add(value, path, line)
        except UnfitError as error:
            raise _unfit(keys, str(error)) from error

    def _add_object(self, keys: tuple[str, ...]) -> None:
        before = self._seen.get(keys)
        if before is not None and before.sizes is not None:
            raise _unfit(keys, "an object in one record, and none in another")
        self._meet(keys)
        self._objects.add(keys)

    def _add_column(self, keys: tuple[str, ...]) -> Seen:
        self._meet(keys)
        feature = self._given.get(".".join(keys))
        fixed = None if feature is None else Column(path=keys, feature=feature).parsed_type or pa.float64()
        return self._seen.setdefault(keys, Seen(fixed))

    def _meet(self, keys: tuple[str, ...]) -> None:
        """A path that is new."""
        self._paths[keys] = None
        if len(self._paths) > _MOST_COLUMNS:
            for path in {unwanted for known in self._paths if (unwanted := self._unwanted(known))}:
                self._leave_out(path)
        if keys not in self._paths or len(self._paths) > _MOST_COLUMNS:
            raise UnfitError(
                f"the key {keys[-1][:50]!r} is one of more than {_MOST_COLUMNS:,} different keys; put what differs "
                f"from record to record into values{_or_leave_out(keys[:-1])}"
            )
        if len(keys) > MOST_LEVELS:
            raise _unfit(keys[:3], f"objects within objects, more than {MOST_LEVELS}")
        if "\0" in keys[-1]:
            raise UnfitError(f"the key {keys[-1]!r} holds a zero byte; rename it")

    def _unwanted(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        """The outermost that a key lies in, or itself, that can be left out; ``()``: there is none."""
        outer = (keys[:level] for level in range(1, len(keys) + 1))
        return next((path for path in outer if not self._needs(".".join(path))), ())

    def _leave_out(self, keys: tuple[str, ...]) -> None:
        """Forget a key and all that lies in it, and pass it over from now on."""
        self._left_out[keys] = None
        for path in [path for path in self._paths if path[: len(keys)] == keys]:
            del self._paths[path]
            self._seen.pop(path, None)
            self._objects.discard(path)

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
            SourceError: there is none, two have one name, or no type holds the values of one.
        """
        for keys in [keys for keys in self._objects if not self._needs(".".join(keys))]:
            self._leave_out(keys)
        order: dict[str, tuple[str, ...]] = {}
        found: dict[str, Column] = {}
        for keys in _in_order(self._tree(), ()):
            name = ".".join(keys)
            try:
                if name in order:
                    raise UnfitError(
                        f"{url}: the keys {list(order[name])} and {list(keys)} both make column {name!r}; "
                        f"rename one{_or_leave_out(keys)}"
                    )
                order[name] = keys
                found[name] = self._column(url, name, keys)
            except UnfitError as error:
                if not (path := self._unwanted(keys)):
                    raise SourceError(str(error)) from error
                self._leave_out(path)
                found.pop(name, None)
        if not found:
            if self._left_out:
                raise ConfigError(f"{url}: no column is left; leave fewer out")
            raise SourceError(f"{url}: there is no key in any record; JSON Lines need one object a line")
        return tuple(found.values())

    def _needs(self, name: str) -> bool:
        """Whether a column, or something in it, is wanted, or a type is given for it."""
        return self._wanted(name) or any(given == name or given.startswith(f"{name}.") for given in self._given)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The names of the keys that were."""
        return tuple(".".join(keys) for keys in self._left_out)

    def _column(self, url: str, name: str, keys: tuple[str, ...]) -> Column:
        if name in self._given:
            return Column(path=keys, feature=self._given[name], given=True)
        seen = self._seen[keys]
        if seen.too_far:
            raise UnfitError(beyond_integers(*seen.place, name, seen.far, seen.low))
        sizes = seen.sizes or []
        gaps = seen.gaps - {0}
        shape: tuple[int | None, ...] = tuple(
            low for level, (low, high) in enumerate(sizes) if low == high > 0 and level not in gaps
        )
        if len(shape) < len(sizes):
            if len(sizes) > 1:
                raise UnfitError(
                    f"{url}: column {name!r} holds lists of lists that differ in length, which no feature can hold; "
                    f"flatten or pad them{_or_leave_out(keys)}"
                )
            shape = (None,)
        return Column(path=keys, feature=Feature(name=name, dtype=seen.dtype, shape=shape))


def _unfit(keys: tuple[str, ...], reason: str) -> UnfitError:
    return UnfitError(
        f"{'.'.join(keys)!r} is {reason}, which no column can hold; make the records alike{_or_leave_out(keys)}"
    )


def _or_leave_out(keys: tuple[str, ...]) -> str:
    return f", or leave {'.'.join(keys)!r} out by the first --drop-columns or --select" if keys else ""


def _in_order(tree: Tree, prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, entry in tree.items():
        if isinstance(entry, dict):
            yield from _in_order(entry, (*prefix, name))
        else:
            yield (*prefix, name)

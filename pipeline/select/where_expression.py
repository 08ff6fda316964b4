"""Filter records by an expression: a text in the language of `shard-dataset build --filter`, or one of pyarrow."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import brief
from ringfeed.sharding.prepare.column_names import check_columns
from ringfeed.sharding.prepare.expression import columns_of, evaluate
from ringfeed.sharding.prepare.pushdown import implied_filter
from ringfeed.sharding.schema import Schema

Int64 = npt.NDArray[np.int64]
_ROW = "\0row"
_NO_COLUMN = re.compile(r"No match for FieldRef\.(?:Name\()?(.+?)\)? in ", re.DOTALL)  # Arrow's message


class RowFilter(Protocol):
    """A filter that decides record by record."""

    @property
    def text(self) -> str:
        """The expression."""

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that the filter reads."""

    @property
    def implied(self) -> pc.Expression:
        """Condition that every record that passes meets, for pruning by statistics."""

    def rows(self, columns: Mapping[str, pa.Array]) -> Int64:
        """Return the records that pass, ascending; a record for which the expression is null does not."""


def open_filter(where: str | pc.Expression, schema: Schema) -> RowFilter:
    """Make a filter for records of a schema.

    Raises:
        ConfigError: the expression is invalid, or does not fit the columns.
    """
    made: RowFilter
    if isinstance(where, pc.Expression):
        made = _ArrowFilter(where, schema)
    elif isinstance(where, str):
        made = _TextFilter(where, schema)
    else:
        raise ConfigError(f"where must be a text or a pyarrow.compute expression, got {where!r}")
    made.rows({name: pa.array([], schema[name].arrow_type) for name in made.columns})  # raises if types do not fit
    return made


class _TextFilter:
    def __init__(self, text: str, schema: Schema) -> None:
        self.text = text
        try:
            self.columns = columns_of(text, schema.names)
        except ConfigError as error:
            raise _renamed(error) from error
        self.implied = implied_filter(text, schema)
        kinds = {name: schema[name].time_type for name in self.columns}
        self._times = {name: kind for name, kind in kinds.items() if kind is not None}

    def rows(self, columns: Mapping[str, pa.Array]) -> Int64:
        try:
            truth = evaluate(self.text, columns, self._times)
            return np.flatnonzero(pc.fill_null(truth, False).to_numpy(zero_copy_only=False))
        except ConfigError as error:
            raise _renamed(error) from error
        except pa.ArrowInvalid as error:
            raise ConfigError(f"where {self.text!r}: {brief(error, 300)}") from error


class _ArrowFilter:
    def __init__(self, expression: pc.Expression, schema: Schema) -> None:
        self.text = str(expression)
        self._expression = expression
        self._empty = {name: pa.array([], schema[name].arrow_type) for name in schema.names}
        self._check_names()
        self.rows(self._empty)
        self.columns = frozenset(name for name in schema.names if self._needs(name))
        if not self.columns:
            raise ConfigError(f"where {self.text!r}: the expression names no column")
        # pyarrow 26.0.1 ignores NaN when it evaluates an expression on statistics: see `prepare.pushdown`.
        floats = any(schema[name].dtype.startswith("float") for name in self.columns)
        self.implied = pc.scalar(True) if floats else expression

    def _check_names(self) -> None:
        """Reject columns by position, which changes if only some are read; Arrow can pickle only names."""
        try:
            pickle.dumps(self._expression)
        except pa.ArrowNotImplementedError as error:
            raise ConfigError(
                f"where {self.text!r}: refer to columns by name, such as pc.field({next(iter(self._empty))!r}), not by "
                f"position ({brief(error, 300)})"
            ) from error

    def _needs(self, name: str) -> bool:
        """Return whether the expression fails without a column. Arrow does not list the columns of an expression."""
        try:
            self.rows({other: values for other, values in self._empty.items() if other != name})
        except ConfigError:
            return True
        return False

    def rows(self, columns: Mapping[str, pa.Array]) -> Int64:
        from pyarrow import acero

        records = len(next(iter(columns.values()), ()))
        table = pa.table({**columns, _ROW: np.arange(records)})
        plan = acero.Declaration.from_sequence(
            [
                acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
                acero.Declaration("filter", acero.FilterNodeOptions(self._expression)),
            ]
        )
        try:
            kept = plan.to_table(use_threads=False).column(_ROW)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
            unknown = _NO_COLUMN.match(str(error))
            check_columns(f"where {self.text!r}", unknown.groups() if unknown else (), self._empty)
            raise ConfigError(f"where {self.text!r}: {brief(error, 300)}") from error
        return np.sort(kept.to_numpy())


def _renamed(error: ConfigError) -> ConfigError:
    return ConfigError("where " + str(error).removeprefix("--filter "))

"""Preparation steps on the rows and columns of record batches: pure values, independent of how records are batched.

A batch may lack columns that are not read yet, such as the bytes of images. A step on columns handles those that the
batch has, and is applied again to the others once they are read. A step on rows gets all columns that `needs` names.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import pyarrow as pa

from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.messages import brief
from ringfeed.sharding.schema import Schema

from .column_names import check_columns, check_distinct, expand_groups, select_present, visible_names
from .comma_lists import join_items
from .expression import columns_of, evaluate


class Step(Protocol):
    """A step on record batches.

    >>> from ringfeed.sharding.prepare import parse_step
    >>> parse_step("--drop-columns", "tail_number", folder=".")
    Drop(columns=('tail_number',))
    """

    changes_rows: ClassVar[bool]  # whether it may add or remove records

    @property
    def spec(self) -> str:
        """The step as on the command line, for errors and the manifest."""

    def schema(self, schema: Schema) -> Schema:
        """The schema of the output, given the input's; neither has a label."""

    def needs(self, names: Collection[str], schema: Schema) -> frozenset[str]:
        """The input columns that the output columns `names`, and the choice of records, depend on."""

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Apply the step to a batch; hidden columns (`column_names.is_hidden`) stay with their records."""


class ColumnStep:
    """A step that computes each column from the column of the same name, record by record."""

    __slots__ = ()
    changes_rows: ClassVar[bool] = False

    def needs(self, names: Collection[str], schema: Schema) -> frozenset[str]:
        return frozenset(names)


@dataclass(frozen=True, slots=True)
class Select(ColumnStep):
    """Keep columns, in this order. `schema` expands groups; `apply` expects them expanded.

    >>> from ringfeed.sharding.prepare import parse_step
    >>> parse_step("--select", "hours,arrival", folder=".")
    Select(columns=('hours', 'arrival'))
    """

    columns: tuple[str, ...]

    @property
    def spec(self) -> str:
        return f"--select {join_items(self.columns)}"

    def schema(self, schema: Schema) -> Schema:
        check_distinct("--select", self.columns)
        names = expand_groups(self.columns, schema.names)
        check_columns("--select", names, schema.names)
        return Schema(features=tuple(schema[name] for name in names))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return select_present(batch, self.columns)


@dataclass(frozen=True, slots=True)
class Drop(ColumnStep):
    """Drop columns. `schema` expands groups; `apply` expects them expanded.

    >>> from ringfeed.sharding.prepare import parse_step
    >>> parse_step("--drop-columns", "tail_number", folder=".")
    Drop(columns=('tail_number',))
    """

    columns: tuple[str, ...]

    @property
    def spec(self) -> str:
        return f"--drop-columns {join_items(self.columns)}"

    def schema(self, schema: Schema) -> Schema:
        names = expand_groups(self.columns, schema.names)
        check_columns("--drop-columns", names, schema.names)
        left = tuple(feature for feature in schema.features if feature.name not in names)
        if not left:
            raise ConfigError("--drop-columns: this drops all columns; keep at least one")
        return Schema(features=left)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select([name for name in batch.schema.names if name not in self.columns])


@dataclass(frozen=True, slots=True)
class Rename:
    """Rename columns, all at once, so that two may swap names.

    >>> from ringfeed.sharding.prepare import parse_step
    >>> parse_step("--rename", "dep_delay=delay", folder=".")
    Rename(names=(('dep_delay', 'delay'),))
    """

    names: tuple[tuple[str, str], ...]
    changes_rows: ClassVar[bool] = False

    @property
    def spec(self) -> str:
        return f"--rename {join_items(f'{old}={new}' for old, new in self.names)}"

    def schema(self, schema: Schema) -> Schema:
        new = dict(self.names)
        check_distinct("--rename", [old for old, _ in self.names])
        check_columns("--rename", new, schema.names)
        names = [new.get(name, name) for name in schema.names]
        check_distinct("--rename", names)
        return Schema(features=tuple(replace(f, name=n) for f, n in zip(schema.features, names, strict=True)))

    def needs(self, names: Collection[str], schema: Schema) -> frozenset[str]:
        new = dict(self.names)
        return frozenset(name for name in schema.names if new.get(name, name) in names)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        new = dict(self.names)
        return pa.RecordBatch.from_arrays(batch.columns, names=[new.get(name, name) for name in batch.schema.names])


@dataclass(frozen=True, slots=True)
class Filter:
    """Keep the records for which an expression (see `expression`) is true; drop those for which it is unknown.

    >>> from ringfeed.sharding.prepare import parse_step
    >>> parse_step("--filter", "hours > 0.5", folder=".")
    Filter(expression='hours > 0.5', times=())
    """

    expression: str
    times: tuple[tuple[str, pa.DataType], ...] = ()
    changes_rows: ClassVar[bool] = True

    @property
    def spec(self) -> str:
        return f"--filter {self.expression!r}"

    def schema(self, schema: Schema) -> Schema:
        """The same schema; checks the expression on an empty batch."""
        self.bind(schema).apply(schema.empty)
        return schema

    def bind(self, schema: Schema) -> Filter:
        """The filter that knows which columns hold times, and of what type."""
        kinds = ((feature.name, feature.time_type) for feature in schema.features)
        return replace(self, times=tuple((name, kind) for name, kind in kinds if kind is not None))

    def needs(self, names: Collection[str], schema: Schema) -> frozenset[str]:
        """The same columns, and the columns of the expression."""
        return frozenset(names) | columns_of(self.expression, schema.names)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = visible_names(batch)
        used = columns_of(self.expression, names)
        try:
            return batch.filter(
                evaluate(self.expression, {name: batch.column(name) for name in used}, dict(self.times))
            )
        except pa.ArrowInvalid as error:
            raise SourceError(f"{self.spec}: {brief(error, 300)}; cast the column first") from error

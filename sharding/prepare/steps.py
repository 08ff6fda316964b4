"""The preparing steps on rows and columns of record batches; each is a value, pure, and the same whatever the batches.

A step may be given batches that lack columns which are not read yet (the bytes of images): those on columns do what
they can, and are applied to the others when these are there; those on rows get all that `needs` names.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..compute.arrow_casts import cast_column, is_list
from ..errors import ConfigError, SourceError
from ..messages import brief
from ..schema import Feature, Schema
from .column_names import check_columns, check_distinct, expand_groups, select_present, visible_names
from .comma_lists import ALL, join_items
from .expression import columns_of, evaluate

__all__ = ["ColumnStep", "Drop", "DropNulls", "FillNulls", "Filter", "Rename", "Select", "Step"]


class Step(Protocol):
    """What is done to each record batch."""

    changes_rows: ClassVar[bool]  # whether records may go or come

    @property
    def spec(self) -> str:
        """As it stands on the command line, for errors and the manifest."""

    def schema(self, schema: Schema) -> Schema:
        """Of the batches that come out, from that of those that go in; both say nothing of a label."""

    def needs(self, names: Collection[str], schema: Schema) -> frozenset[str]:
        """The columns before the step that `names` after it, and its choice of records, are made of."""

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch, prepared; hidden columns (`columns.is_hidden`) go with their records."""


class ColumnStep:
    """A step that makes columns of those of the same names, record by record."""

    __slots__ = ()
    changes_rows: ClassVar[bool] = False

    def needs(self, names: Collection[str], schema: Schema) -> frozenset[str]:
        """The same columns."""
        return frozenset(names)


@dataclass(frozen=True, slots=True)
class Select(ColumnStep):
    """Keep the columns, in this order; `schema` alone knows those of groups."""

    columns: tuple[str, ...]

    @property
    def spec(self) -> str:
        """As it stands on the command line."""
        return f"--select {join_items(self.columns)}"

    def schema(self, schema: Schema) -> Schema:
        """The features named."""
        check_distinct("--select", self.columns)
        names = expand_groups(self.columns, schema.names)
        check_columns("--select", names, schema.names)
        return Schema(features=tuple(schema[name] for name in names))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the columns that are there."""
        return select_present(batch, self.columns)


@dataclass(frozen=True, slots=True)
class Drop(ColumnStep):
    """Leave the columns out; `schema` alone knows those of groups."""

    columns: tuple[str, ...]

    @property
    def spec(self) -> str:
        """As it stands on the command line."""
        return f"--drop-columns {join_items(self.columns)}"

    def schema(self, schema: Schema) -> Schema:
        """The features that are left."""
        names = expand_groups(self.columns, schema.names)
        check_columns("--drop-columns", names, schema.names)
        left = tuple(feature for feature in schema.features if feature.name not in names)
        if not left:
            raise ConfigError("--drop-columns: no column is left; keep at least one")
        return Schema(features=left)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without those of the columns that are there."""
        return batch.select([name for name in batch.schema.names if name not in self.columns])


@dataclass(frozen=True, slots=True)
class Rename:
    """Give columns new names, all at once: two may swap theirs."""

    names: tuple[tuple[str, str], ...]
    changes_rows: ClassVar[bool] = False

    @property
    def spec(self) -> str:
        """As it stands on the command line."""
        return f"--rename {join_items(f'{old}={new}' for old, new in self.names)}"

    def schema(self, schema: Schema) -> Schema:
        """The features by their new names."""
        new = dict(self.names)
        check_distinct("--rename", [old for old, _ in self.names])
        check_columns("--rename", new, schema.names)
        names = [new.get(name, name) for name in schema.names]
        check_distinct("--rename", names)
        return Schema(features=tuple(replace(f, name=n) for f, n in zip(schema.features, names, strict=True)))

    def needs(self, names: Collection[str], schema: Schema) -> frozenset[str]:
        """The columns by their old names."""
        new = dict(self.names)
        return frozenset(name for name in schema.names if new.get(name, name) in names)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the columns that are there."""
        new = dict(self.names)
        return pa.RecordBatch.from_arrays(batch.columns, names=[new.get(name, name) for name in batch.schema.names])


@dataclass(frozen=True, slots=True)
class Filter:
    """Keep the records for which an expression is true; see `expression`. Where it is unknown, they go."""

    expression: str
    changes_rows: ClassVar[bool] = True

    @property
    def spec(self) -> str:
        """As it stands on the command line."""
        return f"--filter {self.expression!r}"

    def schema(self, schema: Schema) -> Schema:
        """The same; the expression is tried on no records."""
        self.apply(schema.empty)
        return schema

    def needs(self, names: Collection[str], schema: Schema) -> frozenset[str]:
        """The same columns, and those of the expression."""
        return frozenset(names) | columns_of(self.expression, schema.names)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records for which it is true."""
        names = visible_names(batch)
        used = columns_of(self.expression, names)
        try:
            return batch.filter(evaluate(self.expression, {name: batch.column(name) for name in used}))
        except pa.ArrowInvalid as error:
            raise SourceError(f"{self.spec}: {brief(error, 300)}; cast the column first") from error


@dataclass(frozen=True, slots=True)
class DropNulls:
    """Leave out the records that lack a value in one of the columns (none: in any); a list may lack one of its own."""

    columns: tuple[str, ...] = ()
    changes_rows: ClassVar[bool] = True

    @property
    def spec(self) -> str:
        """As it stands on the command line."""
        return f"--drop-nulls {join_items(self.columns) or ALL}"

    def schema(self, schema: Schema) -> Schema:
        """The same."""
        check_columns("--drop-nulls", self.columns, schema.names)
        return schema

    def needs(self, names: Collection[str], schema: Schema) -> frozenset[str]:
        """The same columns, and those that may lack values."""
        return frozenset(names).union(self.columns or schema.names)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records that lack nothing."""
        columns = [batch.column(name) for name in self.columns or visible_names(batch)]
        incomplete = [column for column in columns if _nulls(column)]
        return batch.filter(reduce(pc.and_, map(_whole, incomplete))) if incomplete else batch


@dataclass(frozen=True, slots=True)
class FillNulls(ColumnStep):
    """Put a value where a scalar column lacks one."""

    values: tuple[tuple[str, str], ...]

    @property
    def spec(self) -> str:
        """As it stands on the command line."""
        return f"--fill-nulls {join_items(f'{name}={text}' for name, text in self.values)}"

    def schema(self, schema: Schema) -> Schema:
        """The same; each value is read as its column's type."""
        check_distinct("--fill-nulls", [name for name, _ in self.values])
        check_columns("--fill-nulls", [name for name, _ in self.values], schema.names)
        for name, text in self.values:
            self._check(schema[name], text)
        return schema

    def _check(self, feature: Feature, text: str) -> None:
        if feature.shape:
            raise ConfigError(
                f"--fill-nulls: column {feature.name!r} holds lists, and only scalars can be filled; "
                "--drop-nulls drops its incomplete records"
            )
        try:
            _filled(pa.array([], feature.primitive), text)
        except (SourceError, pa.ArrowNotImplementedError) as error:
            raise ConfigError(f"--fill-nulls: column {feature.name!r} holds {feature.dtype}, got {text!r}") from error

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the columns that are there."""
        for name, text in self.values:
            i = batch.schema.get_field_index(name)
            if i >= 0 and batch.column(i).null_count:
                batch = batch.set_column(i, batch.schema.field(i), _filled(batch.column(i), text))
        return batch


def _filled(column: pa.Array, text: str) -> pa.Array:
    if column.type == pa.binary():
        return pc.fill_null(column, text.encode())
    return pc.fill_null(column, cast_column(pa.array([text]), column.type, "--fill-nulls")[0])


def _nulls(column: pa.Array) -> int:
    return int(column.null_count) + (column.flatten().null_count if is_list(column.type) else 0)


def _whole(column: pa.Array) -> pa.BooleanArray:
    """Where a value is there, with all its elements."""
    valid = pc.is_valid(column).to_numpy(zero_copy_only=False).copy()
    if is_list(column.type):
        elements = pc.is_null(column.flatten()).to_numpy(zero_copy_only=False)
        valid[pc.list_parent_indices(column).to_numpy()[np.flatnonzero(elements)]] = False
    return pa.array(valid)

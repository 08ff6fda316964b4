"""Steps for missing values: drop records that have them, fill them, or mark them where lists hold them.

Tested in tests/sharding/prepare/test_steps.py and tests/sharding/sources/tables/test_plain_arrays.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.compute.arrow_casts import cast_column, is_list, is_number
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.messages import listed
from ringfeed.sharding.schema import Feature, Schema, insert_nulls, to_lists

from .column_names import check_columns, check_distinct, visible_names
from .comma_lists import ALL, join_items
from .steps import ColumnStep

_MASK = ".missing"  # the ending of the column that `MaskNulls` adds


@dataclass(frozen=True, slots=True)
class DropNulls:
    """Drop the records with a null in one of the columns (empty: in any); a null inside a list counts as well.

    >>> from ringfeed.sharding.prepare import parse_step
    >>> parse_step("--drop-nulls", "delay", folder=".")
    DropNulls(columns=('delay',))
    """

    columns: tuple[str, ...] = ()
    changes_rows: ClassVar[bool] = True

    @property
    def spec(self) -> str:
        return f"--drop-nulls {join_items(self.columns) or ALL}"

    def schema(self, schema: Schema) -> Schema:
        check_columns("--drop-nulls", self.columns, schema.names)
        return schema

    def needs(self, names: Collection[str], schema: Schema) -> frozenset[str]:
        """The same columns and those that are checked for nulls."""
        return frozenset(names).union(self.columns or schema.names)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(name) for name in self.columns or visible_names(batch)]
        incomplete = [column for column in columns if _count_nulls(column)]
        return batch.filter(reduce(pc.and_, map(_is_complete, incomplete))) if incomplete else batch


@dataclass(frozen=True, slots=True)
class FillNulls(ColumnStep):
    """Fill the nulls of scalar columns, and those in the lists of others, with a value.

    A list that is missing stays missing.

    >>> from ringfeed.sharding.prepare import parse_step
    >>> parse_step("--fill-nulls", "delay=0", folder=".")
    FillNulls(values=(('delay', '0'),))
    """

    values: tuple[tuple[str, str], ...]

    @property
    def spec(self) -> str:
        return f"--fill-nulls {join_items(f'{name}={text}' for name, text in self.values)}"

    def schema(self, schema: Schema) -> Schema:
        """The same schema; checks that each value has its column's type."""
        check_distinct("--fill-nulls", [name for name, _ in self.values])
        check_columns("--fill-nulls", [name for name, _ in self.values], schema.names)
        for name, text in self.values:
            self._check(schema[name], text)
        return schema

    def _check(self, feature: Feature, text: str) -> None:
        if feature.categories and text not in feature.categories:
            raise ConfigError(
                f"--fill-nulls: column {feature.name!r} holds the ordered categories {listed(feature.categories)}, got "
                f"{text!r}; make them plain strings with --cast {feature.name}=string before it"
            )
        try:
            _filled(pa.nulls(1, feature.primitive), text)
        except (SourceError, pa.ArrowNotImplementedError) as error:
            raise ConfigError(f"--fill-nulls: column {feature.name!r} holds {feature.dtype}, got {text!r}") from error

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name, text in self.values:
            i = batch.schema.get_field_index(name)
            if i >= 0:
                batch = batch.set_column(i, batch.schema.field(i), _filled(batch.column(i), text))
        return batch


@dataclass(frozen=True, slots=True)
class MaskNulls:
    """Mark the nulls in the lists of columns: ``x.missing`` is true where ``x`` has a null, of the same lengths.

    The nulls themselves become NaN, 0, false or empty, as where a loader masks missing values. A list that is missing
    stays missing, and its mask is all true, or empty if the length varies.

    >>> from ringfeed.sharding.prepare import parse_step
    >>> step = parse_step("--mask-nulls", "x", folder=".")
    >>> step.apply(pa.record_batch({"x": [[7, None], [], None]})).to_pydict()
    {'x': [[7, 0], [], None], 'x.missing': [[False, True], [], []]}
    """

    columns: tuple[str, ...]
    changes_rows: ClassVar[bool] = False

    @property
    def spec(self) -> str:
        return f"--mask-nulls {join_items(self.columns)}"

    def schema(self, schema: Schema) -> Schema:
        """The features, each mask after its column."""
        check_distinct("--mask-nulls", self.columns)
        check_columns("--mask-nulls", self.columns, schema.names)
        features: list[Feature] = []
        for feature in schema.features:
            features.append(feature)
            if feature.name not in self.columns:
                continue
            if not feature.shape:
                raise ConfigError(
                    f"--mask-nulls: column {feature.name!r} holds one value per record, whose missing values need no "
                    f"mask here: a loader marks them with masks=[{feature.name!r}]"
                )
            if feature.name + _MASK in schema.names:
                raise ConfigError(
                    f"--mask-nulls: there is a column {feature.name + _MASK!r} already; give it another name by "
                    "--rename first"
                )
            features.append(Feature(name=feature.name + _MASK, dtype="bool", shape=feature.shape))
        return Schema(features=tuple(features))

    def needs(self, names: Collection[str], schema: Schema) -> frozenset[str]:
        """The same columns, and for a mask the column that it marks."""
        masks = {name + _MASK: name for name in self.columns}
        return frozenset(masks.get(name, name) for name in names)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Fill the columns that the batch has, and add their masks."""
        for name in self.columns:
            i = batch.schema.get_field_index(name)
            if i >= 0:
                column, field = batch.column(i), batch.schema.field(i)
                batch = batch.set_column(i, field, _filled(column, _empty(column.type.value_type)))
                batch = batch.add_column(i + 1, name + _MASK, _marked(column))
        return batch


def _empty(kind: pa.DataType) -> str:
    """The text of what stands at a masked null."""
    if pa.types.is_floating(kind):
        return "nan"
    return "false" if pa.types.is_boolean(kind) else "0" if is_number(kind) else ""


def _marked(column: pa.Array) -> pa.Array:
    """Which elements of lists are null, in lists of the same lengths."""
    if not pa.types.is_fixed_size_list(column.type):
        return to_lists(column.flatten().is_null(), pc.fill_null(pc.list_value_length(column), 0).to_numpy(), None)
    size = column.type.list_size
    marks = np.ones((len(column), size), bool)
    marks[column.is_valid().to_numpy(zero_copy_only=False)] = (
        column.flatten().is_null().to_numpy(zero_copy_only=False).reshape(-1, size)
    )
    return pa.FixedSizeListArray.from_arrays(pa.array(marks.reshape(-1)), size)


def _filled(column: pa.Array, text: str) -> pa.Array:
    if is_list(column.type):
        elements, missing = column.flatten(), column.is_null()
        if not elements.null_count:
            return column
        filled = _filled(elements, text)
        if not pa.types.is_fixed_size_list(column.type):
            return to_lists(filled, pc.fill_null(pc.list_value_length(column), 0).to_numpy(), missing)
        lists = pa.FixedSizeListArray.from_arrays(filled, column.type.list_size)
        return insert_nulls(lists, column.is_valid()).cast(column.type)
    if not column.null_count:
        return column
    if column.type == pa.binary():
        return pc.fill_null(column, text.encode())
    return pc.fill_null(column, cast_column(pa.array([text]), column.type, "--fill-nulls")[0])


def _count_nulls(column: pa.Array) -> int:
    return int(column.null_count) + (column.flatten().null_count if is_list(column.type) else 0)


def _is_complete(column: pa.Array) -> pa.BooleanArray:
    """Whether each value is valid, with all its elements."""
    valid = pc.is_valid(column).to_numpy(zero_copy_only=False).copy()
    if is_list(column.type):
        elements = pc.is_null(column.flatten()).to_numpy(zero_copy_only=False)
        valid[pc.list_parent_indices(column).to_numpy()[np.flatnonzero(elements)]] = False
    return pa.array(valid)

"""Steps on types: `--cast`, and the types of a `--schema` file for sources that have types of their own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ConfigError, SourceError
from ..schema import Feature, Schema
from .columns import check_columns, check_distinct
from .items import join_items

__all__ = ["Cast", "SetTypes"]

_INFINITE = ("inf", "infinity")  # as Arrow reads them, without a sign and in lower case
_NUMBERS = ("int64", "uint64", "float64", "int32")  # what a column of times, held as integers, may become


@dataclass(frozen=True, slots=True)
class Cast:
    """Change the type of the elements of columns; shapes stay. A value that the new type cannot hold is an error."""

    dtypes: tuple[tuple[str, str], ...]
    changes_rows: ClassVar[bool] = False

    @property
    def spec(self) -> str:
        """As it stands on the command line."""
        return f"--cast {join_items(f'{name}={dtype}' for name, dtype in self.dtypes)}"

    def schema(self, schema: Schema) -> Schema:
        """The features of the new types."""
        check_distinct("--cast", [name for name, _ in self.dtypes])
        check_columns("--cast", [name for name, _ in self.dtypes], schema.names)
        dtypes = dict(self.dtypes)
        return _changed(schema, {f.name: _retyped(f, dtypes[f.name]) for f in schema.features if f.name in dtypes})

    def needs(self, names: Collection[str], schema: Schema) -> frozenset[str]:
        """The same columns."""
        return frozenset(names)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the columns that are there."""
        for name, dtype in self.dtypes:
            i = batch.schema.get_field_index(name)
            if i >= 0:
                element = Feature(name=name, dtype=dtype).primitive
                kind = _like(batch.column(i).type, element)
                batch = batch.set_column(i, name, _cast(batch.column(i), kind, f"--cast {name}={dtype}"))
        return batch


@dataclass(frozen=True, slots=True)
class SetTypes:
    """Bring the columns named in a ``--schema`` file into the types and shapes that it gives them."""

    features: tuple[Feature, ...]
    changes_rows: ClassVar[bool] = False

    @property
    def spec(self) -> str:
        """A line that tells the types."""
        return "--schema " + ",".join(
            f"{f.name}={f.dtype}{list(f.shape) if f.shape else ''}{f.encoding and f' ({f.encoding})'}"
            for f in self.features
        )

    def schema(self, schema: Schema) -> Schema:
        """The features as the file has them; those that it does not name stay."""
        check_columns("--schema", [feature.name for feature in self.features], schema.names)
        return _changed(schema, {feature.name: _merged(schema[feature.name], feature) for feature in self.features})

    def needs(self, names: Collection[str], schema: Schema) -> frozenset[str]:
        """The same columns."""
        return frozenset(names)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the columns that are there."""
        for feature in self.features:
            i = batch.schema.get_field_index(feature.name)
            if i >= 0:
                column = _cast(batch.column(i), feature.arrow_type, f"--schema: column {feature.name!r}")
                batch = batch.set_column(i, feature.name, column)
        return batch


def _changed(schema: Schema, features: dict[str, Feature]) -> Schema:
    return Schema(features=tuple(features.get(feature.name, feature) for feature in schema.features))


def _retyped(feature: Feature, dtype: str) -> Feature:
    """A feature of another type, and the same shape.

    Raises:
        ConfigError: there is no such type, or nothing turns the one into the other.
    """
    if dtype == feature.dtype:
        return feature
    try:
        result = replace(feature, dtype=dtype, encoding="", logical="")
    except ValueError as error:
        raise ConfigError(f"--cast: {error}") from error
    _check_cast("--cast", feature, result)
    return result


def _merged(feature: Feature, asked: Feature) -> Feature:
    if (feature.shape == ()) != (asked.shape == ()):
        raise ConfigError(f"--schema: column {feature.name!r} holds {_shown(feature)}, which is no {_shown(asked)}")
    if None not in (feature.elements, asked.elements) and feature.elements != asked.elements:
        raise ConfigError(
            f"--schema: column {feature.name!r} holds {feature.elements} elements a record, "
            f"shape {list(asked.shape)} has {asked.elements}"
        )
    if asked.dtype == feature.dtype:
        return replace(asked, encoding=asked.encoding or feature.encoding, logical=feature.logical)
    _check_cast("--schema", feature, asked)
    return asked


def _shown(feature: Feature) -> str:
    return f"list of {feature.dtype}" if feature.shape else f"scalar {feature.dtype}"


def _check_cast(flag: str, feature: Feature, asked: Feature) -> None:
    if feature.logical and asked.dtype not in _NUMBERS:
        raise ConfigError(
            f"{flag}: column {feature.name!r} holds {feature.logical} as {feature.dtype}, which cannot become "
            f"{asked.dtype}; convert it with --map"
        )
    try:
        pc.cast(pa.array([], feature.primitive), asked.primitive)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise ConfigError(
            f"{flag}: column {feature.name!r} holds {feature.dtype}, which cannot become {asked.dtype}; "
            "convert it with --map"
        ) from error


def _like(kind: pa.DataType, element: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(element, kind.list_size)
    return pa.list_(element) if pa.types.is_list(kind) else element


def _cast(column: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    """A column in another type.

    Raises:
        SourceError: a value has no place in it.
    """
    if column.type == kind:
        return column
    try:
        result = pc.cast(column, kind)
        _check_held(column, result)
    except pa.ArrowInvalid as error:
        detail = " ".join(str(error).split())[:200]
        raise SourceError(
            f"{what}: {detail}; choose a type that holds every value, or drop those records with --filter first"
        ) from error
    return result


def _check_held(column: pa.Array, result: pa.Array) -> None:
    """Refuse what Arrow lets pass: infinity for a large number, true for any, an integer that float16 rounds.

    Raises:
        pa.ArrowInvalid: names the first such value.
    """
    while pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
        column, result = column.flatten(), result.flatten()
    before, after = column.type, result.type
    if pa.types.is_floating(after):
        if pa.types.is_integer(before):
            changed = pc.not_equal(result.cast(pa.float64()), column.cast(pa.float64(), safe=False))
        elif pa.types.is_floating(before):
            changed = pc.and_(_infinite(result), pc.invert(_infinite(column)))
        elif pa.types.is_string(before) or pa.types.is_binary(before):
            told = pc.is_in(pc.utf8_lower(pc.utf8_ltrim(column.cast(pa.string()), "+-")), pa.array(_INFINITE))
            changed = pc.and_(_infinite(result), pc.invert(told))
        else:
            return
    elif pa.types.is_boolean(after) and (pa.types.is_integer(before) or pa.types.is_floating(before)):
        changed = pc.not_equal(result.cast(before), column)
    else:
        return
    lost = column.filter(changed)
    if len(lost):
        raise pa.ArrowInvalid(f"value {lost[0].as_py()!r} has no place in it")


def _infinite(column: pa.Array) -> pa.Array:
    return pc.is_inf(column.cast(pa.float64()))

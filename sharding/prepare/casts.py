"""Steps on types: `--cast`, and the types of a `--schema` file for sources that have types of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from ..compute.arrow_casts import cast_column
from ..errors import ConfigError
from ..schema import Feature, Schema
from .column_names import check_columns, check_distinct
from .comma_lists import join_items
from .steps import ColumnStep

__all__ = ["Cast", "SetTypes"]

_NUMBERS = ("int64", "uint64", "float64", "int32")  # what a column of times, held as integers, may become


@dataclass(frozen=True, slots=True)
class Cast(ColumnStep):
    """Change the type of the elements of columns; shapes stay. A value that the new type cannot hold is an error."""

    dtypes: tuple[tuple[str, str], ...]

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

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the columns that are there."""
        for name, dtype in self.dtypes:
            i = batch.schema.get_field_index(name)
            if i >= 0:
                element = Feature(name=name, dtype=dtype).primitive
                kind = _like(batch.column(i).type, element)
                batch = batch.set_column(i, name, cast_column(batch.column(i), kind, f"--cast {name}={dtype}"))
        return batch


@dataclass(frozen=True, slots=True)
class SetTypes(ColumnStep):
    """Bring the columns named in a ``--schema`` file into the types and shapes that it gives them."""

    features: tuple[Feature, ...]

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

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the columns that are there."""
        for feature in self.features:
            i = batch.schema.get_field_index(feature.name)
            if i >= 0:
                column = cast_column(batch.column(i), feature.arrow_type, f"--schema: column {feature.name!r}")
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

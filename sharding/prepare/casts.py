"""Steps that change types: `--cast`, `--float32`, and the types that a `--schema` file gives to a typed source."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.compute.arrow_casts import cast_column
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.formats.parquet_types import element_type, with_elements
from ringfeed.sharding.schema import Feature, Schema

from .column_names import check_columns, check_distinct, is_hidden
from .comma_lists import join_items
from .steps import ColumnStep

_TIME_CASTS = ("int64", "uint64", "float64", "int32")  # targets for times, which are stored as integers


@dataclass(frozen=True, slots=True)
class Cast(ColumnStep):
    """Change the element type of columns and keep their shapes. A value that does not fit the new type is an error.

    >>> from ringfeed.sharding.prepare import parse_step
    >>> parse_step("--cast", "delay=float32", folder=".")
    Cast(dtypes=(('delay', 'float32'),))
    """

    dtypes: tuple[tuple[str, str], ...]

    @property
    def spec(self) -> str:
        return f"--cast {join_items(f'{name}={dtype}' for name, dtype in self.dtypes)}"

    def schema(self, schema: Schema) -> Schema:
        check_distinct("--cast", [name for name, _ in self.dtypes])
        check_columns("--cast", [name for name, _ in self.dtypes], schema.names)
        dtypes = dict(self.dtypes)
        return _changed(schema, {f.name: _retyped(f, dtypes[f.name]) for f in schema.features if f.name in dtypes})

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name, dtype in self.dtypes:
            i = batch.schema.get_field_index(name)
            if i >= 0:
                element = Feature(name=name, dtype=dtype).primitive
                kind = with_elements(batch.column(i).type, element)
                batch = batch.set_column(i, name, cast_column(batch.column(i), kind, f"--cast {name}={dtype}"))
        return batch


@dataclass(frozen=True, slots=True)
class SetTypes(ColumnStep):
    """Convert columns to the types and shapes of a ``--schema`` file; lists of one element may become the element.

    >>> from ringfeed.sharding import Feature
    >>> SetTypes((Feature(name="zip", dtype="string"),)).features[0].dtype
    'string'
    """

    features: tuple[Feature, ...]

    @property
    def spec(self) -> str:
        """The types on one line, for errors."""
        return "--schema " + ",".join(
            f"{f.name}={f.dtype}{list(f.shape) if f.shape else ''}{f.encoding and f' ({f.encoding})'}"
            for f in self.features
        )

    def schema(self, schema: Schema) -> Schema:
        """The features as in the file; those that it does not name stay."""
        check_columns("--schema", [feature.name for feature in self.features], schema.names)
        return _changed(schema, {feature.name: _merged(schema[feature.name], feature) for feature in self.features})

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for feature in self.features:
            i = batch.schema.get_field_index(feature.name)
            if i >= 0:
                column = batch.column(i)
                if not feature.shape and pa.types.is_fixed_size_list(column.type):
                    column = pc.list_element(column, 0)
                column = cast_column(column, feature.arrow_type, f"--schema: column {feature.name!r}")
                batch = batch.set_column(i, feature.name, column)
        return batch


@dataclass(frozen=True, slots=True)
class Float32(ColumnStep):
    """Round floats of 64 bits to the nearest of 32 bits; one beyond their range is an error. The label stays."""

    label: str | None

    @property
    def spec(self) -> str:
        return "--float32"

    def schema(self, schema: Schema) -> Schema:
        """The features, with float32 in place of float64."""
        return _changed(schema, {f.name: _retyped(f, "float32") for f in schema.features if self._rounds(f)})

    def _rounds(self, feature: Feature) -> bool:
        return feature.dtype == "float64" and feature.name != self.label

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for i, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
            if name != self.label and not is_hidden(name) and element_type(column.type) == pa.float64():
                kind = with_elements(column.type, pa.float32())
                batch = batch.set_column(i, name, cast_column(column, kind, f"--float32: column {name!r}"))
        return batch


def _changed(schema: Schema, features: dict[str, Feature]) -> Schema:
    return Schema(features=tuple(features.get(feature.name, feature) for feature in schema.features))


def _retyped(feature: Feature, dtype: str) -> Feature:
    """A feature of another type and the same shape; a ConfigError if there is no such type, or no cast to it."""
    if dtype == feature.dtype and not feature.categories:
        return feature
    try:
        result = replace(feature, dtype=dtype, encoding="", logical="", categories=())
    except ValueError as error:
        raise ConfigError(f"--cast: {error}") from error
    _check_cast("--cast", feature, result)
    return result


def _merged(feature: Feature, declared: Feature) -> Feature:
    if (feature.shape == ()) != (declared.shape == ()) and not (declared.shape == () and feature.elements == 1):
        raise ConfigError(f"--schema: column {feature.name!r} holds {_shown(feature)}, not {_shown(declared)}")
    if None not in (feature.elements, declared.elements) and feature.elements != declared.elements:
        raise ConfigError(
            f"--schema: column {feature.name!r} holds {feature.elements} elements per record, and shape "
            f"{list(declared.shape)} has {declared.elements}"
        )
    if declared.dtype == feature.dtype:
        encoding = declared.encoding or feature.encoding
        return replace(declared, encoding=encoding, logical=feature.logical, categories=feature.categories)
    _check_cast("--schema", feature, declared)
    return declared


def _shown(feature: Feature) -> str:
    return f"list of {feature.dtype}" if feature.shape else f"scalar {feature.dtype}"


def _check_cast(flag: str, feature: Feature, target: Feature) -> None:
    if feature.logical and target.dtype not in _TIME_CASTS:
        raise ConfigError(
            f"{flag}: column {feature.name!r} holds {feature.logical} as {feature.dtype}, which cannot become "
            f"{target.dtype}; convert it with --map"
        )
    try:
        pc.cast(pa.array([], feature.primitive), target.primitive)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise ConfigError(
            f"{flag}: column {feature.name!r} holds {feature.dtype}, which cannot become {target.dtype}; "
            "convert it with --map"
        ) from error

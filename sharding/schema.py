"""The schema of a dataset: its features, and their types in Arrow and in `tf.train.Example`.

Not here: reading or writing files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .errors import SourceError
from .messages import did_you_mean, listed

# Columns that a loader adds to batches (`pipeline/select/sample_columns.py`), so features of these names are refused.
RESERVED_NAMES = ("class_id", "soft_label", "sample_weight", "sample_key")
MAX_FEATURES = 1 << 15  # per record: each costs about 0.1 ms per batch

ExampleKind = Literal["int64", "float", "bytes", "raw"]

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
_PRIMITIVES: dict[str, pa.DataType] = {
    **{name: pa.type_for_alias(name) for name in _INTEGERS},
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
}
DTYPES = tuple(_PRIMITIVES)
_WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
_NAMES = {kind: name for name, kind in _PRIMITIVES.items()}
_SYNONYMS = {
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One column of a dataset.

    Attributes:
        name: column name.
        dtype: element type: ``bool``, ``int8`` to ``uint64``, ``float16`` to ``float64``, ``string``, ``binary``.
        shape: shape of one record's value: ``()`` for a scalar, ``(28, 28)`` fixed, ``(None,)`` of variable length.
        encoding: ``image`` for ``binary`` features that hold image files, else empty.
        logical: original Arrow type of values stored as integers, such as ``timestamp[us]``, else empty.
        categories: all values of an ordered categorical column of strings, in their order, else empty.

    Raises:
        ValueError: the dtype or the shape is none of these.

    >>> Feature(name="pixels", dtype="uint8", shape=(28, 28))
    Feature(name='pixels', dtype='uint8', shape=(28, 28), encoding='', logical='')
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] = ()
    encoding: str = ""
    logical: str = ""
    categories: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.dtype not in _PRIMITIVES:
            raise ValueError(f"feature {self.name!r}: dtype must be one of {sorted(_PRIMITIVES)}, got {self.dtype!r}")
        if None in self.shape and len(self.shape) != 1:
            raise ValueError(f"feature {self.name!r}: a variable-length shape has one dimension, got {self.shape}")
        if min((size for size in self.shape if size is not None), default=1) < 1:
            raise ValueError(f"feature {self.name!r}: a shape has no sizes below 1, got {self.shape}")

    @property
    def fixed_shape(self) -> tuple[int, ...] | None:
        """The shape, or None if the length varies between records."""
        sizes = tuple(size for size in self.shape if size is not None)
        return sizes if len(sizes) == len(self.shape) else None

    @property
    def elements(self) -> int | None:
        """Elements per record, or None if that varies."""
        return None if self.fixed_shape is None else prod(self.fixed_shape)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of each record's value, as far as dtype and shape show: 0 for text and lists."""
        return (self.elements or 0) * np.dtype(self.dtype).itemsize if self.numeric else 0

    @property
    def numeric(self) -> bool:
        """Whether mean and standard deviation make sense."""
        return self.dtype not in ("string", "binary")

    @property
    def is_image(self) -> bool:
        """Whether each value is one image file."""
        return self.encoding == "image" and self.shape == ()

    @property
    def primitive(self) -> pa.DataType:
        """The Arrow type of one element."""
        return _PRIMITIVES[self.dtype]

    @property
    def arrow_type(self) -> pa.DataType:
        """The column's Arrow type; tensors of fixed shape become one flat fixed-size list."""
        if self.shape == ():
            return self.primitive
        if self.elements is None:
            return pa.list_(self.primitive)
        return pa.list_(self.primitive, self.elements)

    @property
    def wide_type(self) -> pa.DataType:
        """The column's Arrow type with offsets of 64 bits, for columns that may hold more than 2 GiB in memory."""
        primitive = _WIDE.get(self.primitive, self.primitive)
        if self.shape == ():
            return primitive
        return pa.large_list(primitive) if self.elements is None else pa.list_(primitive, self.elements)

    @property
    def time_type(self) -> pa.DataType | None:
        """The Arrow type of times that are stored as integers, or None."""
        return None if not self.logical or self.shape else logical_type(self.logical)

    @property
    def example_kind(self) -> ExampleKind:
        """The kind of list that holds the values exactly in a `tf.train.Example`.

        ``raw`` is a bytes_list with one value: the elements, little-endian. It is used for float64, which a float_list
        (float32) would round, and for uint8 tensors, whose size varints would nearly double.
        """
        if self.dtype == "float64" or (self.dtype == "uint8" and self.shape != ()):
            return "raw"
        if self.dtype in ("float16", "float32"):
            return "float"
        return "int64" if self.dtype in _INTEGERS else "bytes"

    def to_json(self) -> dict[str, Any]:
        """The entry in `dataset.json`."""
        value: dict[str, Any] = {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}
        value["example"] = self.example_kind
        return value | {key: found for key in ("encoding", "logical", "categories") if (found := getattr(self, key))}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Feature:
        """The inverse of `to_json`."""
        return cls(
            name=value["name"],
            dtype=value["dtype"],
            shape=tuple(value["shape"]),
            encoding=value.get("encoding", ""),
            logical=value.get("logical", ""),
            categories=tuple(map(str, value.get("categories", ()))),
        )

    @classmethod
    def from_arrow(cls, field: pa.Field) -> Feature:
        """Return the feature that holds every value of an Arrow column exactly.

        Raises:
            SourceError: no feature can hold the column's type or nesting.
        """
        kind = _stored(field.type.value_type if pa.types.is_dictionary(field.type) else field.type)
        metadata = {k.decode(): v.decode() for k, v in (field.metadata or {}).items()}
        shape: tuple[int | None, ...] = ()
        if isinstance(kind, pa.FixedShapeTensorType):
            shape, kind = tuple(np.array(kind.shape)[_order_of(kind)].tolist()), kind.value_type
        while pa.types.is_fixed_size_list(kind):
            shape, kind = (*shape, kind.list_size), kind.value_type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            shape, kind = (*shape, None), kind.value_type
        kind = _stored(kind)
        declared = tuple(int(size) for size in metadata.get("shape", "").split(",") if size.isdecimal())
        if None not in shape and prod(s for s in shape if s) == prod(declared) and len(declared) > len(shape):
            shape = declared  # written by `_field`; a foreign "shape" entry is ignored unless it fits
        logical = ""
        if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
            logical, kind = str(kind), (pa.int32() if kind.bit_width == 32 else pa.int64())
        if pa.types.is_fixed_size_binary(kind):
            kind = pa.binary()
        dtype = _NAMES.get(kind) or _SYNONYMS.get(kind)
        if dtype is None or (None in shape and len(shape) > 1) or 0 in shape:
            raise SourceError(
                f"column {field.name!r} has type {field.type}, which no feature can hold; "
                "leave it out with the first --drop-columns or --select, or convert it first to numbers, strings, "
                "bytes or lists of them"
            )
        categories = categories_of(field) if (dtype, shape) == ("string", ()) else ()
        encoding = metadata.get("encoding", "")
        return cls(name=field.name, dtype=dtype, shape=shape, encoding=encoding, logical=logical, categories=categories)

    def conform(self, column: pa.Array) -> pa.Array:
        """Convert a column that `from_arrow` accepted to `arrow_type` without changing a value.

        The elements of a tensor that is missing within a tensor are nulls.
        """
        if isinstance(column, pa.FixedShapeTensorArray):
            column = _in_order(column)
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        if pa.types.is_dictionary(column.type):
            column = pc.cast(column, column.type.value_type)
        if pa.types.is_fixed_size_list(column.type) and pa.types.is_fixed_size_list(column.type.value_type):
            column = _flattened(column)
        if self.logical and not self.shape:  # lists have no view; the cast below is just as exact
            column = column.view(self.primitive)
        return column if column.type == self.arrow_type else pc.cast(column, self.arrow_type)


def logical_type(name: str) -> pa.DataType:
    """The Arrow type whose name a `Feature.logical` is.

    >>> logical_type("timestamp[us, tz=Europe/Berlin]")
    TimestampType(timestamp[us, tz=Europe/Berlin])
    """
    unit, _, zone = name.removesuffix("]").partition(", tz=")
    kind = pa.type_for_alias(f"{unit}]")
    return pa.timestamp(kind.unit, zone) if zone else kind


def categories_of(field: pa.Field) -> tuple[str, ...]:
    """The categories that the metadata of a field name, in their order; empty if it has none."""
    with suppress(ValueError):
        names = json.loads((field.metadata or {}).get(b"categories", b"[]"))
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return tuple(names)
    return ()


def with_categories(field: pa.Field, categories: Sequence[str]) -> pa.Field:
    """The field with these categories in its metadata, in place of those that it had."""
    if tuple(categories) == categories_of(field):
        return field
    others = {key: value for key, value in (field.metadata or {}).items() if key != b"categories"}
    return field.with_metadata(others | ({b"categories": json.dumps(categories).encode()} if categories else {}))


def check_categories(batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Refuse values that are none of the categories that the fields of a schema name (a SourceError)."""
    for named in schema:
        if categories := categories_of(named):
            column = batch.column(named.name).drop_null()
            odd = column.filter(pc.invert(pc.is_in(column, pa.array(categories, column.type))))
            if len(odd):
                raise SourceError(
                    f"column {named.name!r} holds {odd[0].as_py()!r}, which is none of its ordered categories, "
                    f"{listed(categories)}; give all records the same categories, or build with "
                    f"--cast {named.name}=string, which keeps plain strings"
                )


def check_distinct_names(names: Sequence[str], where: str = "", remedy: str = "rename all but one") -> None:
    """Refuse columns of one name (a SourceError)."""
    if len(set(names)) != len(names):
        twice = listed(sorted({repr(name) for name in names if names.count(name) > 1}))
        raise SourceError(f"{where}column names must differ, got {twice} more than once; {remedy}")


def to_lists(elements: pa.Array, lengths: Sequence[int] | npt.NDArray[np.integer], mask: pa.Array | None) -> pa.Array:
    """Cut consecutive elements into lists of the given lengths; a list is null where the mask is true."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), elements, mask=mask)


def _flattened(column: pa.Array) -> pa.Array:
    """Flatten nested lists of fixed size to one list per record."""
    present, width = column.is_valid(), 1
    values = column.filter(present)
    while pa.types.is_fixed_size_list(values.type):
        width *= values.type.list_size
        values = insert_nulls(values.flatten(), pa.array(np.repeat(values.is_valid(), values.type.list_size)))
    return insert_nulls(pa.FixedSizeListArray.from_arrays(values, width), present)


def insert_nulls(rows: pa.Array, present: pa.BooleanArray) -> pa.Array:
    """Spread rows over the places that are present; the other places are null."""
    if len(rows) == len(present):
        return rows
    places = pc.subtract(pc.cumulative_sum(present.cast(pa.int64())), 1)
    return rows.take(pc.if_else(present, places, None))


def _stored(kind: pa.DataType) -> pa.DataType:
    """The storage type of an extension type, such as 16 bytes of a UUID; tensors keep their type, for their shape."""
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.FixedShapeTensorType):
        return kind.storage_type
    return kind


def _order_of(kind: pa.FixedShapeTensorType) -> list[int]:
    """A tensor's axes in the order of memory."""
    return list(range(len(kind.shape))) if kind.permutation is None else list(kind.permutation)


def _in_order(column: pa.FixedShapeTensorArray) -> pa.Array:
    """Tensors as lists of elements in the order of their axes, from whatever order they have in memory."""
    kind, lists = column.type, column.storage
    order = np.arange(prod(kind.shape)).reshape(kind.shape).transpose(_order_of(kind)).reshape(-1)
    if (np.diff(order) == 1).all():
        return lists
    places = np.add.outer((lists.offset + np.arange(len(lists))) * len(order), order).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(lists.values.take(places), len(order), mask=lists.is_null())


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The features of a dataset, in order, and the name of the label, or None.

    Raises:
        SourceError: two features have one name, or no feature has the label's.

    >>> from ringfeed.sharding import Feature
    >>> schema = Schema(features=(Feature(name="x", dtype="float32"), Feature(name="y", dtype="int64")), label="y")
    >>> schema.names
    ('x', 'y')
    """

    features: tuple[Feature, ...]
    label: str | None = None

    def __post_init__(self) -> None:
        names = [feature.name for feature in self.features]
        check_distinct_names(names)
        if self.label is not None and self.label not in names:
            hint = did_you_mean(self.label, names, f"the columns are: {listed(names)}")
            raise SourceError(f"there is no label column {self.label!r}; {hint}")

    def __getitem__(self, name: str) -> Feature:
        for feature in self.features:
            if feature.name == name:
                return feature
        raise KeyError(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Feature names, in order."""
        return tuple(feature.name for feature in self.features)

    def select(self, names: Sequence[str]) -> Schema:
        """The named features, in the order of `names`; the label is kept if it is among them."""
        label = self.label if self.label in names else None
        return Schema(features=tuple(self[name] for name in names), label=label)

    def only(self, names: Iterable[str]) -> Schema:
        """The features in `names`, in the schema's order; the label is kept if it is among them."""
        wanted = set(names)
        return self.select([name for name in self.names if name in wanted])

    @property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of a record batch, with shapes and encodings as field metadata."""
        return pa.schema([_field(feature, role="label" * (feature.name == self.label)) for feature in self.features])

    @property
    def empty(self) -> pa.RecordBatch:
        """An empty record batch."""
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in self.arrow], schema=self.arrow)

    @classmethod
    def from_arrow(cls, schema: pa.Schema, label: str | None) -> Schema:
        """Return the schema that holds every column of an Arrow schema exactly.

        Raises:
            SourceError: there are too many columns, the label is no column, or no feature can hold a column.
        """
        if len(schema) > MAX_FEATURES:
            raise SourceError(
                f"a record has {len(schema):,} columns, at most {MAX_FEATURES:,} are possible; put numbers that "
                "belong together into one column of lists"
            )
        names = {field.name for field in schema}
        if label is not None and label not in names:  # reported before an unsuitable column type
            cls(features=tuple(Feature(name=name, dtype="binary") for name in schema.names), label=label)
        return cls(features=tuple(Feature.from_arrow(field) for field in schema), label=label)

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch that has all the schema's columns to exactly the schema's Arrow types."""
        columns = [feature.conform(batch.column(feature.name)) for feature in self.features]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    def to_json(self) -> list[dict[str, Any]]:
        """The list of features in `dataset.json`."""
        return [
            feature.to_json() | ({"role": "label"} if feature.name == self.label else {}) for feature in self.features
        ]

    @classmethod
    def from_json(cls, values: Sequence[Mapping[str, Any]]) -> Schema:
        """The inverse of `to_json`."""
        labels = [value["name"] for value in values if value.get("role") == "label"]
        return cls(features=tuple(map(Feature.from_json, values)), label=labels[0] if labels else None)


def _field(feature: Feature, *, role: str) -> pa.Field:
    metadata = {"role": role, "encoding": feature.encoding, "logical": feature.logical}
    if feature.categories:
        metadata["categories"] = json.dumps(feature.categories)
    if len(feature.shape) > 1:
        metadata["shape"] = ",".join(map(str, feature.shape))
    return pa.field(feature.name, feature.arrow_type, metadata={k: v for k, v in metadata.items() if v} or None)


def class_array(schema: Schema, classes: Sequence[object]) -> pa.Array:
    """Class values as an array of the label's type; without a label, the placeholder of the one class None."""
    return pa.array([False] * len(classes) if schema.label is None else classes, label_type(schema))


def class_names(schema: Schema, classes: Sequence[object]) -> list[str]:
    """Class values as texts; a time, which is stored as an integer, as ISO 8601 writes it.

    >>> schema = Schema(features=(Feature(name="day", dtype="int32", logical="date32[day]"),), label="day")
    >>> class_names(schema, [18546])
    ['2020-10-11']
    """
    kind = None if schema.label is None else schema[schema.label].time_type
    return list(map(str, classes if kind is None else class_array(schema, classes).view(kind).cast(pa.string())))


def label_type(schema: Schema) -> pa.DataType:
    """The Arrow type of the label; without a label, the type of its placeholder."""
    return pa.bool_() if schema.label is None else schema[schema.label].primitive

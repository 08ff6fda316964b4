"""Arrow schemas of table files: flattened, and checked for features that hold their columns.

Decimals have default features, which hold every value of theirs. Hugging Face's metadata give names to the numbers of a
column of classes.
Tested in tests/sharding/sources/tables/test_table_files.py and tests/sharding/prepare/test_class_label.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ringfeed.sharding.compute.arrow_casts import can_cast, is_list
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.schema import Feature, categories_of, with_categories

from .structs import Path, fields_of, huggingface_features, mark_images

_NAMES_SHOWN = 8
_KEY = b"class_names"  # of the metadata of a field
_INTEGER_DIGITS = 18  # every number of so many digits fits int64
_FLOAT_DIGITS = 15  # that a float64 gives back as they were


def flatten_schema(
    schema: pa.Schema, wanted: Callable[[str], bool], features: Mapping[str, Feature]
) -> tuple[pa.Schema, tuple[str, ...], dict[str, Path]]:
    """Return a file's schema without structs and nested lists, the unwanted of them, and the paths of all other parts.

    Lists of lists of one shape stay, if they have that shape by their type or by a declared feature.
    """

    def is_held(field: pa.Field) -> bool:
        declared = features.get(field.name)
        return feature_of(field) is not None or (declared is not None and can_cast(field.type, declared))

    fields = [entry for field in schema for entry in fields_of(field, wanted, is_held)]
    left_out = tuple(field.name for field, path in fields if path is None)
    paths = {field.name: path for field, path in fields if path and path[1:]}
    return pa.schema([field for field, path in fields if path]), left_out, paths


def check_features(fields: Sequence[pa.Field]) -> None:
    """Check that a feature can hold each column; the SourceError names the columns whose types no feature can hold."""
    odd = [field for field in fields if feature_of(field) is None]
    if not odd:
        return
    others = ", ".join(repr(field.name) for field in odd[1:_NAMES_SHOWN]) + ", ..." * (len(odd) > _NAMES_SHOWN)
    also = others and f" (nor can any hold {others})"
    raise SourceError(
        f"column {odd[0].name!r} has type {odd[0].type}, which no feature can hold{also}; "
        "leave it out with the first --drop-columns or --select, give it a type with --cast (decimals, nulls) or with "
        "--schema, or convert it to numbers, strings, bytes or lists of them first"
    )


def feature_of(field: pa.Field) -> Feature | None:
    """Return the feature of a field's type, or None if there is none."""
    try:
        return Feature.from_arrow(field.remove_metadata())
    except SourceError:
        return None


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without metadata, except for marks of images, names of classes and ordered categories.

    Raises:
        UnicodeDecodeError: a name is not UTF-8.
    """
    list(schema.names)  # decodes them
    marked = _mark_class_names(mark_images(schema), huggingface_features(schema, "ClassLabel"))
    return pa.schema([with_categories(field, categories_of(old)) for field, old in zip(marked, schema, strict=True)])


def _mark_class_names(schema: pa.Schema, labels: Mapping[str, Mapping[str, Any]]) -> pa.Schema:
    """Return the schema with the names of each `ClassLabel` in the metadata of its field."""
    names = {name: feature.get("names") for name, feature in labels.items()}
    return pa.schema([_marked(field, names.get(field.name)) for field in schema])


def class_names(schemas: Sequence[tuple[str, pa.Schema]], label: str | None) -> tuple[str, ...]:
    """Return the names of a label's classes by number, or none if the label has none.

    Args:
        schemas: schemas that `plain_schema` returned, with the URLs of their files.
        label: name of the label.

    Raises:
        SourceError: files name the same numbers differently.
    """
    names: dict[bytes, str] = {}
    for url, schema in schemas:
        i = -1 if label is None else schema.get_field_index(label)
        if i >= 0:
            names.setdefault((schema.field(i).metadata or {}).get(_KEY, b"[]"), url)
    if len(names) > 1:
        first, second, *_ = names.items()
        raise SourceError(
            f"{second[1]} names the classes of {label!r} {_shown(second[0])}, and {first[1]} {_shown(first[0])}, in "
            f"Hugging Face's metadata, so their numbers may differ; keep the numbers with --cast {label}=int64"
        )
    return tuple(json.loads(next(iter(names), b"[]")))


def _marked(field: pa.Field, names: object) -> pa.Field:
    if not isinstance(names, list) or not names or not pa.types.is_integer(field.type):
        return field
    return field.with_metadata({**(field.metadata or {}), _KEY: json.dumps(names).encode()})


def _shown(names: bytes) -> str:
    some = json.loads(names)
    return f"{some[:3]}{' and so on' * (len(some) > 3)}" if some else "not at all"


def decimal_features(schemas: Iterable[pa.Schema]) -> Mapping[str, Feature]:
    """The features of columns of decimals, and of lists of them, by name; fields of structs by their dotted names.

    Whole numbers of up to 18 digits are int64, others of up to 15 digits float64, and longer ones text.

    >>> schema = pa.schema({"price": pa.decimal128(10, 2), "rate": pa.decimal128(38, 18)})
    >>> [feature.dtype for feature in decimal_features([schema]).values()]
    ['float64', 'string']
    """
    digits: dict[str, tuple[int, int, tuple[int | None, ...]]] = {}
    for schema in schemas:
        for name, kind, shape in _decimals("", schema):
            whole, places, _ = digits.get(name, (0, 0, shape))
            digits[name] = max(whole, kind.precision - kind.scale), max(places, kind.scale), shape
    return {
        name: Feature(name=name, dtype=_dtype(whole, places), shape=shape)
        for name, (whole, places, shape) in digits.items()
    }


def _decimals(before: str, fields: Iterable[pa.Field]) -> Iterator[tuple[str, pa.DataType, tuple[int | None, ...]]]:
    for field in fields:
        kind: pa.DataType = field.type
        shape: tuple[int | None, ...] = ()
        if is_list(kind):
            shape, kind = (kind.list_size if pa.types.is_fixed_size_list(kind) else None,), kind.value_type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if pa.types.is_decimal(kind):
            yield before + field.name, kind, shape
        elif pa.types.is_struct(kind) and not shape:
            yield from _decimals(f"{before}{field.name}.", kind)


def _dtype(whole: int, places: int) -> str:
    if places <= 0 and whole <= _INTEGER_DIGITS:
        return "int64"
    return "float64" if whole + max(places, 0) <= _FLOAT_DIGITS else "string"

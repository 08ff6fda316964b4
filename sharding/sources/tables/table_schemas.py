"""Arrow schemas of table files: flattened, and checked for features that hold their columns.

Tested in tests/sharding/sources/tables/test_table_files.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from ringfeed.sharding.compute.arrow_casts import can_cast
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.schema import Feature, categories_of, with_categories

from .class_names import mark_class_names
from .structs import Path, fields_of, mark_images

_NAMES_SHOWN = 8


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
    marked = mark_class_names(mark_images(schema), schema.metadata)
    return pa.schema([with_categories(field, categories_of(old)) for field, old in zip(marked, schema, strict=True)])

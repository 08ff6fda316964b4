"""Arrow schemas of table files: flattened, compared, and checked for features that hold their columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import pyarrow as pa

from ...compute.arrow_casts import can_cast
from ...errors import SourceError
from ...schema import Feature
from .structs import Path, fields_of, mark_images

__all__ = ["applicable_features", "check_alike", "check_features", "feature_of", "flatten_schema", "plain_schema"]

_NAMES_SHOWN = 8


def flatten_schema(
    schema: pa.Schema, wanted: Callable[[str], bool]
) -> tuple[pa.Schema, tuple[str, ...], dict[str, Path]]:
    """Return a file's schema without structs, the unwanted structs, and the paths of the others' fields."""
    found = [entry for field in schema for entry in fields_of(field, wanted)]
    left_out = tuple(field.name for field, path in found if path is None)
    paths = {field.name: path for field, path in found if path and path[1:]}
    return pa.schema([field for field, path in found if path]), left_out, paths


def applicable_features(schema: pa.Schema, first: pa.Schema, features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return the declared features of columns that have none of their own, or another one than in the first file."""
    found = {}
    for name, feature in features.items():
        if schema.names.count(name) != 1 or first.names.count(name) != 1:
            continue
        ours, theirs = schema.field(name), first.field(name)
        needed = feature_of(ours) is None or feature_of(ours) != feature_of(theirs)
        if needed and can_cast(ours.type, feature) and can_cast(theirs.type, feature):
            found[name] = feature
    return found


def check_alike(schema: pa.Schema, first: pa.Schema, declared: Collection[str], path: str, first_path: str) -> None:
    """Check that two schemas have the same columns, in any order, of the same features or of a declared one.

    Raises:
        SourceError: names a column that differs.
    """
    if schema.equals(first):
        return
    ours, theirs = ({field.name: field for field in fields} for fields in (schema, first))
    remedy = ""
    for name in [*ours, *theirs]:
        if name not in ours or name not in theirs:
            problem = f"only one of the two has a column {name!r}"
        elif name not in declared and feature_of(ours[name]) != feature_of(theirs[name]):
            problem = f"column {name!r} is {ours[name].type} here and {theirs[name].type} there"
            remedy = ", or declare a type for both with --cast or --schema"
        else:
            continue
        raise SourceError(
            f"{path}: its schema differs from that of {first_path} ({problem}); cast one to the other{remedy}"
        )


def check_features(fields: Sequence[pa.Field]) -> None:
    """Check that a feature can hold each column.

    Raises:
        SourceError: names the columns whose types no feature can hold.
    """
    odd = [field for field in fields if feature_of(field) is None]
    if not odd:
        return
    others = ", ".join(repr(field.name) for field in odd[1:_NAMES_SHOWN]) + ", ..." * (len(odd) > _NAMES_SHOWN)
    also = others and f" (nor those of {others})"
    raise SourceError(
        f"column {odd[0].name!r} has type {odd[0].type}, which no feature can hold{also}; "
        "leave it out with the first --drop-columns or --select, give it a type with --cast (decimals, nulls) or with "
        "--schema (also lists of lists of one shape), or convert it to numbers, strings, bytes or lists of them first"
    )


def feature_of(field: pa.Field) -> Feature | None:
    """Return the feature of a field's type, or None if there is none."""
    try:
        return Feature.from_arrow(field.remove_metadata())
    except SourceError:
        return None


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without metadata, except for marks of images.

    Raises:
        UnicodeDecodeError: a name is not UTF-8.
    """
    list(schema.names)  # decodes them
    return mark_images(schema)

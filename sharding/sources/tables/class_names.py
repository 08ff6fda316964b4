"""The names of classes that Hugging Face's metadata give to the numbers of a column.

Tested in tests/sharding/prepare/test_class_label.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa

from ringfeed.sharding.errors import SourceError

_KEY = b"class_names"


def mark_class_names(schema: pa.Schema, metadata: dict[bytes, bytes] | None) -> pa.Schema:
    """Return the schema with the names of each `ClassLabel` in the metadata of its field.

    Args:
        metadata: the file's own metadata, which may hold the key ``huggingface``.
    """
    names: dict[str, list[str]] = {}
    with suppress(ValueError, KeyError, AttributeError, TypeError):  # the key may be another program's
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        names = {name: list(feature["names"]) for name, feature in features.items() if _is_class_label(feature)}
    return pa.schema([_marked(field, names.get(field.name)) for field in schema])


def class_names(schemas: Sequence[tuple[str, pa.Schema]], label: str | None) -> tuple[str, ...]:
    """Return the names of a label's classes by number, or none if the label has none.

    Args:
        schemas: schemas that `mark_class_names` returned, with the URLs of their files.
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


def _is_class_label(feature: object) -> bool:
    return isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and bool(feature.get("names"))


def _marked(field: pa.Field, names: list[str] | None) -> pa.Field:
    if names is None or not pa.types.is_integer(field.type):
        return field
    return field.with_metadata({**(field.metadata or {}), _KEY: json.dumps(names).encode()})


def _shown(names: bytes) -> str:
    some = json.loads(names)
    return f"{some[:3]}{' and so on' * (len(some) > 3)}" if some else "not at all"

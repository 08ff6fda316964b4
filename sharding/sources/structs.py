"""Columns of structs as columns of their fields, named ``a.b`` as those of JSON objects are.

Hugging Face's images, structs of ``bytes`` and ``path``, are images by the struct's own name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Path", "fields_of", "flattened", "told_images"]

Path = tuple[str, ...]  # of a column: the name of one of the file's, and of a field in it, and so on
_IMAGE = {b"encoding": b"image"}


def told_images(schema: pa.Schema) -> pa.Schema:
    """The schema without its metadata; fields that hold images by those of Hugging Face say so themselves."""
    names: set[str] = set()
    with suppress(ValueError, KeyError, AttributeError, TypeError):  # another program's field of that name
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        names = {name for name, feature in features.items() if feature["_type"] == "Image"}
    return pa.schema([field.with_metadata(_IMAGE) if _is_image(field, names) else field for field in schema])


def _is_image(field: pa.Field, names: set[str]) -> bool:
    return field.name in names and pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0


def fields_of(field: pa.Field, path: Path = ()) -> Iterator[tuple[pa.Field, Path]]:
    """The columns that a file's column makes, and where they are in it; of an image, its bytes alone."""
    path = (*path, field.name)
    if not pa.types.is_struct(field.type) or not field.type.num_fields:
        yield field.with_name(".".join(path)), path
    elif field.metadata == _IMAGE:
        yield field.with_type(field.type.field("bytes").type), (*path, "bytes")
    else:
        for inner in field.type:
            yield from fields_of(inner, path)


def flattened(batch: pa.RecordBatch, names: Sequence[str], paths: Mapping[str, Path]) -> pa.RecordBatch:
    """The columns of some names, of which those in structs have paths; a field of no struct has no value."""
    columns = []
    for name in names:
        top, *inner = paths.get(name, (name,))
        column = batch.column(top)
        columns.append(pc.struct_field(column, inner) if inner else column)
    return pa.RecordBatch.from_arrays(columns, names=list(names))

"""Columns of structs as columns of their fields, named ``a.b`` as those of JSON objects are.

Hugging Face's images, structs of ``bytes`` and ``path``, are images by the struct's own name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["ElsewhereError", "Path", "fields_of", "flattened", "place_of", "told_images"]

Path = tuple[str, ...]  # of a column: the name of one of the file's, and of a field in it, and so on
_IMAGE = {b"encoding": b"image"}


class ElsewhereError(ValueError):
    """An image is not in the column, which holds no more than where it was."""


def told_images(schema: pa.Schema) -> pa.Schema:
    """The schema without its metadata; fields that hold images by those of Hugging Face say so themselves."""
    names: set[str] = set()
    with suppress(ValueError, KeyError, AttributeError, TypeError):  # another program's field of that name
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        names = {name for name, feature in features.items() if feature["_type"] == "Image"}
    return pa.schema([field.with_metadata(_IMAGE) if _is_image(field, names) else field for field in schema])


def _is_image(field: pa.Field, names: set[str]) -> bool:
    return field.name in names and pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0


def fields_of(
    field: pa.Field, wanted: Callable[[str], bool], path: Path = ()
) -> Iterator[tuple[pa.Field, Path | None]]:
    """The columns that a file's column makes, and where they are in it; of an image, its bytes alone.

    A struct that is not wanted is one column, and in no place.
    """
    path = (*path, field.name)
    name = ".".join(path)
    if not pa.types.is_struct(field.type) or not field.type.num_fields:
        yield field.with_name(name), path
    elif not wanted(name):
        yield field.with_name(name), None
    elif field.metadata == _IMAGE:
        yield field.with_type(field.type.field("bytes").type), (*path, "bytes")
    else:
        for inner in field.type:
            yield from fields_of(inner, wanted, path)


def place_of(name: str, paths: Mapping[str, Path]) -> Path:
    """Where a column is to be read: of an image all of its struct."""
    path = paths.get(name, (name,))
    return path if ".".join(path) == name else path[:-1]


def flattened(batch: pa.RecordBatch, names: Sequence[str], paths: Mapping[str, Path]) -> pa.RecordBatch:
    """The columns of some names, of which those in structs have paths; a field of no struct has no value.

    Raises:
        ElsewhereError: names a column with an image that is not there.
    """
    columns = []
    for name in names:
        path = paths.get(name, (name,))
        column = _at(batch, path)
        if path != (place := place_of(name, paths)):
            _check_there(name, column, _at(batch, place))
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def _at(batch: pa.RecordBatch, path: Path) -> pa.Array:
    top, *inner = path
    return pc.struct_field(batch.column(top), inner) if inner else batch.column(top)


def _check_there(name: str, contents: pa.Array, images: pa.StructArray) -> None:
    if contents.null_count and images.type.get_field_index("path") >= 0:
        places = pc.struct_field(images, "path").filter(contents.is_null()).drop_null()
        if len(places):
            raise ElsewhereError(
                f"column {name!r} holds no image but its path ({places[0].as_py()!r}); write the images themselves, as "
                "push_to_hub of Hugging Face's datasets does, or build from a list of the paths"
            )

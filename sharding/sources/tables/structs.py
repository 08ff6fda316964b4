"""Flattens structs: their fields become columns named ``a.b``, as those of JSON objects do.

Images of Hugging Face, structs of ``bytes`` and ``path``, become one column of the struct's name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["MissingImageError", "Path", "fields_of", "flatten_structs", "mark_images", "path_to_read"]

Path = tuple[str, ...]  # a column of the file, a field in it, and so on
_IMAGE = {b"encoding": b"image"}


class MissingImageError(ValueError):
    """A column holds only the path of an image, not the image."""


def mark_images(schema: pa.Schema) -> pa.Schema:
    """Return the schema without its metadata, but with fields marked as images where Hugging Face's metadata say so."""
    names: set[str] = set()
    with suppress(ValueError, KeyError, AttributeError, TypeError):  # the key may be another program's
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        names = {name for name, feature in features.items() if feature["_type"] == "Image"}
    return pa.schema([field.with_metadata(_IMAGE) if _is_image(field, names) else field for field in schema])


def _is_image(field: pa.Field, names: set[str]) -> bool:
    return field.name in names and pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0


def fields_of(
    field: pa.Field, wanted: Callable[[str], bool], path: Path = ()
) -> Iterator[tuple[pa.Field, Path | None]]:
    """Yield the columns that a file's column becomes, with their paths in it; an image becomes its bytes.

    An unwanted struct is yielded as one column without a path.
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


def path_to_read(name: str, paths: Mapping[str, Path]) -> Path:
    """Return the path to read for a column: that of an image's whole struct, else the column's own."""
    path = paths.get(name, (name,))
    return path if ".".join(path) == name else path[:-1]


def flatten_structs(batch: pa.RecordBatch, names: Sequence[str], paths: Mapping[str, Path]) -> pa.RecordBatch:
    """Return the named columns, taking those that have paths from their structs; fields of a null struct are null.

    Raises:
        MissingImageError: a column holds only an image's path.
    """
    columns = []
    for name in names:
        path = paths.get(name, (name,))
        column = _at(batch, path)
        if path != (struct := path_to_read(name, paths)):
            _check_present(name, column, _at(batch, struct))
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def _at(batch: pa.RecordBatch, path: Path) -> pa.Array:
    top, *inner = path
    return pc.struct_field(batch.column(top), inner) if inner else batch.column(top)


def _check_present(name: str, contents: pa.Array, images: pa.StructArray) -> None:
    if contents.null_count and images.type.get_field_index("path") >= 0:
        places = pc.struct_field(images, "path").filter(contents.is_null()).drop_null()
        if len(places):
            raise MissingImageError(
                f"column {name!r} holds only the path of an image ({places[0].as_py()!r}); write the images "
                "themselves, as push_to_hub of Hugging Face's datasets does, or build from a list of the paths"
            )

"""Flattens structs: their fields become columns named ``a.b``, as those of JSON objects do; and nested lists.

Images of Hugging Face, structs of ``bytes`` and ``path``, become one column of the struct's name.
Tested in tests/sharding/sources/tables/test_table_files.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from .nested_lists import InnerField, InnerLists, inner_columns, is_nested_list, take_inner

Path = tuple[str, ...]  # a column of the file, then the steps into structs and nested lists
_IMAGE = {b"encoding": b"image"}


class UnreadableColumnError(ValueError):
    """A column holds the path of an image without the image."""


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
    field: pa.Field, wanted: Callable[[str], bool], is_held: Callable[[pa.Field], bool], path: Path = ()
) -> Iterator[tuple[pa.Field, Path | None]]:
    """Yield the columns that a file's column becomes, with their paths in it; an image becomes its bytes.

    An unwanted struct or nested list is yielded as one column without a path.

    Args:
        field: the file's column, or a field in it, which `path` then ends in.
        wanted: whether a column of this name is wanted.
        is_held: whether a nested list can be held as it is, under its dotted name: a tensor.
        path: path of the column; empty for a column of the file.
    """
    path = path or (field.name,)
    column = field.with_name(".".join(path))
    kind = field.type
    is_struct = pa.types.is_struct(kind) and kind.num_fields
    if not is_struct and (not is_nested_list(kind) or is_held(column)):
        yield column, path
    elif not wanted(column.name):
        yield column, None
    elif field.metadata == _IMAGE:
        yield column.with_type(kind.field("bytes").type), (*path, "bytes")
    elif is_struct:
        for inner in kind:
            yield from fields_of(inner, wanted, is_held, (*path, inner.name))
    else:
        for step, inner_kind in inner_columns(kind):
            yield from fields_of(pa.field(step, inner_kind), wanted, is_held, (*path, step))


def path_to_read(name: str, paths: Mapping[str, Path]) -> Path:
    """Return the path to read for a column: the whole struct of an image, a whole nested list, else its own path."""
    path = paths.get(name, (name,))
    if ".".join(path) != name:
        return path[:-1]
    nested = (i for i, step in enumerate(path) if isinstance(step, (InnerField, InnerLists)))
    return path[: next(nested, len(path))]


def flatten_structs(batch: pa.RecordBatch, names: Sequence[str], paths: Mapping[str, Path]) -> pa.RecordBatch:
    """Return the named columns, taking those that have paths from their structs; fields of a null struct are null.

    Raises:
        UnreadableColumnError: a column holds only an image's path.
    """
    columns = []
    for name in names:
        path = paths.get(name, (name,))
        column = _at(batch, path)
        if ".".join(path) != name:
            _check_present(name, column, _at(batch, path[:-1]))
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def _at(batch: pa.RecordBatch, path: Path) -> pa.Array:
    column = batch.column(path[0])
    for step in path[1:]:
        if isinstance(step, (InnerField, InnerLists)):
            column = take_inner(column, step)
        else:
            column = pc.struct_field(column, [step])
    return column


def _check_present(name: str, contents: pa.Array, images: pa.StructArray) -> None:
    if contents.null_count and images.type.get_field_index("path") >= 0:
        places = pc.struct_field(images, "path").filter(contents.is_null()).drop_null()
        if len(places):
            raise UnreadableColumnError(
                f"column {name!r} holds only the path of an image ({places[0].as_py()!r}); write the images "
                "themselves, as push_to_hub of Hugging Face's datasets does, or build from a list of the paths"
            )

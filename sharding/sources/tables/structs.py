"""Flattens structs and nested lists into columns of scalars and plain lists, which every shard format and reader holds.

The fields of a struct become columns named ``a.b``, as those of JSON objects do. Images of Hugging Face, structs of
``bytes`` and ``path``, become one column of the struct's name.

A list of structs in column ``a`` with a field ``b`` becomes ``a.b``: the list of all ``b`` of a record. A map becomes
``a.key`` and ``a.value``. A list of lists becomes ``a.values``, its elements in order, and ``a.lengths``, the number of
elements in each inner list, as `tf.io.RaggedFeature` and `tf.RaggedTensor.from_row_lengths` take them. The length of an
inner list that is missing is null.
Tested in tests/sharding/sources/tables/test_table_files.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.compute.arrow_casts import is_list
from ringfeed.sharding.schema import to_lists

Path = tuple[str, ...]  # a column of the file, then the steps into structs and nested lists
_IMAGE = {b"encoding": b"image"}


class UnreadableColumnError(ValueError):
    """A column holds the path of an image without the image."""


def huggingface_features(schema: pa.Schema, kind: str) -> dict[str, Mapping[str, Any]]:
    """The features of a kind, such as ``Image``, that Hugging Face's metadata in a file's schema describe; by name."""
    with suppress(ValueError, KeyError, AttributeError, TypeError):  # the key may be another program's
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"].items()
        return {
            name: feature for name, feature in features if isinstance(feature, dict) and feature.get("_type") == kind
        }
    return {}


def mark_images(schema: pa.Schema) -> pa.Schema:
    """Return the schema without its metadata, but with fields marked as images where Hugging Face's metadata say so."""
    names = huggingface_features(schema, "Image")
    return pa.schema([field.with_metadata(_IMAGE) if _is_image(field, names) else field for field in schema])


def _is_image(field: pa.Field, names: Collection[str]) -> bool:
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


class InnerField(str):
    """A step of a column's path: into a field of each struct in a list, or ``key`` or ``value`` of a map."""

    __slots__ = ()


class InnerLists(str):
    """A step of a column's path: to ``values`` or ``lengths`` of the lists in a list."""

    __slots__ = ()


def is_nested_list(kind: pa.DataType) -> bool:
    """Whether a type is a map, or a list of lists, of maps or of structs.

    >>> is_nested_list(pa.list_(pa.list_(pa.int64()))), is_nested_list(pa.list_(pa.int64()))
    (True, False)
    """
    if pa.types.is_map(kind):
        return True
    return is_list(kind) and any(is_kind(kind.value_type) for is_kind in (is_list, pa.types.is_map, _has_fields))


def inner_columns(kind: pa.DataType) -> Iterator[tuple[InnerField | InnerLists, pa.DataType]]:
    """Yield the columns that a nested list becomes, each with its last step and its type, which may be nested again.

    >>> list(inner_columns(pa.map_(pa.string(), pa.int8())))
    [('key', ListType(list<item: string>)), ('value', ListType(list<item: int8>))]
    """
    element = _as_list_type(kind).value_type
    if _has_fields(element):
        for field in element:
            yield InnerField(field.name), pa.list_(_decoded(field.type))
    else:
        yield InnerLists("values"), pa.list_(_decoded(_as_list_type(element).value_type))
        yield InnerLists("lengths"), pa.list_(pa.int64())


def take_inner(column: pa.Array, step: InnerField | InnerLists) -> pa.Array:
    """Return one of the columns that a column of nested lists becomes."""
    elements, lengths = _flatten(column)
    missing = column.is_null() if column.null_count else None
    if isinstance(step, InnerField):
        elements = pc.struct_field(elements, [str(step)])
    else:
        absent = elements.is_null().to_numpy(zero_copy_only=False)
        elements, inner_lengths = _flatten(elements)
        if step == "lengths":
            return to_lists(pa.array(inner_lengths, mask=absent), lengths, missing)
        ends = np.concatenate([[0], np.cumsum(inner_lengths)])
        lengths = np.diff(ends[np.concatenate([[0], np.cumsum(lengths)])])
    if pa.types.is_dictionary(elements.type):
        elements = elements.dictionary_decode()
    return to_lists(elements, lengths, missing)


def _flatten(column: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the elements of all lists or maps, and the number in each, 0 for a null; int64 [rows]."""
    lists = pc.cast(column, _as_list_type(column.type))
    return lists.flatten(), pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)


def _as_list_type(kind: pa.DataType) -> pa.DataType:
    """The type of a map as a list of structs; any other type as it is."""
    if not pa.types.is_map(kind):
        return kind
    key = pa.field("key", kind.key_type, nullable=pa.types.is_null(kind.key_type))
    return pa.list_(pa.struct([key, pa.field("value", kind.item_type)]))


def _has_fields(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) and kind.num_fields)


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind

"""The census: what the first pass notes of records whose places depend on more than their classes, one file a part.

A note holds the class of a record, the value of the column that decides its split, and its size, each only if needed.
Without sizes, the records of one class and value share a note, so that the file grows with the groups alone.
Tested in tests/sharding/assignment/test_split_by_column.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.compute.arrays import Int32, Int64
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.formats.example_encode import example_lengths
from ringfeed.sharding.formats.tfrecord import FOOTER_BYTES, HEADER_BYTES
from ringfeed.sharding.prepare.column_names import check_columns
from ringfeed.sharding.prepare.screening.record_origins import describe_origin
from ringfeed.sharding.schema import Feature, class_array
from ringfeed.sharding.sources import Part, Source
from ringfeed.sharding.sources.base import late_bytes, narrow_source
from ringfeed.sharding.storage.storage import Storage

from .label_counts import ValueCounts

_CLASS, _VALUE, _COUNT, _BYTES = "class", "value", "count", "bytes"  # columns of a file of notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """The notes on a part."""

    classes: pa.Array  # distinct labels; empty without a label
    class_codes: Int32  # index into `classes` of each note, int32 [notes]
    values: pa.Array  # distinct values of the column that decides the split; empty without such a column
    value_codes: Int32  # index into `values` of each note, int32 [notes]
    counts: Int64  # records of each note, int64 [notes]
    sizes: Int64  # size in bytes of the one record of each note, int64 [notes]; empty if sizes were not noted

    def class_ids(self, classes: pa.Array) -> Int64:
        """The position of each note's class among all classes, int64 [notes]."""
        if not len(self.classes):  # no label, or no record
            return np.zeros(len(self.class_codes), np.int64)
        ids: Int64 = pc.index_in(self.classes, value_set=classes).to_numpy().astype(np.int64)
        return ids[self.class_codes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What to note of the records, and where."""

    column: str | None  # column that decides the split of each record, or None
    value_type: pa.DataType | None  # type of its values
    flag: str  # flag that named the column, for errors
    with_sizes: bool  # whether to note the size of each record
    folder: Storage  # folder that all tasks read and write; it holds a few files a part

    def write(self, kind: str, number: int, table: pa.Table) -> None:
        """Write a kind of table about a part: ``notes``, ``splits`` or ``places``."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        self.folder.write(f"{number:06d}.{kind}.arrow", sink.getvalue(), durable=False)

    def read(self, kind: str, number: int) -> pa.Table:
        """Read a kind of table about a part."""
        with pa.ipc.open_file(self.folder.map(f"{number:06d}.{kind}.arrow")) as reader:
            return reader.read_all().combine_chunks()

    def record_sizes(self, number: int) -> Int64:
        """The size in bytes of each record of a part in a TFRecord shard, int64 [records]."""
        sizes: Int64 = self.read("notes", number).column(_BYTES).to_numpy()
        return sizes

    def notes(self, number: int) -> Notes:
        """The notes that `take_census` took on a part."""
        table = self.read("notes", number)
        rows = len(table)
        classes, class_codes = _decoded(table, _CLASS)
        values, value_codes = _decoded(table, _VALUE)
        sizes = table.column(_BYTES).to_numpy() if self.with_sizes else np.empty(0, np.int64)
        counts = np.ones(rows, np.int64) if self.with_sizes else table.column(_COUNT).to_numpy()
        return Notes(
            classes=classes, class_codes=class_codes, values=values, value_codes=value_codes, counts=counts, sizes=sizes
        )


def check_column(source: Source, column: str, flag: str) -> pa.DataType:
    """Check a column that is to decide the splits, before reading it; returns the type of its values.

    Raises:
        ConfigError: no column has this name, it is the label, it holds no strings, integers or bools, or its values
            are unknown until the images are read.
    """
    drafts = source.sample(source.parts[0], 1).schema if source.parts else source.schema.arrow
    if column not in drafts.names:
        check_columns(flag, [column], source.schema.names)
        raise ConfigError(f"{flag} {column}: the column is unknown until the images are read; name another")
    if column == source.schema.label:
        raise ConfigError(f"{flag} {column}: this is the label, so each class would be in a single split")
    feature = Feature.from_arrow(drafts.field(column))
    if feature.shape != () or feature.dtype == "binary" or feature.dtype.startswith("float"):
        what = f"lists of {feature.dtype}" if feature.shape else f"{feature.dtype} values"
        raise ConfigError(f"{flag} {column}: the column holds {what}; it must hold strings, integers or bools")
    return feature.primitive


def take_census(source: Source, part: Part, number: int, census: Census) -> ValueCounts:
    """Take the notes on a part, and count the records of each class like `label_counts.count_classes`.

    Without sizes, reads only the columns it needs, if the source can leave the others unread.

    Raises:
        SourceError: a record lacks its label, or a value in the column that decides its split.
    """
    label = source.schema.label
    columns = {role: name for role, name in {_CLASS: label, _VALUE: census.column}.items() if name is not None}
    kinds = {_CLASS: None if label is None else source.schema[label].primitive, _VALUE: census.value_type}
    fields = [(role, pa.dictionary(pa.int32(), kinds[role])) for role in columns]
    schema = pa.schema([*fields, *([(_BYTES, pa.int64())] if census.with_sizes else [])])
    batches = list(_noted(source, part, columns, census))
    table = pa.Table.from_batches(batches, schema).unify_dictionaries().combine_chunks()
    classes, class_codes = _decoded(table, _CLASS)
    census.write("notes", number, table if census.with_sizes else _counted_pairs(table, columns))
    if _CLASS not in columns:
        return ValueCounts(values=class_array(source.schema, [None]), counts=np.array([len(table)]))
    return ValueCounts(values=classes, counts=np.bincount(class_codes, minlength=len(classes)))


def _noted(source: Source, part: Part, columns: dict[str, str], census: Census) -> Iterator[pa.RecordBatch]:
    reader = source if census.with_sizes else narrow_source(source, list(columns.values()))
    position = 0
    for batch in reader.drafts(part):
        notes: dict[str, Any] = {}
        for role, name in columns.items():
            column = batch.column(name)
            if column.null_count:
                position += int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
                what = f"the label {name!r}" if role == _CLASS else f"{census.flag} {name}"
                place = describe_origin(source, part, position, name)
                raise SourceError(f"{part.path}: {place} has no value for {what}; drop or fill it first")
            notes[role] = column.dictionary_encode()
        if census.with_sizes:
            notes[_BYTES] = pa.array(_sizes(source, part, batch))
        position += batch.num_rows
        yield pa.record_batch(notes)


def _sizes(source: Source, part: Part, drafts: pa.RecordBatch) -> Int64:
    """About how many bytes each record will take in a TFRecord shard, int64 [rows]."""
    schema = source.schema.only(drafts.schema.names)
    lengths = example_lengths(drafts.select(list(schema.names)), schema)
    return lengths + late_bytes(source, part, drafts) + HEADER_BYTES + FOOTER_BYTES


def _decoded(table: pa.Table, name: str) -> tuple[pa.Array, Int32]:
    """The distinct values of a dictionary column, and the index of each row's value; empty without the column."""
    if name not in table.schema.names:
        return pa.nulls(0), np.zeros(len(table), np.int32)
    column = table.column(name)
    if not len(column):
        return pa.array([], column.type.value_type), np.empty(0, np.int32)
    (chunk,) = column.chunks
    return chunk.dictionary, chunk.indices.to_numpy()


def _counted_pairs(table: pa.Table, columns: dict[str, str]) -> pa.Table:
    """One row for each pair of class and value that occurs, ordered by value."""
    decoded = {role: _decoded(table, role) for role in columns}
    classes = max(1, len(decoded[_CLASS][0])) if _CLASS in decoded else 1
    class_codes = decoded[_CLASS][1] if _CLASS in decoded else np.zeros(len(table), np.int32)
    keys, counts = np.unique(decoded[_VALUE][1].astype(np.int64) * classes + class_codes, return_counts=True)
    codes = {_CLASS: keys % classes, _VALUE: keys // classes}
    pairs: dict[str, Any] = {
        role: pa.DictionaryArray.from_arrays(pa.array(codes[role], pa.int32()), values)
        for role, (values, _) in decoded.items()
    }
    return pa.table(pairs | {_COUNT: counts.astype(np.int64)})

"""Shard indexes: read once their checksum is verified, read though they may be damaged, or rebuilt from the shard.

Tested in tests/sharding/verifying/test_verify.py and tests/pipeline/test_forged.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.compute.arrays import Int32, Int64
from ringfeed.sharding.formats.block_checksums import block_sums
from ringfeed.sharding.formats.example_decode import decode_example
from ringfeed.sharding.formats.parquet import read_parquet
from ringfeed.sharding.formats.shard_encode import encode_index
from ringfeed.sharding.formats.tfrecord import FOOTER_BYTES, HEADER_BYTES
from ringfeed.sharding.formats.tfrecord_scan import scan_frames
from ringfeed.sharding.messages import brief

from .consistency import corruption_errors
from .manifest import Manifest, ShardInfo

_TYPES = {"offset": pa.int64(), "length": pa.int32(), "class_id": pa.int32()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """The content of an index."""

    class_ids: Int32  # class of each record, int32 [records]
    # Offset of each frame, and the end of the last, int64 [records + 1]; None for Parquet
    offsets: Int64 | None

    def differing_records(self, other: Index) -> Int64:
        """Return the numbers of the records on which two indexes of equal length differ."""
        differ = self.class_ids != other.class_ids
        if self.offsets is not None and other.offsets is not None:
            differ |= (self.offsets[:-1] != other.offsets[:-1]) | (np.diff(self.offsets) != np.diff(other.offsets))
        return np.flatnonzero(differ)


def index_rows(data: pa.Buffer, manifest: Manifest, shard: ShardInfo, where: str) -> pa.RecordBatch:
    """Return the rows of an index whose checksum was right; a CorruptionError if it belongs to another shard."""
    with corruption_errors(where):
        index = pa.ipc.open_file(pa.BufferReader(data)).read_all().combine_chunks()
        index.validate()
        if index.num_rows != shard.records:
            raise ValueError(f"it has {index.num_rows} rows for {shard.records} records")
        names = ["class_id"] if manifest.shard_format == "parquet" else ["offset", "length", "class_id"]
        for name in names:
            column = index.column(name)
            if column.type != _TYPES[name] or column.null_count:
                raise ValueError(f"its column {name!r} is of type {column.type}, with {column.null_count} nulls")
        numbers = {name: index.column(name).to_numpy() for name in names}
        class_ids = numbers["class_id"]
        if class_ids.min(initial=0) < 0 or class_ids.max(initial=0) >= len(manifest.classes):
            raise ValueError(
                f"it has class ids {class_ids.min()} to {class_ids.max()}, not 0 to {len(manifest.classes) - 1}"
            )
        if len(names) > 1:
            _check_places(numbers["offset"], numbers["length"], manifest, shard)
        return index.to_batches()[0] if shard.records else pa.RecordBatch.from_pylist([], index.schema)


def _check_places(offsets: Int64, lengths: Int32, manifest: Manifest, shard: ShardInfo) -> None:
    ends = offsets + lengths
    if lengths.min(initial=HEADER_BYTES + FOOTER_BYTES) < HEADER_BYTES + FOOTER_BYTES:
        raise ValueError(f"it has a record of {lengths.min()} bytes")
    if (offsets[1:] != ends[:-1]).any() or offsets[:1].any():
        raise ValueError("a record does not start where the previous one ends")
    if len(ends) and manifest.compression == "none" and ends[-1] != shard.bytes:
        raise ValueError(f"its records end at byte {ends[-1]}, the shard at {shard.bytes}")


def read_index(data: pa.Buffer, manifest: Manifest) -> Index:
    """Read an index that may be damaged; a ValueError if it contradicts itself or the classes of the dataset."""
    names = ["class_id"] if manifest.shard_format == "parquet" else ["offset", "length", "class_id"]
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        table.validate(full=True)
        columns = [table.column(name).to_numpy() for name in names]
    except Exception as error:  # on damaged bytes, readers raise anything
        raise ValueError(f"it cannot be read: {brief(error)}") from error
    if table.column_names != names or [column.dtype.name for column in columns][-1] != "int32":
        raise ValueError(f"it has the columns {', '.join(table.column_names)}, not {', '.join(names)}")
    class_ids = columns[-1]
    strange = np.flatnonzero((class_ids < 0) | (class_ids >= len(manifest.classes)))
    if len(strange):
        record = int(strange[0])
        raise ValueError(f"record {record} has class id {class_ids[record]}, there are {len(manifest.classes)} classes")
    if len(columns) == 1:
        return Index(class_ids=class_ids, offsets=None)
    starts, lengths = columns[0].astype(np.int64), columns[1].astype(np.int64)
    offsets = np.append(np.zeros(1, np.int64), np.cumsum(lengths))
    broken = np.flatnonzero((offsets[:-1] != starts) | (lengths < HEADER_BYTES + FOOTER_BYTES))
    if len(broken):
        raise ValueError(f"record {broken[0]} does not start where the previous one ends")
    return Index(class_ids=class_ids, offsets=offsets)


def frame_bounds(manifest: Manifest, shard: ShardInfo, index: Index | None) -> list[tuple[int, int]] | None:
    """Return ``[offset, stop)`` of each frame in a TFRecord shard, by index or shared layout; None without either."""
    if index is not None and index.offsets is not None:
        offsets = index.offsets
    elif manifest.layout is not None:
        width = HEADER_BYTES + manifest.layout.example_bytes + FOOTER_BYTES
        offsets = np.arange(shard.records + 1, dtype=np.int64) * width
    else:
        return None
    return list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))


def rebuild_index(data: pa.Buffer, manifest: Manifest, written_bytes: int) -> tuple[Index, pa.Buffer]:
    """Rebuild the index of an intact shard; return its content and its bytes.

    Args:
        written_bytes: size of the index as written, which tells whether an older version left the block checksums out.

    Raises:
        ValueError: the shard is damaged, or holds a label unknown to the dataset.
    """
    if manifest.shard_format == "parquet":
        try:
            table = read_parquet(data, [manifest.schema.label or manifest.schema.names[0]])
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"the shard cannot be read: {brief(error)}") from error
        index = Index(class_ids=classes_of_table(table, manifest), offsets=None)
        older = encode_index(index.class_ids)
        return index, older if older.size == written_bytes else encode_index(index.class_ids, sums=block_sums(data))
    view = memoryview(data)
    offsets = [0]

    def messages() -> Iterator[bytes]:
        for frame in scan_frames(view, None):
            if frame.problem:
                raise ValueError(f"record {frame.record} of the shard {frame.problem}")
            offsets.append(frame.stop)
            yield bytes(view[frame.payload])

    class_ids = classes_of_messages(messages(), manifest)
    index = Index(class_ids=class_ids, offsets=np.array(offsets, np.int64))
    return index, encode_index(index.class_ids, index.offsets)


def classes_of_messages(messages: Iterator[bytes], manifest: Manifest) -> Int32:
    """Return the class id of each `tf.train.Example`, by its label; a ValueError if that is missing or unknown."""
    label = manifest.schema.label
    if label is None:
        return np.zeros(sum(1 for _ in messages), np.int32)
    ids = {value: number for number, value in enumerate(manifest.classes)}
    only_label = manifest.schema.only([label])
    classes = []
    for number, message in enumerate(messages):
        try:
            classes.append(ids[decode_example(message, only_label)[label]])
        except Exception as error:  # on bytes that are no Example, the decoder raises anything
            raise ValueError(f"record {number} has a label unknown to the dataset, or none") from error
    return np.array(classes, np.int32)


def classes_of_table(table: pa.Table, manifest: Manifest) -> Int32:
    """Return the class id of each row, by its label; raises a ValueError if a label is missing or unknown."""
    label = manifest.schema.label
    if label is None:
        return np.zeros(table.num_rows, np.int32)
    column = table.column(label).combine_chunks()
    ids = pc.index_in(column, value_set=pa.array(manifest.classes, column.type))
    if ids.null_count:
        record = int(np.flatnonzero(ids.is_null().to_numpy(zero_copy_only=False))[0])
        raise ValueError(f"record {record} has a label unknown to the dataset, or none")
    return np.asarray(ids.to_numpy(zero_copy_only=False)).astype(np.int32)

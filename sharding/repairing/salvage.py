"""Encodes a damaged shard again from its intact records. If none is damaged, these are the bytes that were written.

Reads, and writes nothing. Records are proven by their CRCs, or by the checksums of the pages that hold them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.compute.arrays import Int32, Int64
from ringfeed.sharding.dataset.manifest import Manifest, ShardInfo
from ringfeed.sharding.dataset.shard_index import (
    Index,
    classes_of_messages,
    classes_of_table,
    frame_bounds,
    read_index,
    rebuild_index,
)
from ringfeed.sharding.formats.arrow_binary import data_of, offsets_of
from ringfeed.sharding.formats.block_checksums import block_sums
from ringfeed.sharding.formats.parquet import read_row_groups, row_group_sizes, scan_row_groups, write_parquet
from ringfeed.sharding.formats.parquet_types import to_stored
from ringfeed.sharding.formats.shard_encode import encode_index
from ringfeed.sharding.formats.tfrecord import compress, decompress, frame_records
from ringfeed.sharding.formats.tfrecord_scan import Frame, scan_frames
from ringfeed.sharding.storage.file_contents import open_decompressed
from ringfeed.sharding.storage.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFiles:
    """A damaged shard, and where its two files are."""

    storage: Storage  # folder of the dataset
    manifest: Manifest
    shard: ShardInfo  # the shard as it was written
    data_path: str | None  # path of the damaged data file; None if it is missing
    index_path: str | None  # path of the damaged index; None if it is missing
    data_intact: bool  # whether that is the data file as it was written
    index_intact: bool  # whether that is the index as it was written


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvagedShard:
    """The files of a damaged shard, encoded again."""

    data: pa.Buffer | None  # bytes of the data file; None if the file is intact
    index: pa.Buffer | None  # bytes of the index; None if the file is intact
    records: int  # number of intact records
    class_counts: tuple[int, ...]  # number of them by class
    data_restored: bool  # whether the data file is as it was written
    index_restored: bool  # whether the index is as it was written


def salvage_shard(files: ShardFiles) -> SalvagedShard | None:
    """Encode the intact records of a shard again; None if there are none."""
    manifest, shard = files.manifest, files.shard
    if files.data_intact:
        return _restored(files, None)
    if files.data_path is None:
        return None
    index = _intact_index(files)
    with open_decompressed(files.storage, files.data_path, manifest.file_compression) as data:
        if manifest.shard_format == "parquet":
            encoded = _encode_rows(data.slice(0, min(data.size, shard.bytes)), index, manifest)
        else:
            encoded = _encode_frames(memoryview(data), index, files)
    if encoded is None:
        return None
    file, class_ids, index_file = encoded
    if checksum(file) == shard.checksum:
        return _restored(files, file)
    return SalvagedShard(
        data=file,
        index=index_file,
        records=len(class_ids),
        class_counts=tuple(np.bincount(class_ids, minlength=len(manifest.classes)).tolist()),
        data_restored=False,
        index_restored=False,
    )


def _restored(files: ShardFiles, data: pa.Buffer | None) -> SalvagedShard:
    """Return a shard whose data file is intact, or has these bytes again, with its index rebuilt if need be."""
    shard, index = files.shard, None
    if not files.index_intact:
        index = _rebuilt_index(files, data)
    return SalvagedShard(
        data=data,
        index=index,
        records=shard.records,
        class_counts=tuple(shard.class_counts),
        data_restored=True,
        index_restored=index is None or checksum(index) == shard.index_checksum,
    )


def _rebuilt_index(files: ShardFiles, data: pa.Buffer | None) -> pa.Buffer:
    manifest, index_bytes = files.manifest, files.shard.index_bytes
    if data is not None:
        plain = pa.py_buffer(decompress(data, manifest.file_compression))
        return rebuild_index(plain, manifest, index_bytes)[1]
    assert files.data_path is not None
    with open_decompressed(files.storage, files.data_path, manifest.file_compression) as plain:
        return rebuild_index(plain, manifest, index_bytes)[1]


def _intact_index(files: ShardFiles) -> Index | None:
    if not files.index_intact or files.index_path is None:
        return None
    with open_decompressed(files.storage, files.index_path) as stored:
        return read_index(stored, files.manifest)


Encoded = tuple[pa.Buffer, Int32, pa.Buffer]
"""A data file, the class of each of its records, and its index."""


def _encode_frames(data: memoryview, index: Index | None, files: ShardFiles) -> Encoded | None:
    manifest, shard = files.manifest, files.shard
    frames = list(scan_frames(data, frame_bounds(manifest, shard, index)))
    kept = [frame for frame in frames if frame.payload.stop <= len(data)]
    if len(kept) != shard.records or checksum(_framed(data, kept, manifest)[0]) != shard.checksum:
        kept = [frame for frame in frames if frame.readable]  # the damage is not to lengths and CRCs alone
    if not kept:
        return None
    if index is not None:
        class_ids = index.class_ids[[frame.record or 0 for frame in kept]]
    else:
        class_ids = classes_of_messages((bytes(data[frame.payload]) for frame in kept), manifest)
    file, offsets = _framed(data, kept, manifest)
    return file, class_ids, encode_index(class_ids, offsets)


def _framed(data: memoryview, frames: Sequence[Frame], manifest: Manifest) -> tuple[pa.Buffer, Int64]:
    """Return a data file of these records, and the offsets of its frames before compression."""
    framed = frame_records(pa.array([bytes(data[frame.payload]) for frame in frames], pa.large_binary()))
    offsets = offsets_of(framed)
    return pa.py_buffer(compress(data_of(framed).slice(0, int(offsets[-1])), manifest.compression)), offsets


def _encode_rows(data: pa.Buffer, index: Index | None, manifest: Manifest) -> Encoded | None:
    tables, class_ids = [], []
    try:
        groups = [group for group in scan_row_groups(data) if not group.damaged]
    except ValueError:
        return None
    for group in groups:
        try:
            table = read_row_groups(data, [group.number])
            (rows,) = table.combine_chunks().to_batches()
            manifest.schema.conform(rows)  # a footer that declares other types is not trusted
            ids = classes_of_table(table, manifest)
        except Exception:  # on a damaged footer, readers raise anything
            continue
        stop = group.first_record + group.records
        if index is None or np.array_equal(index.class_ids[group.first_record : stop], ids):
            tables.append(rows)
            class_ids.append(ids)
    if not tables:
        return None
    (whole,) = pa.Table.from_batches(tables).combine_chunks().to_batches()
    ids = np.concatenate(class_ids)
    whole = to_stored(whole, manifest.stored_schema)
    written = write_parquet(whole, manifest.compression, next(iter(row_group_sizes(data)), 1))
    return written, ids, encode_index(ids, sums=block_sums(written))

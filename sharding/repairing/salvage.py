"""Salvages the intact records of a shard that cannot be restored.

Reads, and writes nothing. Records are proven by their CRCs, or by the checksums of the pages that hold them.
Tested in tests/sharding/repairing/test_repair.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.dataset.shard_index import Index, classes_of_messages, classes_of_table, frame_bounds
from ringfeed.sharding.formats.arrow_binary import data_of, offsets_of
from ringfeed.sharding.formats.block_checksums import block_sums
from ringfeed.sharding.formats.parquet import read_row_groups, row_group_sizes, scan_row_groups, write_parquet
from ringfeed.sharding.formats.parquet_tensors import declare_tensors
from ringfeed.sharding.formats.shard_encode import encode_index
from ringfeed.sharding.formats.tfrecord import compress, frame_records
from ringfeed.sharding.formats.tfrecord_scan import scan_frames
from ringfeed.sharding.storage.file_contents import open_decompressed

from .restore import RestoredFiles, ShardFiles, intact_index, rebuilt_index

__all__ = ["SalvagedShard", "salvage_shard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvagedShard:
    """The intact records of a damaged shard, encoded as a shard; `data` is None if its own data file is intact."""

    data: pa.Buffer | None
    index: pa.Buffer
    records: int
    class_counts: tuple[int, ...]


def salvage_shard(files: ShardFiles, restored: RestoredFiles) -> SalvagedShard | None:
    """Return the intact records of a shard of which a file could not be restored; None if there are none."""
    manifest = files.manifest
    if files.data_intact or restored.data is not None:  # only the index is lost
        index, encoded = rebuilt_index(files, restored)
        return _salvaged(None, encoded, index.class_ids, manifest)
    if files.data_path is None:
        return None
    known_index = intact_index(files, restored)
    with open_decompressed(files.storage, files.data_path, manifest.file_compression) as data:
        if manifest.shard_format == "parquet":
            return _salvage_rows(data, known_index, manifest)
        return _salvage_frames(memoryview(data), known_index, files)


def _salvaged(
    data: pa.Buffer | None, index: pa.Buffer, class_ids: npt.NDArray[np.int32], manifest: Manifest
) -> SalvagedShard:
    counts = tuple(np.bincount(class_ids, minlength=len(manifest.classes)).tolist())
    return SalvagedShard(data=data, index=index, records=len(class_ids), class_counts=counts)


def _salvage_frames(data: memoryview, index: Index | None, files: ShardFiles) -> SalvagedShard | None:
    manifest = files.manifest
    bounds = frame_bounds(manifest, files.shard, index)
    intact = [frame for frame in scan_frames(data, bounds) if frame.readable]
    if not intact:
        return None
    messages = [bytes(data[frame.payload]) for frame in intact]
    if index is not None:
        class_ids = index.class_ids[[frame.record or 0 for frame in intact]]
    else:
        class_ids = classes_of_messages(iter(messages), manifest)
    framed = frame_records(pa.array(messages, pa.large_binary()))
    offsets = offsets_of(framed)
    frames = data_of(framed).slice(0, int(offsets[-1]))
    shard = pa.py_buffer(compress(frames, manifest.compression))
    return _salvaged(shard, encode_index(class_ids, offsets), class_ids, manifest)


def _salvage_rows(data: pa.Buffer, index: Index | None, manifest: Manifest) -> SalvagedShard | None:
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
    whole = declare_tensors(whole, manifest.schema) if manifest.declares_tensors else whole
    written = write_parquet(whole, manifest.compression, next(iter(row_group_sizes(data)), 1))
    return _salvaged(written, encode_index(ids, sums=block_sums(written)), ids, manifest)

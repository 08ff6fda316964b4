"""Reads the records of one shard as record batches of a few MiB, after its checksum was verified.

Tested in tests/sharding/sources/test_ringfeed.py and tests/pipeline/test_forged.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ringfeed.sharding.compute.batches import BATCH_BYTES, BATCH_ROWS, slice_batch
from ringfeed.sharding.formats.example_decode import decode_examples
from ringfeed.sharding.formats.example_matrix import decode_matrix
from ringfeed.sharding.formats.parquet import check_columns, iterate_parquet
from ringfeed.sharding.formats.tfrecord import FOOTER_BYTES, HEADER_BYTES
from ringfeed.sharding.storage.storage import Storage

from .consistency import corruption_errors
from .dataset import read_checked
from .manifest import Manifest, ShardInfo
from .shard_index import index_rows

_DECODE_BYTES = BATCH_BYTES // 4  # TFRecord bytes decoded at a time: a one-byte integer may take eight bytes decoded


def read_shard(
    storage: Storage, manifest: Manifest, shard: ShardInfo, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield columns of a shard, by default all, in the schema's order and types; a CorruptionError if it is damaged."""
    names = manifest.schema.names if columns is None else columns
    data = read_checked(storage, shard.path, shard.bytes, shard.checksum)
    expected, records = manifest.schema.select(names).arrow, 0
    with corruption_errors(storage.locate(shard.path)):
        if manifest.shard_format == "parquet":
            batches = iterate_parquet(data, BATCH_ROWS, names, BATCH_BYTES)
        else:
            index = None if manifest.layout is not None else read_index_rows(storage, manifest, shard)
            batches = decode_tfrecord(manifest, shard, data, index, names)
        for batch in batches:
            check_columns(batch.schema, expected)
            records += batch.num_rows
            yield from slice_batch(batch)
        if records != shard.records:
            raise ValueError(f"it has {records} records, not {shard.records}")


def read_index_rows(storage: Storage, manifest: Manifest, shard: ShardInfo) -> pa.RecordBatch:
    """Read the index of a shard; raises a CorruptionError if it is damaged or missing, or belongs to another shard."""
    data = read_checked(storage, shard.index_path, shard.index_bytes, shard.index_checksum)
    return index_rows(data, manifest, shard, storage.locate(shard.index_path))


def decode_tfrecord(
    manifest: Manifest, shard: ShardInfo, data: pa.Buffer, index: pa.RecordBatch | None, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield columns of a TFRecord shard. The records' CRCs are not checked: the checksum of the whole file was.

    Args:
        index: index of the shard; None if all records share a layout.
    """
    schema, layout = manifest.schema, manifest.layout
    stream: pa.NativeFile = pa.BufferReader(data)
    if manifest.compression != "none":
        stream = pa.CompressedInputStream(stream, "gzip")  # the decoder accepts zlib's header, too
    if layout is not None:
        lengths = np.full(shard.records, HEADER_BYTES + layout.example_bytes + FOOTER_BYTES)
    else:
        assert index is not None
        lengths = index.column("length").to_numpy().astype(np.int64)
    ends = np.cumsum(lengths)
    if manifest.compression == "none" and ends[-1:].sum() != data.size:
        raise ValueError(f"its records take {ends[-1:].sum()} bytes, not {data.size}")
    start = 0
    while start < shard.records:
        before = int(ends[start] - lengths[start])
        stop = max(start + 1, min(int(np.searchsorted(ends, before + _DECODE_BYTES)), start + BATCH_ROWS))
        frames = np.frombuffer(stream.read_buffer(int(ends[stop - 1]) - before), np.uint8)
        if layout is not None:
            messages = frames.reshape(stop - start, -1)[:, HEADER_BYTES:-FOOTER_BYTES]
            yield decode_matrix(messages, schema.select(columns), layout.select(columns))
        else:
            last = ends[start:stop] - before
            first = last - lengths[start:stop] + HEADER_BYTES
            yield decode_examples(frames, first, last - FOOTER_BYTES, schema, columns)
        start = stop

"""Encodes a shard's rows, block by block, to the bytes of its file and its index, in every format.

The index is an Arrow IPC file with one row per record: `offset` and `length`, in bytes, of the frame in the
(decompressed) TFRecord file, and `class_id`. The index of a Parquet shard has `class_id` alone, as Parquet locates its
own rows; its metadata hold checksums of the file's blocks, so that a few columns can be read and verified alone.
Tested in tests/sharding/formats/test_block_checksums.py.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ringfeed.sharding.compute.arrays import Int32, Int64, Integers
from ringfeed.sharding.schema import Schema

from .block_checksums import block_sums
from .example_encode import RecordLayout, encode_matrix, encode_pieces
from .parquet import open_writer
from .parquet_types import to_stored
from .tfrecord import FOOTER_BYTES, HEADER_BYTES, compressor, frame_matrix
from .tfrecord_write import Frames, frame_pieces

COMPRESSIONS = {"tfrecord": ("none", "gzip", "zlib"), "parquet": ("none", "snappy", "zstd", "lz4", "gzip")}

_SUMS = b"xxh3_64_of_64KiB_blocks"  # key in an index's metadata; the value is base64


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEncoding:
    """What shapes the bytes of a shard, besides its records."""

    schema: Schema
    # ``tfrecord`` or ``parquet``. Each block of rows becomes a row group in Parquet; the bytes of a TFRecord file do
    # not depend on the blocks.
    shard_format: str
    compression: str  # one of the format's `COMPRESSIONS`
    layout: RecordLayout | None = None  # layout that all records of a TFRecord dataset share; None if they share none
    stored: pa.Schema  # Arrow schema of Parquet shards


class ShardEncoder(Protocol):
    """Writes the rows of one shard, in order, to a file."""

    def write(self, batch: pa.RecordBatch, class_ids: Int32) -> None:
        """Write the next rows, in the schema's Arrow types, with their classes, int32 [rows]."""

    def finish(self, sums: Callable[[], bytes]) -> pa.Buffer:
        """Finish the file and return the bytes of the index.

        Args:
            sums: returns the checksums of the file's blocks; called once the file is complete.
        """


def default_compression(shard_format: str) -> str:
    """The usual compression of a format: none for TFRecord, snappy for Parquet."""
    return {"tfrecord": "none", "parquet": "snappy"}[shard_format]


def open_encoder(sink: IO[bytes], encoding: ShardEncoding) -> ShardEncoder:
    """Open an encoder of one shard, whose bytes go to a sink."""
    return _ParquetEncoder(sink, encoding) if encoding.shard_format == "parquet" else _TFRecordEncoder(sink, encoding)


def encode_shard(batch: pa.RecordBatch, class_ids: Int32, encoding: ShardEncoding) -> tuple[pa.Buffer, pa.Buffer]:
    """Encode a shard of one block of rows in memory; returns its file and its index."""
    sink = pa.BufferOutputStream()
    encoder = open_encoder(sink, encoding)
    encoder.write(batch, class_ids)
    index = encoder.finish(lambda: block_sums(sink.getvalue()))
    return sink.getvalue(), index


class _TFRecordEncoder:
    def __init__(self, sink: IO[bytes], encoding: ShardEncoding) -> None:
        self._sink = sink
        self._schema, self._layout = encoding.schema, encoding.layout
        self._compressor: zlib._Compress | None = compressor(encoding.compression)
        self._lengths: list[Int64] = []
        self._class_ids: list[Int32] = []

    def write(self, batch: pa.RecordBatch, class_ids: Int32) -> None:
        if self._layout is None:
            frames = frame_pieces(encode_pieces(batch, self._schema))
        else:
            margins = (HEADER_BYTES, FOOTER_BYTES)
            matrix = encode_matrix(batch, self._schema, self._layout, margins=margins)
            frames = Frames.joined(frame_matrix(matrix))
        for run in frames.runs:
            self._sink.write(run.data if self._compressor is None else self._compressor.compress(run.data))
        self._lengths.append(frames.lengths)
        self._class_ids.append(class_ids)

    def finish(self, sums: Callable[[], bytes]) -> pa.Buffer:
        if self._compressor is not None:
            self._sink.write(self._compressor.flush())
        lengths = np.concatenate([np.zeros(1, np.int64), *self._lengths])
        return encode_index(np.concatenate(self._class_ids), np.cumsum(lengths))


class _ParquetEncoder:
    def __init__(self, sink: IO[bytes], encoding: ShardEncoding) -> None:
        self._sink = sink
        self._stored, self._compression = encoding.stored, encoding.compression
        self._writer: pq.ParquetWriter | None = None
        self._class_ids: list[Int32] = []

    def write(self, batch: pa.RecordBatch, class_ids: Int32) -> None:
        batch = to_stored(batch, self._stored)
        if self._writer is None:
            self._writer = open_writer(self._sink, self._stored, batch, self._compression)
        self._writer.write_batch(batch, row_group_size=max(batch.num_rows, 1))
        self._class_ids.append(class_ids)

    def finish(self, sums: Callable[[], bytes]) -> pa.Buffer:
        if self._writer is not None:
            self._writer.close()
        return encode_index(np.concatenate(self._class_ids), sums=sums())


def encode_index(class_ids: Int32, offsets: Int64 | None = None, sums: bytes | None = None) -> pa.Buffer:
    """Encode a shard's index.

    Args:
        offsets: boundaries of the frames in a TFRecord file, int64 [records + 1]; None for Parquet.
        sums: checksums of a Parquet file's blocks; None for an index as older versions wrote it.
    """
    columns: dict[str, Integers] = {}
    if offsets is not None:
        columns = {"offset": offsets[:-1], "length": np.diff(offsets).astype(np.int32)}
    columns["class_id"] = class_ids
    batch = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
    if sums is not None:
        batch = batch.replace_schema_metadata({_SUMS: b64encode(sums)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def sums_in_index(index: pa.RecordBatch) -> bytes | None:
    """The checksums of the shard file's blocks in an index, or None if it has none."""
    value = (index.schema.metadata or {}).get(_SUMS)
    return None if value is None else b64decode(value)

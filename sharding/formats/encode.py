"""One shard's rows to the bytes of its file and of its index, for every format.

The index is an Arrow IPC file with one row a record: `offset` and `length` in bytes in the (decompressed) TFRecord
file, frame included, and `class_id`. A Parquet shard has only the last: Parquet has its own index.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..schema import Schema
from .example import RecordLayout, encode_matrix, encode_pieces
from .framing import frame_pieces
from .parquet import write_parquet
from .tfrecord import FOOTER_BYTES, HEADER_BYTES, compress, frame_matrix

__all__ = ["COMPRESSIONS", "SUFFIXES", "EncodedShard", "default_compression", "encode_shard"]

SUFFIXES = {"tfrecord": "tfrecord", "parquet": "parquet"}
COMPRESSIONS = {"tfrecord": ("none", "gzip", "zlib"), "parquet": ("none", "snappy", "zstd", "lz4", "gzip")}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedShard:
    """The two files of a shard, still in memory."""

    data: pa.Buffer
    index: pa.Buffer


def default_compression(shard_format: str) -> str:
    """What the format's other writers do: TFRecord plain, Parquet snappy."""
    return {"tfrecord": "none", "parquet": "snappy"}[shard_format]


def encode_shard(
    batch: pa.RecordBatch,
    schema: Schema,
    class_ids: npt.NDArray[np.int32],
    *,
    shard_format: str,
    compression: str,
    layout: RecordLayout | None,
) -> EncodedShard:
    """Encode the rows of one shard, in their order.

    Args:
        batch: all rows, of the schema's Arrow types.
        schema: of the dataset.
        class_ids: int32 [rows].
        shard_format: ``tfrecord`` or ``parquet``.
        compression: one of `COMPRESSIONS` for the format.
        layout: of fixed-layout TFRecord datasets, else None.
    """
    if shard_format == "parquet":
        return EncodedShard(data=write_parquet(batch, compression), index=_ipc({"class_id": class_ids}))
    if layout is None:
        framed = frame_pieces(encode_pieces(batch, schema))
    else:
        framed = frame_matrix(encode_matrix(batch, schema, layout, margins=(HEADER_BYTES, FOOTER_BYTES)))
    offsets = np.frombuffer(framed.buffers()[1], np.int64)[: len(framed) + 1]
    data = (framed.buffers()[2] or pa.py_buffer(b"")).slice(0, int(offsets[-1]))
    index = _ipc({"offset": offsets[:-1], "length": np.diff(offsets).astype(np.int32), "class_id": class_ids})
    return EncodedShard(data=pa.py_buffer(compress(data, compression)), index=index)


def _ipc(columns: dict[str, npt.NDArray[np.integer]]) -> pa.Buffer:
    batch = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()

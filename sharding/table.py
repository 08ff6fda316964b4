"""`shards.parquet`, one row a shard; and how it and `dataset.json` are each made again from the other.

The table carries a copy of all that `dataset.json` says but of the table, and a checksum of its own; `dataset.json`
carries the checksum of the table's rows, which the shards themselves give.

Pure: bytes in, values out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from .formats.parquet import read_parquet
from .manifest import FORMAT_VERSION, Manifest, ShardInfo, checksum

__all__ = ["decode_shards", "encode_shards", "recover", "seal"]

_SHARDS_SCHEMA = pa.schema(
    [
        pa.field("split", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
        pa.field("class_counts", pa.list_(pa.int64()), nullable=False),
        pa.field("index_path", pa.string(), nullable=False),
        pa.field("index_bytes", pa.int64(), nullable=False),
        pa.field("index_checksum", pa.string(), nullable=False),
    ]
)


_COPY_KEY, _CHECKSUM_KEY = "ringfeed.dataset", "ringfeed.checksum"
_NO_CHECKSUM = "xxh3-128:" + 32 * "0"
# Between key and value, Thrift's compact protocol puts the value's field and length: a byte that JSON would escape.
_OWN_CHECKSUM = re.compile(re.escape(_CHECKSUM_KEY.encode()) + rb"\x18\x29(xxh3-128:[0-9a-f]{32})")


def seal(manifest: Manifest, shards: Sequence[ShardInfo]) -> tuple[Manifest, bytes]:
    """The manifest with what it says of its table filled in, and the bytes of the table."""
    data = encode_shards(shards, manifest)
    rows = _rows_checksum(_table(shards))
    return replace(manifest, shards_checksum=checksum(data), shards_bytes=len(data), shards_rows=rows), data


def encode_shards(shards: Sequence[ShardInfo], manifest: Manifest | None = None) -> bytes:
    """The bytes of `shards.parquet`.

    Args:
        shards: the rows.
        manifest: to carry a copy of, with a checksum of the whole file in which its own digits count as zeros.
    """
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, _SHARDS_SCHEMA, compression="zstd", use_dictionary=["split"]) as writer:
        writer.write_table(_table(shards))
        if manifest is not None:
            copy = json.dumps(manifest.described(), allow_nan=False)
            writer.add_key_value_metadata({_COPY_KEY: copy, _CHECKSUM_KEY: _NO_CHECKSUM})
    data: bytes = sink.getvalue().to_pybytes()
    if manifest is None:
        return data
    (place,) = _OWN_CHECKSUM.finditer(data)
    return data[: place.start(1)] + checksum(data).encode() + data[place.end(1) :]


def recover(data: bytes, path: str) -> tuple[Manifest, tuple[ShardInfo, ...]] | None:
    """The manifest and the rows that a table carries, if it carries a manifest and every byte is as it was written.

    Args:
        data: the bytes of the table.
        path: its name.
    """
    places = list(_OWN_CHECKSUM.finditer(data))
    if len(places) != 1:
        return None
    start, stop = places[0].span(1)
    if checksum(data[:start] + _NO_CHECKSUM.encode() + data[stop:]) != data[start:stop].decode():
        return None
    value = json.loads(pq.read_metadata(pa.BufferReader(data)).metadata[_COPY_KEY.encode()])
    if value["format_version"].split(".")[0] != str(FORMAT_VERSION[0]):
        return None
    shards = decode_shards(data)
    table = {"path": path, "bytes": len(data), "checksum": checksum(data), "rows": _rows_checksum(_table(shards))}
    return Manifest.restored(value | {"shards": table}), shards


def _table(shards: Sequence[ShardInfo]) -> pa.Table:
    columns = {name: [getattr(shard, name) for shard in shards] for name in _SHARDS_SCHEMA.names}
    return pa.table(columns, schema=_SHARDS_SCHEMA)


def _rows_checksum(table: pa.Table) -> str:
    digest = xxhash.xxh3_128()
    for field_ in _SHARDS_SCHEMA:
        column = table.column(field_.name).combine_chunks()
        if pa.types.is_list(field_.type):
            digest.update(np.diff(column.offsets.to_numpy()).astype("<i8").tobytes())
            column = column.flatten()
        if pa.types.is_string(field_.type):
            digest.update("\0".join(column.to_pylist()).encode("utf-8", "surrogatepass"))
        else:
            digest.update(column.to_numpy().astype("<i8").tobytes())
    return "xxh3-128:" + digest.hexdigest()


def decode_shards(data: bytes) -> tuple[ShardInfo, ...]:
    """The inverse of `encode_shards`, for bytes whose checksum was right.

    Raises:
        DatasetError: a path leaves the dataset's root.
    """
    rows = read_parquet(data).to_pylist()
    return tuple(ShardInfo(**(row | {"class_counts": tuple(row["class_counts"])})) for row in rows)

"""The shard table, a Parquet file: one row per shard. It and `dataset.json` can each be rebuilt from the other.

The table carries a checksum of its own and a copy of `dataset.json` without the description of the table;
`dataset.json` carries the checksum of the table's rows, which can be derived from the shards.

Pure: bytes in, values out.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ringfeed.sharding.common.checksums import PREFIX, Checksum, checksum
from ringfeed.sharding.compute.arrays import Int32, Int64
from ringfeed.sharding.compute.class_counts import deferred_counts
from ringfeed.sharding.formats.parquet import read_parquet, read_row_group, row_group_sizes
from ringfeed.sharding.messages import brief

from .consistency import check_table, contradiction_error
from .manifest import READ_VERSIONS, Manifest, ShardInfo

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

# The counts of a class differ by at most one between shards, so there are few distinct values and rows are much alike:
# 20,000 shards with 1,000 classes each take 14 MB with zstd alone, 0.08 MB with dictionaries (pyarrow 26, 2026-11-21).
_DICTIONARIES = ["split", "class_counts.list.element"]
_GROUP_COUNTS = 4 << 20  # class counts in a row group; one group is encoded at a time
_DECODED_ROWS = 256  # a whole row group takes Arrow 160 MiB (4 M counts of 8 bytes, 2026-11-21)

_COPY_KEY, _CHECKSUM_KEY = "ringfeed.dataset", "ringfeed.checksum"
_NO_CHECKSUM = PREFIX + 32 * "0"
# Thrift's compact protocol puts the value's field and length between key and value: a byte that JSON would escape, so
# the copy of the manifest cannot match.
_OWN_CHECKSUM = re.compile(re.escape(_CHECKSUM_KEY).encode() + rb"\x18\x29(" + PREFIX.encode() + rb"[0-9a-f]{32})")


def seal(manifest: Manifest, shards: Sequence[ShardInfo]) -> tuple[Manifest, bytes]:
    """Return the manifest with the description of its table filled in, and the bytes of the table."""
    data = encode_shards(shards, manifest)
    rows = _rows_checksum(shards)
    return replace(manifest, shards_checksum=checksum(data), shards_bytes=len(data), shards_rows=rows), data


def encode_shards(shards: Sequence[ShardInfo], manifest: Manifest | None = None) -> bytes:
    """Return the bytes of a shard table.

    Args:
        manifest: manifest to copy into it, with a checksum of the whole file, whose own digits count as zeros.
    """
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, _SHARDS_SCHEMA, compression="zstd", use_dictionary=_DICTIONARIES) as writer:
        for group in _groups(shards):
            writer.write_table(_table(group))
        if manifest is not None:
            copy = json.dumps(manifest.described(), allow_nan=False)
            writer.add_key_value_metadata({_COPY_KEY: copy, _CHECKSUM_KEY: _NO_CHECKSUM})
    data: bytes = sink.getvalue().to_pybytes()
    if manifest is None:
        return data
    (place,) = _OWN_CHECKSUM.finditer(data)
    return data[: place.start(1)] + checksum(data).encode() + data[place.end(1) :]


def recover_from_table(data: bytes, path: str) -> tuple[Manifest, tuple[ShardInfo, ...]] | None:
    """Return the manifest and the rows from a sealed table; None if it carries no manifest or a byte was changed."""
    places = list(_OWN_CHECKSUM.finditer(data))
    if len(places) != 1:
        return None
    start, stop = places[0].span(1)
    if checksum(data[:start] + _NO_CHECKSUM.encode() + data[stop:]) != data[start:stop].decode():
        return None
    try:
        value = json.loads(pq.read_metadata(pa.BufferReader(data)).metadata[_COPY_KEY.encode()])
        major = value["format_version"].split(".")[0]
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError):  # no ringfeed table is like this
        return None
    if major not in map(str, READ_VERSIONS):
        return None
    shards = decode_shards(data)
    table = {"path": path, "bytes": len(data), "checksum": checksum(data), "rows": _rows_checksum(shards)}
    return Manifest.restored(value | {"shards": table}, path), shards


def _groups(shards: Sequence[ShardInfo]) -> Iterator[Sequence[ShardInfo]]:
    """Yield the rows of each row group; one empty group if there are no rows."""
    counts = np.cumsum([len(shard.class_counts) for shard in shards])
    stops = [0, *(np.flatnonzero(np.diff(counts // _GROUP_COUNTS)) + 1).tolist(), len(shards)]
    for start, stop in itertools.pairwise(stops):
        yield shards[start:stop]


def _table(shards: Sequence[ShardInfo]) -> pa.Table:
    columns = {
        field.name: _counts(shards)
        if pa.types.is_list(field.type)
        else [getattr(shard, field.name) for shard in shards]
        for field in _SHARDS_SCHEMA
    }
    return pa.table(columns, schema=_SHARDS_SCHEMA)


def _counts(shards: Sequence[ShardInfo]) -> pa.ListArray:
    rows = [np.asarray(shard.class_counts, np.int64) for shard in shards]
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate([np.empty(0, np.int64), *rows])))


def _rows_checksum(shards: Sequence[ShardInfo]) -> str:
    digest = Checksum()
    for field_ in _SHARDS_SCHEMA:
        values: Iterable[object] = [getattr(shard, field_.name) for shard in shards]
        if pa.types.is_list(field_.type):
            digest.update(np.array([len(shard.class_counts) for shard in shards], "<i8").tobytes())
            for shard in shards:
                digest.update(np.asarray(shard.class_counts, "<i8").tobytes())
        elif pa.types.is_string(field_.type):
            digest.update("\0".join(map(str, values)).encode("utf-8", "surrogatepass"))
        else:
            digest.update(np.array(values, "<i8").tobytes())
    return digest.text


def decode_shards(
    data: bytes | pa.Buffer, manifest: Manifest | None = None, where: str = "the shard table"
) -> tuple[ShardInfo, ...]:
    """Invert `encode_shards` for bytes whose checksum was right.

    The class counts, nearly all of the table, are decoded a row group at a time on first access.

    Args:
        manifest: manifest to check the rows against; the class counts are checked when they are decoded.

    Raises:
        DatasetError: a path leaves the dataset's root, or the rows contradict each other or the manifest.
    """
    data = data if isinstance(data, bytes) else data.to_pybytes()  # a copy: the file may change meanwhile
    names = [name for name in _SHARDS_SCHEMA.names if name != "class_counts"]
    try:
        table = read_parquet(data, names)
        sizes = row_group_sizes(data)
        schema = pq.read_schema(pa.BufferReader(data))
    except (pa.ArrowException, OSError, KeyError) as error:
        raise contradiction_error(where, f"it is not a shard table ({brief(error)})") from error
    for column in _SHARDS_SCHEMA:
        if schema.get_field_index(column.name) < 0 or not _alike(schema.field(column.name).type, column.type):
            raise contradiction_error(where, f"it is not a shard table: no {column.name!r} of type {column.type}")
        if column.name in names and table.column(column.name).null_count:
            raise contradiction_error(where, f"a shard has no {column.name!r}")
    if min(pc.min(table.column(name)).as_py() or 0 for name in ("bytes", "records", "index_bytes")) < 0:
        raise contradiction_error(where, "a shard has a negative number of bytes or records")
    rows = table.to_pydict()
    del table
    starts = [0, *itertools.accumulate(sizes)]
    counts = itertools.chain.from_iterable(
        deferred_counts(partial(_read_counts, data, group, rows["records"][first:], manifest, where), size)
        for group, (first, size) in enumerate(zip(starts, sizes, strict=False))
    )
    shards = tuple(
        ShardInfo(class_counts=own, **dict(zip(names, row, strict=True)))
        for own, *row in zip(counts, *(rows[name] for name in names), strict=True)
    )
    if manifest is not None:
        check_table(manifest, shards, where)
    return shards


def _alike(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Whether types are equal apart from the names of list elements."""
    if pa.types.is_list(kind) and pa.types.is_list(stored):
        stored, kind = stored.value_type, kind.value_type
    return bool(stored == kind)


def _read_counts(
    data: bytes, group: int, records: Sequence[int], manifest: Manifest | None, where: str
) -> Iterator[tuple[Int64, Int32]]:
    """Yield the class counts of a row group, some rows at a time: concatenated, and the offset of each row's first."""
    first = 0
    for batch in read_row_group(data, group, ["class_counts"], _DECODED_ROWS):
        lists = batch.column(0)
        offsets, counts = lists.offsets.to_numpy(), lists.flatten()
        if manifest is not None:
            of_rows = np.array(records[first : first + len(lists)], np.int64)
            if lists.null_count or counts.null_count or not _add_up(counts.to_numpy(), of_rows, len(manifest.classes)):
                classes = len(manifest.classes)
                raise contradiction_error(where, f"the records of a shard are not the sum over its {classes} classes")
        first += len(lists)
        yield counts.to_numpy(), offsets - offsets[0]


def _add_up(counts: Int64, records: Int64, classes: int) -> bool:
    """Whether each row counts all classes, and its counts add up to its records."""
    if len(counts) != classes * len(records):
        return False
    rows = counts.reshape(len(records), classes)
    return bool((rows >= 0).all() and (rows <= records[:, None]).all() and (rows.sum(axis=1) == records).all())

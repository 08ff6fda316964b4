"""Locates damage in a file: records of a TFRecord shard, row group and column of a Parquet shard, byte of an index.

Reads that file and, for an index, its shard. `verify.py` finds out which files are damaged.
Tested in tests/sharding/verifying/test_verify.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.dataset.damage import Damage, content_problem, first_difference, kind_of_size, runs, runs_text
from ringfeed.sharding.dataset.manifest import Manifest, ShardInfo
from ringfeed.sharding.dataset.shard_index import Index, frame_bounds, read_index, rebuild_index
from ringfeed.sharding.formats.parquet import RowGroup, read_parquet, row_group_sizes, scan_row_groups, write_parquet
from ringfeed.sharding.formats.parquet_types import to_stored
from ringfeed.sharding.formats.tfrecord import compress
from ringfeed.sharding.formats.tfrecord_scan import scan_frames
from ringfeed.sharding.messages import counted, some_of
from ringfeed.sharding.storage.file_contents import FileInfo, open_decompressed
from ringfeed.sharding.storage.storage import Storage


def locate_damage(
    storage: Storage, manifest: Manifest, shard: ShardInfo, path: str, measured: FileInfo, *, other_intact: bool
) -> Damage:
    """Describe the damage of a shard's data file or index whose checksum is wrong.

    Args:
        other_intact: whether the other file of the shard is intact, so that it can be used.
    """
    sizes = measured.bytes, shard.files[path].bytes
    damage = Damage(path=path, split=shard.split, kind=kind_of_size(*sizes), problem=content_problem(*sizes))
    if path == shard.index_path:
        return _in_index(damage, storage, manifest, shard, shard_intact=other_intact)
    index = None
    if other_intact:
        with open_decompressed(storage, shard.index_path) as stored:
            index = read_index(stored, manifest)
    return _in_shard(damage, storage, manifest, shard, measured, index)


def _in_shard(
    damage: Damage, storage: Storage, manifest: Manifest, shard: ShardInfo, measured: FileInfo, index: Index | None
) -> Damage:
    with open_decompressed(storage, shard.path) as stored:
        if measured.bytes > shard.bytes and checksum(stored.slice(0, shard.bytes)) == shard.checksum:
            added = measured.bytes - shard.bytes
            return replace(
                damage,
                offset=shard.bytes,
                problem=f"{counted(added, 'byte', 'was/were')} added at its end; all before them is intact",
            )
        if manifest.shard_format == "parquet":
            return _in_parquet(damage, stored, manifest, shard)
        with open_decompressed(storage, shard.path, manifest.file_compression) as data:
            return _in_tfrecord(damage, stored, memoryview(data), manifest, shard, index)


def _in_tfrecord(
    damage: Damage, stored: pa.Buffer, data: memoryview, manifest: Manifest, shard: ShardInfo, index: Index | None
) -> Damage:
    bounds = frame_bounds(manifest, shard, index)
    bad = [frame for frame in scan_frames(data, bounds) if frame.problem]
    if not bad:
        return _between_records(damage, stored, data, manifest, shard)
    first = bad[0]
    numbers = () if any(f.record is None for f in bad) or bounds is None else runs(f.record or 0 for f in bad)
    damaged = some_of(len(bad), shard.records, "record", "is/are")
    count = f"{damaged} damaged: {runs_text(numbers)}" if numbers else ""
    if not numbers and len(bad) > 1:
        count = f"and {counted(len(bad) - 1, 'more place')}"
    name = "a record" if first.record is None else f"record {first.record}"
    of = "" if manifest.compression == "none" else " of the decompressed data"
    place = f"{name} at offset {first.offset}{of} {first.problem}"
    return replace(
        damage,
        problem=f"{damage.problem} ({place}{'; ' if count else ''}{count})",
        record=first.record,
        records=numbers,
        offset=first.offset,
    )


def _between_records(
    damage: Damage, stored: pa.Buffer, data: memoryview, manifest: Manifest, shard: ShardInfo
) -> Damage:
    """Describe damage outside the records, all of which are intact."""
    if manifest.compression == "none":
        return replace(damage, offset=len(data), problem=f"{damage.problem} (all its records are intact)")
    original = reencode_shard(data, manifest, shard)
    offset = None if original is None else first_difference(memoryview(stored), original)
    place = "" if offset is None else f", at byte {offset} of the file"
    return replace(damage, offset=offset, problem=f"{damage.problem} (in the compression headers or trailers{place})")


def _in_parquet(damage: Damage, stored: pa.Buffer, manifest: Manifest, shard: ShardInfo) -> Damage:
    try:
        groups = list(scan_row_groups(stored))
    except ValueError as error:
        return replace(damage, offset=_footer_offset(stored), problem=f"{damage.problem} ({error})")
    bad = [group for group in groups if group.damaged]
    footer = _footer_offset(stored)
    if bad and not _fill(groups, footer):
        what = f"in the footer, at offset {footer}: its columns do not fill the file before it"
        return replace(damage, offset=footer, problem=f"{damage.problem} ({what})")
    if bad:
        first = bad[0]
        damaged = some_of(len(bad), len(groups), "row group", "is/are")
        count = f"; {damaged} damaged: {runs_text(runs(g.number for g in bad))}"
        return _in_row_group(damage, first, first.damaged[0], None, count if len(bad) > 1 else "")
    original = reencode_shard(stored, manifest, shard)
    offset = None if original is None else first_difference(memoryview(stored), original)
    for group in groups if offset is not None else ():
        for column, (start, stop) in group.columns.items():
            if start <= (offset or 0) < stop:
                return _in_row_group(damage, group, column, offset, "; all values can be read")
    place = footer if offset is None else offset
    return replace(
        damage, offset=place, problem=f"{damage.problem} (in the footer, at offset {place}; all values can be read)"
    )


def _fill(groups: Sequence[RowGroup], footer: int) -> bool:
    """Whether the columns lie one after the other from the magic number to the footer, as they are written."""
    extents = sorted(extent for group in groups for extent in group.columns.values())
    starts, stops = [start for start, _ in extents], [stop for _, stop in extents]
    return [*starts, footer] == [4, *stops]


def _in_row_group(damage: Damage, group: RowGroup, column: str, offset: int | None, more: str) -> Damage:
    offset = group.columns[column][0] if offset is None else offset
    place = f"row group {group.number}, records {group.first_record}-{group.first_record + group.records - 1}"
    return replace(
        damage,
        problem=f"{damage.problem} ({place}, column {column!r} at offset {offset}{more})",
        record=group.first_record,
        row_group=group.number,
        column=column,
        offset=offset,
    )


def _footer_offset(stored: pa.Buffer) -> int:
    """Return the offset of a Parquet footer by its recorded size, or of the last 8 bytes if that is impossible."""
    size = int.from_bytes(memoryview(stored)[-8:-4], "little")
    end = max(0, int(stored.size) - 8)
    return end - size if size < end else end


def reencode_shard(data: pa.Buffer | memoryview, manifest: Manifest, shard: ShardInfo) -> memoryview | None:
    """Encode a shard's content again; None if that does not yield the bytes that were written.

    Args:
        data: a Parquet file whose row groups can be read, or the frames of a compressed TFRecord file.
    """
    if manifest.shard_format == "parquet":
        try:
            (rows,) = read_parquet(data).combine_chunks().to_batches()
            rows = to_stored(manifest.schema.conform(rows), manifest.stored_schema)
            encoded_file = write_parquet(rows, manifest.compression, next(iter(row_group_sizes(data)), 1))
            encoded = memoryview(encoded_file)
        except Exception:  # on a wrong footer, readers raise anything
            return None
    else:
        encoded = memoryview(compress(bytes(data), manifest.compression))
    return encoded if checksum(encoded) == shard.checksum else None


def _in_index(damage: Damage, storage: Storage, manifest: Manifest, shard: ShardInfo, *, shard_intact: bool) -> Damage:
    with open_decompressed(storage, shard.index_path) as stored:
        try:
            index = read_index(stored, manifest)
            wrong = ""
        except ValueError as error:
            index, wrong = None, str(error)
        original: Index | None = None
        if shard_intact:
            with open_decompressed(storage, shard.path, manifest.file_compression) as data:
                original, encoded = rebuild_index(data, manifest, shard.index_bytes)
            offset = first_difference(memoryview(stored), memoryview(encoded))
            damage = replace(damage, offset=offset)
    if index is None:
        return replace(damage, problem=f"{damage.problem} ({wrong}{_at_byte(damage)})")
    if original is None:
        return replace(damage, problem=f"{damage.problem} (it can be read, but its shard is damaged, too)")
    return _compare(damage, index, original)


def _compare(damage: Damage, index: Index, original: Index) -> Damage:
    if len(index.class_ids) != len(original.class_ids):
        differing: Sequence[int] = range(min(len(index.class_ids), len(original.class_ids)))
        what = f"it has {counted(len(index.class_ids), 'record')}, the shard {len(original.class_ids)}"
    else:
        differing = index.differing_records(original).tolist()
        what = f"it differs from the shard in {counted(len(differing), 'record')}"
    if len(differing) > 1:  # consistent, but of other records: no single fault does that
        return replace(damage, kind="stale", problem=f"{damage.problem} (it is an index of other records: {what})")
    if len(differing) == 1:
        record = int(differing[0])
        return replace(damage, record=record, problem=f"{damage.problem} (record {record}{_at_byte(damage)})")
    return replace(damage, problem=f"{damage.problem} (its content is right{_at_byte(damage)})")


def _at_byte(damage: Damage) -> str:
    return "" if damage.offset is None else f"; from byte {damage.offset} on"

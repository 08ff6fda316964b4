"""What can be had of a damaged shard: its very bytes, where they can be made again and proven, or else its intact
records.

Reads, and writes nothing. Bytes are proven by the checksum they were written with; records by their CRCs, or by the
checksums of the pages they lie in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..common.checksums import checksum
from ..dataset.manifest import Manifest, ShardInfo
from ..dataset.recovery import revert_bit_flip
from ..dataset.shard_index import Index, classes_of_messages, classes_of_table, frame_bounds, read_index, rebuild_index
from ..formats.arrow_binary import data_of, offsets_of
from ..formats.block_checksums import block_sums
from ..formats.parquet import read_row_groups, row_group_rows, scan_row_groups, write_parquet
from ..formats.shard_encode import encode_index
from ..formats.tfrecord import FOOTER_BYTES, compress, decompress, frame_records
from ..formats.tfrecord_scan import repair_frames, scan_frames
from ..storage.file_contents import open_decompressed
from ..storage.storage import Storage
from ..verifying.locate import reencode_shard

__all__ = ["RestoredFiles", "SalvagedShard", "ShardFiles", "restore_shard", "salvage_shard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFiles:
    """A shard, and where its two files lie.

    Attributes:
        storage: of the dataset.
        manifest: of the dataset.
        shard: as it was written.
        data_at: path of what there is of the data file; None if there is nothing.
        index_at: the same of the index.
        data_intact: whether that is the data file as it was written.
        index_intact: the same of the index.
    """

    storage: Storage
    manifest: Manifest
    shard: ShardInfo
    data_at: str | None
    index_at: str | None
    data_intact: bool
    index_intact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredFiles:
    """The bytes of a shard's files as they were written, and how they were had; None for what needs no mending or
    cannot be mended.
    """

    data: pa.Buffer | None = None
    data_how: str = ""
    index: pa.Buffer | None = None
    index_how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvagedShard:
    """The intact records of a damaged shard, encoded as a shard; `data` is None if its own data file is intact."""

    data: pa.Buffer | None
    index: pa.Buffer
    records: int
    class_counts: tuple[int, ...]


# --- the very bytes --------------------------------------------------------------------------------------------


def restore_shard(files: ShardFiles) -> RestoredFiles:
    """The two files as they were written, as far as they can be made again."""
    shard = files.shard
    mended = RestoredFiles()
    if not files.index_intact and files.index_at is not None:
        with open_decompressed(files.storage, files.index_at) as stored:
            for how, candidate in _plain_candidates(stored, shard.index_bytes, shard.index_checksum):
                if checksum(candidate) == shard.index_checksum:
                    mended = replace(mended, index=candidate, index_how=how)
                    break
    if not files.data_intact and files.data_at is not None:
        index = _index(files, mended)
        for how, candidate in _data_candidates(files, files.data_at, index):
            if checksum(candidate) == shard.checksum:
                mended = replace(mended, data=candidate, data_how=how)
                break
    if not files.index_intact and mended.index is None and (files.data_intact or mended.data is not None):
        _, encoded = _rebuilt_index(files, mended)
        if checksum(encoded) == shard.index_checksum:
            mended = replace(mended, index=encoded, index_how="made again from its shard")
    return mended


def _plain_candidates(stored: pa.Buffer, size: int, expected_checksum: str) -> Iterator[tuple[str, pa.Buffer]]:
    if stored.size > size:
        yield "what was added at its end cut off", pa.py_buffer(stored.slice(0, size).to_pybytes())
    if stored.size == size and (found := revert_bit_flip(stored.to_pybytes(), expected_checksum)):
        yield "a flipped bit turned back", pa.py_buffer(found)


def _data_candidates(files: ShardFiles, at: str, index: Index | None) -> Iterator[tuple[str, pa.Buffer]]:
    manifest, shard = files.manifest, files.shard
    with open_decompressed(files.storage, at) as stored:
        if stored.size > shard.bytes:
            yield "what was added at its end cut off", pa.py_buffer(stored.slice(0, shard.bytes).to_pybytes())
        if manifest.shard_format == "parquet":
            if again := reencode_shard(stored, manifest, shard):
                yield "written again from its rows, which are intact", pa.py_buffer(again)
        else:
            bounds = frame_bounds(manifest, shard, index)
            with open_decompressed(files.storage, at, manifest.file_compression) as data:
                yield from _tfrecord_candidates(memoryview(data), bounds, manifest)
        yield from _plain_candidates(stored, shard.bytes, shard.checksum)


def _tfrecord_candidates(
    data: memoryview, bounds: list[tuple[int, int]] | None, manifest: Manifest
) -> Iterator[tuple[str, pa.Buffer]]:
    if manifest.compression != "none":
        yield "compressed again, for its records are intact", pa.py_buffer(compress(bytes(data), manifest.compression))
    missing = bounds[-1][1] - len(data) if bounds else 0
    if bounds and 0 <= missing <= FOOTER_BYTES:
        likely = repair_frames(memoryview(bytes(data) + bytes(missing)), bounds)
        if likely is not None:
            yield "mended by the CRCs of its records", pa.py_buffer(compress(likely, manifest.compression))


def _index(files: ShardFiles, mended: RestoredFiles) -> Index | None:
    """The index as it was written, if it is there or was mended."""
    if mended.index is not None:
        return read_index(mended.index, files.manifest)
    if not files.index_intact or files.index_at is None:
        return None
    with open_decompressed(files.storage, files.index_at) as stored:
        return read_index(stored, files.manifest)


def _rebuilt_index(files: ShardFiles, mended: RestoredFiles) -> tuple[Index, pa.Buffer]:
    if mended.data is None:
        assert files.data_at is not None
        with open_decompressed(files.storage, files.data_at, files.manifest.file_compression) as data:
            return rebuild_index(data, files.manifest, files.shard.index_bytes)
    data = pa.py_buffer(decompress(mended.data, files.manifest.file_compression))
    return rebuild_index(data, files.manifest, files.shard.index_bytes)


# --- the intact records ----------------------------------------------------------------------------------------


def salvage_shard(files: ShardFiles, mended: RestoredFiles) -> SalvagedShard | None:
    """The intact records of a shard whose files cannot both be mended; None if there are none.

    Args:
        files: of the shard.
        mended: what could be mended of them.
    """
    manifest = files.manifest
    if files.data_intact or mended.data is not None:  # it is the index alone that cannot be had as it was
        index, encoded = _rebuilt_index(files, mended)
        return SalvagedShard(
            data=None, index=encoded, records=len(index.class_ids), class_counts=_count(index.class_ids, manifest)
        )
    if files.data_at is None:
        return None
    known = _index(files, mended)
    with open_decompressed(files.storage, files.data_at, manifest.file_compression) as data:
        if manifest.shard_format == "parquet":
            return _salvage_rows(data, known, files)
        return _salvage_frames(memoryview(data), known, files)


def _count(class_ids: npt.NDArray[np.int32], manifest: Manifest) -> tuple[int, ...]:
    return tuple(np.bincount(class_ids, minlength=len(manifest.classes)).tolist())


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
    return SalvagedShard(
        data=pa.py_buffer(compress(frames, manifest.compression)),
        index=encode_index(class_ids, offsets),
        records=len(messages),
        class_counts=_count(class_ids, manifest),
    )


def _salvage_rows(data: pa.Buffer, index: Index | None, files: ShardFiles) -> SalvagedShard | None:
    manifest = files.manifest
    tables, class_ids = [], []
    try:
        groups = [group for group in scan_row_groups(data) if not group.damaged]
    except ValueError:
        return None
    for group in groups:
        try:
            table = read_row_groups(data, [group.number])
            (rows,) = table.combine_chunks().to_batches()
            manifest.schema.conform(rows)  # a footer that says other types than were written is not believed
            ids = classes_of_table(table, manifest)
        except Exception:  # a damaged footer makes a reader raise anything
            continue
        stop = group.first_record + group.records
        if index is None or np.array_equal(index.class_ids[group.first_record : stop], ids):
            tables.append(rows)
            class_ids.append(ids)
    if not tables:
        return None
    (whole,) = pa.Table.from_batches(tables).combine_chunks().to_batches()
    ids = np.concatenate(class_ids)
    written = write_parquet(whole, manifest.compression, row_group_rows(data))
    return SalvagedShard(
        data=written,
        index=encode_index(ids, sums=block_sums(written)),
        records=len(ids),
        class_counts=_count(ids, manifest),
    )

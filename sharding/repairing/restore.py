"""Restores the files of a damaged shard bit by bit, from the damaged files themselves.

Reads, and writes nothing. A restored file is proven by the checksum with which it was written.
Tested in tests/sharding/repairing/test_repair.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.dataset.manifest import Manifest, ShardInfo
from ringfeed.sharding.dataset.recovery import revert_bit_flip
from ringfeed.sharding.dataset.shard_index import Index, frame_bounds, read_index, rebuild_index
from ringfeed.sharding.formats.tfrecord import FOOTER_BYTES, compress, decompress
from ringfeed.sharding.formats.tfrecord_scan import repair_frames
from ringfeed.sharding.storage.file_contents import open_decompressed
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.verifying.locate import reencode_shard

__all__ = ["RestoredFiles", "ShardFiles", "intact_index", "rebuilt_index", "restore_shard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFiles:
    """A damaged shard, and where its two files are.

    Attributes:
        storage: folder of the dataset.
        manifest: manifest of the dataset.
        shard: the shard as it was written.
        data_path: path of the damaged data file; None if it is missing.
        index_path: path of the damaged index; None if it is missing.
        data_intact: whether that is the data file as it was written.
        index_intact: whether that is the index as it was written.
    """

    storage: Storage
    manifest: Manifest
    shard: ShardInfo
    data_path: str | None
    index_path: str | None
    data_intact: bool
    index_intact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredFiles:
    """The restored bytes of a shard's files, and how they were restored; None if intact or beyond restoring."""

    data: pa.Buffer | None = None
    data_how: str = ""
    index: pa.Buffer | None = None
    index_how: str = ""


def restore_shard(files: ShardFiles) -> RestoredFiles:
    """Restore the files of a shard that are damaged, as far as possible."""
    shard = files.shard
    restored = RestoredFiles()
    if not files.index_intact and files.index_path is not None:
        with open_decompressed(files.storage, files.index_path) as stored:
            for how, candidate in _plain_candidates(stored, shard.index_bytes, shard.index_checksum):
                if checksum(candidate) == shard.index_checksum:
                    restored = replace(restored, index=candidate, index_how=how)
                    break
    if not files.data_intact and files.data_path is not None:
        index = intact_index(files, restored)
        for how, candidate in _data_candidates(files, files.data_path, index):
            if checksum(candidate) == shard.checksum:
                restored = replace(restored, data=candidate, data_how=how)
                break
    if not files.index_intact and restored.index is None and (files.data_intact or restored.data is not None):
        _, encoded = rebuilt_index(files, restored)
        if checksum(encoded) == shard.index_checksum:
            restored = replace(restored, index=encoded, index_how="rebuilt from its shard")
    return restored


def _plain_candidates(stored: pa.Buffer, size: int, expected_checksum: str) -> Iterator[tuple[str, pa.Buffer]]:
    if stored.size > size:
        yield "the bytes added at its end cut off", pa.py_buffer(stored.slice(0, size).to_pybytes())
    if stored.size == size and (reverted := revert_bit_flip(stored.to_pybytes(), expected_checksum)):
        yield "a flipped bit reverted", pa.py_buffer(reverted)


def _data_candidates(files: ShardFiles, path: str, index: Index | None) -> Iterator[tuple[str, pa.Buffer]]:
    manifest, shard = files.manifest, files.shard
    with open_decompressed(files.storage, path) as stored:
        plain = _plain_candidates(stored, shard.bytes, shard.checksum)
        if stored.size > shard.bytes:  # quicker than the others; the search for a flipped bit is slower
            yield from plain
        if manifest.shard_format == "parquet":
            if encoded := reencode_shard(stored, manifest, shard):
                yield "encoded again from its rows, which are intact", pa.py_buffer(encoded)
        else:
            bounds = frame_bounds(manifest, shard, index)
            with open_decompressed(files.storage, path, manifest.file_compression) as data:
                yield from _tfrecord_candidates(memoryview(data), bounds, manifest)
        yield from plain


def _tfrecord_candidates(
    data: memoryview, bounds: list[tuple[int, int]] | None, manifest: Manifest
) -> Iterator[tuple[str, pa.Buffer]]:
    if manifest.compression != "none":
        yield "compressed again, as its records are intact", pa.py_buffer(compress(bytes(data), manifest.compression))
    missing = bounds[-1][1] - len(data) if bounds else 0
    if bounds and 0 <= missing <= FOOTER_BYTES:
        likely = repair_frames(memoryview(bytes(data) + bytes(missing)), bounds)
        if likely is not None:
            yield "repaired by the CRCs of its records", pa.py_buffer(compress(likely, manifest.compression))


def intact_index(files: ShardFiles, restored: RestoredFiles) -> Index | None:
    """Return the index of a shard if it is intact or was restored."""
    if restored.index is not None:
        return read_index(restored.index, files.manifest)
    if not files.index_intact or files.index_path is None:
        return None
    with open_decompressed(files.storage, files.index_path) as stored:
        return read_index(stored, files.manifest)


def rebuilt_index(files: ShardFiles, restored: RestoredFiles) -> tuple[Index, pa.Buffer]:
    """Rebuild the index of a shard whose data file is intact or was restored; return its content and its bytes."""
    if restored.data is None:
        assert files.data_path is not None
        with open_decompressed(files.storage, files.data_path, files.manifest.file_compression) as data:
            return rebuild_index(data, files.manifest, files.shard.index_bytes)
    data = pa.py_buffer(decompress(restored.data, files.manifest.file_compression))
    return rebuild_index(data, files.manifest, files.shard.index_bytes)

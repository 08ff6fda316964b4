"""Companion files: files for other programs beside the shards, rebuilt from what they derive from.

Those for TensorFlow Datasets derive from the manifest and the shard table, a DALI index from the shard's own index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.errors import RingfeedError
from ringfeed.sharding.storage.file_contents import FileInfo, open_decompressed
from ringfeed.sharding.storage.storage import Storage

from .damage import Damage, first_difference, kind_of_size
from .dataset import read_checked
from .manifest import Manifest, ShardInfo, file_info
from .tfds_files import is_tfds_file, tfds_files


def dali_index(index: pa.Buffer) -> bytes:
    """Return the index for NVIDIA DALI of an uncompressed TFRecord shard: for each record, a line of offset and size.

    It is in the format of DALI's own `tfrecord2idx`, which the `tfrecord` package reads, too.

    Args:
        index: Arrow IPC file with the columns ``offset`` and ``length``.
    """
    table = pa.ipc.open_file(index).read_all()
    offsets, lengths = (table.column(name).cast(pa.string()) for name in ("offset", "length"))
    lines = pc.binary_join_element_wise(offsets, lengths, " ").to_pylist()
    return "".join(f"{line}\n" for line in lines).encode()


def shard_of_index(path: str, shards: Sequence[ShardInfo]) -> ShardInfo | None:
    """Return the shard whose DALI index is at `path`."""
    return next((shard for shard in shards if shard.dali_path == path), None)


def rebuild_companion(storage: Storage, manifest: Manifest, shards: Sequence[ShardInfo], path: str) -> bytes | None:
    """Rebuild a companion file; None if ringfeed cannot derive it, a CorruptionError if its shard index is damaged."""
    if is_tfds_file(path):
        return tfds_files(manifest, shards).get(path)
    shard = shard_of_index(path, shards)
    if shard is None:
        return None
    return dali_index(read_checked(storage, shard.index_path, shard.index_bytes, shard.index_checksum))


def locate_in_companion(
    storage: Storage, manifest: Manifest, shards: Sequence[ShardInfo], path: str, measured: FileInfo
) -> Damage:
    """Describe how a companion file differs from what was written."""
    expected = manifest.files[path]
    try:
        original = rebuild_companion(storage, manifest, shards, path)
    except RingfeedError:
        original = None  # its origin is damaged, too
    damage = Damage(path=path, kind=kind_of_size(measured.bytes, expected.bytes), problem="its checksum does not match")
    if original is None or file_info(original) != expected:
        return damage
    with open_decompressed(storage, path) as data:
        offset = first_difference(memoryview(data), original)
    return replace(damage, offset=offset, problem=f"it differs from what was written, from byte {offset} on")

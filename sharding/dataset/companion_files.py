"""Companion files: files for other programs beside the shards, rebuilt from what they derive from.

Those for TensorFlow Datasets derive from the manifest and the shard table, a DALI index from the shard's own index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ringfeed.sharding.errors import RingfeedError
from ringfeed.sharding.storage.file_contents import FileInfo, open_decompressed
from ringfeed.sharding.storage.storage import Storage

from .dali_index import index_text
from .damage import Damage, first_difference, kind_of_size
from .dataset import read_checked
from .manifest import Manifest, ShardInfo, file_info
from .tfds_files import is_tfds_file, tfds_files


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
    return index_text(read_checked(storage, shard.index_path, shard.index_bytes, shard.index_checksum))


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

"""The files for other programs that lie beside the shards: made again from what they were made from.

Those for TensorFlow Datasets follow from the manifest and the table, an index for DALI from the shard's own index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import RingfeedError
from ..storage.file_contents import FileInfo, open_decompressed
from ..storage.storage import Storage
from . import dali_index as dali
from .damage import Damage, first_difference, kind_of_size
from .dataset import read_checked
from .manifest import Manifest, ShardInfo, file_info
from .tfds_files import is_tfds_file, tfds_files

__all__ = ["locate_in_companion", "rebuild_companion", "shard_of_index"]


def shard_of_index(path: str, shards: Sequence[ShardInfo]) -> ShardInfo | None:
    """The shard that a file is the DALI index of."""
    return next((shard for shard in shards if dali.index_name(shard.path) == path), None)


def rebuild_companion(storage: Storage, manifest: Manifest, shards: Sequence[ShardInfo], path: str) -> bytes | None:
    """The bytes of a file for another program; None if it is not known what it was made from.

    Args:
        storage: of the dataset.
        manifest: of the dataset.
        shards: of the dataset.
        path: of the file.

    Raises:
        CorruptionError: the index that it is made from is damaged.
        StorageError: the store refuses.
    """
    if is_tfds_file(path):
        return tfds_files(manifest, shards).get(path)
    shard = shard_of_index(path, shards)
    if shard is None:
        return None
    return dali.index_text(read_checked(storage, shard.index_path, shard.index_bytes, shard.index_checksum))


def locate_in_companion(
    storage: Storage, manifest: Manifest, shards: Sequence[ShardInfo], path: str, found: FileInfo
) -> Damage:
    """What is wrong with such a file whose checksum is wrong.

    Args:
        storage: of the dataset.
        manifest: of the dataset.
        shards: of the dataset.
        path: of the file.
        found: what it holds.
    """
    expected = manifest.files[path]
    try:
        original = rebuild_companion(storage, manifest, shards, path)
    except RingfeedError:
        original = None  # what it was made from is damaged as well
    damage = Damage(
        path=path,
        kind=kind_of_size(found.bytes, expected.bytes),
        problem="it is not as it was written: its checksum does not match",
    )
    if original is None or file_info(original) != expected:
        return damage
    with open_decompressed(storage, path) as stored:
        offset = first_difference(memoryview(stored), original)
    return replace(damage, offset=offset, problem=f"it is not as it was written, from byte {offset} on")

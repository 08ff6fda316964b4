"""Plans the repair of each damaged shard: move its files, restore them, or salvage its records. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.dataset.damage import Damage
from ringfeed.sharding.dataset.file_names import salvaged_name
from ringfeed.sharding.dataset.manifest import ShardInfo
from ringfeed.sharding.dataset.recovery import RecoveredDataset
from ringfeed.sharding.errors import DatasetError
from ringfeed.sharding.messages import some_of
from ringfeed.sharding.storage.atomic_files import draft_target
from ringfeed.sharding.storage.file_contents import FileInfo, digest_file
from ringfeed.sharding.storage.storage import Storage

from .remedy import MISPLACED, Loss, Remedy, rewrite
from .salvage import SalvagedShard, ShardFiles, salvage_shard


def plan_moves(dataset: RecoveredDataset, damaged: Mapping[str, Damage]) -> dict[str, Remedy]:
    """Find damaged files whose bytes are in a file of another name; return their remedies by path."""
    wanted = {path: info for shard in dataset.shards for path, info in shard.files.items()}
    sizes = {info.bytes for path, info in wanted.items() if path in damaged}
    unknown_files = (dataset.names or frozenset()) - set(wanted) - {dataset.manifest_path, dataset.manifest.shards_path}
    holders: dict[str, str] = {}
    for path in [*sorted(unknown_files), *(path for path in damaged if path in wanted)]:
        if sizes and (measured := _measure_if_sized(dataset.storage, path, sizes)):
            holders[measured.checksum] = path
    moves = {}
    for path in damaged:
        origin = holders.get(wanted[path].checksum) if path in wanted else None
        if origin is None:
            continue
        ours = origin in wanted or origin.endswith(MISPLACED) or draft_target(origin) in wanted
        how = f"its bytes are in {origin}"
        moves[path] = Remedy(path=path, action="move" if ours else "copy", how=how, origin=origin)
    return moves


def _measure_if_sized(storage: Storage, path: str, sizes: set[int]) -> FileInfo | None:
    with storage.errors("look at", path):
        fs, root = storage.filesystem()
        try:
            size = int(fs.size(f"{root}/{path}") or 0)
        except FileNotFoundError:
            return None
    return digest_file(storage, path) if size in sizes else None


def locate_files(
    dataset: RecoveredDataset, shard: ShardInfo, damaged: Mapping[str, Damage], moves: Mapping[str, Remedy]
) -> ShardFiles | None:
    """Return where the files of a shard are now; None if both are intact."""
    if damaged.keys().isdisjoint(shard.files):
        return None
    moved = {move.origin for move in moves.values() if move.action == "move"}

    def current_path(path: str) -> str | None:
        if path in moves:
            return moves[path].origin
        gone = path in moved or (path in damaged and damaged[path].kind in ("missing", "swapped"))
        return None if gone else path

    return ShardFiles(
        storage=dataset.storage,
        manifest=dataset.manifest,
        shard=shard,
        data_path=current_path(shard.path),
        index_path=current_path(shard.index_path),
        data_intact=shard.path not in damaged or shard.path in moves,
        index_intact=shard.index_path not in damaged or shard.index_path in moves,
    )


def plan_shard(files: ShardFiles, names: frozenset[str]) -> tuple[list[Remedy], Loss | None]:
    """Return the remedies of a damaged shard, and what is lost of it."""
    shard = files.shard
    salvaged = salvage_shard(files)
    if salvaged is None:
        how = "no record of the shard is intact"
        both = [Remedy(path=path, action="remove", how=how) for path in shard.files]
        return both, Loss(shard=shard, replacement=None)
    remedies = []
    if salvaged.data_restored and salvaged.data is not None:
        remedies.append(rewrite(shard.path, "encoded again from its records, which are intact"))
    if salvaged.data_restored and salvaged.index_restored:
        if salvaged.index is not None:
            remedies.append(rewrite(shard.index_path, "rebuilt from its shard"))
        return remedies, None
    new = _replacement(files, salvaged, names)
    if new.path != shard.path:
        how = f"{some_of(new.records, shard.records, 'record', 'goes/go')} to {new.path}"
        remedies.append(Remedy(path=shard.path, action="salvage", how=how))
    how = f"an index of the remaining records goes to {new.index_path}"
    remedies.append(Remedy(path=shard.index_path, action="salvage", how=how))
    return remedies, Loss(shard=shard, replacement=new)


def _replacement(files: ShardFiles, salvaged: SalvagedShard, names: frozenset[str]) -> ShardInfo:
    shard, index = files.shard, salvaged.index
    assert index is not None
    new = replace(
        shard,
        index_path=replacement_name(files.storage, shard.index_path, names, index),
        index_bytes=index.size,
        index_checksum=checksum(index),
    )
    if salvaged.data_restored:
        return new
    data = salvaged.data
    assert data is not None
    return replace(
        new,
        path=replacement_name(files.storage, shard.path, names, data),
        bytes=data.size,
        records=salvaged.records,
        checksum=checksum(data),
        class_counts=salvaged.class_counts,
    )


def replacement_name(storage: Storage, path: str, names: frozenset[str], data: pa.Buffer | bytes) -> str:
    """Return the next free name for a replacement, or the one with these very bytes, left by a killed repair."""
    try:
        name = salvaged_name(path)
    except ValueError as error:
        raise DatasetError(f"{storage.locate(path)} has no valid name, so its replacement cannot be named") from error
    while name in names:
        measured = digest_file(storage, name)
        if measured is not None and measured.checksum == checksum(data):
            break
        name = salvaged_name(name)
    return name

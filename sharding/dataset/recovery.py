"""Find out what a dataset is although `dataset.json` or its table is damaged: each is made again from what is left.

Nothing is guessed: what is made again must have the checksum that the other one, or its own copy of itself, names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import xxhash

from ..common.checksums import checksum
from ..errors import CorruptionError, DatasetError, RingfeedError, StorageError
from ..storage.file_contents import FileInfo, digest_file, open_decompressed
from ..storage.lease import LEASE_NAME, read_holder
from ..storage.retry import RetriesExhaustedError, RetryPolicy
from ..storage.storage import Storage
from .consistency import check_manifest, check_table
from .damage import Damage, first_difference, kind_of_size
from .dataset import no_dataset_error
from .file_names import (
    INDEX_SUFFIX,
    SHARD_NAMES,
    TABLE_NAMES,
    generation_of,
    index_name,
    repairs_of,
    shard_name,
    table_order,
)
from .manifest import MANIFEST_NAME, SHARDS_NAME, Manifest, ShardInfo
from .shard_index import read_index
from .shard_table import decode_shards, recover_from_table, seal

__all__ = ["RecoveredDataset", "confirm_table", "read_or_none", "recover_dataset", "revert_bit_flip"]

_MEND_BYTES = 1 << 16  # of a file whose flipped bit is searched for: 64 KiB take about 4 s


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredDataset:
    """What a dataset is, and what had to be made again to know it.

    Attributes:
        storage: of the dataset.
        manifest: as it was written.
        shards: as they were written. If `proven` is false, as they are.
        proven: whether every checksum in `shards` is that of the bytes that were written.
        damages: of `dataset.json` and the table.
        restored: the bytes of those two files as they were, by path, where they were damaged.
        names: of the files in the folder; None if it cannot be listed.
        sizes: of those files, by name, as they were listed.
        measures: of the files that had to be read for it, by path.
        read: the bytes of `dataset.json` as they are; None if it is missing.
    """

    storage: Storage
    manifest: Manifest
    shards: tuple[ShardInfo, ...]
    proven: bool = True
    damages: tuple[Damage, ...] = ()
    restored: Mapping[str, bytes] = field(default_factory=dict)
    names: frozenset[str] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    measures: Mapping[str, FileInfo | None] = field(default_factory=dict)
    read: bytes | None = None


def recover_dataset(storage: Storage, workers: int) -> RecoveredDataset:
    """Read `dataset.json` and the table, or make the one from the other.

    Args:
        storage: of the dataset.
        workers: threads that read files side by side.

    Raises:
        DatasetError: there is no dataset, or a newer version wrote it.
        CorruptionError: `dataset.json` is damaged, and so is the copy of it in the table.
        StorageError: the store refuses.
    """
    storage.check_reachable()
    try:
        sizes = storage.sizes()
        names: frozenset[str] | None = frozenset(sizes)
    except StorageError as error:  # not every store, nor every account, can list
        if isinstance(error.__context__, RetriesExhaustedError) and not _answers(storage):
            raise
        sizes, names = {}, None
    data = read_or_none(storage, MANIFEST_NAME)
    known = replace(_identified(storage, names, data, workers), sizes=sizes)
    return known if known.read is not None else replace(known, read=data)  # else it was written anew meanwhile


def _answers(storage: Storage) -> bool:
    """Whether a store that did not list in all the time that it was given does anything, for which it gets no more."""
    try:
        replace(storage, retries=RetryPolicy(attempts=1)).read(MANIFEST_NAME)
    except FileNotFoundError:
        return True
    except StorageError:
        return False
    return True


def _identified(storage: Storage, names: frozenset[str] | None, data: bytes | None, workers: int) -> RecoveredDataset:
    if data is None:
        return _without_manifest(storage, names, None, workers)
    try:
        manifest = Manifest.decode(data, storage.locate(MANIFEST_NAME))
    except CorruptionError as error:
        return _without_manifest(storage, names, (data, error), workers)
    except DatasetError as error:
        if recovered := _from_table(storage, names, (data, error), newer=True):
            return recovered
        raise
    return _with_manifest(storage, names, data, manifest, workers)


def _with_manifest(
    storage: Storage, names: frozenset[str] | None, data: bytes, manifest: Manifest, workers: int
) -> RecoveredDataset:
    """The dataset by its manifest, which `data` is, or begins with."""
    check_manifest(manifest, storage.locate(MANIFEST_NAME))
    known = RecoveredDataset(storage=storage, manifest=manifest, shards=(), names=names)
    table = read_or_none(storage, manifest.shards_path)
    if table is not None and len(table) == manifest.shards_bytes and checksum(table) == manifest.shards_checksum:
        return replace(known, shards=decode_shards(table, manifest, storage.locate(manifest.shards_path)))
    if read_or_none(storage, MANIFEST_NAME) != data:  # written anew meanwhile, with another table
        return recover_dataset(storage, workers)
    return _without_table(known, table, workers)


def read_or_none(storage: Storage, path: str) -> bytes | None:
    """The whole of a file; None if there is none."""
    try:
        return storage.read(path)
    except FileNotFoundError:
        return None


def _without_end(storage: Storage, names: frozenset[str] | None, data: bytes, workers: int) -> RecoveredDataset | None:
    """The dataset, if bytes were added to a `dataset.json` that is as it was but for them."""
    try:
        _, end = json.JSONDecoder().raw_decode(data.decode(errors="replace"))
        original = data.decode(errors="replace")[:end].encode() + b"\n"
        manifest = Manifest.decode(original, "")
    except (ValueError, RecursionError, RingfeedError):
        return None
    problem = f"it is not as it was written, from byte {len(original)} on; it can be made again, bit by bit"
    offset = first_difference(data, original)
    damage = Damage(path=MANIFEST_NAME, kind=kind_of_size(len(data), len(original)), offset=offset, problem=problem)
    known = _with_manifest(storage, names, data, manifest, workers)
    restored = {MANIFEST_NAME: known.manifest.encode(), **known.restored}
    return replace(known, damages=(damage, *known.damages), restored=restored)


# --- dataset.json from the table -------------------------------------------------------------------------------

Broken = tuple[bytes, RingfeedError]  # the bytes of `dataset.json`, and what is wrong with them


def _without_manifest(
    storage: Storage, names: frozenset[str] | None, broken: Broken | None, workers: int
) -> RecoveredDataset:
    if (broken or not _is_being_built(storage, names)) and (recovered := _from_table(storage, names, broken)):
        return recovered
    if broken:
        if extended := _without_end(storage, names, broken[0], workers):
            return extended
        raise CorruptionError(
            f"{broken[1]}; no table of shards holds an intact copy of it either, so build the dataset again"
        ) from broken[1]
    raise no_dataset_error(storage)


def _is_being_built(storage: Storage, names: frozenset[str] | None) -> bool:
    """Whether what is there is of a build that has not finished; a repair marks the dataset that it writes to, too."""
    holder = read_holder(storage) if LEASE_NAME in (names or ()) else None
    return holder is not None and holder.unfinished_task == "build"


def _from_table(
    storage: Storage, names: frozenset[str] | None, broken: Broken | None, *, newer: bool = False
) -> RecoveredDataset | None:
    """The dataset by the newest table that is intact; None if there is none.

    A table is written when all of its shards are, so it makes a whole dataset even if that was not committed yet.
    """
    tables = {SHARDS_NAME} if names is None else {name for name in names if TABLE_NAMES.fullmatch(name)}
    ordered = sorted(tables, key=table_order, reverse=True)
    for path in ordered:
        data = read_or_none(storage, path)
        found = None if data is None else recover_from_table(data, path)
        if found is None:
            continue
        manifest, shards = found
        check_manifest(manifest, storage.locate(path))
        check_table(manifest, shards, storage.locate(path))
        original = manifest.encode()
        if newer and broken and _changed_bits(broken[0], original) > 8:
            return None  # not this dataset's file with a damaged version, but that of another version
        problem, kind, offset = "the file is missing", "missing", None
        if broken:
            kind, offset = kind_of_size(len(broken[0]), len(original)), first_difference(broken[0], original)
            problem = f"it is not as it was written, from byte {offset} on"
        problem += f"; {path} holds an intact copy of it"
        if table_order(ordered[0])[0] > table_order(path)[0]:
            problem += f" as it was before the append that wrote {ordered[0]}, which is damaged too"
        damage = Damage(path=MANIFEST_NAME, kind=kind, offset=offset, problem=problem)
        return RecoveredDataset(
            storage=storage,
            manifest=manifest,
            shards=shards,
            damages=(damage,),
            restored={MANIFEST_NAME: original},
            names=names,
        )
    return None


def _changed_bits(actual: bytes, original: bytes) -> int:
    if len(actual) != len(original):
        return 8 * max(len(actual), len(original))
    return int(np.bitwise_count(np.frombuffer(actual, np.uint8) ^ np.frombuffer(original, np.uint8)).sum())


# --- the table from the shards ---------------------------------------------------------------------------------


def _without_table(known: RecoveredDataset, table: bytes | None, workers: int) -> RecoveredDataset:
    manifest = known.manifest
    path = manifest.shards_path
    mended = None if table is None else _mend_table(table, manifest)
    if mended is not None:
        return _with_table(known, table, mended, decode_shards(mended, manifest, known.storage.locate(path)))
    shards: tuple[ShardInfo, ...] = ()
    measures: dict[str, FileInfo | None] = {}
    for newest in (True, False):
        pairs = list(_shard_names(manifest, known.names or frozenset(), newest=newest))
        measures |= _measure_all(known.storage, [name for _, *pair in pairs for name in pair], workers)
        shards = tuple(shard for pair in pairs if (shard := _derive(known.storage, manifest, pair, measures)))
        if proven := _with_rows(replace(known, measures=measures), table, shards):
            return proven
    damages = (_table_damage(path, table, None), *_underivable(known, shards))
    return replace(known, shards=shards, proven=False, damages=damages, measures=measures)


def _underivable(known: RecoveredDataset, shards: Sequence[ShardInfo]) -> Iterator[Damage]:
    """The files for want of which there is no row for some shard: they are missing, or an index cannot be read."""
    manifest, names = known.manifest, known.names or frozenset()
    there = {path for shard in shards for path in shard.files}
    for generation, written in enumerate(() if manifest.lost else manifest.all_generations):
        for split, number in ((split, number) for split, shards in written.shards.items() for number in range(shards)):
            data = shard_name(generation, split, number, written.shards[split], manifest.shard_format)
            index = index_name(data)
            for name in (data, index):
                if name not in names:
                    yield Damage(path=name, split=split, kind="missing", problem="the file is missing")
            if index in names - there and data in names:
                yield Damage(path=index, split=split, kind="altered", problem="it cannot be read as an index")


def confirm_table(known: RecoveredDataset, shards: tuple[ShardInfo, ...]) -> RecoveredDataset | None:
    """The dataset with the table of these shards, if that is the table that was lost; else None."""
    return _with_rows(known, read_or_none(known.storage, known.manifest.shards_path), shards)


def _with_rows(known: RecoveredDataset, table: bytes | None, shards: tuple[ShardInfo, ...]) -> RecoveredDataset | None:
    manifest = known.manifest
    sealed, data = seal(manifest, shards)
    if sealed.shards_checksum == manifest.shards_checksum:
        return _with_table(known, table, data, shards)
    if manifest.shards_rows and sealed.shards_rows == manifest.shards_rows:  # of another version of Arrow
        remade = _with_table(known, table, data, shards)
        return replace(remade, manifest=sealed, restored={manifest.shards_path: data, MANIFEST_NAME: sealed.encode()})
    return None


def _with_table(
    known: RecoveredDataset, table: bytes | None, data: bytes, shards: tuple[ShardInfo, ...]
) -> RecoveredDataset:
    path = known.manifest.shards_path
    damage = _table_damage(path, table, data)
    return replace(known, shards=shards, proven=True, damages=(damage,), restored={path: data})


def _table_damage(path: str, table: bytes | None, original: bytes | None) -> Damage:
    if table is None:
        kind, problem, offset = "missing", "the file is missing", None
    elif original is None:
        kind, problem, offset = "altered", "it is damaged: its checksum does not match", None
    else:
        kind, offset = kind_of_size(len(table), len(original)), first_difference(table, original)
        problem = f"it is not as it was written, from byte {offset} on"
    remedy = (
        "it can be made again, bit by bit"
        if original is not None
        else "it cannot be made again, for other files are damaged as well"
    )
    return Damage(path=path, kind=kind, offset=offset, problem=f"{problem}; {remedy}")


def _mend_table(table: bytes, manifest: Manifest) -> bytes | None:
    size = manifest.shards_bytes
    if len(table) > size and checksum(table[:size]) == manifest.shards_checksum:
        return table[:size]
    return revert_bit_flip(table, manifest.shards_checksum) if len(table) == size else None


def revert_bit_flip(data: bytes, expected_checksum: str) -> bytes | None:
    """A small file with that one bit turned back that gives it the expected checksum; None if there is no such bit."""
    if len(data) > _MEND_BYTES:
        return None
    expected = expected_checksum.partition(":")[2]
    before, changed = xxhash.xxh3_128(), bytearray(data)
    for position, byte in enumerate(data):
        for bit in range(8):
            changed[position] = byte ^ 1 << bit
            digest = before.copy()
            digest.update(memoryview(changed)[position:])
            if digest.hexdigest() == expected:
                return bytes(changed)
        changed[position] = byte
        before.update(data[position : position + 1])
    return None


def _shard_names(manifest: Manifest, names: frozenset[str], *, newest: bool) -> Sequence[tuple[str, str, str]]:
    """Split, shard and index of each shard in the folder, by their names, in the table's order.

    Args:
        manifest: of the dataset.
        names: of all files.
        newest: which to take of a file that was written and one that was salvaged from it.
    """
    pick = max if newest else min
    endings = (f".{manifest.shard_format}", INDEX_SUFFIX)
    order = {split: number for number, split in enumerate(manifest.splits)}
    found: dict[tuple[int, int, int], dict[bool, list[tuple[int, str]]]] = {}
    for name in names:
        match = SHARD_NAMES.fullmatch(name) if name.endswith(endings) else None
        if match and match.group(1) in order and generation_of(name) < len(manifest.all_generations):
            key = (generation_of(name), order[match.group(1)], int(match.group(2)))
            found.setdefault(key, {True: [], False: []})[name.endswith(INDEX_SUFFIX)].append((repairs_of(name), name))
    complete = sorted(key for key, slot in found.items() if all(slot.values()))
    splits = list(manifest.splits)
    return [(splits[key[1]], pick(found[key][False])[1], pick(found[key][True])[1]) for key in complete]


def _measure_all(storage: Storage, paths: Sequence[str], workers: int) -> dict[str, FileInfo | None]:
    with ThreadPoolExecutor(workers) as pool:
        return dict(zip(paths, pool.map(lambda path: digest_file(storage, path), paths), strict=True))


def _derive(
    storage: Storage, manifest: Manifest, names: tuple[str, str, str], measures: Mapping[str, FileInfo | None]
) -> ShardInfo | None:
    """The row of a shard, from its files as they are; None if they do not give one."""
    split, path, index_path = names
    data, index_data = measures[path], measures[index_path]
    if data is None or index_data is None:
        return None
    try:
        with open_decompressed(storage, index_path) as buffer:
            class_ids = read_index(buffer, manifest).class_ids
            counts = np.bincount(class_ids, minlength=len(manifest.classes))
    except (ValueError, FileNotFoundError):
        return None
    return ShardInfo(
        split=split,
        path=path,
        bytes=data.bytes,
        records=len(class_ids),
        checksum=data.checksum,
        class_counts=tuple(counts.tolist()),
        index_path=index_path,
        index_bytes=index_data.bytes,
        index_checksum=index_data.checksum,
    )

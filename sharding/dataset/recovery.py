"""Reads a dataset's metadata even if `dataset.json` or the shard table is damaged, by rebuilding one from the other.

Nothing is guessed: a rebuilt file must have the checksum that the other one, or its own copy of itself, records.
Tested in tests/sharding/verifying/test_verify.py and tests/sharding/repairing/test_repair.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.errors import CorruptionError, DatasetError, RingfeedError, StorageError
from ringfeed.sharding.storage.client_errors import RetriesExhaustedError
from ringfeed.sharding.storage.file_contents import FileInfo, digest_file, open_decompressed
from ringfeed.sharding.storage.lease import LEASE_NAME, read_holder
from ringfeed.sharding.storage.retry import RetryPolicy
from ringfeed.sharding.storage.storage import Storage

from .consistency import check_manifest, check_table
from .damage import Damage, first_difference, kind_of_size
from .dataset import no_dataset_error
from .file_names import (
    ALL_NAMES,
    NAMES,
    SHARD_NAMES,
    TABLE_NAMES,
    FileNames,
    generation_of,
    names_of,
    repairs_of,
    table_order,
)
from .manifest import Manifest, ShardInfo
from .own_folder import is_own_folder, read_manifest
from .shard_index import read_index
from .shard_table import decode_shards, recover_from_table, seal


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredDataset:
    """The metadata of a dataset, and what had to be rebuilt to know them."""

    storage: Storage  # folder of the dataset
    manifest: Manifest  # manifest as it was written
    # Rows of the shard table as they were written; if not `proven`, derived from the files as they are
    shards: tuple[ShardInfo, ...]
    proven: bool = True  # whether the checksums in `shards` match the bytes written
    damages: tuple[Damage, ...] = ()  # damages of `dataset.json` and of the table
    # Original bytes of those of the two files that are damaged, by path
    restored: Mapping[str, bytes] = field(default_factory=dict)
    names: frozenset[str] | None = None  # names of the files in the folder; None if it cannot be listed
    sizes: Mapping[str, int] = field(default_factory=dict)  # sizes of those files by name, as listed
    # Size and checksum of the files that had to be read, by path; None for a missing file
    measures: Mapping[str, FileInfo | None] = field(default_factory=dict)
    manifest_bytes: bytes | None = None  # bytes of `dataset.json` as they are; None if it is missing

    @property
    def manifest_path(self) -> str:
        """The path of `dataset.json`."""
        return self.manifest.names.manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """The folder of a dataset to recover."""

    storage: Storage  # the folder
    sizes: Mapping[str, int] | None  # sizes of its files by name; None if it cannot be listed
    file_names: FileNames  # names that its files have, as far as its `dataset.json` shows
    data: bytes | None  # bytes of its `dataset.json`; None if it is missing
    workers: int  # threads that read files in parallel

    @property
    def names(self) -> frozenset[str] | None:
        return None if self.sizes is None else frozenset(self.sizes)

    def dataset(self, manifest: Manifest, shards: tuple[ShardInfo, ...] = ()) -> RecoveredDataset:
        """A dataset in this folder."""
        return RecoveredDataset(
            storage=self.storage,
            manifest=manifest,
            shards=shards,
            names=self.names,
            sizes=self.sizes or {},
            manifest_bytes=self.data,
        )


def recover_dataset(storage: Storage, workers: int) -> RecoveredDataset:
    """Read `dataset.json` and the shard table, or rebuild one from the other.

    Raises:
        DatasetError: there is no dataset, or a newer version wrote it.
        CorruptionError: both `dataset.json` and its copy in the table are damaged.
    """
    storage.check_reachable()
    if is_own_folder(storage):
        raise no_dataset_error(storage)
    sizes: Mapping[str, int] | None = None
    try:
        sizes = storage.sizes()
    except StorageError as error:  # some stores, and some accounts, cannot list
        if isinstance(error.__context__, RetriesExhaustedError) and not _responds(storage):
            raise
    try:
        file_names, data = read_manifest(storage)
    except FileNotFoundError:
        return _without_manifest(
            _Folder(storage=storage, sizes=sizes, file_names=NAMES, data=None, workers=workers), None
        )
    folder = _Folder(storage=storage, sizes=sizes, file_names=file_names, data=data, workers=workers)
    try:
        manifest = Manifest.decode(data, storage.locate(file_names.manifest))
    except CorruptionError as error:
        return _without_manifest(folder, error)
    except DatasetError:
        if recovered := _from_table(folder, newer=True):
            return recovered
        raise
    return _with_manifest(folder, manifest)


def _responds(storage: Storage) -> bool:
    """Whether a store that used up all retries without listing answers a single request."""
    try:
        replace(storage, retries=RetryPolicy(attempts=1)).read(NAMES.manifest)
    except FileNotFoundError:
        return True
    except StorageError:
        return False
    return True


def _with_manifest(folder: _Folder, manifest: Manifest) -> RecoveredDataset:
    """Recover a dataset by its manifest, which `dataset.json` is."""
    storage = folder.storage
    check_manifest(manifest, storage.locate(folder.file_names.manifest))
    dataset = folder.dataset(manifest)
    table = read_or_none(storage, manifest.shards_path)
    if table is not None and len(table) == manifest.shards_bytes and checksum(table) == manifest.shards_checksum:
        return replace(dataset, shards=decode_shards(table, manifest, storage.locate(manifest.shards_path)))
    if read_or_none(storage, folder.file_names.manifest) != folder.data:  # rewritten meanwhile, with another table
        return recover_dataset(storage, folder.workers)
    return _without_table(dataset, table, folder.workers)


def read_or_none(storage: Storage, path: str) -> bytes | None:
    """Read a whole file; None if it is missing."""
    try:
        return storage.read(path)
    except FileNotFoundError:
        return None


# --- dataset.json from the table -------------------------------------------------------------------------------


def _without_manifest(folder: _Folder, error: RingfeedError | None) -> RecoveredDataset:
    """Recover a dataset whose `dataset.json` is missing or, if an error says so, damaged."""
    if (error or not _is_being_built(folder)) and (recovered := _from_table(folder)):
        return recovered
    if error is None:
        raise no_dataset_error(folder.storage)
    raise CorruptionError(
        f"{error}; no shard table holds an intact copy of it either, so build the dataset again"
    ) from error


def _is_being_built(folder: _Folder) -> bool:
    """Whether the files are those of an unfinished build; a repair marks its dataset, too, but not as a build."""
    holder = read_holder(folder.storage) if LEASE_NAME in (folder.names or ()) else None
    return holder is not None and holder.unfinished_task == "build"


def _from_table(folder: _Folder, *, newer: bool = False) -> RecoveredDataset | None:
    """Recover a dataset by its newest intact table; None if there is none.

    A table is written after all of its shards, so it makes a complete dataset even if it was not committed.

    Args:
        newer: whether `dataset.json` appears to have been written by a newer version.
    """
    storage, names, data = folder.storage, folder.names, folder.data
    tables = (
        (file_names.table(0) for file_names in ALL_NAMES) if names is None else filter(TABLE_NAMES.fullmatch, names)
    )
    ordered = sorted(tables, key=table_order, reverse=True)
    for path in ordered:
        table = read_or_none(storage, path)
        recovered = None if table is None else recover_from_table(table, path)
        if recovered is None:
            continue
        manifest, shards = recovered
        check_manifest(manifest, storage.locate(path))
        check_table(manifest, shards, storage.locate(path))
        original = manifest.encode()
        if newer and data is not None and _changed_bits(data, original) > 8:
            return None  # no damaged version number: really the file of another version
        place = names_of(path).manifest
        damage = _file_damage(place, data, original)
        problem = f"{damage.problem}; {path} holds an intact copy of it"
        if table_order(ordered[0])[0] > table_order(path)[0]:
            problem += f" from before the append that wrote {ordered[0]}, which is damaged too"
        damages = (replace(damage, problem=problem),)
        return replace(folder.dataset(manifest, shards), damages=damages, restored={place: original})
    return None


def _changed_bits(actual: bytes, original: bytes) -> int:
    if len(actual) != len(original):
        return 8 * max(len(actual), len(original))
    return int(np.bitwise_count(np.frombuffer(actual, np.uint8) ^ np.frombuffer(original, np.uint8)).sum())


def _file_damage(path: str, data: bytes | None, original: bytes) -> Damage:
    """Describe how a file differs from its original bytes."""
    if data is None:
        return Damage(path=path, kind="missing", problem="the file is missing")
    offset = first_difference(data, original)
    problem = f"it differs from what was written, from byte {offset} on"
    return Damage(path=path, kind=kind_of_size(len(data), len(original)), offset=offset, problem=problem)


# --- the table from the shards ---------------------------------------------------------------------------------


def _without_table(dataset: RecoveredDataset, table: bytes | None, workers: int) -> RecoveredDataset:
    """Recover a dataset whose table is missing or damaged, from the shards."""
    storage, manifest = dataset.storage, dataset.manifest
    shards: tuple[ShardInfo, ...] = ()
    measures: dict[str, FileInfo | None] = {}
    for newest in (True, False):
        names = list(_shard_names(manifest, dataset.names or frozenset(), newest=newest))
        measures |= _measure_all(storage, [name for _, *pair in names for name in pair], workers)
        shards = tuple(shard for entry in names if (shard := _derive_row(storage, manifest, entry, measures)))
        if proven := _with_rows(replace(dataset, measures=measures), table, shards):
            return proven
    damage = Damage(path=manifest.shards_path, kind="altered", problem="it is damaged: its checksum does not match")
    if table is None:
        damage = _file_damage(manifest.shards_path, None, b"")
    damage = replace(damage, problem=f"{damage.problem}; it cannot be rebuilt, because other files are damaged as well")
    damages = (damage, *_missing_rows(dataset, shards))
    return replace(dataset, shards=shards, proven=False, damages=damages, measures=measures)


def _missing_rows(dataset: RecoveredDataset, shards: Sequence[ShardInfo]) -> Iterator[Damage]:
    """Yield the damaged files for which a shard's row cannot be derived: missing ones and unreadable indexes."""
    manifest, names = dataset.manifest, dataset.names or frozenset()
    derived = {path for shard in shards for path in shard.files}
    for generation, written in enumerate(() if manifest.lost else manifest.all_generations):
        for split, number in ((split, number) for split, count in written.shards.items() for number in range(count)):
            data = manifest.names.shard(generation, split, number, written.shards[split], manifest.shard_format)
            index = manifest.names.index(data)
            for name in (data, index):
                if name not in names:
                    yield Damage(path=name, split=split, kind="missing", problem="the file is missing")
            if index in names - derived and data in names:
                yield Damage(path=index, split=split, kind="altered", problem="it cannot be read as an index")


def confirm_table(dataset: RecoveredDataset, shards: tuple[ShardInfo, ...]) -> RecoveredDataset | None:
    """Return the dataset with a table of these shards if that is the table that was lost, else None."""
    return _with_rows(dataset, read_or_none(dataset.storage, dataset.manifest.shards_path), shards)


def _with_rows(
    dataset: RecoveredDataset, table: bytes | None, shards: tuple[ShardInfo, ...]
) -> RecoveredDataset | None:
    manifest = dataset.manifest
    sealed, data = seal(manifest, shards)
    if sealed.shards_checksum == manifest.shards_checksum:
        return _with_table(dataset, table, data, shards)
    if manifest.shards_rows and sealed.shards_rows == manifest.shards_rows:  # another version of Arrow encoded it
        rebuilt = _with_table(dataset, table, data, shards)
        restored = {manifest.shards_path: data, rebuilt.manifest_path: sealed.encode()}
        return replace(rebuilt, manifest=sealed, restored=restored)
    return None


def _with_table(
    dataset: RecoveredDataset, table: bytes | None, original: bytes, shards: tuple[ShardInfo, ...]
) -> RecoveredDataset:
    path = dataset.manifest.shards_path
    damage = _file_damage(path, table, original)
    damage = replace(damage, problem=f"{damage.problem}; it can be rebuilt exactly")
    return replace(dataset, shards=shards, proven=True, damages=(damage,), restored={path: original})


def _shard_names(manifest: Manifest, names: frozenset[str], *, newest: bool) -> Sequence[tuple[str, str, str]]:
    """Return split, data file and index of each shard in the folder, in the table's order.

    Args:
        newest: whether to take the newest or the oldest of a file and those salvaged from it.
    """
    pick = max if newest else min
    endings = (f".{manifest.shard_format}", manifest.names.index_suffix)
    order = {split: number for number, split in enumerate(manifest.splits)}
    versions: dict[tuple[int, int, int], dict[bool, list[tuple[int, str]]]] = {}
    for name in names:
        match = SHARD_NAMES.fullmatch(name) if name.endswith(endings) else None
        if match and match.group(1) in order and generation_of(name) < len(manifest.all_generations):
            key = (generation_of(name), order[match.group(1)], int(match.group(2)))
            is_index = name.endswith(manifest.names.index_suffix)
            versions.setdefault(key, {True: [], False: []})[is_index].append((repairs_of(name), name))
    complete = sorted(key for key, files in versions.items() if all(files.values()))
    splits = list(manifest.splits)
    return [(splits[key[1]], pick(versions[key][False])[1], pick(versions[key][True])[1]) for key in complete]


def _measure_all(storage: Storage, paths: Sequence[str], workers: int) -> dict[str, FileInfo | None]:
    with ThreadPoolExecutor(workers) as pool:
        return dict(zip(paths, pool.map(lambda path: digest_file(storage, path), paths), strict=True))


def _derive_row(
    storage: Storage, manifest: Manifest, names: tuple[str, str, str], measures: Mapping[str, FileInfo | None]
) -> ShardInfo | None:
    """Derive the row of a shard from its files as they are; None if they do not yield one."""
    split, path, index_path = names
    data, index_data = measures[path], measures[index_path]
    if data is None or index_data is None:
        return None
    try:
        with open_decompressed(storage, index_path) as stored:
            class_ids = read_index(stored, manifest).class_ids
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

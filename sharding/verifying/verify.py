"""Check a dataset: every byte against its checksum, files side by side; what is damaged, how, and exactly where.

Large files stream through: a thread holds one block of some MiB. A shard that is damaged and not on this machine is
copied to a temporary file, to be looked through there.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ..dataset.companion_files import locate_in_companion
from ..dataset.damage import Damage, Note
from ..dataset.file_names import TABLE_NAMES, generation_of, repairs_of, table_order
from ..dataset.manifest import MANIFEST_NAME, FileInfo, Manifest, ShardInfo
from ..dataset.recovery import RecoveredDataset, recover_dataset
from ..dataset.shard_index import Index, read_index
from ..dataset.tfds_files import is_tfds_file
from ..destination.leftovers import STAGING, is_build_file
from ..engines.executors import run_tasks
from ..errors import RingfeedError
from ..progress import ignore
from ..storage.atomic_files import draft_target
from ..storage.file_contents import digest_file, open_decompressed
from ..storage.lease import LEASE_NAME
from ..storage.storage import Storage, StorageLike, as_storage
from .locate import locate_in_index, locate_in_shard
from .record_checks import check_meaning, check_totals

__all__ = [
    "Verification",
    "VerifyProgress",
    "VerifyReport",
    "check_dataset",
    "default_workers",
    "verify",
    "verify_files",
]

_REMOTE_WORKERS = 8  # a request waits for its server: more of them than there are cores


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyProgress:
    """How far a check is, in files and in bytes."""

    files: int
    total_files: int
    bytes: int
    total_bytes: int


VerifyReport = Callable[[VerifyProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a check found.

    Attributes:
        damages: of files of the dataset; none if all is well.
        notes: of other files in its folder.
        files: that were checked, besides `dataset.json` and its table.
        bytes: in them, as they were written.
    """

    damages: tuple[Damage, ...]
    notes: tuple[Note, ...]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file of the dataset as it was written; `shard` is None for one that is for other programs."""

    path: str
    info: FileInfo
    shard: ShardInfo | None = None


def default_workers(storage: Storage) -> int:
    """The cores; on a store that is not of this machine at least 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if storage.local_path is not None else max(cores, _REMOTE_WORKERS)


def verify(
    location: StorageLike, report: VerifyReport = ignore, *, workers: int | None = None, deep: bool = False
) -> list[Damage]:
    """The damages that `check_dataset` finds; empty if all is well."""
    return list(check_dataset(location, report, workers=workers, deep=deep).damages)


def check_dataset(
    location: StorageLike, report: VerifyReport = ignore, *, workers: int | None = None, deep: bool = False
) -> Verification:
    """Read every byte of a dataset against its checksum, and find out where it is damaged.

    Args:
        location: of the dataset.
        report: called after every file, in the caller's thread.
        workers: files to read side by side; by default see `default_workers`.
        deep: check the meaning, too: every record parses and has the class that the index says, the counts are right.

    Raises:
        DatasetError: there is no dataset, or a newer version wrote it.
        CorruptionError: `dataset.json` is damaged, and so is the copy of it in the table.
        StorageError: the store refuses.
    """
    storage = as_storage(location)
    threads = default_workers(storage) if workers is None else workers
    while True:
        known = recover_dataset(storage, threads)
        found = verify_files(known, report, workers=threads, deep=deep)
        if not found.damages or not _is_rewritten(known):
            return found


def _is_rewritten(known: RecoveredDataset) -> bool:
    """Whether the dataset was written anew while it was looked through, so that its files are others now."""
    if MANIFEST_NAME in known.restored:
        return False
    try:
        data = known.storage.read(MANIFEST_NAME)
        return Manifest.decode(data, known.storage.locate(MANIFEST_NAME)) != known.manifest
    except FileNotFoundError:
        return True
    except RingfeedError:
        return False


def verify_files(
    known: RecoveredDataset, report: VerifyReport = ignore, *, workers: int, deep: bool = False
) -> Verification:
    """`check_dataset` of a dataset that was identified."""
    storage, manifest = known.storage, known.manifest
    files = [_File(path=p, info=info, shard=shard) for shard in known.shards for p, info in shard.files.items()]
    files += [_File(path=path, info=info) for path, info in manifest.files.items()]
    deep = deep or not known.proven
    total = sum(file.info.bytes for file in files)
    with ThreadPoolExecutor(workers, thread_name_prefix="ringfeed-verify") as pool:
        jobs = [(_measure, (known, file)) for file in files]
        measures = dict(run_tasks(pool, jobs, _reporter(report, {f.path: f.info.bytes for f in files}, total)))
        bad = [file for file in files if not _matches(measures[file.path], file.info)]
        holders = _holders(files)
        places = [(_locate, (known, file, measures, holders)) for file in bad]
        damages = [*known.damages, *run_tasks(pool, places)]
        if deep:
            broken = {file.shard.path for file in bad if file.shard is not None}
            whole = [shard for shard in known.shards if shard.path not in broken]
            meanings = run_tasks(pool, [(check_meaning, (storage, manifest, shard)) for shard in whole])
            damages += (damage for found in meanings for damage in found)
            damages += check_totals(manifest, known.shards)
    notes = tuple(_notes(known, {file.path for file in files}))
    return Verification(damages=tuple(damages), notes=notes, files=len(files), bytes=total)


def _reporter(report: VerifyReport, sizes: Mapping[str, int], total: int) -> Callable[[int, Any], None]:
    seen = 0

    def tell(done: int, result: Any) -> None:
        nonlocal seen
        if result is not None:
            seen += sizes[result[0]]
            report(VerifyProgress(files=done, total_files=len(sizes), bytes=seen, total_bytes=total))

    return tell


def _measure(known: RecoveredDataset, file: _File) -> tuple[str, FileInfo | None]:
    if file.path in known.measures:
        return file.path, known.measures[file.path]
    found = digest_file(known.storage, file.path, known.sizes.get(file.path))
    if known.storage.local_path is None and found is not None and not _matches(found, file.info):
        found = digest_file(known.storage, file.path)  # it may have been damaged on its way, and not where it lies
    return file.path, found


def _matches(found: FileInfo | None, expected: FileInfo) -> bool:
    return found is not None and (found.bytes, found.checksum) == (expected.bytes, expected.checksum)


def _holders(files: Sequence[_File]) -> Mapping[str, list[_File]]:
    """By checksum, the files that were written with it."""
    written: dict[str, list[_File]] = defaultdict(list)
    for file in files:
        written[file.info.checksum].append(file)
    return written


def _locate(
    known: RecoveredDataset,
    file: _File,
    measures: Mapping[str, FileInfo | None],
    holders: Mapping[str, Sequence[_File]],
) -> Damage:
    storage, manifest = known.storage, known.manifest
    found, shard = measures[file.path], file.shard
    split = None if shard is None else shard.split
    if found is None:
        return Damage(path=file.path, split=split, kind="missing", problem="the file is missing")
    if others := holders.get(found.checksum):
        other = next((o for o in others if _holds(measures[o.path], file)), others[0])
        problem = f"it holds what was written as {other.path}"
        problem += f", and that what was written as {file.path}" if _holds(measures[other.path], file) else ""
        return Damage(path=file.path, split=split, kind="swapped", problem=problem, offset=0)
    if shard is None:
        return locate_in_companion(storage, manifest, known.shards, file.path, found)
    if file.path == shard.index_path:
        intact = _matches(measures[shard.path], shard.files[shard.path])
        return locate_in_index(storage, manifest, shard, found, shard_intact=intact)
    return locate_in_shard(storage, manifest, shard, found, _intact_index(storage, manifest, shard, measures))


def _holds(found: FileInfo | None, file: _File) -> bool:
    return found is not None and found.checksum == file.info.checksum


def _intact_index(
    storage: Storage, manifest: Manifest, shard: ShardInfo, measures: Mapping[str, FileInfo | None]
) -> Index | None:
    found = measures[shard.index_path]
    if found is None or found.checksum != shard.index_checksum:
        return None
    with open_decompressed(storage, shard.index_path) as stored:
        return read_index(stored, manifest)


def _notes(known: RecoveredDataset, files: set[str]) -> Iterator[Note]:
    if known.names is None:
        yield Note(path="", remark="the folder cannot be listed: whether it holds other files is not known")
        return
    for name in sorted(known.names - files - {MANIFEST_NAME, known.manifest.shards_path}):
        yield Note(path=name, remark=_remark(name, known.manifest))


def _remark(name: str, manifest: Manifest) -> str:
    last = name.rpartition("/")[2]
    lost = {shard.path for shard in manifest.lost}
    generation = table_order(name)[0] if TABLE_NAMES.fullmatch(name) else generation_of(name)
    if last == LEASE_NAME:
        return "the mark of a build, an append or a repair that is at work, or that was killed"
    if name.startswith(f"{STAGING}/"):
        return "of a build that was to replace this dataset and did not finish"
    if draft_target(name):
        return "of a write that did not finish"
    if generation >= len(manifest.all_generations) and is_build_file(name):
        return "of an append that did not finish; go on with it, or be rid of it with: shard-dataset clean"
    if TABLE_NAMES.fullmatch(name) and generation < table_order(manifest.shards_path)[0]:
        return "the table before an append, kept for readers that opened it; to remove it: shard-dataset clean"
    if is_tfds_file(name) and manifest.generations:
        return "for TensorFlow Datasets, and not of the dataset as it is now that records were appended"
    if name in lost or TABLE_NAMES.fullmatch(name) or repairs_of(last):
        return "of a repair that did not finish; repair again to be rid of it"
    return "not of this dataset"

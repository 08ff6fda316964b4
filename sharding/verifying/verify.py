"""Verifies a dataset: checks every byte against its checksum, and locates what is damaged.

Large files are streamed: a thread holds one block of a few MiB. A damaged shard on a remote store is copied to a
temporary file to be examined.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.dataset.companion_files import locate_in_companion
from ringfeed.sharding.dataset.damage import Damage, Note
from ringfeed.sharding.dataset.file_names import TABLE_NAMES, generation_of, repairs_of, table_order
from ringfeed.sharding.dataset.manifest import Manifest, ShardInfo
from ringfeed.sharding.dataset.recovery import RecoveredDataset, recover_dataset
from ringfeed.sharding.dataset.tfds_files import is_tfds_file
from ringfeed.sharding.destination.leftovers import STAGING, is_build_file
from ringfeed.sharding.engines.executors import run_tasks
from ringfeed.sharding.errors import RingfeedError
from ringfeed.sharding.progress import ignore
from ringfeed.sharding.storage.atomic_files import draft_target
from ringfeed.sharding.storage.file_contents import FileInfo, digest_file
from ringfeed.sharding.storage.lease import LEASE_NAME, read_holder
from ringfeed.sharding.storage.storage import Storage, StorageLike, as_storage

from .locate import locate_damage
from .record_checks import check_counts, check_meaning, check_totals

_EXTRA_BYTES = 8 << 20  # read beyond the end of a file whose size its store does not tell
_REMOTE_WORKERS = 8  # requests wait for their server, so more threads than cores pay off


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyProgress:
    """Progress of a check, in files and in bytes.

    >>> from ringfeed.sharding import verify
    >>> seen = []
    >>> verify("flights", seen.append)
    []
    >>> seen[-1].files == seen[-1].total_files
    True
    """

    files: int
    total_files: int
    bytes: int
    total_bytes: int


VerifyReport = Callable[[VerifyProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Result of a check.

    Attributes:
        damages: damages of the dataset's files; empty if all is well.
        notes: remarks on other files in its folder.
        files: number of files checked, besides `dataset.json` and the shard table.
        bytes: size of those files as written.

    >>> from ringfeed.sharding import check_dataset
    >>> from pathlib import Path
    >>> shard = sorted(Path("flights").glob("train-*.tfrecord"))[0]
    >>> _ = shard.write_bytes(shard.read_bytes()[:-1])
    >>> found = check_dataset("flights")
    >>> len(found.damages)
    1
    """

    damages: tuple[Damage, ...]
    notes: tuple[Note, ...]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file of the dataset as it was written; `shard` is None for a companion file."""

    path: str
    info: FileInfo
    shard: ShardInfo | None = None


def default_workers(storage: Storage) -> int:
    """Return the number of cores, but at least 8 for a remote store."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if storage.local_path is not None else max(cores, _REMOTE_WORKERS)


def verify(
    location: StorageLike, report: VerifyReport = ignore, *, workers: int | None = None, deep: bool = False
) -> list[Damage]:
    """Return the damages that `check_dataset` finds; empty if all is well.

    >>> verify("flights")
    []
    >>> from pathlib import Path
    >>> shard = sorted(Path("flights").glob("train-*.tfrecord"))[0]
    >>> _ = shard.write_bytes(shard.read_bytes()[:-1])
    >>> len(verify("flights"))
    1
    """
    return list(check_dataset(location, report, workers=workers, deep=deep).damages)


def check_dataset(
    location: StorageLike, report: VerifyReport = ignore, *, workers: int | None = None, deep: bool = False
) -> Verification:
    """Check every byte of a dataset against its checksum, and locate the damage.

    Args:
        location: folder of the dataset.
        report: called after every file, in the caller's thread.
        workers: number of files to read in parallel; see `default_workers`.
        deep: whether to check the content, too: every record parses, and the index has its class.

    Raises:
        DatasetError: there is no dataset, a newer version wrote it, or its metadata contradict each other.
        CorruptionError: both `dataset.json` and its copy in the shard table are damaged.
        StorageError: the store refuses.

    >>> check_dataset("flights", deep=True).damages
    ()
    """
    storage = as_storage(location)
    threads = default_workers(storage) if workers is None else workers
    while True:
        dataset = recover_dataset(storage, threads)
        verification = verify_files(dataset, report, workers=threads, deep=deep)
        if not verification.damages or not _is_rewritten(dataset):
            return _excuse_outdated(dataset, verification)


def _excuse_outdated(dataset: RecoveredDataset, verification: Verification) -> Verification:
    """Turn damages into notes where an append, running or killed, has yet to replace files of TensorFlow Datasets."""
    outdated = [damage for damage in verification.damages if damage.kind != "missing" and is_tfds_file(damage.path)]
    holder = read_holder(dataset.storage) if outdated else None
    if holder is None or holder.task != "append":
        return verification
    remark = "for TensorFlow Datasets, from before an append, which replaces it after its commit"
    notes = [Note(path=damage.path, remark=remark) for damage in outdated]
    damages = tuple(damage for damage in verification.damages if damage not in outdated)
    return replace(verification, damages=damages, notes=(*verification.notes, *notes))


def _is_rewritten(dataset: RecoveredDataset) -> bool:
    """Whether the dataset was rewritten during the check, so that its files are others now."""
    if dataset.manifest_path in dataset.restored:
        return False
    try:
        data = dataset.storage.read(dataset.manifest_path)
        return Manifest.decode(data, dataset.storage.locate(dataset.manifest_path)) != dataset.manifest
    except FileNotFoundError:
        return True
    except RingfeedError:
        return False


def verify_files(
    dataset: RecoveredDataset, report: VerifyReport = ignore, *, workers: int, deep: bool = False, counts: bool = True
) -> Verification:
    """Check the files of a dataset whose metadata were recovered; see `check_dataset`.

    Args:
        counts: whether to compare the counts of indexes, table and `dataset.json`, which may be wrong in files that are
            as they were written.
    """
    storage, manifest = dataset.storage, dataset.manifest
    files = [_File(path=p, info=info, shard=shard) for shard in dataset.shards for p, info in shard.files.items()]
    files += [_File(path=path, info=info) for path, info in manifest.files.items()]
    deep = deep or not dataset.proven
    total = sum(file.info.bytes for file in files)
    with ThreadPoolExecutor(workers, thread_name_prefix="ringfeed-verify") as pool:
        jobs = [(_measure, (dataset, file, counts and not deep)) for file in files]
        measured = run_tasks(pool, jobs, _reporter(report, {f.path: f.info.bytes for f in files}, total))
        measures = {path: file_info for path, file_info, _ in measured}
        bad = [file for file in files if measures[file.path] != file.info]
        holders = _holders(files)
        places = [(_locate, (dataset, file, measures, holders)) for file in bad]
        damages = [*dataset.damages, *run_tasks(pool, places)]
        if deep:
            broken = {file.shard.path for file in bad if file.shard is not None}
            whole = [shard for shard in dataset.shards if shard.path not in broken]
            meanings = run_tasks(pool, [(check_meaning, (storage, manifest, shard)) for shard in whole])
            damages += (damage for problems in meanings for damage in problems)
        if counts:
            damages += (damage for _, _, problems in measured for damage in problems)
            damages += check_totals(manifest, dataset.shards)
    notes = tuple(_notes(dataset, {file.path for file in files}))
    return Verification(damages=tuple(damages), notes=notes, files=len(files), bytes=total)


def _reporter(report: VerifyReport, sizes: Mapping[str, int], total: int) -> Callable[[int, Any], None]:
    seen = 0

    def tell(done: int, result: Any) -> None:
        nonlocal seen
        if result is not None:
            seen += sizes[result[0]]
            report(VerifyProgress(files=done, total_files=len(sizes), bytes=seen, total_bytes=total))

    return tell


def _measure(dataset: RecoveredDataset, file: _File, counts: bool) -> tuple[str, FileInfo | None, Sequence[Damage]]:
    """Return the path of a file, what is found there, and the damage of an intact index that counts wrongly."""
    storage, shard = dataset.storage, file.shard
    if file.path in dataset.measures:
        return file.path, dataset.measures[file.path], ()
    if counts and shard is not None and file.path == shard.index_path:
        with suppress(FileNotFoundError):
            data = storage.map(file.path)
            if FileInfo(bytes=data.size, checksum=checksum(data)) == file.info:
                return file.path, file.info, check_counts(data, dataset.manifest, shard)
    size, most = dataset.sizes.get(file.path), _most_bytes(dataset, file)
    info = digest_file(storage, file.path, size, most=most)
    if storage.local_path is None and info is not None and info != file.info:
        info = digest_file(storage, file.path, most=most)  # the transfer may have damaged it
    return file.path, info, ()


def _most_bytes(dataset: RecoveredDataset, file: _File) -> int | None:
    """Return how much of a file to read at most; None: all, as its size is known, and a web server may never end."""
    is_known = dataset.storage.local_path is not None or dataset.sizes.get(file.path) is not None
    return None if is_known else file.info.bytes + _EXTRA_BYTES


def _holders(files: Sequence[_File]) -> Mapping[str, list[_File]]:
    """Return the files that were written with each checksum."""
    written: dict[str, list[_File]] = defaultdict(list)
    for file in files:
        written[file.info.checksum].append(file)
    return written


def _locate(
    dataset: RecoveredDataset,
    file: _File,
    measures: Mapping[str, FileInfo | None],
    holders: Mapping[str, Sequence[_File]],
) -> Damage:
    storage, manifest = dataset.storage, dataset.manifest
    info, shard = measures[file.path], file.shard
    split = None if shard is None else shard.split
    if info is None:
        return Damage(path=file.path, split=split, kind="missing", problem="the file is missing")
    if (most := _most_bytes(dataset, file)) is not None and info.bytes > most:
        problem = f"it has more than {most} bytes, {file.info.bytes} were written; the rest was not read"
        return Damage(path=file.path, split=split, kind="extended", problem=problem, offset=file.info.bytes)
    if others := holders.get(info.checksum):
        other = next((o for o in others if _holds(measures[o.path], file)), others[0])
        mutual = _holds(measures[other.path], file)
        problem = f"it holds the content of {other.path}{', and vice versa' if mutual else ''}"
        return Damage(path=file.path, split=split, kind="swapped", problem=problem, offset=0)
    if shard is None:
        return locate_in_companion(storage, manifest, dataset.shards, file.path, info)
    other_path = shard.path if file.path == shard.index_path else shard.index_path
    intact = measures[other_path] == shard.files[other_path]
    return locate_damage(storage, manifest, shard, file.path, info, other_intact=intact)


def _holds(info: FileInfo | None, file: _File) -> bool:
    return info is not None and info.checksum == file.info.checksum


def _notes(dataset: RecoveredDataset, files: set[str]) -> Iterator[Note]:
    if dataset.names is None:
        yield Note(path="", remark="the folder cannot be listed, so other files in it are not reported")
        return
    for name in sorted(dataset.names - files - {dataset.manifest_path, dataset.manifest.shards_path}):
        yield Note(path=name, remark=_remark(name, dataset.manifest))


def _remark(name: str, manifest: Manifest) -> str:
    last = name.rpartition("/")[2]
    lost = {shard.path for shard in manifest.lost}
    generation = generation_of(draft_target(name) or name)
    if last == LEASE_NAME:
        return "lease of a build, an append or a repair that is running or was killed"
    if name.startswith(f"{STAGING}/"):
        return "left by an unfinished build that was to replace this dataset"
    if draft_target(name):
        return "left by an unfinished write"
    if generation >= len(manifest.all_generations) and is_build_file(name):
        return "left by an unfinished append; resume it, or remove its files with: shard-dataset clean"
    if TABLE_NAMES.fullmatch(name) and generation < table_order(manifest.shards_path)[0]:
        return "shard table from before an append, kept for readers that opened it; remove it with: shard-dataset clean"
    if is_tfds_file(name) and manifest.generations:
        return "for TensorFlow Datasets, but outdated by an append"
    if name in lost or TABLE_NAMES.fullmatch(name) or repairs_of(last):
        return "left by an unfinished repair; repair again to remove it"
    return "not part of this dataset"

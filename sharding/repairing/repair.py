"""Repairs a dataset: restores files from each other, rebuilds shards from sources, else keeps their intact records.

`plan_repair` reads and decides; `apply_repair` carries out the plan, holding the dataset's lease. A killed repair can
be run again: until the new `dataset.json` is written, the dataset is what it was, and files already written are
recognised by their checksums.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.dataset.companion_files import rebuild_companion
from ringfeed.sharding.dataset.damage import Damage
from ringfeed.sharding.dataset.file_names import generation_of
from ringfeed.sharding.dataset.manifest import LostRecords, Manifest, ShardInfo, SplitInfo, file_info
from ringfeed.sharding.dataset.own_folder import sync_names
from ringfeed.sharding.dataset.recovery import RecoveredDataset, read_or_none
from ringfeed.sharding.dataset.shard_table import seal
from ringfeed.sharding.destination.leftovers import abort_uploads, check_no_links
from ringfeed.sharding.destination.spill import remove_spill, scratch_root, spill_lease_entry
from ringfeed.sharding.errors import CorruptionError, DestinationError
from ringfeed.sharding.progress import Report, ignore
from ringfeed.sharding.storage.fenced_storage import fence_storage
from ringfeed.sharding.storage.file_contents import FileInfo, open_decompressed
from ringfeed.sharding.storage.lease import LEASE_NAME, Lease, hold_lease, is_lease_file, read_holder
from ringfeed.sharding.storage.storage import Storage, StorageLike
from ringfeed.sharding.verifying.verify import VerifyReport

from .rebuild_plan import Original, check_rebuilt
from .remedy import MISPLACED, Loss, Remedy, remaining_shards
from .repair_plan import RepairPlan, plan_rebuilder, plan_repair
from .salvage import salvage_shard
from .shard_plan import locate_files, replacement_name


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """What a repair did, or would do.

    Attributes:
        damages: damages found.
        remedies: remedies of files that were damaged or left over.
        lost: records lost, by shard; without those lost in earlier repairs.
        lost_by_class: number of records lost, by split and class value.
        sources: sources of the generations of those shards, which could bring them back.

    >>> from ringfeed.sharding import repair
    >>> from pathlib import Path
    >>> shard = sorted(Path("flights").glob("train-*.tfrecord"))[0]
    >>> _ = shard.write_bytes(shard.read_bytes()[:-1])
    >>> report = repair("flights")
    >>> len(report.damages), sum(lost.records for lost in report.lost)
    (1, 0)
    """

    damages: tuple[Damage, ...]
    remedies: tuple[Remedy, ...]
    lost: tuple[LostRecords, ...]
    lost_by_class: Mapping[str, Mapping[Any, int]]
    sources: tuple[str, ...]


def repair(
    location: StorageLike,
    report: VerifyReport = ignore,
    *,
    workers: int | None = None,
    dry_run: bool = False,
    originals: Sequence[Original] = (),
    spill: str | os.PathLike[str] | None = None,
    rebuilding: Report = ignore,
) -> RepairReport:
    """Repair a dataset from its intact files and from the given sources, as far as possible.

    Files are restored where possible. Of other shards, the intact records are written as new shards, and a new
    `dataset.json` lists these and what was lost. The damaged files are then removed.

    Args:
        location: folder of the dataset.
        report: called as the initial check proceeds; see `check_dataset`.
        workers: number of files to read in parallel; see `default_workers`.
        dry_run: whether to only report what would be done.
        originals: sources of generations, to rebuild shards that would otherwise lose records.
        spill: URL or path of a folder for files of those rebuilds; None: the folder for temporary files.
        rebuilding: called after every task of those rebuilds; see `build`.

    Raises:
        DatasetError: there is no dataset, or a newer version wrote it.
        CorruptionError: it cannot be repaired this way.
        SourceError: a source is not the original. Nothing is changed.
        DestinationError: a build, or another repair, is running there.
        StorageError: the store refuses.

    >>> from ringfeed.sharding import Original, verify
    >>> from pathlib import Path
    >>> shard = sorted(Path("flights").glob("train-*.tfrecord"))[0]
    >>> _ = shard.write_bytes(shard.read_bytes()[:-1])
    >>> [remedy.action for remedy in repair("flights", originals=[Original(url="flights.parquet")]).remedies]
    ['rewrite']
    >>> verify("flights")
    []
    """
    plan = plan_repair(location, report, workers=workers, originals=originals, spill=spill, rebuilding=rebuilding)
    if not dry_run:
        apply_repair(plan, rebuilding)
    lost = tuple(loss.lost for loss in plan.losses if loss.lost.records)
    return RepairReport(
        damages=plan.verification.damages,
        remedies=plan.remedies,
        lost=lost,
        lost_by_class=_by_class(lost, plan.dataset.manifest),
        sources=_sources_of(lost, plan.dataset.manifest),
    )


def _sources_of(lost: Iterable[LostRecords], manifest: Manifest) -> tuple[str, ...]:
    generations = sorted({generation_of(entry.path) for entry in lost})
    return tuple(dict.fromkeys(manifest.all_generations[number].source["url"] for number in generations))


def _by_class(lost: Iterable[LostRecords], manifest: Manifest) -> dict[str, dict[Any, int]]:
    totals: dict[str, Counter[Any]] = {}
    for entry in lost:
        counts = {v: n for v, n in zip(manifest.classes, entry.class_counts, strict=True) if n}
        totals.setdefault(entry.split, Counter()).update(counts)
    return {split: dict(counts) for split, counts in totals.items()}


def apply_repair(plan: RepairPlan, rebuilding: Report = ignore) -> Manifest:
    """Carry out a plan, and return the manifest of the repaired dataset.

    Args:
        rebuilding: called after every task that rebuilds shards from a source; see `build`.

    Raises:
        CorruptionError: a file changed since the plan was made.
        SourceError: shards rebuilt from a source differ from what was written. Nothing is changed.
        DestinationError: a build, or another repair, is running there.
        StorageError: the store refuses. The dataset is no worse than before; run the repair again.

    >>> from ringfeed.sharding import plan_repair, verify
    >>> from pathlib import Path
    >>> shard = sorted(Path("flights").glob("train-*.tfrecord"))[0]
    >>> _ = shard.write_bytes(shard.read_bytes()[:-1])
    >>> manifest = apply_repair(plan_repair("flights"))
    >>> verify("flights")
    []
    """
    if not plan.remedies and not _is_lease_left(plan.dataset):
        return plan.dataset.manifest
    with _held(plan) as lease:
        storage = plan.dataset.storage
        if not plan.rebuilds:
            return _apply(_fenced(plan, lease), lease, {}, storage)
        with plan_rebuilder(plan, scratch_root(plan.spill, storage), rebuilding) as rebuilder:
            rebuilt = _checked(plan, [shard for rebuild in plan.rebuilds for shard in rebuilder.run(rebuild)])
            lease.check()
            return _apply(_fenced(plan, lease), lease, rebuilt, rebuilder.folder)


def _is_lease_left(dataset: RecoveredDataset) -> bool:
    """Whether a repair was killed after all its work, but before it released the lease."""
    holder = read_holder(dataset.storage) if LEASE_NAME in (dataset.names or ()) else None
    return holder is not None and holder.task == "repair" and holder.has_ended


@contextmanager
def _held(plan: RepairPlan) -> Iterator[Lease]:
    """Hold the lease; a DestinationError if another process writes there, or did since the plan was made."""
    storage = plan.dataset.storage
    check_no_links(storage)
    storage.check_writable()
    with hold_lease(storage, {"task": "repair", **spill_lease_entry(plan.spill)}) as lease:
        try:
            if not _is_unchanged(plan.dataset):
                raise DestinationError(
                    f"{storage.locate()} was changed while the repair was planned; run the repair again"
                )
            yield lease
            abort_uploads(fence_storage(storage, lease))  # left by an earlier repair, as what follows
            remove_spill(scratch_root(plan.spill, storage))
        finally:
            lease.release(keep=False)


def _is_unchanged(dataset: RecoveredDataset) -> bool:
    """Whether `dataset.json` and the names of all files, leases aside, are as they were when the plan was made."""
    current = () if dataset.names is None else dataset.storage.list()
    changed = (dataset.names or frozenset()).symmetric_difference(current)
    return (
        all(map(is_lease_file, changed))
        and read_or_none(dataset.storage, dataset.manifest_path) == dataset.manifest_bytes
    )


def _fenced(plan: RepairPlan, lease: Lease) -> RepairPlan:
    """Return the plan on a storage that refuses writes once the lease is lost."""
    return replace(plan, dataset=replace(plan.dataset, storage=fence_storage(plan.dataset.storage, lease)))


def _checked(plan: RepairPlan, made: Sequence[ShardInfo]) -> dict[str, str]:
    """Check the rebuilt files that replace damaged ones and return their checksums; other files may differ."""
    wanted = {remedy.path for remedy in plan.remedies if remedy.action == "rebuild"}
    written = {
        path: info.checksum for shard in plan.dataset.shards for path, info in shard.files.items() if path in wanted
    }
    rebuilds = {rebuild.generation: rebuild for rebuild in plan.rebuilds}
    for shard in made:
        for path, entry in shard.files.items():
            if path in wanted:
                check_rebuilt(rebuilds[generation_of(path)], path, entry.checksum, written[path])
    return written


def _apply(plan: RepairPlan, lease: Lease, rebuilt: Mapping[str, str], scratch: Storage) -> Manifest:
    dataset = plan.dataset
    storage = dataset.storage
    for path in sorted(dataset.restored, key=lambda path: path == dataset.manifest_path):  # `dataset.json` last
        storage.write(path, dataset.restored[path])
    _move([remedy for remedy in plan.remedies if remedy.origin], storage)
    rewritten = {remedy.path for remedy in plan.remedies if remedy.action == "rewrite"} - set(dataset.restored)
    losses = {loss.shard.path: loss for loss in plan.losses}
    for shard in dataset.shards:
        if shard.files.keys() & (rewritten | set(losses)):
            _restore_or_salvage(plan, shard, rewritten, losses.get(shard.path))
    for path, expected in rebuilt.items():
        restore_file(storage, path, scratch.map(path), expected)
    files = _rewrite_companions(plan)
    manifest = _commit(plan, files, lease) if plan.losses or files != dataset.manifest.files else dataset.manifest
    for path in _superseded(plan, manifest):
        storage.remove(path)
    sync_names(storage, manifest.names)
    return manifest


def restore_file(storage: Storage, path: str, data: pa.Buffer, expected_checksum: str) -> None:
    """Rewrite a file of the dataset; a CorruptionError if these are not its original bytes."""
    if checksum(data) != expected_checksum:
        raise CorruptionError(f"{storage.locate(path)} changed during the repair; run the repair again")
    storage.write(path, data)


def _move(remedies: Sequence[Remedy], storage: Storage) -> None:
    """Move misplaced files to their own paths; set each aside first, as two may have been swapped."""
    asides = {}
    for remedy in remedies:
        aside = remedy.origin
        if remedy.action == "move" and not aside.endswith(MISPLACED):
            aside += MISPLACED
            storage.move(remedy.origin, aside)
        asides[remedy.path] = aside
    storage.sync()
    for remedy in remedies:
        storage.remove(remedy.path)  # the damaged file; a rename may not replace it
        if remedy.action == "move":
            storage.move(asides[remedy.path], remedy.path)
        else:
            with open_decompressed(storage, remedy.origin) as data:
                storage.write(remedy.path, data)


def _restore_or_salvage(plan: RepairPlan, shard: ShardInfo, rewritten: set[str], loss: Loss | None) -> None:
    dataset = plan.dataset
    storage = dataset.storage
    moved = {remedy.path for remedy in plan.remedies if remedy.origin}
    damaged = {damage.path: damage for damage in plan.verification.damages if damage.path not in moved}
    taken = {remedy.origin for remedy in plan.remedies if remedy.action == "move"} - moved
    damaged |= {path: Damage(path=path, kind="missing", problem="") for path in taken}
    files = locate_files(dataset, shard, damaged, {})
    assert files is not None
    new = shard if loss is None else loss.replacement
    if new is None:
        return
    salvaged = salvage_shard(files)
    if salvaged is None:
        raise CorruptionError(f"{storage.locate(shard.path)} changed during the repair; run the repair again")
    wanted = rewritten | (new.files.keys() - shard.files.keys())
    for path, data in ((new.path, salvaged.data), (new.index_path, salvaged.index)):
        if path in wanted and data is not None:
            restore_file(storage, path, data, new.files[path].checksum)


def _rewrite_companions(plan: RepairPlan) -> dict[str, FileInfo]:
    """Write the companion files that are rebuilt; return the companion files of the repaired dataset."""
    dataset = plan.dataset
    shards = remaining_shards(dataset.shards, plan.losses)
    remedies = {remedy.path: remedy for remedy in plan.remedies}
    renamed = {loss.shard.path: loss.replacement.path for loss in plan.losses if loss.replacement is not None}
    dali = dataset.manifest.names.dali
    new_paths = {dali(old): dali(new) for old, new in renamed.items()}
    files: dict[str, FileInfo] = {}
    for path, info in dataset.manifest.files.items():
        action = remedies[path].action if path in remedies else ""
        if action not in ("rewrite", "salvage"):
            files |= {} if action == "remove" else {path: info}
            continue
        new_path = new_paths.get(path, path)
        data = plan.rejected_files.get(path) or rebuild_companion(dataset.storage, dataset.manifest, shards, new_path)
        assert data is not None
        dataset.storage.write(new_path, data)
        files[new_path] = file_info(data)  # differs if another version of ringfeed wrote the file
    return files


def _commit(plan: RepairPlan, files: Mapping[str, FileInfo], lease: Lease) -> Manifest:
    """Write the table under a new name, then `dataset.json`, so that readers see the dataset before or after."""
    dataset = plan.dataset
    storage = dataset.storage
    manifest, shards = exclude_losses(dataset.manifest, dataset.shards, plan.losses)
    manifest = replace(manifest, files=files)
    _, data = seal(manifest, shards)
    path = replacement_name(storage, manifest.shards_path, dataset.names or frozenset(), data)
    sealed, data = seal(replace(manifest, shards_path=path), shards)
    storage.write(path, data)
    sync_names(storage, manifest.names)
    lease.check()
    storage.write(dataset.manifest_path, sealed.encode())
    sync_names(storage, manifest.names)
    return sealed


def exclude_losses(
    manifest: Manifest, shards: Sequence[ShardInfo], losses: Sequence[Loss]
) -> tuple[Manifest, list[ShardInfo]]:
    """Return the dataset with damaged shards replaced or left out; not sealed yet."""
    left = remaining_shards(shards, losses)
    splits: dict[str, SplitInfo] = {}
    for name, split in manifest.splits.items():
        members = [shard for shard in left if shard.split == name]
        if members:
            counts = zip(*(shard.class_counts for shard in members), strict=True)
            splits[name] = replace(
                split,
                records=sum(shard.records for shard in members),
                shards=len(members),
                class_counts=tuple(map(sum, counts)),
            )
    lost = tuple(loss.lost for loss in losses if loss.lost.records)
    return replace(manifest, splits=splits, lost=(*manifest.lost, *lost)), left


def _superseded(plan: RepairPlan, manifest: Manifest) -> Iterator[str]:
    """Yield the files that the dataset no longer needs."""
    yield from (remedy.path for remedy in plan.remedies if remedy.action == "remove")
    for loss in plan.losses:
        yield from loss.shard.files.keys() - ({} if loss.replacement is None else loss.replacement.files).keys()
    yield from plan.dataset.manifest.files.keys() - manifest.files.keys()
    if manifest.shards_path != plan.dataset.manifest.shards_path:
        yield plan.dataset.manifest.shards_path

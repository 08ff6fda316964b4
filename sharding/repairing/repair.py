"""Repair a dataset: first what can be had as it was written, bit by bit; then the records that are intact.

`plan_repair` reads and decides, `apply_repair` writes what the plan says, and holds the dataset's lease while it does.
A repair that is killed can be run again: until `dataset.json` is written anew the dataset is what it was, and what lies
about is found by its checksum.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ..common.checksums import checksum
from ..dataset import dali_index as dali
from ..dataset.companion_files import rebuild_companion
from ..dataset.damage import Damage
from ..dataset.file_names import generation_of
from ..dataset.manifest import MANIFEST_NAME, FileInfo, LostRecords, Manifest, ShardInfo, SplitInfo, file_info
from ..dataset.recovery import RecoveredDataset, read_or_none
from ..dataset.shard_table import seal
from ..destination.leftovers import abort_uploads
from ..destination.spill import scratch_root, spill_lease_entry
from ..errors import CorruptionError, DestinationError
from ..progress import Report, ignore
from ..storage.fenced_storage import fence_storage
from ..storage.file_contents import open_decompressed
from ..storage.lease import LEASE_NAME, Lease, hold_lease, is_lease_file, read_holder
from ..storage.storage import Storage, StorageLike
from ..verifying.verify import VerifyReport
from .rebuild_plan import Original, check_rebuilt
from .repair_plan import (
    MISPLACED,
    Loss,
    Remedy,
    RepairPlan,
    locate_files,
    plan_rebuilder,
    plan_repair,
    remaining_shards,
    replacement_name,
)
from .salvage import restore_shard, salvage_shard

__all__ = ["RepairReport", "apply_repair", "exclude_losses", "repair", "restore_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """What a repair did, or would do.

    Attributes:
        damages: that were found.
        remedies: for each file that was damaged or left over.
        lost: records that could not be had, by shard; without those of earlier repairs.
        lost_by_class: the same by split and class value.
        sources: what the generations of those shards were built from, to bring them back with.
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
    """Repair a dataset from itself and from the sources that are given, as far as it goes.

    Files that can be had as they were written are; of the other shards, the intact records are written as new shards,
    and a new `dataset.json` takes them in and names what was lost. The damaged files are then removed.

    Args:
        location: of the dataset.
        report: of the check that comes first; see `check_dataset`.
        workers: files to read side by side; by default see `default_workers`.
        dry_run: only tell what would be done.
        originals: the sources of generations, to make shards again from that would else lose records.
        spill: URL or path of a folder for what is made of them; None: this machine's folder for temporary files.
        rebuilding: called after every task of that; see `build`.

    Raises:
        DatasetError: there is no dataset, or a newer version wrote it.
        CorruptionError: it is beyond this kind of repair.
        SourceError: a source is another than the dataset was built from. Nothing is changed.
        DestinationError: a build, or another repair, is at work there.
        StorageError: the store refuses.
    """
    plan = plan_repair(location, report, workers=workers, originals=originals, spill=spill, rebuilding=rebuilding)
    if not dry_run:
        apply_repair(plan, rebuilding)
    lost = tuple(loss.lost for loss in plan.losses if loss.lost.records)
    return RepairReport(
        damages=plan.verification.damages,
        remedies=plan.remedies,
        lost=lost,
        lost_by_class=_by_class(lost, plan.known.manifest),
        sources=_sources_of(lost, plan.known.manifest),
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
    """Do what a plan says, and return the manifest that then holds.

    Args:
        plan: what to do.
        rebuilding: called after every task that makes shards again from a source; see `build`.

    Raises:
        CorruptionError: a file changed since the plan was made.
        SourceError: what was made from the source is not what was written. Nothing is changed.
        DestinationError: a build, or another repair, is at work there.
        StorageError: the store refuses. The dataset is no worse than it was; run the repair again.
    """
    if not plan.remedies and not _is_marked(plan.known):
        return plan.known.manifest
    with _held(plan) as lease:
        storage = plan.known.storage
        if not plan.rebuilds:
            return _apply(_fenced(plan, lease), lease, {}, storage)
        with plan_rebuilder(plan, scratch_root(plan.spill, storage), rebuilding) as rebuilder:
            rebuilt = _checked(plan, [shard for rebuild in plan.rebuilds for shard in rebuilder.make(rebuild)])
            lease.check()
            return _apply(_fenced(plan, lease), lease, rebuilt, rebuilder.folder)


def _is_marked(known: RecoveredDataset) -> bool:
    """Whether a repair was killed when it had done all but to give the lease back."""
    holder = read_holder(known.storage) if LEASE_NAME in (known.names or ()) else None
    return holder is not None and holder.task == "repair" and holder.has_ended


@contextmanager
def _held(plan: RepairPlan) -> Iterator[Lease]:
    """The lease of the dataset.

    Raises:
        DestinationError: another writes there, or did since the plan was made.
    """
    storage = plan.known.storage
    storage.check_writable()
    with hold_lease(storage, {"task": "repair", **spill_lease_entry(plan.spill)}) as lease:
        try:
            if not _is_as_seen(plan.known):
                raise DestinationError(
                    f"{storage.locate()} was changed while it was looked through; run the repair again"
                )
            yield lease
            abort_uploads(fence_storage(storage, lease))  # of a repair before this one
        finally:
            lease.release(keep=False)


def _is_as_seen(known: RecoveredDataset) -> bool:
    """Whether the folder holds the files that it did, but for marks, and `dataset.json` says what it did."""
    there = () if known.names is None else known.storage.list()
    others = (known.names or frozenset()).symmetric_difference(there)
    return all(map(is_lease_file, others)) and read_or_none(known.storage, MANIFEST_NAME) == known.manifest_bytes


def _fenced(plan: RepairPlan, lease: Lease) -> RepairPlan:
    """The plan, of a storage that is written to no longer than the lease is held."""
    return replace(plan, known=replace(plan.known, storage=fence_storage(plan.known.storage, lease)))


def _checked(plan: RepairPlan, made: Sequence[ShardInfo]) -> dict[str, str]:
    """The files to put back, and their checksums; what is made again beside them need not be as it was."""
    wanted = {remedy.path for remedy in plan.remedies if remedy.action == "rebuild"}
    written = {
        path: info.checksum for shard in plan.known.shards for path, info in shard.files.items() if path in wanted
    }
    rebuilds = {rebuild.generation: rebuild for rebuild in plan.rebuilds}
    for shard in made:
        for path, found in shard.files.items():
            if path in wanted:
                check_rebuilt(rebuilds[generation_of(path)], path, found.checksum, written[path])
    return written


def _apply(plan: RepairPlan, lease: Lease, rebuilt: Mapping[str, str], scratch: Storage) -> Manifest:
    known = plan.known
    storage = known.storage
    for path in sorted(known.restored, key=lambda path: path == MANIFEST_NAME):  # `dataset.json` last
        storage.write(path, known.restored[path])
    _move([remedy for remedy in plan.remedies if remedy.origin], storage)
    rewritten = {remedy.path for remedy in plan.remedies if remedy.action == "rewrite"} - set(known.restored)
    losses = {loss.shard.path: loss for loss in plan.losses}
    for shard in known.shards:
        if shard.files.keys() & (rewritten | set(losses)):
            _mend(plan, shard, rewritten, losses.get(shard.path))
    for path, expected in rebuilt.items():
        restore_file(storage, path, scratch.map(path), expected)
    files = _mend_companions(plan)
    manifest = _commit(plan, files, lease) if plan.losses or files != known.manifest.files else known.manifest
    for path in _superseded(plan, manifest):
        storage.remove(path)
    storage.sync()
    return manifest


def restore_file(storage: Storage, path: str, data: pa.Buffer, expected_checksum: str) -> None:
    """Write a file of the dataset anew, once its bytes are found to be those that were written.

    Raises:
        CorruptionError: they are not.
    """
    if checksum(data) != expected_checksum:
        raise CorruptionError(f"{storage.locate(path)} changed while it was repaired; run the repair again")
    storage.write(path, data)


def _move(remedies: Sequence[Remedy], storage: Storage) -> None:
    """Bring misplaced files where they belong; each first out of the way, for two may have changed places."""
    asides = {}
    for remedy in remedies:
        aside = remedy.origin
        if remedy.action == "move" and not aside.endswith(MISPLACED):
            aside += MISPLACED
            storage.move(remedy.origin, aside)
        asides[remedy.path] = aside
    storage.sync()
    for remedy in remedies:
        storage.remove(remedy.path)  # what is there is damaged, and a rename may not replace it
        if remedy.action == "move":
            storage.move(asides[remedy.path], remedy.path)
        else:
            with open_decompressed(storage, remedy.origin) as data:
                storage.write(remedy.path, data)


def _mend(plan: RepairPlan, shard: ShardInfo, rewritten: set[str], loss: Loss | None) -> None:
    known = plan.known
    storage = known.storage
    moved = {remedy.path for remedy in plan.remedies if remedy.origin}
    damaged = {damage.path: damage for damage in plan.verification.damages if damage.path not in moved}
    taken = {remedy.origin for remedy in plan.remedies if remedy.action == "move"} - moved
    damaged |= {path: Damage(path=path, kind="missing", problem="") for path in taken}
    files = locate_files(known, shard, damaged, {})
    assert files is not None
    mended = restore_shard(files)
    for path, data, expected in (
        (shard.path, mended.data, shard.checksum),
        (shard.index_path, mended.index, shard.index_checksum),
    ):
        if path in rewritten and data is not None:
            restore_file(storage, path, data, expected)
    if loss is None or loss.replacement is None:
        return
    salvaged = salvage_shard(files, mended)
    new = loss.replacement
    if salvaged is None:
        raise CorruptionError(f"{storage.locate(shard.path)} changed while it was repaired; run the repair again")
    restore_file(storage, new.index_path, salvaged.index, new.index_checksum)
    if salvaged.data is not None:
        restore_file(storage, new.path, salvaged.data, new.checksum)


def _mend_companions(plan: RepairPlan) -> dict[str, FileInfo]:
    """Write those files for other programs that are made again, and say what the dataset then has of them."""
    known = plan.known
    shards = remaining_shards(known.shards, plan.losses)
    remedies = {remedy.path: remedy for remedy in plan.remedies}
    renamed = {loss.shard.path: loss.replacement.path for loss in plan.losses if loss.replacement is not None}
    new_paths = {dali.index_name(old): dali.index_name(new) for old, new in renamed.items()}
    files: dict[str, FileInfo] = {}
    for path, info in known.manifest.files.items():
        action = remedies[path].action if path in remedies else ""
        if action not in ("rewrite", "salvage"):
            files |= {} if action == "remove" else {path: info}
            continue
        new_path = new_paths.get(path, path)
        data = plan.rejected_files.get(path) or rebuild_companion(known.storage, known.manifest, shards, new_path)
        assert data is not None
        known.storage.write(new_path, data)
        files[new_path] = file_info(data)  # another than before, if another version of ringfeed wrote the file
    return files


def _commit(plan: RepairPlan, files: Mapping[str, FileInfo], lease: Lease) -> Manifest:
    """Write the table under a new name, then `dataset.json`: a reader sees the dataset before, or after."""
    known = plan.known
    storage = known.storage
    manifest, shards = exclude_losses(known.manifest, known.shards, plan.losses)
    manifest = replace(manifest, files=files)
    _, data = seal(manifest, shards)
    path = replacement_name(storage, manifest.shards_path, known.names or frozenset(), data)
    sealed, data = seal(replace(manifest, shards_path=path), shards)
    storage.write(path, data)
    storage.sync()
    lease.check()
    storage.write(MANIFEST_NAME, sealed.encode())
    storage.sync()
    return sealed


def exclude_losses(
    manifest: Manifest, shards: Sequence[ShardInfo], losses: Sequence[Loss]
) -> tuple[Manifest, list[ShardInfo]]:
    """The dataset with the replacements of its damaged shards, and without those that have none; not yet sealed."""
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
    """Files that the dataset does not need any more."""
    yield from (remedy.path for remedy in plan.remedies if remedy.action == "remove")
    for loss in plan.losses:
        yield from loss.shard.files.keys() - ({} if loss.replacement is None else loss.replacement.files).keys()
    yield from plan.known.manifest.files.keys() - manifest.files.keys()
    if manifest.shards_path != plan.known.manifest.shards_path:
        yield plan.known.manifest.shards_path

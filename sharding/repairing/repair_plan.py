"""Plans a repair, file by file, before a byte is written.

A file is restored if its bytes are in another file of the folder, or can be rebuilt and proven by their checksum, from
the rest of the dataset or from the given sources. Of a shard that cannot be restored, the intact records are
kept in a shard of another name.
Tested in tests/sharding/repairing/test_repair.py and tests/sharding/repairing/test_rebuild_plan.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from ringfeed.sharding.dataset.consistency import check_shards
from ringfeed.sharding.dataset.file_names import generation_of
from ringfeed.sharding.dataset.manifest import Manifest, file_info
from ringfeed.sharding.dataset.recovery import RecoveredDataset, recover_dataset
from ringfeed.sharding.destination.spill import planning_folder
from ringfeed.sharding.engines.executors import run_tasks
from ringfeed.sharding.errors import CorruptionError
from ringfeed.sharding.prepare.screening.bad_records import encode_rejected
from ringfeed.sharding.progress import Report, ignore
from ringfeed.sharding.storage.storage import Storage, StorageLike, as_storage
from ringfeed.sharding.storage.urls import validate_url
from ringfeed.sharding.url_secrets import public_url
from ringfeed.sharding.verifying.verify import Verification, VerifyReport, default_workers, verify_files

from .companion_plan import plan_companions, plan_leftovers, rejected_paths
from .rebuild_plan import Original, Rebuild, source_flags
from .rebuilder import Rebuilder, open_rebuilder
from .remedy import Loss, Remedy, rewrite
from .shard_plan import locate_files, plan_moves, plan_shard
from .source_matching import plan_rebuilds, rebuild_table

_AS_WRITTEN = {"rewrite", "move", "copy"}  # actions that restore a file from the dataset itself


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """What a repair will do.

    Attributes:
        dataset: the damaged dataset.
        verification: its damages.
        remedies: remedies of files that are damaged or left over, in the order they are applied.
        losses: shards that cannot be restored.
        rebuilds: builds that rebuild shards from sources, at most one per generation.
        spill: see `repair`.
        rejected_files: bytes of damaged `rejected.jsonl` files, by path, as rebuilt from sources.

    >>> from ringfeed.sharding import plan_repair
    >>> from pathlib import Path
    >>> shard = sorted(Path("flights").glob("train-*.tfrecord"))[0]
    >>> _ = shard.write_bytes(shard.read_bytes()[:-1])
    >>> plan = plan_repair("flights")
    >>> len(plan.remedies), len(plan.verification.damages)
    (1, 1)
    """

    dataset: RecoveredDataset
    verification: Verification
    remedies: tuple[Remedy, ...]
    losses: tuple[Loss, ...]
    rebuilds: tuple[Rebuild, ...] = ()
    spill: str | None = None
    rejected_files: Mapping[str, bytes] = field(default_factory=dict)


def plan_repair(
    location: StorageLike,
    report: VerifyReport = ignore,
    *,
    workers: int | None = None,
    originals: Sequence[Original] = (),
    spill: str | os.PathLike[str] | None = None,
    rebuilding: Report = ignore,
) -> RepairPlan:
    """Find out what is damaged and how to repair each file; writes nothing to the dataset. See `repair`.

    Raises:
        CorruptionError: too little of the dataset is left to plan a repair.

    >>> from pathlib import Path
    >>> shard = sorted(Path("flights").glob("train-*.tfrecord"))[0]
    >>> _ = shard.write_bytes(shard.read_bytes()[:-1])
    >>> [remedy.path == shard.name for remedy in plan_repair("flights").remedies]
    [True]
    """
    storage, spill = as_storage(location), None if spill is None else validate_url(spill, "spill")
    threads = default_workers(storage) if workers is None else workers
    dataset = recover_dataset(storage, threads)
    rebuilds: tuple[Rebuild, ...] = ()
    if not dataset.proven:
        dataset, rebuilds = rebuild_table(dataset, originals, spill, rebuilding)
    if dataset.proven:
        check_shards(dataset.manifest, dataset.shards, storage.locate(dataset.manifest.shards_path))
    verification = verify_files(dataset, report, workers=threads, counts=False)
    damaged = {damage.path: damage for damage in verification.damages}
    meta = [rewrite(path, "rebuilt from the other files of the dataset") for path in dataset.restored]
    moves = plan_moves(dataset, damaged)
    with ThreadPoolExecutor(threads, thread_name_prefix="ringfeed-repair") as pool:
        work = [files for shard in dataset.shards if (files := locate_files(dataset, shard, damaged, moves))]
        outcomes = run_tasks(pool, [(plan_shard, (files, dataset.names or frozenset())) for files in work])
    remedies = [remedy for of_shard, _ in outcomes for remedy in of_shard]
    losses = tuple(loss for _, loss in outcomes if loss is not None)
    plan = RepairPlan(
        dataset=dataset,
        verification=verification,
        remedies=(*meta, *moves.values(), *remedies),
        losses=losses,
        spill=spill,
    )
    rejected = {number: path for path, number in rejected_paths(dataset.manifest).items() if path in damaged}
    if (losses or rejected) and originals:
        rebuilds = rebuilds or _plan_rebuilds(plan, originals, rebuilding, rejected)
        plan = replace(
            _with_sources(plan, rebuilds), rejected_files=_rejected_files_from(dataset.manifest, rebuilds, rejected)
        )
    if len(plan.losses) == len(dataset.shards) and all(loss.replacement is None for loss in plan.losses):
        raise CorruptionError(
            f"no record of {storage.locate()} is intact; if its source still exists, repair it with "
            f"{source_flags(dataset.manifest, range(len(dataset.manifest.all_generations)))}"
        )
    companions = plan_companions(dataset, set(damaged), plan.losses, plan.rejected_files)
    return replace(plan, remedies=(*plan.remedies, *companions, *plan_leftovers(dataset, moves)))


def _rejected_files_from(
    manifest: Manifest, rebuilds: Sequence[Rebuild], rejected: Mapping[int, str]
) -> dict[str, bytes]:
    """Rebuild those files from the sources, whose URLs they name; only if they equal what was written."""
    of = {rejected[r.generation]: encode_rejected(r.plan.rejected) for r in rebuilds if r.generation in rejected}
    return {path: data for path, data in of.items() if file_info(data) == manifest.files[path]}


def _plan_rebuilds(
    plan: RepairPlan, originals: Sequence[Original], report: Report, rejected: Iterable[int]
) -> tuple[Rebuild, ...]:
    dataset = plan.dataset
    wanted = sorted({*rejected, *(generation_of(loss.shard.path) for loss in plan.losses)})
    with planning_folder(plan.spill, dataset.storage) as root, plan_rebuilder(plan, root, report) as rebuilder:
        return plan_rebuilds(rebuilder, originals, wanted, wanted, {_pair(loss) for loss in plan.losses})


def plan_rebuilder(plan: RepairPlan, root: Storage, report: Report) -> AbstractContextManager[Rebuilder]:
    """Open the rebuilder of a plan's lost shards, in a folder that is removed when the context exits."""
    dataset = plan.dataset
    actions = {remedy.path: remedy.action for remedy in plan.remedies}
    moves = {remedy.path: remedy for remedy in plan.remedies if remedy.origin}
    damaged = {damage.path: damage for damage in plan.verification.damages}
    located = (locate_files(dataset, shard, damaged, moves) for shard in dataset.shards)
    restorable = (
        files
        for files in located
        if files and {actions.get(path) for path in files.shard.files if path in damaged} <= _AS_WRITTEN
    )
    lost = {rebuild.generation for rebuild in plan.rebuilds}
    lost |= {generation_of(loss.shard.path) for loss in plan.losses}
    return open_rebuilder(dataset, root, report, lost=lost, restorable=restorable)


def _with_sources(plan: RepairPlan, rebuilds: Sequence[Rebuild]) -> RepairPlan:
    """Return the plan without the losses that the sources make good."""
    urls = {pair: public_url(rebuild.plan.options.source) for rebuild in rebuilds for pair in rebuild.numbers}
    generations = {rebuild.generation for rebuild in rebuilds}
    rebuilt = {pair for loss in plan.losses if (pair := _pair(loss)) in urls}
    left = {_pair(loss) for loss in plan.losses if generation_of(loss.shard.path) not in generations}
    origins = {path: urls[pair] for pair in rebuilt for path in pair}
    files_left = {path for pair in left for path in pair}
    damaged = {damage.path for damage in plan.verification.damages}
    remedies = []
    for remedy in plan.remedies:
        if remedy.action not in ("salvage", "remove") or remedy.path not in origins.keys() | files_left:
            remedies.append(remedy)
        elif remedy.path not in damaged:  # only the loss would have replaced this index
            continue
        elif remedy.path in files_left:
            remedies.append(_leave(remedy.path, plan.dataset.manifest))
        else:
            how = f"rebuilt from {origins[remedy.path]}"
            remedies.append(Remedy(path=remedy.path, action="rebuild", how=how))
    needed = (
        replace(rebuild, numbers={pair: number for pair, number in rebuild.numbers.items() if pair in rebuilt})
        for rebuild in rebuilds
    )
    return replace(
        plan,
        remedies=tuple(remedies),
        losses=tuple(loss for loss in plan.losses if _pair(loss) not in rebuilt | left),
        rebuilds=tuple(rebuild for rebuild in needed if rebuild.numbers),
    )


def _pair(loss: Loss) -> tuple[str, str]:
    return loss.shard.path, loss.shard.index_path


def _leave(path: str, manifest: Manifest) -> Remedy:
    """Leave a file of a generation without a source here: a later repair may be given it."""
    url = manifest.all_generations[generation_of(path)].source["url"]
    return Remedy(path=path, action="leave", how=f"its records came from {url}; repair again with it as --source")

"""What can be done for a damaged dataset: decided file by file, before a byte is written.

A file is brought back as it was if its bytes lie elsewhere in the folder, or can be made again and proven by their
checksum: from what is left of the dataset, else from the sources that are given. Of a shard that cannot, the intact
records are kept, as a shard of another name.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from ..common.checksums import checksum
from ..dataset import dali_index as dali
from ..dataset.companion_files import shard_of_index
from ..dataset.damage import Damage
from ..dataset.file_names import (
    TABLE_NAMES,
    generation_of,
    index_name,
    rejected_name,
    repairs_of,
    salvaged_name,
    table_order,
)
from ..dataset.manifest import MANIFEST_NAME, LostRecords, Manifest, ShardInfo, file_info
from ..dataset.recovery import RecoveredDataset, recover_dataset
from ..dataset.tfds_files import is_tfds_file, tfds_obstacle, tfds_paths
from ..destination.leftovers import is_build_file
from ..destination.spill import planning_folder
from ..engines.executors import run_tasks
from ..errors import CorruptionError, DatasetError
from ..messages import some_of
from ..prepare.screening.bad_records import encode_rejected
from ..progress import Report, ignore
from ..storage.atomic_files import draft_target
from ..storage.file_contents import FileInfo, digest_file
from ..storage.lease import is_lease_file
from ..storage.storage import Storage, StorageLike, as_storage, public_url
from ..storage.urls import validate_url
from ..verifying.verify import Verification, VerifyReport, default_workers, verify_files
from .rebuild_order import any_depends_on_earlier, plan_in_order
from .rebuild_plan import Original, Rebuild, plan_rebuilds, source_flags
from .rebuilder import Rebuilder, open_rebuilder
from .salvage import RestoredFiles, SalvagedShard, ShardFiles, restore_shard, salvage_shard
from .table_rebuild import rebuild_table

__all__ = [
    "MISPLACED",
    "Loss",
    "Remedy",
    "RepairPlan",
    "locate_files",
    "plan_rebuilder",
    "plan_repair",
    "remaining_shards",
    "replacement_name",
]  # fmt: skip

_AS_WRITTEN = {"rewrite", "move", "copy"}  # what is done for a file whose bytes can be had from the dataset itself
MISPLACED = ".misplaced"  # ends the name of a file on its way to where it belongs


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What is done for one file.

    Attributes:
        path: of the file.
        action: ``rewrite``: its bytes are made again; ``move``, ``copy``: they lie in the file `origin`;
            ``rebuild``: they are made again from a source; ``salvage``: its intact records go to a new file;
            ``remove``: nothing of it is left, or needed; ``leave``: it stays as it is, for another source to mend.
        how: in words.
        origin: the file that holds its bytes.
    """

    path: str
    action: str
    how: str
    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A shard that cannot be had as it was written, and what there is of it.

    Attributes:
        shard: as it was written.
        replacement: what takes its place; None if no record is intact.
    """

    shard: ShardInfo
    replacement: ShardInfo | None

    @property
    def lost(self) -> LostRecords:
        """The records that are not in the replacement."""
        kept = (0,) * len(self.shard.class_counts) if self.replacement is None else self.replacement.class_counts
        return LostRecords(
            split=self.shard.split,
            path=self.shard.path,
            records=self.shard.records - (0 if self.replacement is None else self.replacement.records),
            class_counts=tuple(was - is_now for was, is_now in zip(self.shard.class_counts, kept, strict=True)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """What a repair will do.

    Attributes:
        known: the dataset.
        verification: what is wrong with it.
        remedies: for each file that is damaged or left over, in the order in which they are applied.
        losses: shards that cannot be had as they were.
        rebuilds: the builds that make shards again from sources, each of another generation.
        spill: see `repair`.
        rejected_files: the bytes of damaged `rejected.jsonl`, by path, as their sources told them again.
    """

    known: RecoveredDataset
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
    """Find out what is damaged and what can be done for each file; writes nothing to the dataset. See `repair`."""
    storage, spill = as_storage(location), None if spill is None else validate_url(spill, "spill")
    threads = default_workers(storage) if workers is None else workers
    known = recover_dataset(storage, threads)
    rebuilds: tuple[Rebuild, ...] = ()
    if not known.proven:
        known, rebuilds = rebuild_table(known, originals, spill, rebuilding)
    found = verify_files(known, report, workers=threads)
    damaged = {damage.path: damage for damage in found.damages}
    meta = [_rewrite(path, "made again from the other files of the dataset") for path in known.restored]
    moves = _plan_moves(known, damaged)
    with ThreadPoolExecutor(threads, thread_name_prefix="ringfeed-repair") as pool:
        work = [files for shard in known.shards if (files := locate_files(known, shard, damaged, moves))]
        outcomes = run_tasks(pool, [(_plan_shard, (files, known.names or frozenset())) for files in work])
    remedies = [remedy for of_shard, _ in outcomes for remedy in of_shard]
    losses = tuple(loss for _, loss in outcomes if loss is not None)
    plan = RepairPlan(
        known=known,
        verification=found,
        remedies=(*meta, *moves.values(), *remedies),
        losses=losses,
        spill=spill,
    )
    rejected = {number: path for path, number in _rejected_files(known.manifest).items() if path in damaged}
    if (losses or rejected) and originals:
        rebuilds = rebuilds or _plan_rebuilds(plan, originals, rebuilding, rejected)
        plan = replace(
            _with_sources(plan, rebuilds), rejected_files=_rejected_files_from(known.manifest, rebuilds, rejected)
        )
    if len(plan.losses) == len(known.shards) and all(loss.replacement is None for loss in plan.losses):
        raise CorruptionError(
            f"no record of {storage.locate()} is intact; if its source is still there, repair it with "
            f"{source_flags(known.manifest, range(len(known.manifest.all_generations)))}"
        )
    others = (*_plan_companions(known, set(damaged), plan.losses, plan.rejected_files), *_leftovers(known, moves))
    return replace(plan, remedies=(*plan.remedies, *others))


def _rejected_files(manifest: Manifest) -> dict[str, int]:
    """The files that name records which were passed over, and their generations."""
    names = {rejected_name(number): number for number in range(len(manifest.all_generations))}
    return {path: names[path] for path in manifest.files if path in names}


def _rejected_files_from(
    manifest: Manifest, rebuilds: Sequence[Rebuild], rejected: Mapping[int, str]
) -> dict[str, bytes]:
    """Those files as the sources tell them again, if they are as they were: they name files by their URLs."""
    of = {rejected[r.generation]: encode_rejected(r.plan.rejected) for r in rebuilds if r.generation in rejected}
    return {path: data for path, data in of.items() if file_info(data) == manifest.files[path]}


def _plan_rebuilds(
    plan: RepairPlan, originals: Sequence[Original], report: Report, rejected: Iterable[int]
) -> tuple[Rebuild, ...]:
    known = plan.known
    wanted = sorted({*rejected, *(generation_of(loss.shard.path) for loss in plan.losses)})
    if not any_depends_on_earlier(known.manifest):
        return plan_rebuilds(known, originals, report, wanted)
    with planning_folder(plan.spill, known.storage) as root, plan_rebuilder(plan, root, report) as rebuilder:
        return plan_in_order(rebuilder, originals, wanted, wanted, {_pair(loss) for loss in plan.losses})


def plan_rebuilder(plan: RepairPlan, root: Storage, report: Report) -> AbstractContextManager[Rebuilder]:
    """Where the lost shards of a plan are made again, in a folder that is there until the body ends."""
    known = plan.known
    actions = {remedy.path: remedy.action for remedy in plan.remedies}
    moves = {remedy.path: remedy for remedy in plan.remedies if remedy.origin}
    damaged = {damage.path: damage for damage in plan.verification.damages}
    hurt = (files for shard in known.shards if (files := locate_files(known, shard, damaged, moves)))
    mendable = (
        files for files in hurt if {actions.get(path) for path in files.shard.files if path in damaged} <= _AS_WRITTEN
    )
    lost = {rebuild.generation for rebuild in plan.rebuilds}
    lost |= {generation_of(loss.shard.path) for loss in plan.losses}
    return open_rebuilder(known, root, report, lost=lost, mendable=mendable)


def _with_sources(plan: RepairPlan, rebuilds: Sequence[Rebuild]) -> RepairPlan:
    """The plan with those losses made good that the sources can."""
    urls = {pair: public_url(rebuild.options.source) for rebuild in rebuilds for pair in rebuild.numbers}
    generations = {rebuild.generation for rebuild in rebuilds}
    made = {pair for loss in plan.losses if (pair := _pair(loss)) in urls}
    left = {_pair(loss) for loss in plan.losses if generation_of(loss.shard.path) not in generations}
    origins = {path: urls[pair] for pair in made for path in pair}
    files_left = {path for pair in left for path in pair}
    damaged = {damage.path for damage in plan.verification.damages}
    remedies = []
    for remedy in plan.remedies:
        if remedy.action not in ("salvage", "remove") or remedy.path not in origins.keys() | files_left:
            remedies.append(remedy)
        elif remedy.path not in damaged:  # it is the index of records that are not left out now
            continue
        elif remedy.path in files_left:
            remedies.append(_leave(remedy.path, plan.known.manifest))
        else:
            how = f"made again from {origins[remedy.path]}"
            remedies.append(Remedy(path=remedy.path, action="rebuild", how=how))
    needed = (
        replace(rebuild, numbers={pair: number for pair, number in rebuild.numbers.items() if pair in made})
        for rebuild in rebuilds
    )
    return replace(
        plan,
        remedies=tuple(remedies),
        losses=tuple(loss for loss in plan.losses if _pair(loss) not in made | left),
        rebuilds=tuple(rebuild for rebuild in needed if rebuild.numbers),
    )


def _pair(loss: Loss) -> tuple[str, str]:
    return loss.shard.path, loss.shard.index_path


def _leave(path: str, manifest: Manifest) -> Remedy:
    """What is done for a file of a generation that no source is of: its records may yet come from that."""
    url = manifest.all_generations[generation_of(path)].source["url"]
    return Remedy(path=path, action="leave", how=f"its records came from {url}: repair again with that as --source")


def _rewrite(path: str, how: str) -> Remedy:
    return Remedy(path=path, action="rewrite", how=how)


def _plan_moves(known: RecoveredDataset, damaged: Mapping[str, Damage]) -> dict[str, Remedy]:
    """For damaged files whose bytes lie under another name, that name."""
    wanted = {path: info for shard in known.shards for path, info in shard.files.items()}
    sizes = {info.bytes for path, info in wanted.items() if path in damaged}
    strangers = (known.names or frozenset()) - set(wanted) - {MANIFEST_NAME, known.manifest.shards_path}
    holders: dict[str, str] = {}
    for path in [*sorted(strangers), *(path for path in damaged if path in wanted)]:
        if sizes and (found := _measure_if_sized(known.storage, path, sizes)):
            holders[found.checksum] = path
    moves = {}
    for path in damaged:
        origin = holders.get(wanted[path].checksum) if path in wanted else None
        if origin is None:
            continue
        ours = origin in wanted or origin.endswith(MISPLACED) or draft_target(origin) in wanted
        how = f"its bytes lie in {origin}"
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
    known: RecoveredDataset, shard: ShardInfo, damaged: Mapping[str, Damage], moves: Mapping[str, Remedy]
) -> ShardFiles | None:
    """A shard that has a damaged file, and where its files lie; None if it has none."""
    if damaged.keys().isdisjoint(shard.files):
        return None
    taken = {move.origin for move in moves.values() if move.action == "move"}

    def lies_at(path: str) -> str | None:
        if path in moves:
            return moves[path].origin
        gone = path in taken or (path in damaged and damaged[path].kind == "missing")
        return None if gone else path

    return ShardFiles(
        storage=known.storage,
        manifest=known.manifest,
        shard=shard,
        data_at=lies_at(shard.path),
        index_at=lies_at(shard.index_path),
        data_intact=shard.path not in damaged or shard.path in moves,
        index_intact=shard.index_path not in damaged or shard.index_path in moves,
    )


def _plan_shard(files: ShardFiles, names: frozenset[str]) -> tuple[list[Remedy], Loss | None]:
    shard = files.shard
    mended = restore_shard(files)
    remedies = []
    if mended.data is not None:
        remedies.append(_rewrite(shard.path, mended.data_how))
    if _whole(files, mended):
        if mended.index is not None:
            remedies.append(_rewrite(shard.index_path, mended.index_how))
        return remedies, None
    salvaged = salvage_shard(files, mended)
    if salvaged is None:
        how = "no record of the shard is intact"
        both = [Remedy(path=path, action="remove", how=how) for path in shard.files]
        return both, Loss(shard=shard, replacement=None)
    new = _replacement(files, salvaged, names)
    if new.path != shard.path:
        how = f"{some_of(new.records, shard.records, 'record', 'goes/go')} to {new.path}"
        remedies.append(Remedy(path=shard.path, action="salvage", how=how))
    how = f"an index of the records that are left goes to {new.index_path}"
    remedies.append(Remedy(path=shard.index_path, action="salvage", how=how))
    return remedies, Loss(shard=shard, replacement=new)


def _whole(files: ShardFiles, mended: RestoredFiles) -> bool:
    return (files.data_intact or mended.data is not None) and (files.index_intact or mended.index is not None)


def _replacement(files: ShardFiles, salvaged: SalvagedShard, names: frozenset[str]) -> ShardInfo:
    shard = files.shard
    index = salvaged.index
    new = replace(
        shard,
        index_path=replacement_name(files.storage, shard.index_path, names, salvaged.index),
        index_bytes=index.size,
        index_checksum=checksum(index),
    )
    if salvaged.data is None:
        return new
    data = salvaged.data
    return replace(
        new,
        path=replacement_name(files.storage, shard.path, names, salvaged.data),
        bytes=data.size,
        records=salvaged.records,
        checksum=checksum(data),
        class_counts=salvaged.class_counts,
    )


def replacement_name(storage: Storage, path: str, names: frozenset[str], data: pa.Buffer | bytes) -> str:
    """The next name for what replaces a file: one that is free, or holds these very bytes since a repair was killed."""
    try:
        name = salvaged_name(path)
    except ValueError as error:
        raise DatasetError(f"{storage.locate(path)} has no name that a replacement could have one like") from error
    while name in names:
        found = digest_file(storage, name)
        if found is not None and found.checksum == checksum(data):
            break
        name = salvaged_name(name)
    return name


def _plan_companions(
    known: RecoveredDataset, damaged: Set[str], losses: Sequence[Loss], rejected_files: Collection[str]
) -> Iterator[Remedy]:
    """For each file for other programs that is damaged, or was made from what is lost."""
    manifest, left = known.manifest, remaining_shards(known.shards, losses)
    no_tfds = tfds_obstacle(manifest, left)
    replaced = {dali.index_name(loss.shard.path): loss for loss in losses}
    for path in manifest.files:
        loss = replaced.get(path)
        if is_tfds_file(path) and no_tfds:
            yield Remedy(path=path, action="remove", how=f"TensorFlow Datasets cannot open what is left: {no_tfds}")
        elif loss is not None and loss.replacement is None:
            yield Remedy(path=path, action="remove", how="no record of its shard is intact")
        elif loss is not None and loss.replacement is not None and loss.replacement.path != loss.shard.path:
            how = f"an index of the records that are left goes to {dali.index_name(loss.replacement.path)}"
            yield Remedy(path=path, action="salvage", how=how)
        elif path in damaged and is_tfds_file(path):
            yield _rewrite(path, "made again from dataset.json")
        elif path in damaged and shard_of_index(path, left):
            yield _rewrite(path, "made again from the index of its shard")
        elif path in rejected_files:
            yield _rewrite(path, "made again from the source")
        elif path in damaged and (number := _rejected_files(manifest).get(path)) is not None:
            flags = source_flags(manifest, [number])
            how = f"what it named, records that the build passed over, is lost; only {flags} could tell it again"
            yield Remedy(path=path, action="remove", how=how)
        elif path in damaged:
            yield Remedy(path=path, action="remove", how="it is not known what it was made from")


def remaining_shards(shards: Sequence[ShardInfo], losses: Sequence[Loss]) -> list[ShardInfo]:
    """The shards with the replacements of those that are damaged, and without those that have none."""
    by_path = {loss.shard.path: loss.replacement for loss in losses}
    return [new for shard in shards if (new := by_path.get(shard.path, shard)) is not None]


def _leftovers(known: RecoveredDataset, moves: Mapping[str, Remedy]) -> Iterator[Remedy]:
    """What a repair that was killed did not come to remove; the user's own files are none of it."""
    manifest = known.manifest
    in_use = {path for shard in known.shards for path in shard.files}
    in_use |= {manifest.shards_path, *manifest.files}
    lost = {
        path for entry in manifest.lost for path in (entry.path, index_name(entry.path), dali.index_name(entry.path))
    }
    lost |= set(tfds_paths(manifest)) if manifest.lost else set()
    origins = {move.origin for move in moves.values()}
    own = in_use | {MANIFEST_NAME}
    generation, repairs = table_order(manifest.shards_path)
    for name in sorted((known.names or frozenset()) - in_use - origins):
        begun = draft_target(name)
        if begun in own or is_lease_file(begun) or (repairs_of(begun) and is_build_file(begun)):
            yield Remedy(path=name, action="remove", how="left over from a write that was killed")
        replaced = repairs and TABLE_NAMES.fullmatch(name) and table_order(name)[0] == generation
        if name in lost or replaced or name.removesuffix(MISPLACED) in in_use:
            yield Remedy(path=name, action="remove", how="left over from an earlier repair")

"""Plans the repair of companion files, and the removal of what killed repairs left behind. Writes nothing.

Tested in tests/sharding/repairing/test_repair.py and tests/sharding/dataset/test_companion_files.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set

from ringfeed.sharding.dataset.companion_files import shard_of_index
from ringfeed.sharding.dataset.file_names import TABLE_NAMES, repairs_of, table_order
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.dataset.recovery import RecoveredDataset
from ringfeed.sharding.dataset.tfds_files import is_tfds_file, tfds_obstacle, tfds_paths
from ringfeed.sharding.destination.leftovers import is_build_file
from ringfeed.sharding.storage.atomic_files import draft_target
from ringfeed.sharding.storage.lease import is_lease_file

from .rebuild_plan import source_flags
from .remedy import MISPLACED, Loss, Remedy, remaining_shards, rewrite


def rejected_paths(manifest: Manifest) -> dict[str, int]:
    """Return the files that list skipped bad records, with their generations."""
    names = {manifest.names.rejected(number): number for number in range(len(manifest.all_generations))}
    return {path: names[path] for path in manifest.files if path in names}


def plan_companions(
    dataset: RecoveredDataset, damaged: Set[str], losses: Sequence[Loss], rejected_files: Collection[str]
) -> Iterator[Remedy]:
    """Yield a remedy for each companion file that is damaged, or derives from a lost file."""
    manifest, left = dataset.manifest, remaining_shards(dataset.shards, losses)
    no_tfds = tfds_obstacle(manifest, left)
    replaced = {loss.shard.dali_path: loss for loss in losses}
    for path in manifest.files:
        loss = replaced.get(path)
        if is_tfds_file(path) and no_tfds:
            yield Remedy(path=path, action="remove", how=f"TensorFlow Datasets could not open it: {no_tfds}")
        elif loss is not None and loss.replacement is None:
            yield Remedy(path=path, action="remove", how="no record of its shard is intact")
        elif loss is not None and loss.replacement is not None and loss.replacement.path != loss.shard.path:
            how = f"an index of the remaining records goes to {loss.replacement.dali_path}"
            yield Remedy(path=path, action="salvage", how=how)
        elif path in damaged and is_tfds_file(path):
            yield rewrite(path, "rebuilt from dataset.json")
        elif path in damaged and shard_of_index(path, left):
            yield rewrite(path, "rebuilt from the index of its shard")
        elif path in rejected_files:
            yield rewrite(path, "rebuilt from the source")
        elif path in damaged and (number := rejected_paths(manifest).get(path)) is not None:
            flags = source_flags(manifest, [number])
            how = f"its list of skipped records is lost; only a repair with {flags} could rebuild it"
            yield Remedy(path=path, action="remove", how=how)
        elif path in damaged:
            yield Remedy(path=path, action="remove", how="ringfeed does not know how to rebuild it")


def plan_leftovers(dataset: RecoveredDataset, moves: Mapping[str, Remedy]) -> Iterator[Remedy]:
    """Yield the removal of files that a killed repair left behind; never of the user's own files."""
    manifest = dataset.manifest
    in_use = {path for shard in dataset.shards for path in shard.files}
    in_use |= {manifest.shards_path, *manifest.files}
    files_of = (lambda path: path, manifest.names.index, manifest.names.dali)
    lost = {name(entry.path) for entry in manifest.lost for name in files_of}
    lost |= set(tfds_paths(manifest)) if manifest.lost else set()
    origins = {move.origin for move in moves.values()}
    own = in_use | {dataset.manifest_path}
    generation, repairs = table_order(manifest.shards_path)
    for name in sorted((dataset.names or frozenset()) - in_use - origins):
        begun = draft_target(name)
        if begun in own or is_lease_file(begun) or (repairs_of(begun) and is_build_file(begun)):
            yield Remedy(path=name, action="remove", how="left by a write that was killed")
        replaced = repairs and TABLE_NAMES.fullmatch(name) and table_order(name)[0] == generation
        if name in lost or replaced or name.removesuffix(MISPLACED) in in_use:
            yield Remedy(path=name, action="remove", how="left by an earlier repair")

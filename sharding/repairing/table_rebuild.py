"""Rebuilds a shard table that was lost together with shards, by rebuilding all shards of their generations.

Tested in tests/sharding/repairing/test_rebuild_generations.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringfeed.sharding.dataset.file_names import generation_of
from ringfeed.sharding.dataset.recovery import RecoveredDataset, confirm_table
from ringfeed.sharding.destination.spill import planning_folder
from ringfeed.sharding.errors import CorruptionError
from ringfeed.sharding.progress import Report
from ringfeed.sharding.url_secrets import public_url

from .rebuild_plan import Original, Rebuild, check_rebuilt, source_flags
from .rebuilder import open_rebuilder
from .source_matching import plan_in_order


def rebuild_table(
    dataset: RecoveredDataset, originals: Sequence[Original], spill: str | None, report: Report
) -> tuple[RecoveredDataset, tuple[Rebuild, ...]]:
    """Rebuild the shard table of a dataset from the rows of rebuilt shards and of the intact generations.

    Args:
        dataset: the dataset, not proven.
        originals: sources of generations.
        spill: see `repair`.
        report: called after every task that rebuilds shards.

    Returns:
        The dataset, proven, and the builds that rebuild its shards.

    Raises:
        SourceError: a source is not the original.
        CorruptionError: these sources do not yield the table that was lost.
    """
    manifest, storage = dataset.manifest, dataset.storage
    table = storage.locate(manifest.shards_path)
    lost = sorted({generation_of(damage.path) for damage in dataset.damages if damage.path != manifest.shards_path})
    if not originals or manifest.lost:
        others = ", and the source of each other generation whose shards are damaged" if manifest.generations else ""
        remedy = (
            "build the dataset again"
            if manifest.lost
            else f"repair it with {source_flags(manifest, lost or [0])}{others}"
        )
        raise CorruptionError(
            f"{table} is damaged, and so are shards; without the table, nothing shows what was lost; {remedy}"
        )
    wanted = sorted(range(len(manifest.all_generations)), key=lambda number: number not in lost)
    with planning_folder(spill, storage) as root, open_rebuilder(dataset, root, report, lost=lost) as rebuilder:
        rebuilds = plan_in_order(rebuilder, originals, wanted, lost)
        rows = rebuilder.rows
    proven = confirm_table(dataset, rows)
    if proven is None and manifest.generations:
        named = ", ".join(f"generation {r.generation} ({public_url(r.plan.options.source)})" for r in rebuilds)
        raise CorruptionError(
            f"{table} is damaged, and cannot be rebuilt from the shards of {named}: shards of another generation are "
            "damaged, too, or a source is not the original; nothing was changed; name a --source for each generation "
            "whose shards are damaged"
        )
    if proven is None:
        check_rebuilt(rebuilds[0], table, "", manifest.shards_checksum)
        raise AssertionError("unreachable: the table differs")
    return proven, rebuilds

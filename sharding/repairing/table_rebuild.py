"""The table of shards, lost together with shards: those of their generations, made again, tell what it held."""

from __future__ import annotations

from collections.abc import Sequence

from ..dataset.file_names import generation_of
from ..dataset.recovery import RecoveredDataset, confirm_table
from ..destination.spill import planning_folder
from ..errors import CorruptionError
from ..progress import Report
from ..storage.storage import public_url
from .rebuild_order import plan_in_order
from .rebuild_plan import Original, Rebuild, check_rebuilt, source_flags
from .rebuilder import open_rebuilder

__all__ = ["rebuild_table"]


def rebuild_table(
    known: RecoveredDataset, originals: Sequence[Original], spill: str | None, report: Report
) -> tuple[RecoveredDataset, tuple[Rebuild, ...]]:
    """A dataset whose table was lost together with shards: all shards of their generations are made again.

    With the rows of the other generations, which their files tell, theirs tell what the table held.

    Args:
        known: the dataset, not proven.
        originals: the sources of generations.
        spill: see `repair`.
        report: called after every task that makes shards.

    Returns:
        The dataset, proven, and the builds that write again what was made.

    Raises:
        SourceError: a source is another than was read then.
        CorruptionError: these sources do not tell what the table held.
    """
    manifest, storage = known.manifest, known.storage
    table = storage.locate(manifest.shards_path)
    lost = sorted({generation_of(damage.path) for damage in known.damages if damage.path != manifest.shards_path})
    if not originals or manifest.lost:
        others = ", and that of each other generation whose shards are damaged" if manifest.generations else ""
        remedy = (
            "build the dataset again"
            if manifest.lost
            else f"repair it with {source_flags(manifest, lost or [0])}{others}"
        )
        raise CorruptionError(
            f"{table} is damaged, and so are shards: what was lost cannot be told without the table; {remedy}"
        )
    wanted = sorted(range(len(manifest.all_generations)), key=lambda number: number not in lost)
    with planning_folder(spill, storage) as root, open_rebuilder(known, root, report, lost=lost) as rebuilder:
        rebuilds = plan_in_order(rebuilder, originals, wanted, lost)
        rows = rebuilder.rows
    proven = confirm_table(known, rows)
    if proven is None and manifest.generations:
        named = ", ".join(f"generation {r.generation} ({public_url(r.options.source)})" for r in rebuilds)
        raise CorruptionError(
            f"{table} is damaged, and the shards of {named}, made again, do not tell what it held: shards of another "
            "generation are damaged, too, or a source is not the one of then; nothing was changed; name a --source for "
            "each generation whose shards are damaged"
        )
    if proven is None:
        check_rebuilt(rebuilds[0], table, "", manifest.shards_checksum)
        raise AssertionError("unreachable: the table differs")
    return proven, rebuilds

"""Finds where in the source the records of a dataset come from.

No build writes that down. The place of a record in the shards is a function of its place in the source, so planning the
build again, and reading the columns again that decide the places, gives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ringfeed.sharding.assignment.placement import Placer
from ringfeed.sharding.building.build_plan import BuildPlan
from ringfeed.sharding.dataset.file_names import generation_of
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.dataset.recovery import recover_dataset
from ringfeed.sharding.destination.spill import planning_folder
from ringfeed.sharding.errors import DatasetError, SourceError
from ringfeed.sharding.prepare.screening.record_origins import find_files
from ringfeed.sharding.progress import ignore
from ringfeed.sharding.sources import select_part
from ringfeed.sharding.sources.base import narrow_source
from ringfeed.sharding.sources.records.in_memory import IN_MEMORY
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.url_secrets import public_url
from ringfeed.sharding.verifying.verify import default_workers

from .rebuild_plan import Original, open_generation, shard_numbers
from .rebuilder import open_rebuilder

Record = tuple[str, int]  # path of a shard, and number of a record in it


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlace:
    """A record's place in the source."""

    file: str  # path or URL of its file
    place: str  # place in the file, such as ``line 17`` or ``record 3``; empty if the file is the record


def find_source_places(
    storage: Storage, records: Iterable[Record], *, trust_code: bool = False
) -> dict[Record, SourcePlace]:
    """Return where records come from.

    Records count from 0 and lines from 1, bad ones included. Behind a function of ``--map`` that may change the rows,
    the place is the number of the function's result.

    Args:
        trust_code: whether to import and call the functions that `dataset.json` names.

    Raises:
        SourceError: the source is gone, was in memory, or was changed since the build.
        DatasetError: a repair has replaced a shard, or `trust_code` is needed.
    """
    dataset = recover_dataset(storage, default_workers(storage))
    by_generation: dict[int, list[Record]] = {}
    for record in dict.fromkeys(records):
        by_generation.setdefault(generation_of(record[0]), []).append(record)
    found: dict[Record, SourcePlace] = {}
    with planning_folder(None, storage) as root, open_rebuilder(dataset, root, ignore) as rebuilder:
        for number, wanted in sorted(by_generation.items()):
            written = dataset.manifest.all_generations[number].source
            if written["url"] == IN_MEMORY:
                raise SourceError(f"{storage.locate()} was built from {IN_MEMORY}, which has no files to name")
            original = Original(url=written["url"], trust_code=trust_code)
            with open_generation(dataset, number, original, ignore, rebuilder.earlier_shards(number)) as plan:
                if plan.source.fingerprint != written["fingerprint"]:
                    raise SourceError(
                        f"{public_url(original.url)} was changed since {storage.locate()} was built from it: names, "
                        "sizes or times of its files differ, so its records may have other places"
                    )
                found |= dict(_places(plan, _slots(dataset.manifest, plan, wanted)))
    return found


def _slots(manifest: Manifest, plan: BuildPlan, records: Iterable[Record]) -> dict[tuple[int, int], Record]:
    """The records by the number of their shard and their slot in it; see `Assignment`."""
    numbers = {path: number for (path, _), number in shard_numbers(manifest, plan).items()}
    slots: dict[tuple[int, int], Record] = {}
    for path in {path for path, _ in records}:
        if path not in numbers:
            raise DatasetError(
                f"{path} was written by a repair, which kept a part of its records: their places are unknown"
            )
        slot_of_row = np.argsort(plan.assignment.row_of_slot(numbers[path]))
        slots |= {(numbers[path], int(slot_of_row[row])): (path, row) for shard, row in records if shard == path}
    return slots


def _places(plan: BuildPlan, wanted: dict[tuple[int, int], Record]) -> Iterator[tuple[Record, SourcePlace]]:
    """Read what decides the places of all records, and yield the wanted ones."""
    schema, width = plan.source.schema, plan.shard_records
    deciding = [name for name in (schema.label, plan.census and plan.census.column) if name] or [schema.names[0]]
    keys = np.array([shard * width + slot for shard, slot in wanted])
    for number, placement in enumerate(plan.placements):
        source, part = select_part(plan.source, number), plan.source.parts[number]
        placer = Placer(placement, number)
        found: dict[int, Record] = {}
        for batch in narrow_source(source, deciding).drafts(part):
            first = placer.records
            _, shards, slots = placer.locate(batch)
            for row in np.flatnonzero(np.isin(shards * width + slots, keys)).tolist():
                found[first + row] = wanted[int(shards[row]), int(slots[row])]
        if found:
            files = find_files(source, part, np.array(list(found)), deciding[0])
            for record, (file, place) in zip(found.values(), files, strict=True):
                yield record, SourcePlace(file=public_url(file).removeprefix("file://"), place=place)

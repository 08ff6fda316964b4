"""Make shards of a dataset again from the source that it was built from.

The source is opened as the build opened it. Whether it is the same one is for the checksums of the shards to say: a
copy elsewhere, whose files have other times, does as well. Nothing here writes to the dataset.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from .append import open_like
from .build_plan import BuildPlan
from .engine import open_engine
from .errors import ConfigError, SourceError
from .journal import ShardResult
from .manifest import Manifest, ShardInfo, SplitInfo
from .plan import BuildOptions
from .planning import open_build_source, open_plan, plan_source
from .progress import Progress, Report
from .rounds import assemble, partition
from .schema import Schema
from .spill import open_spill, remove_spill, scratch_root
from .storage import Storage, public_url
from .tasks import Bucketing, ShardTarget, shard_names

__all__ = ["Original", "Rebuild", "check_made", "made_again", "plan_rebuild"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The source of a dataset, as it can be had now.

    Attributes:
        url: of the source, or of a copy of it.
        kind: see `sources.open_source`; None: as the build opened it.
        workers: processes that read it.
        spill: URL of a folder for what is made of it; None: this machine's folder for temporary files.
        folder: where the modules of functions that prepared the records are looked for first.
    """

    url: str
    kind: str | None = None
    workers: int = 1
    spill: str | None = None
    folder: str = field(default_factory=os.getcwd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """A build that would write the shards of a dataset again, as far as counts and columns tell.

    Attributes:
        manifest: of the dataset.
        options: of the build.
        plan: of the build.
        root: folder for what is made.
        numbers: of the shards, by the names of data file and index.
        generation: that the source is of.
    """

    manifest: Manifest
    options: BuildOptions
    plan: BuildPlan
    root: Storage
    numbers: Mapping[tuple[str, str], int]
    generation: int = 0


def plan_rebuild(
    storage: Storage, manifest: Manifest, original: Original, report: Report, wanted: Collection[int] = (0,)
) -> Rebuild:
    """Open the source and count its records.

    Args:
        storage: of the dataset.
        manifest: of the dataset.
        original: its source, or that of one of its generations.
        report: see `build`.
        wanted: the generations that the source may be of.

    Raises:
        SourceError: it cannot be read, or is another than the dataset was built from.
        ConfigError: the dataset was built with options that this version does not know.
    """
    url = public_url(original.url)
    errors: list[SourceError | ConfigError] = []
    for number in sorted(wanted, key=lambda number: (manifest.all_generations[number].source["url"] != url, number)):
        try:
            return _plan_generation(storage, manifest, number, original, report)
        except (SourceError, ConfigError) as error:
            errors.append(error)
    raise errors[0]


def _plan_generation(storage: Storage, manifest: Manifest, number: int, original: Original, report: Report) -> Rebuild:
    where, written = storage.locate(), manifest.all_generations[number]
    recorded = BuildOptions.restored(written.options, original.url, where, original.folder)
    options = replace(
        recorded,
        source_kind=recorded.source_kind if original.kind is None else original.kind,
        shard_format=manifest.shard_format,
        compression=manifest.compression,
        seed=written.seed,
        workers=original.workers,
    )
    base = _before(manifest, number)
    source = open_build_source(options) if base is None else open_like(manifest.schema, options)
    plan = plan_source(source, options, base, report=report)
    difference = _difference(plan, manifest, number)
    if difference:
        what = f"generation {number} of {where}" if manifest.generations else where
        raise SourceError(
            f"{public_url(original.url)} is not what {what} was built from: {difference}; nothing was changed; name "
            f"the source of then or a copy of it (it was {written.source['url']})"
        )
    names = (shard_names(plan.assignment, number, manifest.shard_format) for number in range(plan.assignment.shards))
    return Rebuild(
        manifest=manifest,
        options=options,
        plan=plan,
        root=scratch_root(original.spill, storage),
        numbers={pair: shard for shard, pair in enumerate(names)},
        generation=number,
    )


def _before(manifest: Manifest, number: int) -> Manifest | None:
    """What decided about a generation, of the dataset that it was appended to; None of the one that was built."""
    if number == 0:
        return None
    earlier = manifest.all_generations[:number]
    records: Counter[str] = Counter()
    for generation in earlier:
        records.update(generation.records)
    return replace(
        manifest,
        classes=manifest.classes[: earlier[-1].classes],
        splits={name: SplitInfo(records=count, shards=0, class_counts=()) for name, count in records.items()},
        layout=manifest.layout_of(number - 1),
        generations=earlier,
    )


@contextmanager
def made_again(rebuild: Rebuild, wanted: Collection[int], report: Report) -> Iterator[tuple[Storage, list[ShardInfo]]]:
    """Some of the shards, written to a folder that is there until the body ends.

    Args:
        rebuild: of the dataset.
        wanted: numbers of the shards.
        report: called after every task.

    Yields:
        The folder, and what was written there, in the order of the numbers.
    """
    remove_spill(rebuild.root)
    try:
        made = Storage(rebuild.root.locate("made"), rebuild.root.options)
        with _planned(rebuild, report) as plan, open_engine("local", rebuild.options.workers) as pool:
            results = _make(rebuild, plan, wanted, made, pool, report)
        yield made, [result.info for result in sorted(results, key=lambda result: result.number)]
    finally:
        remove_spill(rebuild.root)


def _planned(rebuild: Rebuild, report: Report) -> AbstractContextManager[BuildPlan]:
    """The plan, made again where its census is needed: the files of that are gone, for they may be large."""
    if not rebuild.options.needs_census:
        return nullcontext(rebuild.plan)
    return open_plan(rebuild.plan.source, rebuild.options, rebuild.plan.base, report=report)


def _make(
    rebuild: Rebuild, plan: BuildPlan, wanted: Collection[int], storage: Storage, pool: Executor, report: Report
) -> list[ShardResult]:
    options, manifest = rebuild.options, rebuild.manifest
    bucketing = Bucketing(assignment=plan.assignment, shards_per_bucket=1)  # no record of another shard is spilled
    others = set(range(plan.assignment.shards)) - set(wanted)
    spill = open_spill(rebuild.root, "records")
    target = ShardTarget(
        storage=storage,
        plan=manifest.all_generations[rebuild.generation].plan,
        shard_format=manifest.shard_format,
        compression=manifest.compression,
        layout=manifest.layout_of(rebuild.generation),
        block_rows=plan.block_rows,
    )
    results: list[ShardResult] = []
    parts = partition(plan, options, bucketing, others, spill, pool, report)
    for made in assemble(plan, options, target, bucketing, others, parts, spill, pool, lambda _: None):
        results += made
        records = sum(result.info.records for result in results)
        report(Progress(stage="write", done=len(results), total=len(wanted), records=records))
    return results


def check_made(rebuild: Rebuild, path: str, made_checksum: str, written_checksum: str) -> None:
    """Refuse a file that is not the one that was written.

    Raises:
        SourceError: it is another; the text says why that may be.
    """
    if made_checksum == written_checksum:
        return
    options, manifest = rebuild.options, rebuild.manifest
    why = "it is another source, or was changed since"
    written = manifest.all_generations[rebuild.generation]
    if rebuild.plan.fingerprint(options) == written.plan:
        why = "it looks as it did then, so that its files were changed in place, or other libraries encode it otherwise"
    raise SourceError(
        f"{path}, made again from {public_url(options.source)}, has other bytes than were written: {why} (written by "
        f"{written.writer}; here is Arrow {pa.__version__}); nothing was changed; name the source of then, or leave "
        "out --source to keep the records that are intact"
    )


def _difference(plan: BuildPlan, manifest: Manifest, number: int) -> str:
    """What tells that a source is another, in words; empty if nothing does yet."""
    if difference := _schema_difference(plan.source.schema, manifest.schema):
        return difference
    if manifest.generations:
        return _generation_difference(plan, manifest, number)
    counts = {split.name: split.class_counts for split in plan.assignment.splits}
    here: dict[Any, int] = {value: sum(c[i] for c in counts.values()) for i, value in enumerate(plan.classes)}
    then = _written_counts(manifest)
    total, written = sum(here.values()), sum(then.values())
    if total != written:
        return f"it has {total:,} records, not {written:,}"
    for value in (*manifest.classes, *plan.classes):
        if here.get(value, 0) != then.get(value, 0):
            return f"it has {here.get(value, 0):,} records of class {value!r}, not {then.get(value, 0):,}"
    return ""


def _generation_difference(plan: BuildPlan, manifest: Manifest, number: int) -> str:
    written = manifest.all_generations[number]
    here = {split.name: split.records for split in plan.assignment.splits}
    for name in (*written.records, *here):
        if here.get(name, 0) != written.records.get(name, 0):
            return f"it has {here.get(name, 0):,} records for split {name!r}, not {written.records.get(name, 0):,}"
    classes = manifest.classes[: written.classes]
    return "" if plan.classes == classes else f"it has other classes: {len(plan.classes):,}, not {len(classes):,}"


def _schema_difference(here: Schema, then: Schema) -> str:
    for name in (*then.names, *here.names):
        if name not in here.names or name not in then.names:
            return f"it has {'no' if name in then.names else 'a'} column {name!r}"
        if here[name] != then[name]:
            return f"its column {name!r} holds {here[name].dtype} {list(here[name].shape)}, not " + (
                f"{then[name].dtype} {list(then[name].shape)}"
            )
    if here.label != then.label:
        return f"its label is {here.label!r}, not {then.label!r}"
    return "" if here == then else "its columns stand in another order"


def _written_counts(manifest: Manifest) -> dict[Any, int]:
    """Records of each class as they were written, before repairs left some out."""
    of_all = [split.class_counts for split in manifest.splits.values()] + [lost.class_counts for lost in manifest.lost]
    return {value: sum(counts[i] for counts in of_all) for i, value in enumerate(manifest.classes)}

"""Make shards of a dataset again from the sources of its generations.

A source is opened as the build, or the append, opened it. Whether it is the same one is for the checksums of the shards
to say: a copy elsewhere, whose files have other times, does as well. Nothing here writes to the dataset.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from .append import open_like
from .build_plan import BuildPlan
from .engine import open_engine
from .errors import ConfigError, CorruptionError, SourceError
from .journal import ShardResult
from .manifest import Manifest, ShardInfo, SplitInfo
from .plan import BuildOptions
from .planning import open_build_source, open_plan, plan_source
from .progress import Progress, Report
from .rounds import assemble, partition
from .schema import Schema
from .spill import open_spill, remove_spill
from .storage import Storage, public_url
from .tasks import Bucketing, ShardTarget, shard_names

__all__ = ["Original", "Rebuild", "check_made", "made_again", "plan_rebuilds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The source of a generation, as it can be had now.

    Attributes:
        url: of the source, or of a copy of it.
        kind: see `sources.open_source`; None: as the build opened it.
        workers: processes that read it.
        folder: where the modules of functions that prepared the records are looked for first.
    """

    url: str
    kind: str | None = None
    workers: int = 1
    folder: str = field(default_factory=os.getcwd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """A build that would write shards of a generation again, as far as counts and columns tell.

    Attributes:
        manifest: of the dataset.
        generation: that the source is of.
        options: of the build.
        plan: of the build.
        numbers: of the shards to make, by the names of data file and index; at first all of the generation.
    """

    manifest: Manifest
    generation: int
    options: BuildOptions
    plan: BuildPlan
    numbers: Mapping[tuple[str, str], int]


def plan_rebuilds(
    storage: Storage, manifest: Manifest, originals: Sequence[Original], report: Report, wanted: Sequence[int]
) -> tuple[Rebuild, ...]:
    """Open the sources, find the generation that each is of, and count its records.

    Of the generations that a source fits, it is taken to be that of the one whose URL ends most like its own, and each
    for another. Generations that came from one and the same source have it together.

    Args:
        storage: of the dataset.
        manifest: of the dataset.
        originals: the sources.
        report: see `build`.
        wanted: the generations to make again; if nothing else decides, the first is tried first.

    Returns:
        A build for each wanted generation that there is a source of, in their order. A source of another generation is
        passed over, so that a repair which was killed can be run again as it was.

    Raises:
        SourceError: one cannot be read, or no generation was built from it, or none has a source that is wanted.
        ConfigError: the dataset was built with options that this version does not know.
        CorruptionError: what a generation holds follows from records before it, and those are damaged.
    """

    def order(pair: tuple[int, tuple[int, ...]]) -> tuple[bool, int]:
        place, group = pair
        url = public_url(originals[place].url)
        alike = max(_common_parts(url, manifest.all_generations[number].source["url"]) for number in group)
        return set(group).isdisjoint(wanted), -alike

    rebuilds: list[Rebuild] = []
    matched: dict[int, tuple[int, ...]] = {}
    errors: dict[int, SourceError | ConfigError] = {}
    for place, group in sorted(itertools.product(range(len(originals)), _by_source(manifest, wanted)), key=order):
        needed = [number for number in group if number in wanted]
        if place in matched or group in matched.values() or not (needed or rebuilds):
            continue
        try:
            planned = [
                _plan_generation(storage, manifest, number, originals[place], report) for number in needed or group[:1]
            ]
        except (SourceError, ConfigError) as error:
            errors.setdefault(place, error)
            continue
        matched[place] = group
        rebuilds += planned if needed else ()
    for place, original in enumerate(originals):
        if place not in matched:
            raise errors.get(place) or SourceError(
                f"{public_url(original.url)} is a source too many: each generation of {storage.locate()} has another "
                "one; nothing was changed; leave it out"
            )
    return tuple(sorted(rebuilds, key=lambda rebuild: rebuild.generation))


def _by_source(manifest: Manifest, wanted: Sequence[int]) -> list[tuple[int, ...]]:
    """All generations, those together that came from the same source; first the wanted ones."""
    groups: dict[str, tuple[int, ...]] = {}
    for number in dict.fromkeys((*wanted, *range(len(manifest.all_generations)))):
        fingerprint = manifest.all_generations[number].source["fingerprint"]
        groups[fingerprint] = (*groups.get(fingerprint, ()), number)
    return list(groups.values())


def _common_parts(url: str, other: str) -> int:
    """How many parts of their paths, from the end, two URLs share.

    >>> _common_parts("s3://new/2026/05.csv", "s3://old/2026/05.csv")
    2
    """
    pairs = zip(reversed(url.split("/")), reversed(other.split("/")), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


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
    try:
        plan = plan_source(source, options, base, report=report)
    except CorruptionError as error:
        if base is None or (options.group_by is None and options.prepare.dedup is None):
            raise  # it is the source that is damaged
        raise CorruptionError(
            f"{error}; what generation {number} holds follows from the records before it (--group-by, --dedup): repair "
            "those first, with their --source alone; nothing was changed"
        ) from error
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
        generation=number,
        options=options,
        plan=plan,
        numbers={pair: shard for shard, pair in enumerate(names)},
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
def made_again(rebuilds: Sequence[Rebuild], root: Storage, report: Report) -> Iterator[tuple[Storage, list[ShardInfo]]]:
    """Shards of some generations, written to a folder that is there until the body ends.

    Args:
        rebuilds: of a dataset, each of another generation.
        root: folder for what is made; see `scratch_root`.
        report: called after every task.

    Yields:
        The folder, and what was written there, in the order of the rebuilds and of their numbers.
    """
    remove_spill(root)
    try:
        made = Storage(root.locate("made"), root.options)
        spills = Storage(root.locate("spill"), root.options)
        shards: list[ShardInfo] = []
        for rebuild in rebuilds:
            with _planned(rebuild, report) as plan, open_engine("local", rebuild.options.workers) as pool:
                results = _make(rebuild, plan, made, spills, pool, report)
            shards += [result.info for result in sorted(results, key=lambda result: result.number)]
        yield made, shards
    finally:
        remove_spill(root)


def _planned(rebuild: Rebuild, report: Report) -> AbstractContextManager[BuildPlan]:
    """The plan, made again where its census is needed: the files of that are gone, for they may be large."""
    if not rebuild.options.needs_census:
        return nullcontext(rebuild.plan)
    return open_plan(rebuild.plan.source, rebuild.options, rebuild.plan.base, report=report)


def _make(
    rebuild: Rebuild, plan: BuildPlan, storage: Storage, spills: Storage, pool: Executor, report: Report
) -> list[ShardResult]:
    options, manifest = rebuild.options, rebuild.manifest
    bucketing = Bucketing(assignment=plan.assignment, shards_per_bucket=1)  # no record of another shard is spilled
    others = set(range(plan.assignment.shards)) - set(rebuild.numbers.values())
    spill = open_spill(spills, f"generation-{rebuild.generation}")  # removes what that of another left
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
        report(Progress(stage="write", done=len(results), total=len(rebuild.numbers), records=records))
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

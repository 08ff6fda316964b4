"""What would make shards of a dataset again: builds from the sources of its generations, planned and not yet run.

A source is opened as the build, or the append, opened it. Whether it is the same one is for the checksums of the shards
to say: a copy elsewhere, whose files have other times, does as well. `rebuilder.py` runs the builds.
"""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..building.append import open_matching_source
from ..building.assembling import shard_names
from ..building.build_plan import BuildPlan
from ..building.options import BuildOptions
from ..building.planning import open_build_source, open_plan
from ..compute.class_counts import ClassCounts
from ..dataset.earlier_shards import EarlierShards
from ..dataset.file_names import generation_of
from ..dataset.manifest import LostRecords, Manifest, ShardInfo, SplitInfo
from ..dataset.recovery import RecoveredDataset
from ..errors import ConfigError, SourceError
from ..messages import counted
from ..prepare import MapBatches
from ..progress import Report
from ..schema import Schema
from ..storage.storage import Storage, public_url
from ..storage.urls import normalize_url_fields

__all__ = [
    "Original",
    "Rebuild",
    "check_rebuilt",
    "depends_on_earlier",
    "plan_generation",
    "plan_rebuilds",
    "source_flags",
    "unused_source_error",
    "url_similarity",
]  # fmt: skip

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The source of a generation, as it can be had now.

    Attributes:
        url: URL or path of the source, or of a copy of it.
        kind: see `sources.open_source`; None: as the build opened it.
        workers: processes that read it.
        memory_bytes: that these may use together, see `BuildOptions`.
        folder: where the modules of functions that prepared the records are looked for first.
    """

    url: str
    kind: str | None = None
    workers: int = 1
    memory_bytes: int | None = None
    folder: str = field(default_factory=os.getcwd)

    def __post_init__(self) -> None:
        normalize_url_fields(self, "url")


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


def depends_on_earlier(manifest: Manifest, number: int, *, proven: bool = True) -> bool:
    """Whether what a generation holds depends on the records before it, and not from its source and options alone.

    Args:
        manifest: of the dataset.
        number: of the generation.
        proven: whether its table of shards is there, which tells how many records of each class there were in each
            split: from that follows how the shares of classes were rounded.
    """
    options = manifest.all_generations[number].options
    of_records = "group_by" in options or "dedup" in options.get("prepare", {})
    return number > 0 and (of_records or (not proven and len(options["splits"]) > 1))


def plan_rebuilds(
    known: RecoveredDataset, originals: Sequence[Original], report: Report, wanted: Sequence[int]
) -> tuple[Rebuild, ...]:
    """Open the sources, find the generation that each is of, and count its records.

    For datasets of which no generation `depends_on_earlier` on others; see `replay.plan_in_order`.

    Of the generations that a source fits, it is taken to be that of the one whose URL ends most like its own, and each
    for another. Generations that came from one and the same source have it together.

    Args:
        known: the dataset, proven.
        originals: the sources.
        report: see `build`.
        wanted: the generations to make again; if nothing else decides, the first is tried first.

    Returns:
        A build for each wanted generation that there is a source of, in their order. A source of another generation is
        passed over, so that a repair which was killed can be run again as it was.

    Raises:
        SourceError: one cannot be read, or no generation was built from it, or none has a source that is wanted.
        ConfigError: the dataset was built with options that this version does not know.
    """

    manifest = known.manifest

    def order(pair: tuple[int, tuple[int, ...]]) -> tuple[bool, int]:
        place, group = pair
        url = public_url(originals[place].url)
        return set(group).isdisjoint(wanted), -url_similarity(manifest, group, url)

    rebuilds: list[Rebuild] = []
    matched: dict[int, tuple[int, ...]] = {}
    errors: dict[int, SourceError | ConfigError] = {}
    for place, group in sorted(itertools.product(range(len(originals)), _by_source(manifest, wanted)), key=order):
        needed = [number for number in group if number in wanted]
        if place in matched or group in matched.values() or not (needed or rebuilds):
            continue
        try:
            planned = [plan_generation(known, number, originals[place], report) for number in needed or group[:1]]
        except (SourceError, ConfigError) as error:
            errors.setdefault(place, error)
            continue
        matched[place] = group
        rebuilds += planned if needed else ()
    for place, original in enumerate(originals):
        if place not in matched:
            raise errors.get(place) or unused_source_error(known.storage, original)
    return tuple(sorted(rebuilds, key=lambda rebuild: rebuild.generation))


def unused_source_error(storage: Storage, original: Original) -> SourceError:
    """The error of a source that no generation is left for."""
    return SourceError(
        f"{public_url(original.url)} is a source too many: each generation of {storage.locate()} has another one; "
        "nothing was changed; leave it out"
    )


def _by_source(manifest: Manifest, wanted: Sequence[int]) -> list[tuple[int, ...]]:
    """All generations, those together that came from the same source; first the wanted ones."""
    groups: dict[str, tuple[int, ...]] = {}
    for number in dict.fromkeys((*wanted, *range(len(manifest.all_generations)))):
        fingerprint = manifest.all_generations[number].source["fingerprint"]
        groups[fingerprint] = (*groups.get(fingerprint, ()), number)
    return list(groups.values())


def url_similarity(manifest: Manifest, generations: Iterable[int], url: str) -> int:
    """How much a URL is like those that some generations came from."""
    return max(_common_parts(url, manifest.all_generations[number].source["url"]) for number in generations)


def _common_parts(url: str, other: str) -> int:
    """How many parts of their paths, from the end, two URLs share.

    >>> _common_parts("s3://new/2026/05.csv", "s3://old/2026/05.csv")
    2
    """
    pairs = zip(reversed(url.split("/")), reversed(other.split("/")), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def plan_generation(
    known: RecoveredDataset,
    number: int,
    original: Original,
    report: Report,
    earlier: EarlierShards | None = None,
) -> Rebuild:
    """A build that would write a generation again.

    Args:
        known: the dataset.
        number: of the generation.
        original: the source that may be its own.
        report: see `build`.
        earlier: the shards before it, if it `depends_on_earlier` on them.

    Raises:
        SourceError: the source cannot be read, or is another, as far as counts and columns tell.
        ConfigError: the dataset was built with options that this version does not know.
    """
    manifest, where = known.manifest, known.storage.locate()
    written = manifest.all_generations[number]
    recorded = BuildOptions.restored(written.options, original.url, where, original.folder)
    options = replace(
        recorded,
        source_kind=recorded.source_kind if original.kind is None else original.kind,
        shard_format=manifest.shard_format,
        compression=manifest.compression,
        seed=written.seed,
        workers=original.workers,
        memory_bytes=original.memory_bytes,
    )
    base = _before(known, number)
    source = open_build_source(options) if base is None else open_matching_source(manifest.schema, options)
    with open_plan(source, options, base, earlier, report=report) as plan:
        difference = _difference(plan, manifest, number)
    if difference:
        what = f"generation {number} of {where}" if manifest.generations else where
        remedy = f"name the source of then or a copy of it (it was {written.source['url']})"
        if earlier is not None and any(generation_of(entry.path) < number for entry in manifest.lost):
            remedy += (
                "; or, if it is that one, keep the records that are intact, without --source: it followed from records "
                "before it, and of those an earlier repair left some out"
            )
        raise SourceError(
            f"{public_url(original.url)} is not what {what} was built from: {difference}; nothing was changed; {remedy}"
        )
    names = (shard_names(plan.assignment, number, manifest.shard_format) for number in range(plan.assignment.shards))
    return Rebuild(
        manifest=manifest,
        generation=number,
        options=options,
        plan=plan,
        numbers={pair: shard for shard, pair in enumerate(names)},
    )


def _before(known: RecoveredDataset, number: int) -> Manifest | None:
    """What decided about a generation, of the dataset that it was appended to; None of the one that was built."""
    if number == 0:
        return None
    manifest = known.manifest
    earlier = manifest.all_generations[:number]
    classes = earlier[-1].classes
    written: list[ShardInfo | LostRecords] = [*known.shards, *manifest.lost]
    counts: dict[str, Int64] = {name: np.zeros(classes, np.int64) for of in earlier for name in of.records}
    for entry in written:
        if generation_of(entry.path) < number:
            counts[entry.split] += np.asarray(entry.class_counts)[:classes]
    return replace(
        manifest,
        classes=manifest.classes[:classes],
        splits={
            name: SplitInfo(records=int(of_split.sum()), shards=0, class_counts=ClassCounts(of_split))
            for name, of_split in counts.items()
        },
        layout=manifest.layout_of(number - 1),
        lost=(),
        generations=earlier,
    )


def source_flags(manifest: Manifest, generations: Iterable[int]) -> str:
    """The flags that name the sources of some generations."""
    urls = dict.fromkeys(manifest.all_generations[number].source["url"] for number in generations)
    return " ".join(f"--source {shlex.quote(url)}" for url in urls)


def check_rebuilt(rebuild: Rebuild, path: str, made_checksum: str, written_checksum: str) -> None:
    """Refuse a file that is not the one that was written.

    Raises:
        SourceError: it is another; the text says why that may be.
    """
    if made_checksum == written_checksum:
        return
    options, manifest = rebuild.options, rebuild.manifest
    maps = any(isinstance(step, MapBatches) for step in options.prepare.steps)
    why = f"it is another source, or was changed since{', or the function of --map was' if maps else ''}"
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
        return f"it has {counted(total, 'record')}, not {written:,}"
    for value in (*manifest.classes, *plan.classes):
        if here.get(value, 0) != then.get(value, 0):
            return f"it has {counted(here.get(value, 0), 'record')} of class {value!r}, not {then.get(value, 0):,}"
    return ""


def _generation_difference(plan: BuildPlan, manifest: Manifest, number: int) -> str:
    written = manifest.all_generations[number]
    here = {split.name: split.records for split in plan.assignment.splits}
    for name in (*written.records, *here):
        if here.get(name, 0) != written.records.get(name, 0):
            found = counted(here.get(name, 0), "record")
            return f"it has {found} for split {name!r}, not {written.records.get(name, 0):,}"
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
    of_all = manifest.written.values()
    return {value: sum(counts) for value, *counts in zip(manifest.classes, *of_all, strict=True)}

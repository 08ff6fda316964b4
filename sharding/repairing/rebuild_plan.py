"""Plans the rebuild of a generation: the build that would write its shards again from its source.

The source is opened as by the build or the append. Whether it is the original is decided by the checksums of the
rebuilt shards, so a copy with other file times will do. `rebuilder.py` carries the plans out, `source_matching.py`
finds out which source belongs to which generation.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ringfeed.sharding.building.append import open_matching_source
from ringfeed.sharding.building.assembling import shard_names
from ringfeed.sharding.building.build_plan import BuildPlan
from ringfeed.sharding.building.options import BuildOptions
from ringfeed.sharding.building.planning import open_build_source, open_plan
from ringfeed.sharding.common.argument_names import former_names
from ringfeed.sharding.compute.arrays import Int64
from ringfeed.sharding.compute.class_counts import ClassCounts
from ringfeed.sharding.dataset.dataset import EarlierShards
from ringfeed.sharding.dataset.file_names import generation_of
from ringfeed.sharding.dataset.manifest import LostRecords, Manifest, ShardInfo, SplitInfo
from ringfeed.sharding.dataset.recovery import RecoveredDataset
from ringfeed.sharding.errors import ConfigError, DatasetError, SourceError
from ringfeed.sharding.messages import counted
from ringfeed.sharding.prepare import MapBatches, check_trusted
from ringfeed.sharding.progress import Report
from ringfeed.sharding.schema import Schema
from ringfeed.sharding.sources import Source
from ringfeed.sharding.storage.urls import normalize_url_fields
from ringfeed.sharding.url_secrets import public_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The source of a generation, as available now.

    Attributes:
        url: URL or path of the source, or of a copy of it.
        source_kind: see `sources.open_source`; None: as in the build.
        workers: number of processes that read it.
        memory: memory of all workers together, in bytes; see `BuildOptions`.
        folder: where to look first for the modules of map functions.
        trust_code: import and call the `--map` functions that `dataset.json` names.
        images_from: see `PrepareOptions`.

    >>> from ringfeed.sharding import repair
    >>> from pathlib import Path
    >>> shard = sorted(Path("flights").glob("train-*.tfrecord"))[0]
    >>> _ = shard.write_bytes(bytes(100))
    >>> repair("flights", originals=[Original(url="flights.parquet")]).lost
    ()
    """

    url: str
    source_kind: str | None = None
    workers: int = 1
    memory: int | None = None
    folder: str = field(default_factory=os.getcwd)
    trust_code: bool = False
    images_from: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        normalize_url_fields(self, "url")


Original.__init__ = former_names(kind="source_kind", memory_bytes="memory")(  # type: ignore[method-assign]
    Original.__init__
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """A build that would write shards of a generation again, as far as counts and columns show."""

    manifest: Manifest
    generation: int  # number of the generation
    plan: BuildPlan
    # Numbers of the shards to rebuild, by the paths of data file and index; at first all of the generation
    numbers: Mapping[tuple[str, str], int]


def depends_on_earlier(manifest: Manifest, number: int, *, proven: bool = True) -> bool:
    """Whether a generation depends on the records before it, and not only on its source and options.

    Args:
        proven: whether there is a shard table. It tells how many records of each class each split had, on which the
            rounding of the next shares depends.
    """
    options = manifest.all_generations[number].options
    of_records = "group_by" in options or "dedup" in options.get("prepare", {})
    return number > 0 and (of_records or (not proven and len(options["splits"]) > 1))


def plan_generation(
    dataset: RecoveredDataset, number: int, original: Original, report: Report, earlier: EarlierShards | None = None
) -> Rebuild:
    """Plan the build that would write a generation again.

    Raises:
        SourceError: the source cannot be read, or is another one, as far as counts and columns show.
        ConfigError: the dataset was built with options unknown to this version.
        DatasetError: it names functions, and the source's `trust_code` is not set.
    """
    manifest, where = dataset.manifest, dataset.storage.locate()
    written = manifest.all_generations[number]
    with open_generation(dataset, number, original, report, earlier) as plan:
        difference = _difference(plan, manifest, number)
    if difference:
        what = f"generation {number} of {where}" if manifest.generations else where
        remedy = f"name the original source or a copy of it (it was {written.source['url']})"
        if earlier is not None and any(generation_of(entry.path) < number for entry in manifest.lost):
            remedy += (
                "; or, if it is that one, keep the intact records by repairing without --source: this generation "
                "depended on records before it, some of which an earlier repair left out"
            )
        raise SourceError(
            f"{public_url(original.url)} is not what {what} was built from: {difference}; nothing was changed; {remedy}"
        )
    return Rebuild(
        manifest=manifest,
        generation=number,
        plan=plan,
        numbers=shard_numbers(manifest, plan),
    )


@contextmanager
def open_generation(
    dataset: RecoveredDataset, number: int, original: Original, report: Report, earlier: EarlierShards | None = None
) -> Iterator[BuildPlan]:
    """Yield the plan of the build that wrote a generation, if the source is its own; see `open_plan`.

    Args: see `plan_generation`, which raises the same errors, and checks the source.
    """
    schema = dataset.manifest.schema
    options = _original_options(dataset.manifest, number, original, dataset.storage.locate())
    base = _before(dataset, number)
    source = _open_original(schema, options) if base is None else open_matching_source(schema, options)
    with open_plan(source, options, base, earlier, report=report) as plan:
        yield plan


def shard_numbers(manifest: Manifest, plan: BuildPlan) -> dict[tuple[str, str], int]:
    """The numbers of a plan's shards, by the paths of data file and index."""
    shards = range(plan.assignment.shards)
    return {shard_names(manifest.names, plan.assignment, n, manifest.shard_format): n for n in shards}


def _original_options(manifest: Manifest, number: int, original: Original, where: str) -> BuildOptions:
    """The options of the build that wrote a generation, for a source that may be its own."""
    written = manifest.all_generations[number]
    recorded = BuildOptions.restored(written.options, original.url, where, original.folder)
    if not original.trust_code:
        try:
            check_trusted(recorded.prepare.steps, where)
        except ConfigError as error:  # no other source would help
            raise DatasetError(str(error)) from error
    return replace(
        recorded,
        source_kind=recorded.source_kind if original.source_kind is None else original.source_kind,
        shard_format=manifest.shard_format,
        compression=manifest.compression,
        seed=written.seed,
        workers=original.workers,
        memory_bytes=original.memory,
        prepare=replace(recorded.prepare, images_from=original.images_from),
    )


def _open_original(schema: Schema, options: BuildOptions) -> Source:
    """Open the source of the first generation; a label of numbers stays one, whatever names it has by now."""
    label = schema.label
    types = {} if label is None or schema[label].dtype == "string" else {label: schema[label]}
    return open_build_source(options, types)


def _before(dataset: RecoveredDataset, number: int) -> Manifest | None:
    """Return the manifest, without shards, as it was when a generation was appended; None for the first generation."""
    if number == 0:
        return None
    manifest = dataset.manifest
    earlier = manifest.all_generations[:number]
    classes = earlier[-1].classes
    written: list[ShardInfo | LostRecords] = [*dataset.shards, *manifest.lost]
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
    """Return the flags that name the sources of some generations."""
    urls = dict.fromkeys(manifest.all_generations[number].source["url"] for number in generations)
    return " ".join(f"--source {shlex.quote(url)}" for url in urls)


def check_rebuilt(rebuild: Rebuild, path: str, made_checksum: str, written_checksum: str) -> None:
    """Refuse a rebuilt file that is not the one that was written, and say why that may be (a SourceError)."""
    if made_checksum == written_checksum:
        return
    options, manifest = rebuild.plan.options, rebuild.manifest
    maps = any(isinstance(step, MapBatches) for step in options.prepare.steps)
    why = f"it is another source, or was changed since{', or the function of --map was' if maps else ''}"
    written = manifest.all_generations[rebuild.generation]
    if rebuild.plan.fingerprint == written.plan:
        why = "it looks unchanged, so its files were changed in place, or other library versions encode it differently"
    raise SourceError(
        f"{path}, rebuilt from {public_url(options.source)}, differs from what was written: {why} (written by "
        f"{written.writer}; here is Arrow {pa.__version__}); nothing was changed; name the original source, or leave "
        "out --source to keep the intact records"
    )


def _difference(plan: BuildPlan, manifest: Manifest, number: int) -> str:
    """Say what shows that a source is another one; empty if nothing does yet."""
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
            records = counted(here.get(name, 0), "record")
            return f"it has {records} for split {name!r}, not {written.records.get(name, 0):,}"
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
    return "" if here == then else "its columns are in another order"


def _written_counts(manifest: Manifest) -> dict[Any, int]:
    """Return the records of each class as written, including those that repairs left out."""
    of_all = manifest.written.values()
    return {value: sum(counts) for value, *counts in zip(manifest.classes, *of_all, strict=True)}

"""The first round of a build: count the labels, and decide everything from the counts. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.assignment.census import Census, take_census
from ringfeed.sharding.assignment.existing_groups import read_existing_groups
from ringfeed.sharding.assignment.label_counts import LabelCounts, StratumCounts, ValueCounts, count_classes
from ringfeed.sharding.assignment.size_balance import deal_records
from ringfeed.sharding.assignment.split_by_column import RecordSplits, open_census, split_by_column
from ringfeed.sharding.compute.batches import BATCH_BYTES
from ringfeed.sharding.compute.class_counts import ClassCounts
from ringfeed.sharding.dataset.dataset import EarlierShards
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.destination.dataset_draft import check_disjoint, check_spill_outside
from ringfeed.sharding.destination.spill import side_folder, spill_root
from ringfeed.sharding.engines.executors import Job, stream_tasks
from ringfeed.sharding.engines.memory import RecordBytes
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.formats import ShardEncoding, encode_shard
from ringfeed.sharding.formats.parquet_types import stored_schema
from ringfeed.sharding.prepare import open_with_carried_column
from ringfeed.sharding.prepare.class_label import class_order
from ringfeed.sharding.prepare.screening.bad_records import open_policy, without_bad_records
from ringfeed.sharding.prepare.screening.duplicates import drop_duplicates, existing_records
from ringfeed.sharding.prepare.screening.image_checks import check_images
from ringfeed.sharding.progress import Report, StageProgress, ignore
from ringfeed.sharding.schema import Feature, class_array
from ringfeed.sharding.sources import Source, select_part
from ringfeed.sharding.sources.base import NO_FEATURES, BadRecord
from ringfeed.sharding.sources.dropping_source import DroppingSource
from ringfeed.sharding.sources.records.in_memory import is_in_memory
from ringfeed.sharding.sources.split_files import SplitPart
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.url_secrets import public_url

from .build_context import BuildContext, build_engine
from .build_plan import BuildPlan
from .options import BuildOptions
from .rare_classes import find_rare_classes, merged_label, with_class_step
from .shard_plan import check_label, plan_assignment, plan_split_counts, sort_classes
from .survey import warn_of_twins

_SAMPLE_RECORDS = 256


@contextmanager
def open_plan(
    source: Source,
    options: BuildOptions,
    base: Manifest | None = None,
    earlier: EarlierShards | None = None,
    *,
    executor: Executor | None = None,
    report: Report = ignore,
) -> Iterator[BuildPlan]:
    """Plan a build from a source, or an append to a dataset; the files of the census last until the body ends.

    Args:
        base: manifest of the dataset that is appended to, or None.
        earlier: shards of that dataset, or None if none of them is read.
    """
    root = spill_root(options.spill, options.destination)
    with (
        build_engine(options) if executor is None else nullcontext(executor) as pool,
        side_folder(root) if options.needs_census else nullcontext() as scratch,
    ):
        context = BuildContext(options=options, pool=pool, report=report, base=base, earlier=earlier)
        yield make_plan(source, context, root, scratch)


def open_build_source(options: BuildOptions, types: Mapping[str, Feature] = NO_FEATURES) -> Source:
    """Open and prepare the source that the options name.

    Args:
        types: types expected of the prepared columns; see `open_prepared`.

    Raises:
        SourceError: the source cannot be read, or its label makes no classes.
        ConfigError: the options do not fit the source, such as the name of a merged class its labels.
        DestinationError: source and destination overlap, or the spill folder lies in the destination.
    """
    in_memory = is_in_memory(options.source)
    if not in_memory:
        check_disjoint(options.source, options.destination)
    check_spill_outside(options.spill, options.destination)
    reject = open_policy(options.bad_records)
    source = open_with_carried_column(
        options.source,
        options.label,
        options.source_kind,
        options.prepare,
        options.deciding_column,
        reject,
        types,
        options.split_files,
    )
    if not in_memory:
        check_disjoint(source.url, options.destination)  # the folder itself, where the options name a split in it
    check_label(source.schema)
    if options.rare_classes != "error":
        merged_label(options, source.schema)
    return source


def make_plan(source: Source, context: BuildContext, root: Storage, scratch: Storage | None) -> BuildPlan:
    """Plan a build, or an append.

    Args:
        source: prepared source. Rare classes are dropped or merged as the options say, and the plan has the options
            that name them.
        scratch: folder for the census, which must outlive the plan; None if no census is needed.
    """
    _check_fixed_bytes(source, context)
    prepared = source
    source, rejected = _screen(prepared, context, root)
    census = None if scratch is None else _open_census(source, context.options, scratch)
    counted = _count_parts(source, census, context)
    if (step := find_rare_classes(counted.totals, source.schema, context)) is not None:
        context = context.with_rare_classes(step)
        if census is not None or source is not prepared:  # where records are, and which are duplicates, depends on it
            return make_plan(with_class_step(prepared, step), context, root, scratch)
        source, counted = with_class_step(source, step), counted.after(step, step.label)
    options, base = context.options, context.base
    if rejected and not counted.totals.records:
        name = options.prepare.described(options.source)
        raise SourceError(f"{name} holds only bad records, {len(rejected):,} of them; the first is {rejected[0]}")
    values = _classes(counted.totals, source, context)
    classes = (None,) if source.schema.label is None else tuple(values.to_pylist())
    record = _estimate_record_bytes(source, census, options)
    if names := list(options.split_files):
        presplit, splits = True, _split_by_part(counted.by_part(values), source, len(classes), names)
    elif census is None or census.column is None:
        presplit, splits = False, _split_by_class(counted.by_part(values), classes, context)
    else:
        presplit, splits = True, _split_by_column(census, len(source.parts), values, context)
    generation = 0 if base is None else len(base.all_generations)
    assignment = plan_assignment(options, splits.class_counts, record.stored, presplit=presplit, generation=generation)
    dealt = None
    if census is not None and census.with_sizes:
        dealt = deal_records(census, values, assignment, splits.counts)
    return BuildPlan(
        options=options,
        source=source,
        classes=classes,
        counts=splits.counts,
        assignment=assignment,
        record=record,
        census=census,
        groups={} if options.group_by is None else splits.values,
        dealt=dealt,
        digest=splits.digest + _dropped_digest(source),
        rejected=tuple(rejected),
        base=base,
    )


def _check_fixed_bytes(source: Source, context: BuildContext) -> None:
    """Refuse records that cannot fit into memory, by the shapes of their columns, before one is read."""
    sizes = {feature.name: feature.fixed_bytes for feature in source.schema.features}
    if sum(sizes.values()) < BATCH_BYTES:  # less than reading takes
        return
    largest = max(sizes, key=lambda name: sizes[name])
    what = f"a record of {public_url(source.url)}, with {sizes[largest] >> 20:,} MiB in the column {largest!r},"
    context.memory.check_record(sum(sizes.values()), what)


def _screen(source: Source, context: BuildContext, root: Storage) -> tuple[Source, list[BadRecord]]:
    """The source without bad records and duplicates, as far as the options ask for it; and the bad records."""
    options, base, earlier = context.options, context.base, context.earlier
    rejected: list[BadRecord] = []
    if options.bad_records is not None:
        source, rejected = without_bad_records(
            source, options.bad_records, options.prepare.images, context.pool, context.task_limit
        )
    if options.prepare.dedup is not None:
        source = drop_duplicates(
            source,
            options.prepare.dedup,
            context.pool,
            root,
            context.report,
            existing=None if earlier is None or earlier.same_source else existing_records(earlier),
            earlier_fingerprints=[] if base is None else [g.source["fingerprint"] for g in base.all_generations],
        )
    return source, rejected


def _dropped_digest(source: Source) -> str:
    """A digest of the records that are dropped because the dataset holds them already; empty if none are."""
    return source.dropped_digest if isinstance(source, DroppingSource) and source.fingerprint_override else ""


def _open_census(source: Source, options: BuildOptions, folder: Storage) -> Census:
    flags = {"--split-column": options.split_column, "--group-by": options.group_by}
    flag = next((flag for flag, column in flags.items() if column), "--split-by-time")
    return open_census(source, options.deciding_column, flag, with_sizes=options.balance == "bytes", folder=folder)


def _count_parts(source: Source, census: Census | None, context: BuildContext) -> LabelCounts:
    """Count the records of each class in each part; takes the census, if there is one."""
    progress = StageProgress(context.report, "count", len(source.parts))
    counted = LabelCounts(source.schema, len(source.parts))
    jobs: Iterator[Job[ValueCounts]] = (
        (count_classes, (select_part(source, n), part))
        if census is None
        else (take_census, (select_part(source, n), part, n, census))
        for n, part in enumerate(source.parts)
    )
    with stream_tasks(context.pool, jobs, context.task_limit) as ended:
        for number, counts in ended:
            counted.add(number, counts)
            progress(1, counts.records)
    return counted


def _classes(tally: ValueCounts, source: Source, context: BuildContext) -> pa.Array:
    """All classes: those of the dataset that is appended to, then the new ones in the source's order, else sorted."""
    options, schema = context.options, source.schema
    known = class_array(schema, () if context.base is None else context.base.classes)
    is_new = pc.is_null(pc.index_in(tally.values, value_set=known)).to_numpy(zero_copy_only=False)
    if tally.records and not is_new.any():
        return known
    new = ValueCounts(values=tally.values.filter(pa.array(is_new)), counts=tally.counts[is_new])
    name, labelled = options.prepare.described(options.source), schema.label is not None
    order = (schema[schema.label].categories if schema.label is not None else ()) or class_order(source)
    classes = sort_classes(new, name, options.min_class_records, labelled=labelled, order=order)
    if pa.types.is_string(classes.type):
        odd = classes.filter(pc.invert(pc.string_is_ascii(classes)))
        warn_of_twins("class", [*known.to_pylist(), *odd.to_pylist()] if len(odd) else [], "rename one of each pair")
    return pa.concat_arrays([known, classes])


def _split_by_class(parts: tuple[StratumCounts, ...], classes: Sequence[Any], context: BuildContext) -> RecordSplits:
    """Split each class by the shares of the options."""
    totals = np.zeros(len(classes), np.int64)
    for part in parts:
        totals[part.strata] += part.counts
    existing = {} if context.base is None else context.base.written
    per_split = plan_split_counts(classes, totals.tolist(), context.options.splits, existing_counts=existing)
    return RecordSplits(class_counts=per_split, counts=parts)


def _split_by_part(
    parts: tuple[StratumCounts, ...], source: Source, classes: int, names: Sequence[str]
) -> RecordSplits:
    """Put the records of each part in the split whose file it is of."""
    numbers = [part.split for part in source.parts if isinstance(part, SplitPart)]
    totals = np.zeros((len(names), classes), np.int64)
    for number, part in zip(numbers, parts, strict=True):
        totals[number, part.strata] += part.counts
    firsts = (np.cumsum(totals.any(axis=1)) - 1) * classes  # a split without records gets no shard
    return RecordSplits(
        class_counts={name: ClassCounts(row) for name, row in zip(names, totals, strict=True)},
        counts=tuple(
            replace(part, strata=part.strata + firsts[number]) for number, part in zip(numbers, parts, strict=True)
        ),
    )


def _split_by_column(census: Census, parts: int, classes: pa.Array, context: BuildContext) -> RecordSplits:
    """Split the records by the column of the census, groups as they are split in the dataset that is appended to."""
    options, base = context.options, context.base
    if options.split_by_time is not None:
        return split_by_column(census, parts, classes, seed=options.seed, group_shares=options.splits, in_order=True)
    if options.group_by is None:
        return split_by_column(census, parts, classes, seed=options.seed)
    existing = None
    if base is not None:
        assert context.earlier is not None
        existing = read_existing_groups(context.earlier, base, options.group_by, list(options.splits), context.pool)
    return split_by_column(
        census, parts, classes, seed=options.seed, group_shares=options.splits, existing_groups=existing
    )


def _estimate_record_bytes(source: Source, census: Census | None, options: BuildOptions) -> RecordBytes:
    """Mean sizes of a record: of a sample, scaled to all records if the census has their sizes."""
    record = _sample_record_bytes(source, options)
    if census is None or not census.with_sizes:
        return record
    every, first = np.zeros(2), np.zeros(2)  # bytes and records, of all records and of the sample
    for number in range(len(source.parts)):
        sizes = census.record_sizes(number)
        every += sizes.sum(), len(sizes)
        if number in _sampled(len(source.parts)):
            head = sizes[:_SAMPLE_RECORDS]
            first += head.sum(), len(head)
    ratio = float(every[0] * first[1] / max(every[1] * first[0], 1)) or 1.0
    draft = record.draft * max(ratio, 1.0)  # drafts may lack exactly what makes the first records larger
    return RecordBytes(stored=record.stored * ratio, draft=draft, whole=record.whole * ratio)


def _sample_record_bytes(source: Source, options: BuildOptions) -> RecordBytes:
    """Mean sizes of the first records of a few parts spread over the source."""
    encoding = ShardEncoding(
        schema=source.schema,
        stored=stored_schema(source.schema),
        shard_format=options.shard_format,
        compression=options.codec,
    )
    stored = draft = whole = records = 0
    for number in _sampled(len(source.parts)):
        part = source.parts[number]
        batch = source.sample(part, _SAMPLE_RECORDS)
        if not batch.num_rows:
            continue
        check_images(source, part, batch, 0)
        complete = source.complete(batch)
        data, _ = encode_shard(complete, np.zeros(batch.num_rows, np.int32), encoding)
        stored += data.size
        draft += batch.nbytes
        whole += complete.nbytes
        records += batch.num_rows
    records = max(records, 1)
    return RecordBytes(stored=stored / records, draft=draft / records, whole=whole / records)


def _sampled(parts: int) -> range:
    """The numbers of the parts that are sampled."""
    return range(0, parts, max(1, parts // 4))

"""The first round of a build: labels are counted, and from their counts all is decided. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..assignment.census import Census, take_census
from ..assignment.existing_groups import read_existing_groups
from ..assignment.label_counts import LabelCounts, StratumCounts, ValueCounts, count_classes
from ..assignment.size_balance import deal_records
from ..assignment.split_by_column import ColumnSplits, open_census, split_by_column
from ..dataset.earlier_shards import EarlierShards
from ..dataset.manifest import Manifest
from ..destination.dataset_draft import check_disjoint, check_spill_outside
from ..destination.spill import side_folder, spill_root
from ..engines.executors import Job, stream_tasks
from ..engines.memory import RecordBytes
from ..errors import SourceError
from ..formats import encode_shard
from ..prepare import open_with_carried_column
from ..prepare.screening.bad_records import open_policy, without_bad_records
from ..prepare.screening.duplicates import drop_duplicates, existing_records
from ..prepare.screening.image_checks import check_images
from ..progress import Progress, Report, Teller, ignore
from ..schema import Feature, Schema, class_array
from ..sources import Source, select_part
from ..sources.base import NO_FEATURES, BadRecord
from ..sources.dropping_source import DroppingSource
from ..storage.storage import Storage
from .build_plan import BuildPlan
from .capacity import build_engine, task_limit
from .options import BuildOptions
from .shard_plan import check_label, plan_assignment, plan_split_counts, sort_classes

__all__ = ["make_plan", "open_build_source", "open_plan", "plan_build", "plan_source"]

_SAMPLE_RECORDS = 256


def plan_build(options: BuildOptions, *, executor: Executor | None = None, report: Report = ignore) -> BuildPlan:
    """Read the labels and decide everything; writes nothing.

    Raises:
        SourceError: the source cannot be read, or its classes cannot be balanced and split as asked.
        ConfigError: the options do not fit the data.
    """
    return plan_source(open_build_source(options), options, executor=executor, report=report)


def plan_source(
    source: Source,
    options: BuildOptions,
    base: Manifest | None = None,
    earlier: EarlierShards | None = None,
    *,
    executor: Executor | None = None,
    report: Report = ignore,
) -> BuildPlan:
    """`plan_build` of a source that was opened, or of an append to a dataset."""
    with open_plan(source, options, base, earlier, executor=executor, report=report) as plan:
        return plan


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
    """`plan_source`, with the files of its census until the body ends."""
    root = spill_root(options.spill, options.destination)
    with (
        build_engine(options) if executor is None else nullcontext(executor) as pool,
        side_folder(root) if options.needs_census else nullcontext() as scratch,
    ):
        yield make_plan(source, options, base, earlier, root, scratch, pool, report)


def open_build_source(options: BuildOptions, types: Mapping[str, Feature] = NO_FEATURES) -> Source:
    """The source that the options name, prepared.

    Args:
        options: of the build.
        types: that the columns are to have in the end; see `open_prepared`.

    Raises:
        SourceError: it cannot be read, or its label makes no classes.
        ConfigError: the options do not fit it.
        DestinationError: source and destination lie in each other, or what is spilled would in the destination.
    """
    check_disjoint(options.source, options.destination)
    check_spill_outside(options.spill, options.destination)
    reject = open_policy(options.bad_records)
    source = open_with_carried_column(
        options.source, options.label, options.source_kind, options.prepare, options.deciding_column, reject, types
    )
    check_disjoint(source.url, options.destination)  # the folder alone, where the options name a split in it
    check_label(source.schema)
    return source


def make_plan(
    source: Source,
    options: BuildOptions,
    base: Manifest | None,
    earlier: EarlierShards | None,
    root: Storage,
    scratch: Storage | None,
    pool: Executor,
    report: Report,
) -> BuildPlan:
    """`plan_source` on an executor that is there.

    Args:
        source: opened.
        options: of the build.
        base: the dataset that is appended to, or None.
        earlier: its shards. Or None, where nothing is read of them.
        root: of the spill.
        scratch: the folder for the census, if one is needed; it has to stay as long as the plan.
        pool: where to run tasks.
        report: called after every task.
    """
    rejected: list[BadRecord] = []
    if options.bad_records is not None:
        source, rejected = without_bad_records(
            source, options.bad_records, options.prepare.images, pool, task_limit(pool, options)
        )
    if options.prepare.dedup is not None:
        source = drop_duplicates(
            source,
            options.prepare.dedup,
            pool,
            root,
            lambda done, total, records: report(Progress(stage="dedup", done=done, total=total, records=records)),
            None if earlier is None or earlier.same_source else existing_records(earlier),
            [] if base is None else [generation.source["fingerprint"] for generation in base.all_generations],
        )
    census: Census | None = None
    if scratch is not None:
        flag, sizes = "--group-by" if options.split_column is None else "--split-column", options.balance == "bytes"
        census = open_census(source, options.deciding_column, flag, sizes=sizes, folder=scratch)
    counted = _count_parts(source, census, options, pool, report)
    if rejected and not counted.totals.records:
        name = options.prepare.described(options.source)
        raise SourceError(f"{name} holds no records but bad ones, of which there are {len(rejected):,}: {rejected[0]}")
    values = _classes(counted.totals, source.schema, options, base)
    classes = (None,) if source.schema.label is None else tuple(values.to_pylist())
    record = _sample_record_bytes(source, options)
    if census is not None and census.sizes:
        record = _weighed(record, census, len(source.parts))
    division: ColumnSplits | None = None
    per_split: Mapping[str, Sequence[int]]
    strata: tuple[StratumCounts, ...]
    if census is None or census.by is None:
        strata = counted.by_part(values)
        per_split = plan_split_counts(
            classes,
            _in_all(strata, len(values)),
            options.splits,
            existing_counts={} if base is None else base.written,
        )
    else:
        existing = None
        if base is not None and options.group_by is not None:
            assert earlier is not None
            existing = read_existing_groups(earlier, base, options.group_by, list(options.splits), pool)
        shares = None if options.group_by is None else options.splits
        division = split_by_column(
            census, len(source.parts), values, seed=options.seed, group_shares=shares, existing_groups=existing
        )
        strata, per_split = division.counts, division.class_counts
    generation = 0 if base is None else len(base.all_generations)
    assignment = plan_assignment(
        options, per_split, record.stored, presplit=division is not None, generation=generation
    )
    dealt = None
    if census is not None and census.sizes:
        dealt = deal_records(census, values, assignment, strata)
    return BuildPlan(
        source=source,
        classes=classes,
        counts=strata,
        assignment=assignment,
        record=record,
        census=census,
        groups=division.values if division is not None and options.group_by is not None else {},
        dealt=dealt,
        digest=("" if division is None else division.digest) + _dropped_there(source),
        rejected=tuple(rejected),
        base=base,
    )


def _count_parts(
    source: Source, census: Census | None, options: BuildOptions, pool: Executor, report: Report
) -> LabelCounts:
    """Records of each class in each part, and the notes of the census, if one is taken."""
    tell = Teller(report, "count", len(source.parts))
    counted = LabelCounts(source.schema, len(source.parts))
    jobs: Iterator[Job[ValueCounts]] = (
        (count_classes, (select_part(source, n), part))
        if census is None
        else (take_census, (select_part(source, n), part, n, census))
        for n, part in enumerate(source.parts)
    )
    with stream_tasks(pool, jobs, task_limit(pool, options)) as ended:
        for number, tally in ended:
            counted.add(number, tally)
            tell(1, tally.records)
    return counted


def _classes(found: ValueCounts, schema: Schema, options: BuildOptions, base: Manifest | None) -> pa.Array:
    """All classes: those of the dataset that is appended to, then the others, sorted."""
    known = class_array(schema, () if base is None else base.classes)
    fresh = pc.is_null(pc.index_in(found.values, value_set=known)).to_numpy(zero_copy_only=False)
    if found.records and not fresh.any():
        return known
    new = ValueCounts(values=found.values.filter(pa.array(fresh)), counts=found.counts[fresh])
    name, labelled = options.prepare.described(options.source), schema.label is not None
    return pa.concat_arrays([known, sort_classes(new, name, options.min_class_records, labelled=labelled)])


def _dropped_there(source: Source) -> str:
    """A digest of the records that are passed over since the dataset has them already; empty if none are."""
    return source.dropped_digest if isinstance(source, DroppingSource) and source.fingerprint_override else ""


def _in_all(parts: Sequence[StratumCounts], strata: int) -> list[int]:
    """Records of each stratum in all parts."""
    totals = np.zeros(strata, np.int64)
    for part in parts:
        totals[part.strata] += part.counts
    return totals.tolist()


def _sample_record_bytes(source: Source, options: BuildOptions) -> RecordBytes:
    """Mean sizes of the first records of a few parts spread over the source."""
    stored = draft = whole = records = 0
    for number in _sampled(len(source.parts)):
        part = source.parts[number]
        batch = source.sample(part, _SAMPLE_RECORDS)
        if not batch.num_rows:
            continue
        check_images(source, part, batch, 0)
        complete = source.complete(batch)
        data, _ = encode_shard(
            complete,
            source.schema,
            np.zeros(batch.num_rows, np.int32),
            shard_format=options.shard_format,
            compression=options.codec,
            layout=None,
        )
        stored += data.size
        draft += batch.nbytes
        whole += complete.nbytes
        records += batch.num_rows
    records = max(records, 1)
    return RecordBytes(stored=stored / records, draft=draft / records, whole=whole / records)


def _sampled(parts: int) -> range:
    """The numbers of a few parts."""
    return range(0, parts, max(1, parts // 4))


def _weighed(record: RecordBytes, census: Census, parts: int) -> RecordBytes:
    """Mean sizes of all records, by those of a sample: the first ones may be the short ones."""
    every, first = np.zeros(2), np.zeros(2)  # bytes and records
    for number in range(parts):
        sizes = census.record_sizes(number)
        every += sizes.sum(), len(sizes)
        if number in _sampled(parts):
            head = sizes[:_SAMPLE_RECORDS]
            first += head.sum(), len(head)
    ratio = float(every[0] * first[1] / max(every[1] * first[0], 1)) or 1.0
    draft = record.draft * max(ratio, 1.0)  # which may lack just what makes the first ones larger
    return RecordBytes(stored=record.stored * ratio, draft=draft, whole=record.whole * ratio)

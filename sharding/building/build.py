"""Build a dataset: three rounds of tasks over the source, then one atomic commit. A killed build resumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from ringfeed.sharding.common.argument_names import options_of
from ringfeed.sharding.dataset.dataset import EarlierShards, open_dataset
from ringfeed.sharding.dataset.manifest import Manifest, ShardInfo, file_info
from ringfeed.sharding.dataset.shard_table import seal
from ringfeed.sharding.dataset.tfds_files import tfds_files
from ringfeed.sharding.destination.dataset_draft import (
    DatasetDraft,
    Purpose,
    check_destination,
    draft_dataset,
    is_whole,
)
from ringfeed.sharding.destination.provenance import digest_of
from ringfeed.sharding.destination.spill import (
    open_scratch,
    open_spill,
    remove_abandoned_spill,
    remove_spill,
    remove_spill_on_error,
    spill_lease_entry,
    spill_root,
)
from ringfeed.sharding.engines.executors import preload_workers
from ringfeed.sharding.errors import DestinationError, RepeatedError, RingfeedError
from ringfeed.sharding.formats import ShardEncoding
from ringfeed.sharding.formats.parquet_types import declares_meanings
from ringfeed.sharding.prepare.screening.bad_records import encode_rejected
from ringfeed.sharding.progress import Report, ignore
from ringfeed.sharding.sources import Source
from ringfeed.sharding.sources.base import LateSource, RecutSource, unwrap
from ringfeed.sharding.sources.files.find import check_unchanged
from ringfeed.sharding.sources.files.snapshot import Listing, record_listings
from ringfeed.sharding.sources.records.in_memory import is_in_memory
from ringfeed.sharding.storage.fenced_storage import fence_for_workers
from ringfeed.sharding.storage.lease import LEASE_NAME
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.url_secrets import public_url

from .build_context import BuildContext, build_engine
from .build_plan import BuildPlan, program_version
from .memory_sources import spilled_source
from .merge_generation import merge_generation
from .options import BuildOptions
from .planning import make_plan, open_build_source, open_plan
from .shard_writer import ShardTarget
from .stages import BuildTotals, WriteStages, common_layout, plan_buckets
from .survey import survey, warn_of_rotated_images


def plan_build(
    options: BuildOptions | None = None, *, executor: Executor | None = None, report: Report = ignore, **given: Any
) -> BuildPlan:
    """Read the labels and plan a build; writes nothing.

    Args:
        options, executor, report, given: see `build`.

    Raises:
        SourceError: the source cannot be read, or its classes cannot be balanced and split as asked.
        ConfigError: the options do not fit the data.

    >>> plan_build(source="flights.parquet", destination="shards", label="arrival", shards=4).classes
    ('late', 'on time')
    """
    with spilled_source(options_of(BuildOptions, options, given)) as options:
        source = open_build_source(options)
        survey(source, options)
        with open_plan(source, options, executor=executor, report=report) as plan:
            return plan


def build(
    options: BuildOptions | None = None, *, executor: Executor | None = None, report: Report = ignore, **given: Any
) -> Manifest:
    """Write a source as balanced shards.

    Resumes a build that was killed, interrupted, or cut off from its store: keeps the shards that it finished, and
    writes the same bytes.

    Args:
        options: options of the build.
        executor: executor of the tasks; by default, the engine of the options.
        report: called after every task.
        given: options by the names of the flags of `shard-dataset build`, in place of `options` or of their values:
            ``build(source=frame, destination="shards", label="late", format="parquet")``. ``split`` is a mapping, as
            `BuildOptions.splits`; ``shard_size`` and ``memory`` are in bytes.

    Returns:
        The manifest of the new dataset.

    Raises:
        RingfeedError: the source, the options or the destination is at fault. Nothing is left behind, unless another
            attempt may succeed (`RingfeedError.may_pass`). A dataset to be replaced is untouched, unless the final
            replacement itself fails. It is a `RepeatedError` where the same build is there already.

    >>> manifest = build(source="flights.parquet", destination="shards", label="arrival", shards=4)
    >>> manifest.records, manifest.classes
    (400, ('late', 'on time'))
    """
    options = options_of(BuildOptions, options, given)
    if is_in_memory(options.source):  # checked before the records are read, perhaps for hours
        check_destination(Storage(options.destination), "replace" if options.overwrite else "new")
    with spilled_source(options) as options:
        return build_at(Storage(options.destination), options, executor, report)


def build_at(destination: Storage, options: BuildOptions, executor: Executor | None, report: Report) -> Manifest:
    """Write a source whose records are in files; see `build`.

    Args:
        executor: executor of the tasks; None: the engine of the options.
    """
    if executor is None and options.engine == "local" and options.workers > 1:
        preload_workers(str(options.source), options.destination, workers=options.workers)
    with record_listings() as listings:
        source = open_build_source(options)
    survey(source, options)
    purpose: Purpose = "replace" if options.overwrite else "new"
    try:
        with (
            draft_dataset(destination, purpose, describe_build(options.source, options.spill)) as draft,
            planned_dataset(source, listings, options, draft, executor=executor, report=report) as planned,
        ):
            return draft.find_committed(planned.plan.fingerprint) or planned.write()
    except DestinationError:
        if purpose == "new" and _is_built(destination, source, options, executor, report):
            raise RepeatedError(
                f"{destination.locate()} already holds a dataset, which this build wrote and which is complete; to "
                "write it anew, add --overwrite"
            ) from None
        raise


def _is_built(
    destination: Storage, source: Source, options: BuildOptions, executor: Executor | None, report: Report
) -> bool:
    """Whether a build of the same plan has ended at a destination, and its dataset is as it left it."""
    with suppress(RingfeedError):  # what was in the way is the error then
        if destination.exists(LEASE_NAME):
            return False
        dataset = open_dataset(destination)
        manifest = dataset.manifest
        may_be_same = options.rare_classes != "error" or digest_of(manifest.options) == digest_of(options.recorded())
        if may_be_same and not manifest.generations and is_whole(dataset):
            with open_plan(source, options, executor=executor, report=report) as plan:
                return plan.fingerprint == manifest.plan
    return False


def describe_build(source: object, spill: str | None, task: str = "build") -> dict[str, str]:
    """What a running build, or another `task`, records in its lease, for whoever finds it."""
    return {"task": task, "source": public_url(str(source)), "writer": program_version(), **spill_lease_entry(spill)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDataset:
    """A dataset, or a generation of one, that is planned and not yet written."""

    plan: BuildPlan
    context: BuildContext  # what all rounds share
    listings: Mapping[str, Listing]  # the source's files as they were when it was opened
    draft: DatasetDraft  # draft to write to
    root: Storage  # root of the spill folders
    workers: ExitStack  # the engine, which is closed before the commit

    def write(self) -> Manifest:
        """Write the shards and commit them; returns the manifest."""
        with self.draft.checking_lease():
            written, infos = _write_shards(self.plan, self.context, self.listings, self.draft, self.root)
        self.workers.close()  # frees their memory, which the commit needs where there are very many classes
        manifest = _commit(self.plan, self.draft, written, infos)
        warn_of_rotated_images(manifest)
        return manifest


@contextmanager
def planned_dataset(
    source: Source,
    listings: Mapping[str, Listing],
    options: BuildOptions,
    draft: DatasetDraft,
    *,
    executor: Executor | None = None,
    report: Report = ignore,
) -> Iterator[PlannedDataset]:
    """Plan what a source will be in a draft: a dataset, or a generation of the dataset appended to.

    Spill files last until the body ends; after an error that a resumed build may recover from, longer.

    Args:
        options: options of the build; for an append, those that the dataset decides are already set.
    """
    root = spill_root(options.spill, options.destination)
    remove_abandoned_spill(draft.lease.previous, options.destination, root)
    absent = root.absent_folders()
    with ExitStack() as workers:
        pool = workers.enter_context(build_engine(options, options.destination)) if executor is None else executor
        context = BuildContext(
            options=options,
            pool=pool,
            report=report,
            base=None if draft.base is None else draft.base.manifest,
            earlier=None if draft.base is None else EarlierShards.of(draft.base),
        )
        try:
            scratch = open_scratch(root) if options.needs_census else None
            plan = make_plan(source, context, root, scratch)
            context = replace(context, options=plan.options)
            yield PlannedDataset(plan=plan, context=context, listings=listings, draft=draft, root=root, workers=workers)
        except BaseException as error:
            draft.recount()
            if not (draft.finished and draft.may_resume(error)):
                remove_spill_on_error(error, root, absent)
            elif isinstance(error, (RingfeedError, KeyboardInterrupt)):
                raise type(error)(f"{error}; {draft.resume_hint}".removeprefix("; ")) from error
            raise
        remove_spill(root, absent)


def _write_shards(
    plan: BuildPlan, context: BuildContext, listings: Mapping[str, Listing], draft: DatasetDraft, root: Storage
) -> tuple[Manifest, list[ShardInfo]]:
    """Run the second and the third round; the manifest describes the new shards alone."""
    options, fingerprint = plan.options, plan.fingerprint
    finished = draft.resume(fingerprint)
    draft.total = plan.assignment.shards
    bucketing = plan_buckets(plan, context)  # refuses what exceeds the memory before anything is spilled
    scratch = None if plan.census is None else plan.census.folder
    base = unwrap(plan.source)
    cuts = base.cuts if isinstance(base, RecutSource) else ""
    spill = open_spill(root, f"{fingerprint}-{bucketing.shards_per_bucket}{cuts}", scratch)
    stages = WriteStages(plan=plan, context=context, bucketing=bucketing, finished=finished, spill=spill)
    parts = stages.partition()
    if not isinstance(base, LateSource):  # whose files `assemble` is yet to read
        check_unchanged(listings.values())
    draft.begin(finished)
    target = ShardTarget(
        storage=fence_for_workers(draft.storage, draft.destination, draft.lease),
        plan=fingerprint,
        encoding=ShardEncoding(
            schema=plan.source.schema,
            shard_format=options.shard_format,
            compression=options.codec,
            layout=common_layout(plan, parts),
            stored=plan.stored_schema,
        ),
        block_rows=plan.block_rows,
        names=plan.names,
        dali_index=options.dali_index,
    )
    totals = BuildTotals(plan.assignment)
    totals.add(finished.values())
    with closing(stages.assemble(target, parts)) as written:
        for results in written:
            draft.lease.check_known()
            draft.finished += len(results)
            totals.add(results)
    infos = totals.infos()
    return _describe(plan, target, totals), infos


def _describe(plan: BuildPlan, target: ShardTarget, totals: BuildTotals) -> Manifest:
    """The manifest of the shards that were written."""
    options = plan.options
    return Manifest(
        shard_format=options.shard_format,
        compression=options.codec,
        schema=plan.source.schema,
        classes=plan.classes,
        splits=totals.splits(),
        layout=target.encoding.layout,
        seed=options.seed,
        source={"url": public_url(str(options.source)), "fingerprint": plan.source.fingerprint},
        options=options.recorded(),
        writer=program_version(),
        plan=target.plan,
        files=totals.files(),
        shards_path=target.names.table(0),
        declares_meanings=options.shard_format == "parquet" and declares_meanings(plan.source.schema),
    )


def _commit(plan: BuildPlan, draft: DatasetDraft, written: Manifest, infos: list[ShardInfo]) -> Manifest:
    """Commit the new shards, merged with the dataset that is appended to; returns the sealed manifest."""
    if draft.base is not None:
        written, infos = merge_generation(draft.base, written, infos)
    companions = tfds_files(written, infos)
    if plan.rejected:
        companions[plan.names.rejected(plan.assignment.generation)] = encode_rejected(plan.rejected)
    draft.write_companions(companions)
    files = dict(written.files) | {path: file_info(data) for path, data in companions.items()}
    manifest, table = seal(replace(written, files=files), infos)
    draft.commit(manifest, table)
    return manifest

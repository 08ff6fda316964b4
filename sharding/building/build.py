"""Build a dataset: three rounds of tasks over the source, then one atomic commit. What was killed is gone on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from dataclasses import replace

from ..dataset.earlier_shards import EarlierShards
from ..dataset.file_names import rejected_name
from ..dataset.manifest import Manifest, ShardInfo, file_info
from ..dataset.shard_table import seal
from ..dataset.tfds_files import tfds_files
from ..destination.dataset_draft import DatasetDraft, Purpose, draft_dataset
from ..destination.spill import (
    open_scratch,
    open_spill,
    remove_abandoned_spill,
    remove_spill,
    remove_spill_on_error,
    spill_lease_entry,
    spill_root,
)
from ..engines.executors import preload_workers
from ..errors import RingfeedError
from ..prepare.screening.bad_records import encode_rejected
from ..progress import Report, ignore
from ..sources import Source
from ..sources.base import unwrap
from ..sources.files.find import check_unchanged
from ..sources.files.snapshot import Listing, record_listings
from ..sources.images.class_folders import ImageFolderSource
from ..storage.fenced_storage import fence_for_workers
from ..storage.storage import Storage, public_url
from .build_plan import BuildPlan, program_version
from .capacity import build_engine, memory_share
from .merge_generation import merge_generation
from .options import BuildOptions
from .planning import make_plan, open_build_source
from .shard_writer import ShardTarget
from .stages import assemble, assemble_tasks, common_layout, partition, shards_per_bucket
from .tasks import Bucketing
from .totals import BuildTotals

__all__ = ["build", "describe_build", "write_dataset"]


def build(options: BuildOptions, *, executor: Executor | None = None, report: Report = ignore) -> Manifest:
    """Write a source as balanced shards.

    A build that was killed, interrupted, or left by its store is gone on with: shards that it finished are kept, and
    the dataset ends with the same bytes.

    Args:
        options: what to build.
        executor: to run the tasks on; by default those of `options.engine`.
        report: called after every task.

    Returns:
        The manifest that was committed.

    Raises:
        RingfeedError: something is wrong with the source, the options or the destination. Nothing is left behind,
            unless starting again may help (`RingfeedError.may_pass`), and a dataset that was to be replaced is
            untouched, unless it is the last step, the replacing, that fails.
    """
    if executor is None and options.engine == "local" and options.workers > 1:
        preload_workers(options.source, options.destination)
    with record_listings() as listed:
        source = open_build_source(options)
    destination = Storage(options.destination)
    purpose: Purpose = "replace" if options.overwrite else "new"
    with draft_dataset(destination, purpose, describe_build(options.source, options.spill)) as draft:

        def committed(plan: BuildPlan) -> Manifest | None:
            return draft.find_committed(plan.fingerprint(options))

        return write_dataset(source, listed, options, draft, committed, executor=executor, report=report)


def describe_build(source: str, spill: str | None, task: str = "build") -> dict[str, str]:
    """What a build, or another `task`, leaves in the folder while it is at work, for whoever finds it."""
    return {"task": task, "source": public_url(source), "writer": program_version(), **spill_lease_entry(spill)}


def write_dataset(
    source: Source,
    listed: Mapping[str, Listing],
    options: BuildOptions,
    draft: DatasetDraft,
    committed: Callable[[BuildPlan], Manifest | None],
    *,
    executor: Executor | None = None,
    report: Report = ignore,
) -> Manifest:
    """Write a source into a draft and commit it: a dataset, or a generation of the dataset that the draft appends to.

    Args:
        source: opened.
        listed: its files, as they were when it was opened.
        options: of the build; those that the dataset decides are as it says.
        draft: to write to.
        committed: the manifest, if what is planned was committed before. It may refuse the plan, too.
        executor: to run the tasks on; by default those of `options.engine`.
        report: called after every task.

    Returns:
        The manifest that was committed.
    """
    root = spill_root(options.spill, options.destination)
    remove_abandoned_spill(draft.lease.previous, options.destination, root)
    absent = root.absent_folders()
    base = None if draft.base is None else draft.base.manifest
    earlier = None if draft.base is None else EarlierShards.of(draft.base)
    with ExitStack() as workers:
        pool = workers.enter_context(build_engine(options, options.destination)) if executor is None else executor
        try:
            scratch = open_scratch(root) if options.needs_census else None
            plan = make_plan(source, options, base, earlier, root, scratch, pool, report)
            result = committed(plan)
            if result is None:
                fingerprint = plan.fingerprint(options)
                with draft.checking_lease():
                    manifest, infos = _write(plan, listed, options, draft, fingerprint, root, pool, report)
                workers.close()  # what they hold is needed where there are very many classes
                if draft.base is not None:
                    manifest, infos = merge_generation(draft.base, manifest, infos)
                    beside = tfds_files(manifest, infos)
                    draft.write_all(beside)
                    about = {path: file_info(data) for path, data in beside.items()}
                    manifest = replace(manifest, files=dict(manifest.files) | about)
                result, table = seal(manifest, infos)
                draft.commit(result, table)
        except BaseException as error:
            draft.recount()
            if not (draft.finished and draft.may_resume(error)):
                remove_spill_on_error(error, root, absent)
            elif isinstance(error, (RingfeedError, KeyboardInterrupt)):
                raise type(error)(f"{error}; {draft.resume_hint}".removeprefix("; ")) from error
            raise
        remove_spill(root, absent)
    return result


def _write(
    plan: BuildPlan,
    listed: Mapping[str, Listing],
    options: BuildOptions,
    draft: DatasetDraft,
    fingerprint: str,
    root: Storage,
    pool: Executor,
    report: Report,
) -> tuple[Manifest, list[ShardInfo]]:
    finished = draft.resume(fingerprint)
    draft.total = plan.assignment.shards
    together = shards_per_bucket(plan, memory_share(pool, options, plan))
    bucketing = Bucketing(assignment=plan.assignment, shards_per_bucket=together)
    scratch = None if plan.census is None else plan.census.folder
    assemble_tasks(plan, options, bucketing, pool)  # what does not fit is refused before anything is spilled
    spill = open_spill(root, f"{fingerprint}-{together}", scratch)
    parts = partition(plan, options, bucketing, finished, spill, pool, report)
    if not isinstance(unwrap(plan.source), ImageFolderSource):  # whose files are yet to be read, by `assemble`
        check_unchanged(listed.values())
    draft.begin(finished)
    layout = common_layout(plan, options, parts)
    target = ShardTarget(
        storage=fence_for_workers(draft.storage, draft.destination, draft.lease),
        plan=fingerprint,
        shard_format=options.shard_format,
        compression=options.codec,
        layout=layout,
        block_rows=plan.block_rows,
        dali_index=options.dali_index,
    )
    gathered = BuildTotals(plan.assignment)
    for result in finished.values():
        gathered.add(result)
    with closing(assemble(plan, options, target, bucketing, finished, parts, spill, pool, report)) as written:
        for results in written:
            draft.lease.check_known()
            draft.finished += len(results)
            for result in results:
                gathered.add(result)
    manifest = Manifest(
        shard_format=options.shard_format,
        compression=options.codec,
        schema=plan.source.schema,
        classes=plan.classes,
        splits=gathered.splits(),
        layout=layout,
        seed=options.seed,
        source={"url": public_url(options.source), "fingerprint": plan.source.fingerprint},
        options=options.recorded(),
        writer=program_version(),
        plan=fingerprint,
    )
    infos = gathered.infos()
    beside = tfds_files(manifest, infos) if plan.base is None else {}
    if plan.rejected:
        beside |= {rejected_name(plan.assignment.generation): encode_rejected(plan.rejected)}
    if beside:
        draft.write_all(beside)
    files = gathered.files() | {path: file_info(data) for path, data in beside.items()}
    return replace(manifest, files=files), infos

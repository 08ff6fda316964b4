"""Rebuilds shards of a dataset from sources, in a scratch folder, one generation after the other.

A generation may depend on the records before it. They are read where they are intact: in the dataset's folder or, if
they are damaged there, in the scratch folder once rebuilt. Nothing is written to the dataset.
Tested in tests/sharding/repairing/test_rebuild_plan.py and tests/sharding/repairing/test_rebuild_generations.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace

from ringfeed.sharding.building.build_context import BuildContext
from ringfeed.sharding.building.build_plan import BuildPlan
from ringfeed.sharding.building.partitioning import Bucketing
from ringfeed.sharding.building.planning import open_plan
from ringfeed.sharding.building.shard_writer import ShardTarget
from ringfeed.sharding.building.stages import WriteStages
from ringfeed.sharding.compute.class_counts import pad_counts
from ringfeed.sharding.dataset.dataset import EarlierShards
from ringfeed.sharding.dataset.file_names import generation_of
from ringfeed.sharding.dataset.manifest import ShardInfo
from ringfeed.sharding.dataset.recovery import RecoveredDataset
from ringfeed.sharding.destination.journal import ShardResult
from ringfeed.sharding.destination.spill import make_spill_folder, open_spill, remove_spill, remove_spill_on_error
from ringfeed.sharding.engines.engine import open_engine
from ringfeed.sharding.engines.executors import run_tasks
from ringfeed.sharding.errors import CorruptionError
from ringfeed.sharding.formats import ShardEncoding
from ringfeed.sharding.progress import Progress, Report, ignore
from ringfeed.sharding.storage.file_contents import open_decompressed
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.verifying.record_checks import check_meaning
from ringfeed.sharding.verifying.verify import default_workers

from .rebuild_plan import Rebuild, check_rebuilt, depends_on_earlier, source_flags
from .salvage import ShardFiles, salvage_shard


class Rebuilder:
    """Rebuilds shards; see `open_rebuilder`.

    Attributes:
        dataset: the dataset.
        folder: folder of the rebuilt shards, under the names that they have in the dataset.
        report: called after every task.
        rows: rows of the shard table: those of the dataset, and of the rebuilt shards.
    """

    def __init__(
        self,
        dataset: RecoveredDataset,
        lost: Iterable[int],
        restorable: Iterable[ShardFiles],
        root: Storage,
        report: Report,
    ) -> None:
        self.dataset = dataset
        self.folder = root.folder("made")
        self.report = report
        self.rows = dataset.shards
        self._spills = root.folder("spill")
        self._lost = set(lost)
        self._restorable = list(restorable)
        self._in_folder: set[str] = set()
        self._checked = set(self._lost)
        self._spilled = 0

    def earlier_shards(self, number: int) -> EarlierShards | None:
        """Return the shards on which a generation depends; None if it depends on none.

        Raises:
            CorruptionError: some of them are lost, and not yet rebuilt.
        """
        storage, manifest = self.dataset.storage, self.dataset.manifest
        if not depends_on_earlier(manifest, number, proven=self.dataset.proven):
            return None
        if not self.dataset.proven:
            self._check_generations(number)
        if lacking := sorted(earlier for earlier in self._lost if earlier < number):
            several = "generations" if len(lacking) > 1 else "generation"
            raise CorruptionError(
                f"generation {number} of {storage.locate()} depends on the records before it, and shards of "
                f"{several} {', '.join(map(str, lacking))} are damaged as well; nothing was changed; repair with "
                f"{source_flags(manifest, lacking)}, too"
            )
        for files in [files for files in self._restorable if generation_of(files.shard.path) < number]:
            self._restore_in_folder(files)
        of_all = manifest.all_generations
        return EarlierShards(
            storage=storage,
            manifest=manifest,
            shards=tuple(shard for shard in self.rows if generation_of(shard.path) < number),
            folder_overrides=dict.fromkeys(self._in_folder, self.folder),
            same_source=of_all[number].source["fingerprint"] in {of.source["fingerprint"] for of in of_all[:number]},
        )

    def _check_generations(self, stop: int) -> None:
        """Find the generations before `stop` whose shards cannot be as they were written.

        Without the table nothing proves them, and no damaged shard may be read as if it were intact.
        """
        storage, manifest = self.dataset.storage, self.dataset.manifest
        earlier = set(range(stop)) - self._checked
        shards = [shard for shard in self.rows if generation_of(shard.path) in earlier]
        jobs = [(check_meaning, (storage, manifest, shard)) for shard in shards]
        with ThreadPoolExecutor(default_workers(storage), thread_name_prefix="ringfeed-repair") as pool:
            problems = run_tasks(pool, jobs)
        self._lost |= {generation_of(shard.path) for shard, damages in zip(shards, problems, strict=True) if damages}
        self._checked |= earlier

    def is_lost(self, number: int) -> bool:
        """Whether shards of a generation are lost, and not yet rebuilt."""
        return number in self._lost

    def _restore_in_folder(self, files: ShardFiles) -> None:
        """Write a restored shard to the scratch folder; the dataset is restored only when the plan is applied."""
        shard, salvaged = files.shard, salvage_shard(files)
        if salvaged is None:
            raise CorruptionError(f"{files.storage.locate(shard.path)} changed during the repair; run the repair again")
        for path, data, current_path in (
            (shard.path, salvaged.data, files.data_path),
            (shard.index_path, salvaged.index, files.index_path),
        ):
            if data is not None:
                self.folder.write(path, data)
            elif current_path is not None:
                with open_decompressed(files.storage, current_path) as stored:
                    self.folder.write(path, stored)
        self._in_folder.add(shard.path)
        self._restorable.remove(files)

    def run(self, rebuild: Rebuild) -> list[ShardInfo]:
        """Rebuild the shards of a plan, and return them in the order of their numbers.

        Raises:
            SourceError: one differs from what was written, as far as that is known.
            CorruptionError: records on which the generation depends are lost.
        """
        with self._plan_with_census(rebuild) as plan, open_engine("local", rebuild.plan.options.workers) as pool:
            results = self._write(rebuild, plan, pool)
        made = [result.info for result in sorted(results, key=lambda result: result.number)]
        self.rows = self._proven(rebuild, made) if self.dataset.proven else _with_generation(self.rows, rebuild, made)
        self._in_folder |= {shard.path for shard in made}
        self._lost.discard(rebuild.generation)
        self._checked.add(rebuild.generation)
        return made

    def _proven(self, rebuild: Rebuild, made: Iterable[ShardInfo]) -> tuple[ShardInfo, ...]:
        """Prove rebuilt shards by the table; return its rows, with the rebuilt indexes: another version of Arrow may
        encode those differently.
        """
        by_path = {shard.path: shard for shard in made}
        rows = []
        for row in self.rows:
            if (own := by_path.get(row.path)) is not None:
                check_rebuilt(rebuild, row.path, own.checksum, row.checksum)
                row = replace(row, index_bytes=own.index_bytes, index_checksum=own.index_checksum)
            rows.append(row)
        return tuple(rows)

    def _plan_with_census(self, rebuild: Rebuild) -> AbstractContextManager[BuildPlan]:
        """Return the plan, made once more if it needs its census: the files of that, perhaps large, are gone."""
        if not rebuild.plan.options.needs_census:
            return nullcontext(rebuild.plan)
        prepare = replace(rebuild.plan.options.prepare, dedup=None)  # the plan's source has no duplicates any more,
        options = replace(rebuild.plan.options, prepare=prepare, on_bad_record="fail")  # and no bad records
        earlier = self.earlier_shards(rebuild.generation)
        return open_plan(rebuild.plan.source, options, rebuild.plan.base, earlier, report=self.report)

    def _write(self, rebuild: Rebuild, plan: BuildPlan, pool: Executor) -> list[ShardResult]:
        options, manifest = rebuild.plan.options, rebuild.manifest
        bucketing = Bucketing(assignment=plan.assignment, shards_per_bucket=1)  # spill no record of another shard
        others = set(range(plan.assignment.shards)) - set(rebuild.numbers.values())
        self._spilled += 1
        spill = open_spill(self._spills, f"rebuild-{self._spilled}")  # one per source: what others left is removed
        target = ShardTarget(
            storage=self.folder,
            plan=manifest.all_generations[rebuild.generation].plan,
            encoding=ShardEncoding(
                schema=plan.source.schema,
                shard_format=manifest.shard_format,
                compression=manifest.compression,
                layout=manifest.layout_of(rebuild.generation),
                stored=manifest.stored_schema,
            ),
            block_rows=plan.block_rows,
            names=manifest.names,
        )
        results: list[ShardResult] = []
        context = BuildContext(options=options, pool=pool, report=self.report)
        stages = WriteStages(plan=plan, context=context, bucketing=bucketing, finished=others, spill=spill)
        parts = stages.partition()
        silent = replace(stages, context=replace(context, report=ignore))
        with closing(silent.assemble(target, parts)) as written:
            for made in written:
                results += made
                records = sum(result.info.records for result in results)
                self.report(Progress(stage="write", done=len(results), total=len(rebuild.numbers), records=records))
        return results


@contextmanager
def open_rebuilder(
    dataset: RecoveredDataset,
    root: Storage,
    report: Report,
    *,
    lost: Iterable[int] = (),
    restorable: Iterable[ShardFiles] = (),
) -> Iterator[Rebuilder]:
    """Open a rebuilder in a folder that is removed when the context exits.

    Args:
        root: scratch folder; see `scratch_root` and `planning_folder`.
        lost: generations with shards that only a source can bring back.
        restorable: damaged shards that can be restored without a source.
    """
    absent = root.absent_folders()
    remove_spill(root)
    try:
        make_spill_folder(root)
        yield Rebuilder(dataset, lost, restorable, root, report)
    except BaseException as error:
        remove_spill_on_error(error, root, absent)
        raise
    remove_spill(root, absent)


def _with_generation(rows: Sequence[ShardInfo], rebuild: Rebuild, made: Sequence[ShardInfo]) -> tuple[ShardInfo, ...]:
    """Return the rows of a table, with those of one generation replaced by the rebuilt ones."""
    classes = len(rebuild.manifest.classes)
    own = [replace(shard, class_counts=pad_counts(shard.class_counts, classes)) for shard in made]
    others = [shard for shard in rows if generation_of(shard.path) != rebuild.generation]
    return tuple(sorted((*others, *own), key=lambda shard: generation_of(shard.path)))  # stable: in the table's order

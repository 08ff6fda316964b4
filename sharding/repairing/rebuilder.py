"""A folder in which shards of a dataset are made again from sources, one generation after the other.

What a generation holds may follow from the records before it. They are read where they lie as they were written: in the
dataset's folder or, if they are damaged there, in this one, once made again. Nothing is written to the dataset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace

from ..building.bucketing import Bucketing
from ..building.build_context import BuildContext
from ..building.build_plan import BuildPlan
from ..building.planning import open_plan
from ..building.shard_writer import ShardTarget
from ..building.stages import WriteStages
from ..compute.class_counts import pad_counts
from ..dataset.earlier_shards import EarlierShards
from ..dataset.file_names import generation_of
from ..dataset.manifest import ShardInfo
from ..dataset.recovery import RecoveredDataset
from ..destination.journal import ShardResult
from ..destination.spill import open_spill, remove_spill, remove_spill_on_error
from ..engines.engine import open_engine
from ..engines.executors import run_tasks
from ..errors import CorruptionError
from ..progress import Progress, Report, ignore
from ..storage.file_contents import open_decompressed
from ..storage.storage import Storage
from ..verifying.record_checks import check_meaning
from ..verifying.verify import default_workers
from .rebuild_plan import Rebuild, check_rebuilt, depends_on_earlier, source_flags
from .salvage import ShardFiles, restore_shard

__all__ = ["Rebuilder", "open_rebuilder"]


class Rebuilder:
    """Makes shards again; see `open_rebuilder`.

    Attributes:
        known: the dataset.
        folder: that what is made lies in, under the names that it has in the dataset.
        report: called after every task.
        rows: of the table of shards: those of the dataset, and of those that were made again.
    """

    def __init__(
        self,
        known: RecoveredDataset,
        lost: Iterable[int],
        mendable: Iterable[ShardFiles],
        root: Storage,
        report: Report,
    ) -> None:
        self.known = known
        self.folder = root.folder("made")
        self.report = report
        self.rows = known.shards
        self._spills = root.folder("spill")
        self._lost = set(lost)
        self._mendable = list(mendable)
        self._here: set[str] = set()
        self._looked_into = set(self._lost)
        self._spilled = 0

    def before(self, number: int) -> EarlierShards | None:
        """The records that what a generation holds depends on; None if it does not follow from any.

        Raises:
            CorruptionError: some of them are lost, and not yet made again.
        """
        storage, manifest = self.known.storage, self.known.manifest
        if not depends_on_earlier(manifest, number, proven=self.known.proven):
            return None
        if not self.known.proven:
            self._look_into(number)
        if lacking := sorted(earlier for earlier in self._lost if earlier < number):
            several = "generations" if len(lacking) > 1 else "generation"
            raise CorruptionError(
                f"what generation {number} of {storage.locate()} holds depends on the records before it, and "
                f"shards of {several} {', '.join(map(str, lacking))} are damaged as well; nothing was "
                f"changed; repair with {source_flags(manifest, lacking)}, too"
            )
        for files in [files for files in self._mendable if generation_of(files.shard.path) < number]:
            self._lay_out(files)
        of_all = manifest.all_generations
        return EarlierShards(
            storage=storage,
            manifest=manifest,
            shards=tuple(shard for shard in self.rows if generation_of(shard.path) < number),
            folder_overrides=dict.fromkeys(self._here, self.folder),
            same_source=of_all[number].source["fingerprint"] in {of.source["fingerprint"] for of in of_all[:number]},
        )

    def _look_into(self, number: int) -> None:
        """Find out which generations before one have shards that cannot be what was written.

        Without the table nothing proves them, and none that is damaged is to be read as if it were not.
        """
        storage, manifest = self.known.storage, self.known.manifest
        earlier = set(range(number)) - self._looked_into
        shards = [shard for shard in self.rows if generation_of(shard.path) in earlier]
        jobs = [(check_meaning, (storage, manifest, shard)) for shard in shards]
        with ThreadPoolExecutor(default_workers(storage), thread_name_prefix="ringfeed-repair") as pool:
            found = run_tasks(pool, jobs)
        self._lost |= {generation_of(shard.path) for shard, damages in zip(shards, found, strict=True) if damages}
        self._looked_into |= earlier

    def lacks(self, number: int) -> bool:
        """Whether shards of a generation are lost, and not yet made again."""
        return number in self._lost

    def _lay_out(self, files: ShardFiles) -> None:
        """Put the files of a shard here as they were written, although the dataset has not got them back yet."""
        shard, mended = files.shard, restore_shard(files)
        for path, data, at in (
            (shard.path, mended.data, files.data_at),
            (shard.index_path, mended.index, files.index_at),
        ):
            if data is not None:
                self.folder.write(path, data)
            elif at is not None:
                with open_decompressed(files.storage, at) as stored:
                    self.folder.write(path, stored)
        self._here.add(shard.path)
        self._mendable.remove(files)

    def make(self, rebuild: Rebuild) -> list[ShardInfo]:
        """Make the shards of a rebuild again, and return them in the order of their numbers.

        Raises:
            SourceError: one is not as it was written, as far as that is known.
            CorruptionError: what the generation depends on is lost.
        """
        with self._planned(rebuild) as plan, open_engine("local", rebuild.options.workers) as pool:
            results = self._make(rebuild, plan, pool)
        made = [result.info for result in sorted(results, key=lambda result: result.number)]
        self.rows = self._proven(rebuild, made) if self.known.proven else _with_generation(self.rows, rebuild, made)
        self._here |= {shard.path for shard in made}
        self._lost.discard(rebuild.generation)
        self._looked_into.add(rebuild.generation)
        return made

    def _proven(self, rebuild: Rebuild, made: Iterable[ShardInfo]) -> tuple[ShardInfo, ...]:
        """The rows as they are, with the indexes that were made: those of another version may be encoded otherwise."""
        by_path = {shard.path: shard for shard in made}
        rows = []
        for row in self.rows:
            if (own := by_path.get(row.path)) is not None:
                check_rebuilt(rebuild, row.path, own.checksum, row.checksum)
                row = replace(row, index_bytes=own.index_bytes, index_checksum=own.index_checksum)
            rows.append(row)
        return tuple(rows)

    def _planned(self, rebuild: Rebuild) -> AbstractContextManager[BuildPlan]:
        """The plan, made again where its census is needed: the files of that are gone, for they may be large."""
        if not rebuild.options.needs_census:
            return nullcontext(rebuild.plan)
        prepare = replace(rebuild.options.prepare, dedup=None)  # the source of the plan is without doubles,
        options = replace(rebuild.options, prepare=prepare, on_bad_record="fail")  # and without bad records
        stored = self.before(rebuild.generation)
        return open_plan(rebuild.plan.source, options, rebuild.plan.base, stored, report=self.report)

    def _make(self, rebuild: Rebuild, plan: BuildPlan, pool: Executor) -> list[ShardResult]:
        options, manifest = rebuild.options, rebuild.manifest
        bucketing = Bucketing(assignment=plan.assignment, shards_per_bucket=1)  # no record of another shard is spilled
        others = set(range(plan.assignment.shards)) - set(rebuild.numbers.values())
        self._spilled += 1
        spill = open_spill(self._spills, f"rebuild-{self._spilled}")  # of no other source; what those left is removed
        target = ShardTarget(
            storage=self.folder,
            plan=manifest.all_generations[rebuild.generation].plan,
            shard_format=manifest.shard_format,
            compression=manifest.compression,
            layout=manifest.layout_of(rebuild.generation),
            block_rows=plan.block_rows,
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
    known: RecoveredDataset,
    root: Storage,
    report: Report,
    *,
    lost: Iterable[int] = (),
    mendable: Iterable[ShardFiles] = (),
) -> Iterator[Rebuilder]:
    """A rebuilder in a folder that is there until the body ends.

    Args:
        known: the dataset.
        root: the folder; see `scratch_root` and `planning_folder`.
        report: called after every task.
        lost: generations that have shards which can be had from a source alone.
        mendable: shards that are damaged, and can be had as they were without one.
    """
    absent = root.absent_folders()
    remove_spill(root)
    try:
        yield Rebuilder(known, lost, mendable, root, report)
    except BaseException as error:
        remove_spill_on_error(error, root, absent)
        raise
    remove_spill(root, absent)


def _with_generation(rows: Sequence[ShardInfo], rebuild: Rebuild, made: Sequence[ShardInfo]) -> tuple[ShardInfo, ...]:
    """The rows of a table, those of one generation as they were made again."""
    classes = len(rebuild.manifest.classes)
    own = [replace(shard, class_counts=pad_counts(shard.class_counts, classes)) for shard in made]
    others = [shard for shard in rows if generation_of(shard.path) != rebuild.generation]
    return tuple(sorted((*others, *own), key=lambda shard: generation_of(shard.path)))  # stable: in the table's order

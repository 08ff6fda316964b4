"""What all rounds of a build share, and the number of tasks and the memory that follow from it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from ringfeed.sharding.dataset.dataset import EarlierShards
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.engines.engine import open_engine
from ringfeed.sharding.engines.executors import ClusterExecutor
from ringfeed.sharding.engines.memory import MemoryShare
from ringfeed.sharding.prepare.rare_classes import RareClasses
from ringfeed.sharding.progress import Report, ignore

from .build_plan import BuildPlan
from .options import BuildOptions


def build_engine(options: BuildOptions, leased_destination: str | None = None) -> AbstractContextManager[Executor]:
    """The engine that the options name; `leased_destination` as for `open_engine`."""
    return open_engine(
        options.engine, options.workers, local_spill=options.spill is None, leased_destination=leased_destination
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """What the rounds of a build, or of an append, share."""

    options: BuildOptions  # options of the build; for an append, those that the dataset decides are already set
    pool: Executor  # executor of the tasks
    report: Report = ignore  # called after every task
    base: Manifest | None = None  # manifest of the dataset that is appended to; None for a build
    earlier: EarlierShards | None = None  # shards of that dataset; None if none of them is read

    def with_rare_classes(self, step: RareClasses) -> BuildContext:
        """The same, with a step on rare classes at the end of the preparation."""
        prepare = self.options.prepare
        prepare = replace(prepare, rare_classes=(*prepare.rare_classes, step))
        return replace(self, options=replace(self.options, prepare=prepare))

    @property
    def task_limit(self) -> int | Callable[[], int]:
        """How many tasks to keep submitted where memory sets no limit."""
        return self.memory_task_limit(self.options.memory.max_pending)

    def memory_task_limit(self, fitting: int) -> int | Callable[[], int]:
        """How many tasks to keep submitted if `fitting` of them fit into the memory of this machine."""
        return self.pool.max_pending if isinstance(self.pool, ClusterExecutor) else fitting

    @property
    def memory(self) -> MemoryShare:
        """The memory of this machine's processes, or of each task on a cluster."""
        options, pool = self.options, self.pool
        return pool.memory_share(options.memory_bytes) if isinstance(pool, ClusterExecutor) else options.memory

    def memory_share(self, plan: BuildPlan) -> MemoryShare:
        """`memory`, with that for the classes of a plan."""
        return replace(self.memory, classes=plan.class_bytes)

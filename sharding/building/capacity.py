"""What a build may use: its engine, and how many tasks are submitted at a time, on this machine or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import replace

from ..engines.engine import open_engine
from ..engines.executors import ClusterExecutor
from ..engines.memory import MemoryShare
from .build_plan import BuildPlan
from .options import BuildOptions

__all__ = ["build_engine", "memory_share", "memory_task_limit", "task_limit"]

_TASK_BYTES = 1 << 30  # that a task on a cluster may use, unless it is told


def build_engine(options: BuildOptions, leased_destination: str | None = None) -> AbstractContextManager[Executor]:
    """The engine that the options name; `leased_destination` as for `open_engine`."""
    return open_engine(
        options.engine, options.workers, local_spill=options.spill is None, leased_destination=leased_destination
    )


def task_limit(pool: Executor, options: BuildOptions) -> int | Callable[[], int]:
    """How many tasks to have submitted and not ended, where memory sets no limit."""
    return pool.max_pending if isinstance(pool, ClusterExecutor) else options.memory.max_pending


def memory_share(pool: Executor, options: BuildOptions, plan: BuildPlan) -> MemoryShare:
    """What this machine's processes may hold together; of a cluster, which spreads tasks as it likes, each task."""
    share = options.memory
    if isinstance(pool, ClusterExecutor):
        share = MemoryShare(budget=options.memory_bytes or _TASK_BYTES, workers=1, per_task=True)
    return replace(share, classes=plan.class_bytes)


def memory_task_limit(pool: Executor, options: BuildOptions, fitting: int) -> int | Callable[[], int]:
    """How many tasks to have submitted and not ended, if so many fit into the memory of this machine."""
    return task_limit(pool, options) if isinstance(pool, ClusterExecutor) else fitting

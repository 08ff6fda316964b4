"""Run the pure tasks of a build, on any executor or in this process."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from .errors import DatasetError

__all__ = ["local_executor", "run_tasks"]

T = TypeVar("T")


@contextmanager
def local_executor(workers: int) -> Iterator[Executor]:
    """Processes of this machine; where one is enough, two threads of this one: one encodes, the other's disk writes."""
    if workers == 1:
        with ThreadPoolExecutor(2) as threads:
            yield threads
        return
    spawn = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks, held as they may be
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        yield pool


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back for the body, and for ever from the processes that it starts, which inherit the mask.

    Ctrl-C reaches every process of a terminal's job; the parent alone is to answer, by cancelling the tasks.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def run_tasks(
    pool: Executor | None,
    jobs: Sequence[tuple[Callable[..., T], tuple[Any, ...]]],
    report: Callable[[int, T | None], None],
) -> list[T]:
    """Run tasks and return their results in the order of the jobs.

    The first error, or an interrupt, cancels what has not begun and is raised when nothing runs any more: whoever
    cleans up after it has no task beside them that goes on writing.

    Args:
        pool: where to run them; None is this process.
        jobs: functions and their arguments.
        report: called before the first and after each task with the tasks done and the result.
    """
    report(0, None)
    if pool is None:
        results = []
        for done, (function, arguments) in enumerate(jobs, start=1):
            results.append(function(*arguments))
            report(done, results[-1])
        return results
    futures: list[Future[T]] = []
    try:
        with _interrupts_held():  # it is here that a pool starts its processes
            futures += (pool.submit(function, *arguments) for function, arguments in jobs)
        for done, future in enumerate(as_completed(futures), start=1):
            report(done, future.result())
    except BaseException as error:
        for future in futures:
            future.cancel()
        wait(futures)
        if isinstance(error, BrokenProcessPool):
            raise DatasetError(
                "a worker process was killed, most likely for want of memory; use fewer --workers or smaller shards"
            ) from error
        raise
    return [future.result() for future in futures]

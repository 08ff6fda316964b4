"""Run the pure tasks of a build, on any executor."""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.connection
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from itertools import islice
from multiprocessing import resource_tracker
from multiprocessing.util import get_temp_dir
from typing import Any, TypeVar

import pyarrow as pa

from ..common.stderr_filter import silence_pillow
from ..errors import WorkerError
from ..storage.error_messages import PROCESS_LIMIT_REACHED

__all__ = ["ClusterExecutor", "Job", "local_executor", "portable_error", "preload_workers", "run_tasks", "stream_tasks"]

_SOCKET_PATH = 107  # bytes of one, at most, on Linux
_HELD_SECONDS = 0.1  # that an interrupt waits at most, and after which a pool that has finished nothing is looked at

T = TypeVar("T")
Job = tuple[Callable[..., T], tuple[Any, ...]]


class ClusterExecutor(Executor, ABC):
    """`concurrent.futures` over a cluster. Its futures count as running from the start: see `cancel`."""

    @abstractmethod
    def max_pending(self) -> int:
        """How many tasks to have submitted and not ended, to keep the cluster busy as it is known now."""

    @abstractmethod
    def cancel(self, futures: Collection[Future[Any]]) -> None:
        """Give up tasks, and return when none of them runs any more, on whichever machine."""


class _Processes(ProcessPoolExecutor):
    """Processes of this machine, so many as there are `workers`."""

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context(_start_method())
        super().__init__(workers, context, _begin_worker, (dict(os.environ), get_temp_dir()))
        self.workers = workers

    @property
    def died(self) -> bool:
        """Whether the thread that serves the processes has ended before its time, as where it could begin no other."""
        thread = getattr(self, "_executor_manager_thread", None)
        return isinstance(thread, threading.Thread) and not thread.is_alive()


@contextmanager
def local_executor(workers: int) -> Iterator[Executor]:
    """Processes of this machine; where one is enough, two threads of this one: one encodes, the other's disk writes."""
    if workers == 1:
        with ThreadPoolExecutor(2) as threads:
            yield threads
        return
    preload_workers()
    pool = _Processes(workers)
    begun: dict[int, Any] = getattr(pool, "_processes", {})
    try:
        with pool:
            try:
                with _interrupts_held():
                    for _ in range(workers):
                        pool.submit(int)  # all begin now, side by side, and not when the first tasks wait for them
            except (EOFError, BrokenProcessPool) as error:  # of the process that they are forked from, or of the first
                raise WorkerError(PROCESS_LIMIT_REACHED) from error
            yield pool
    finally:
        for process in [*begun.values()]:  # of a pool that died: they would wait for tasks, and this one for them
            process.terminate()


def preload_workers(*places: str) -> None:
    """Have imports begin that the first processes of `local_executor` would have to wait for.

    Args:
        places: what they will read and write, by URLs.
    """
    with _interrupts_held():  # by itself, for the tracker lets interrupts through when it begins, held back or not
        resource_tracker.ensure_running()
    if _start_method() != "forkserver":
        return
    from multiprocessing import forkserver  # which not every system has

    modules = ["ringfeed.sharding", "pandas"]  # which Arrow imports with the first array that it makes of a list
    if any(place.startswith("s3") for place in places):
        modules.append("s3fs")
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
    with _interrupts_held():
        forkserver.ensure_running()


def _start_method() -> str:
    """How processes are started.

    A fork of this process would have copies of its threads' locks, held as they may be. On Linux processes are forked
    from one that does nothing but import what they need, once for all of them; it listens at a socket in the folder
    for temporary files, whose path may be too long for one.
    """
    socket = f"{tempfile.gettempdir()}/pymp-01234567/listener-01234567"
    return "forkserver" if sys.platform == "linux" and len(os.fsencode(socket)) <= _SOCKET_PATH else "spawn"


def _begin_worker(environment: Mapping[str, str], parents_folder: str) -> None:
    """Give this process its parent's environment, and let it end as soon as it may.

    That is without Python's own end, which takes long, and when its parent is gone: whoever takes over from a parent
    that was killed must have no worker of it beside itself that goes on writing.
    """
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    silence_pillow()
    atexit.register(os._exit, 0)
    try:
        threading.Thread(target=_end_with_parent, args=(parents_folder,), daemon=True).start()
    except RuntimeError:  # no thread can be started; the parent says so
        os._exit(1)


def _end_with_parent(folder: str) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    shutil.rmtree(folder, ignore_errors=True)  # of its sockets, which it would have removed
    os._exit(1)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C and SIGHUP back for the body, and for ever from the processes that it starts, which inherit the mask.

    They reach every process of a terminal's job; the parent alone is to answer, by cancelling the tasks. They may
    reach any thread of the parent, too, as does SIGTERM: their handlers wait, or a process that is just being started
    would miss what it begins with.
    """
    came: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if threading.current_thread() is threading.main_thread():  # no other may set them
        known = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)}
        handlers = {number: handler for number, handler in known.items() if callable(handler)}

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        for number in handlers:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        try:
            restore()
        finally:
            restore()  # all of it: the first handler that was back may have raised before the rest was
        if came:
            signal.raise_signal(came[0])


def portable_error(error: Exception) -> Exception:
    """The error if it can be sent to another process and arrives as it was; else a RuntimeError that says the same.

    One that cannot would end the pool itself: many libraries' errors are made of more than they tell `pickle`.
    """
    try:
        copy = pickle.loads(pickle.dumps(error))
        if type(copy) is type(error) and str(copy) == str(error):
            return error
    except Exception:  # whatever a class makes of it
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")


def _run(function: Callable[..., T], *arguments: Any) -> T:
    try:
        return function(*arguments)
    except Exception as error:
        portable = portable_error(error)
        if portable is error:
            raise
        raise portable from error


def _run_and_give_back(function: Callable[..., T], *arguments: Any) -> T:
    """With the memory that Arrow keeps for a next task, which another process may get."""
    try:
        return _run(function, *arguments)
    finally:
        pa.default_memory_pool().release_unused()


@contextmanager
def stream_tasks(
    pool: Executor, jobs: Iterable[Job[T]], max_pending: int | Callable[[], int]
) -> Iterator[Iterator[tuple[int, T]]]:
    """Run tasks, some at a time: an iterator of the number and the result of each as it ends.

    The first error, be it in the body, or an interrupt, cancels what has not begun and is raised when nothing runs any
    more: whoever cleans up after it has no task beside them that goes on writing.

    Args:
        pool: where to run them.
        jobs: functions and their arguments; taken as they are needed.
        max_pending: how many to have submitted and not ended; a function where that changes, as clusters grow. If fewer
            than there are processes on this machine, each gives back its memory after a task.
    """
    with closing(_stream(pool, jobs, max_pending)) as ended:
        yield ended


def _stream(
    pool: Executor, jobs: Iterable[Job[T]], max_pending: int | Callable[[], int]
) -> Generator[tuple[int, T], None, None]:
    submit: Callable[..., Future[T]] = pool.submit
    if isinstance(pool, ProcessPoolExecutor):
        scarce = isinstance(pool, _Processes) and isinstance(max_pending, int) and max_pending < pool.workers
        submit = partial(pool.submit, _run_and_give_back if scarce else _run)  # type: ignore[arg-type]  # mypy solves no function of a function
    numbered = enumerate(jobs)
    running: dict[Future[T], int] = {}
    try:
        while True:
            room = (max_pending if isinstance(max_pending, int) else max_pending()) - len(running)
            with _interrupts_held():  # a pool may start processes here
                for number, (function, arguments) in islice(numbered, max(0, room)):
                    running[submit(function, *arguments)] = number
            if not running:
                return
            for future in _wait(running, FIRST_COMPLETED)[0]:
                yield running.pop(future), future.result()
            if isinstance(pool, _Processes) and pool.died:
                raise WorkerError(PROCESS_LIMIT_REACHED)
    except BaseException as error:
        if isinstance(pool, ClusterExecutor):
            pool.cancel(running)
        elif not (isinstance(pool, _Processes) and pool.died):  # else none of them ever ends
            with _interrupts_held():
                for future in running:
                    future.cancel()
            while _wait(running, ALL_COMPLETED)[1]:
                pass
        if isinstance(error, BrokenProcessPool):
            raise WorkerError(
                "a worker process was killed, most likely for want of memory, or could not begin, for want of "
                "processes and threads (ulimit -u); use fewer --workers, or smaller shards"
            ) from error
        raise


def _wait(futures: Iterable[Future[T]], until: str) -> tuple[set[Future[T]], set[Future[T]]]:
    """Wait for a moment; those that have ended, and the others.

    `wait` takes the locks of futures. An interrupt there would leave them taken, and the pool would wait for ever.
    """
    with _interrupts_held():
        ended, others = wait(futures, _HELD_SECONDS, until)
    return ended, others


def run_tasks(
    pool: Executor | None, jobs: Sequence[Job[T]], report: Callable[[int, T | None], None] = lambda *_: None
) -> list[T]:
    """Run a few tasks and return their results in the order of the jobs; errors as in `stream_tasks`.

    Args:
        pool: where to run them; None is this thread.
        jobs: functions and their arguments.
        report: called before the first and after each task with the tasks done and the result.
    """
    report(0, None)
    results: dict[int, T] = {}
    here = ((number, function(*arguments)) for number, (function, arguments) in enumerate(jobs))
    max_pending = pool.max_pending if isinstance(pool, ClusterExecutor) else len(jobs)
    with nullcontext(here) if pool is None else stream_tasks(pool, jobs, max_pending) as ended:
        for number, result in ended:
            results[number] = result
            report(len(results), result)
    return [results[number] for number in range(len(jobs))]

"""Runs the tasks of a build on any executor, and starts the processes of this machine for them."""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.connection
import os
import pickle
import resource
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
from functools import cache, partial
from itertools import islice
from multiprocessing import resource_tracker, spawn
from multiprocessing.context import ForkServerContext, ForkServerProcess, SpawnContext, SpawnProcess
from multiprocessing.util import get_temp_dir
from typing import Any, TypeVar

import pyarrow as pa

from ringfeed.sharding.common.stderr_filter import silence_pillow
from ringfeed.sharding.errors import WorkerError
from ringfeed.sharding.storage.error_messages import PROCESS_LIMIT_REACHED
from ringfeed.sharding.storage.temporary_folder import mark_folder

from .memory import MemoryShare

_SOCKET_PATH_BYTES = 107  # the longest path of a socket on Linux
_OWN_FILES, _WORKER_FILES = 12, 3  # that a build opens besides those that are open when it starts, and per worker
_TASK_BYTES = 1 << 30  # memory of a task on a cluster, unless the options set it
_HELD_SECONDS = 0.1  # for which interrupts are held back at most, and between checks of a pool that finishes nothing

T = TypeVar("T")
Job = tuple[Callable[..., T], tuple[Any, ...]]


class ClusterExecutor(Executor, ABC):
    """`concurrent.futures` on a cluster. Its futures count as running from the start; `cancel` ends them."""

    @abstractmethod
    def max_pending(self) -> int:
        """How many tasks to submit ahead of their results, to keep the cluster busy at its current size."""

    def memory_share(self, task_bytes: int | None) -> MemoryShare:
        """Return the memory of each task; the cluster places as many on a machine as it likes."""
        return MemoryShare(budget=task_bytes or _TASK_BYTES, workers=1, per_task=True)

    @abstractmethod
    def cancel(self, futures: Collection[Future[Any]]) -> None:
        """Cancel tasks, and return once none of them runs on any machine."""


_preparing = threading.Lock()


class _WithoutMain:
    """A process that does not import its parent's main module: tasks need nothing of it.

    It may be no file, or start the build that the process is for, without a main guard.
    """

    def start(self) -> None:
        """Start the process, without the place of the main module in its start-up data."""
        here = threading.get_ident()

        def prepare_without_main(name: str) -> dict[str, Any]:
            data = prepare(name)
            if threading.get_ident() == here:  # other threads may start processes of their own
                data = {key: value for key, value in data.items() if not key.startswith("init_main_")}
            return data

        with _preparing:
            prepare = spawn.get_preparation_data
            spawn.get_preparation_data = prepare_without_main
            try:
                super().start()  # type: ignore[misc]  # of the process that it is mixed into
            finally:
                spawn.get_preparation_data = prepare


class _ForkServerContext(ForkServerContext):
    class Process(_WithoutMain, ForkServerProcess):
        """A process of the fork server."""


class _SpawnContext(SpawnContext):
    class Process(_WithoutMain, SpawnProcess):
        """A process that imports everything itself."""


_CONTEXTS = {"forkserver": _ForkServerContext, "spawn": _SpawnContext}


class _Processes(ProcessPoolExecutor):
    """A pool of `workers` processes of this machine."""

    def __init__(self, workers: int) -> None:
        context: Any = _CONTEXTS[_start_method()]()
        super().__init__(workers, context, _begin_worker, (dict(os.environ), get_temp_dir()))
        self.workers = workers

    @property
    def died(self) -> bool:
        """Whether the thread that serves the processes has died, as it does when it cannot start another thread."""
        thread = getattr(self, "_executor_manager_thread", None)
        return isinstance(thread, threading.Thread) and not thread.is_alive()


@contextmanager
def local_executor(workers: int) -> Iterator[Executor]:
    """Processes of this machine; for one worker, two threads of this process: one encodes while the other writes."""
    if workers == 1:
        with ThreadPoolExecutor(2) as threads:
            yield threads
        return
    preload_workers(workers=workers)
    pool = _Processes(workers)
    begun: dict[int, Any] = getattr(pool, "_processes", {})
    try:
        with pool:
            try:
                with _interrupts_held():
                    for _ in range(workers):
                        pool.submit(int)  # start all now, in parallel, and not when the first tasks wait for them
            except (EOFError, BrokenProcessPool) as error:  # from the fork server, or from the first worker
                raise WorkerError(PROCESS_LIMIT_REACHED) from error
            yield pool
    finally:
        for process in [*begun.values()]:  # if the pool died: they would wait for tasks, and this process for them
            process.terminate()


def preload_workers(*places: str, workers: int) -> None:
    """Start the imports that the first processes of `local_executor` would have to wait for.

    Raises:
        WorkerError: this process may not open as many files as it needs for them.
    """
    _check_open_files(workers)
    mark_folder(get_temp_dir())
    with _interrupts_held():  # separately, because starting the tracker unblocks interrupts
        resource_tracker.ensure_running()
    if _start_method() != "forkserver":
        return
    from multiprocessing import forkserver  # not on every system

    # The facade `ringfeed.sharding` is lazy: its import would leave to each worker what tasks need, 0.4 s of a core.
    # Arrow imports pandas with the first array that it makes of a list.
    modules = ["ringfeed.sharding.engines.fork_server", "ringfeed.sharding.building.build", "pandas"]
    if any(place.startswith("s3") for place in places):
        modules.append("s3fs")
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
    with _interrupts_held():
        forkserver.ensure_running()


def _check_open_files(workers: int) -> None:
    """Refuse to start processes that the limit of open files is too low for: they would end in tracebacks."""
    needed, most = _open_files() + _OWN_FILES + _WORKER_FILES * workers, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if needed > most:
        raise WorkerError(
            f"too many open files: this process needs {needed} for {workers} workers, and may have {most}; raise the "
            "limit (ulimit -n), or use fewer --workers"
        )


@cache
def _open_files() -> int:
    """Return how many files were open before the first worker."""
    return len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 3


def _start_method() -> str:
    """How to start processes.

    A fork of this process would copy the locks that its threads hold. On Linux a fork server imports what the workers
    need once for all of them. It listens at a socket in the folder for temporary files, whose path may be too long.
    """
    socket = f"{tempfile.gettempdir()}/pymp-01234567/listener-01234567"
    return "forkserver" if sys.platform == "linux" and len(os.fsencode(socket)) <= _SOCKET_PATH_BYTES else "spawn"


def _begin_worker(environment: Mapping[str, str], parents_folder: str) -> None:
    """Give this process its parent's environment, and let it end fast.

    It skips Python's slow finalization, and ends when its parent dies: a process that takes over from a killed parent
    must not find its workers still writing.
    """
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    silence_pillow()
    atexit.register(os._exit, 0)
    try:
        threading.Thread(target=_end_with_parent, args=(parents_folder,), daemon=True).start()
    except RuntimeError:  # no thread can be started; the parent reports it
        os._exit(1)


def _end_with_parent(folder: str) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    shutil.rmtree(folder, ignore_errors=True)  # the parent's sockets
    os._exit(1)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Defer Ctrl-C and SIGHUP until the body ends; processes that it starts inherit the mask and never get them.

    These signals reach every process of a terminal's job, but only the parent may answer, by cancelling the tasks. In
    the parent they, and SIGTERM, may reach any thread. Their handlers have to wait, because an exception while a
    process is started would leave it without its start-up data.
    """
    signals: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
        known = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)}
        handlers = {number: handler for number, handler in known.items() if callable(handler)}

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        for number in handlers:
            signal.signal(number, lambda number, _: signals.append(number))
        yield
    finally:
        try:
            restore()
        finally:
            restore()  # again: a handler may have raised before all were restored
        if signals:
            signal.raise_signal(signals[0])


def portable_error(error: Exception) -> Exception:
    """Return the error if it survives pickling unchanged, else a RuntimeError with the same text.

    An error that cannot be unpickled would break the pool; many libraries' errors need more arguments than they pickle.
    """
    try:
        copy = pickle.loads(pickle.dumps(error))
        if type(copy) is type(error) and str(copy) == str(error):
            return error
    except Exception:  # a class may do anything here
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
    """`_run`, and release the memory that Arrow keeps for the next task, so that other processes can use it."""
    try:
        return _run(function, *arguments)
    finally:
        pa.default_memory_pool().release_unused()


@contextmanager
def stream_tasks(
    pool: Executor, jobs: Iterable[Job[T]], max_pending: int | Callable[[], int]
) -> Iterator[Iterator[tuple[int, T]]]:
    """Run tasks, some at a time; yield an iterator of the number and result of each as it ends.

    The first error of a task or of the body, or an interrupt, cancels the tasks that have not started. It is raised
    once none runs, so that no task writes during the clean-up.

    Args:
        jobs: functions and their arguments; consumed as needed.
        max_pending: how many tasks to submit ahead of their results; a function if that changes, as clusters grow. If
            it is below the number of local processes, each releases its memory after a task.
    """
    with closing(_stream(pool, jobs, max_pending)) as ended:
        yield ended


def _stream(
    pool: Executor, jobs: Iterable[Job[T]], max_pending: int | Callable[[], int]
) -> Generator[tuple[int, T], None, None]:
    submit: Callable[..., Future[T]] = pool.submit
    if isinstance(pool, ProcessPoolExecutor):
        scarce = isinstance(pool, _Processes) and isinstance(max_pending, int) and max_pending < pool.workers
        submit = partial(pool.submit, _run_and_give_back if scarce else _run)  # type: ignore[arg-type]  # mypy cannot solve partial of a generic function
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
        elif not (isinstance(pool, _Processes) and pool.died):  # in a dead pool they would never end
            with _interrupts_held():
                for future in running:
                    future.cancel()
            while _wait(running, ALL_COMPLETED)[1]:
                pass
        if isinstance(error, EOFError) and isinstance(pool, _Processes):  # from the fork server
            raise WorkerError(PROCESS_LIMIT_REACHED) from error
        if isinstance(error, BrokenProcessPool):
            raise WorkerError(
                "a worker process was killed, most likely for want of memory, or could not start, for want of "
                "processes and threads (ulimit -u); use fewer --workers, or smaller shards"
            ) from error
        raise


def _wait(futures: Iterable[Future[T]], until: str) -> tuple[set[Future[T]], set[Future[T]]]:
    """Wait for a moment; return the futures that have ended, and the others.

    `wait` takes the locks of futures. An interrupt inside would leave them locked, and the pool would wait forever.
    """
    with _interrupts_held():
        ended, others = wait(futures, _HELD_SECONDS, until)
    return ended, others


def run_tasks(
    pool: Executor | None, jobs: Sequence[Job[T]], report: Callable[[int, T | None], None] = lambda *_: None
) -> list[T]:
    """Run a few tasks and return their results in the order of the jobs; errors as in `stream_tasks`.

    Args:
        pool: executor of the tasks; None for this thread.
        report: called before the first task and after each, with the number of finished tasks and the last result.
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

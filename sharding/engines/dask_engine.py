"""The executor on a Dask cluster."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError  # no builtin before Python 3.11
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pkgutil import resolve_name
from typing import Any

from ringfeed.sharding.errors import ConfigError, RingfeedError, StorageError, WorkerError

from .cluster import (
    RemoteExecutor,
    TaskOutcome,
    WorkerRequirements,
    missing_package_error,
    probe_task,
    run_remotely,
    stop_build,
    stop_earlier_builds,
    version_mismatch_error,
)
from .executors import ClusterExecutor
from .memory import TASKS_PER_WORKER

_LOST = (OSError, TimeoutError, asyncio.TimeoutError)  # raised by calls of a scheduler that is away
_TASK = f"{run_remotely.__module__}:{run_remotely.__name__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskTimings:
    """How long to wait for a Dask cluster.

    Attributes:
        connect_seconds: to connect to the scheduler's machine.
        greet_seconds: for the scheduler's greeting.
        lost_seconds: for a lost scheduler to come back.
        workers_seconds: for workers to appear; a cluster that grows with its load needs some time.
        others_seconds: for the tasks of a killed build to end.
        result_seconds: for the result of a finished task, which is small, to arrive.
    """

    connect_seconds: float = 5.0
    greet_seconds: float = 20.0
    lost_seconds: float = 10.0
    workers_seconds: float = 60.0
    others_seconds: float = 600.0
    result_seconds: float = 60.0


@contextmanager
def dask_executor(
    address: str, *, local_spill: bool, leased_destination: str | None, timings: DaskTimings | None = None
) -> Iterator[ClusterExecutor]:
    """An executor on the cluster of the scheduler at ``HOST:PORT``; see `engine.open_engine`."""
    timings = timings or DaskTimings()
    try:
        import dask
        from distributed import Client
    except ImportError as error:
        raise ConfigError("--engine dask:// needs Dask; install it with: pip install 'ringfeed[dask]'") from error
    # Dask logs workers that come and go, and warns of large arguments, which tasks here have on purpose. What matters
    # is raised as an error.
    settings = {"distributed.admin.large-graph-warning-threshold": "1GiB", "distributed.comm.retry.count": 0}
    with _quiet("distributed"), dask.config.set(settings):
        try:
            # Dask itself retries for long where nobody listens, and waits forever for a server that sends nothing.
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timings.connect_seconds).close()
            with ThreadPoolExecutor(1) as thread:  # the current one may run an event loop, as in notebooks
                thread.submit(asyncio.run, _greet(f"tcp://{address}", timings.greet_seconds)).result()
            client: Any = Client(f"tcp://{address}", timeout=timings.lost_seconds, set_as_default=False)
        except Exception as error:  # Dask turns the answers of other servers into errors of many types
            raise StorageError(
                f"no Dask scheduler answers at {address}; check the address, and that it runs"
            ) from error
        try:
            executor = _DaskExecutor(
                client,
                address,
                timings,
                WorkerRequirements.of_this_process(local_spill=local_spill, leased_destination=leased_destination),
            )
            with executor.reporting_loss():
                executor.check_workers()
                executor.await_others()
            yield executor
        finally:
            with suppress(Exception):  # closing a lost client may fail and hide why it was lost
                client.close()


async def _greet(url: str, seconds: float) -> None:
    from distributed.comm.core import connect

    connection = await asyncio.wait_for(connect(url, timeout=seconds), seconds)
    await connection.close()


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Silence a logger and its descendants, which have levels of their own."""
    known = [logging.getLogger(n) for n in logging.root.manager.loggerDict if n == name or n.startswith(f"{name}.")]
    levels = [logger.level for logger in known]
    for logger in known:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(known, levels, strict=True):
            logger.setLevel(level)


class _DaskExecutor(RemoteExecutor):
    """Replaces `Client.get_executor`, which may wait forever for results that cannot be fetched.

    Its futures never end if the worker and the scheduler die between the end of the task and the arrival of its result
    (distributed 2026.8); nor does it report when cancelled tasks have ended.
    """

    def __init__(self, client: Any, address: str, timings: DaskTimings, requirements: WorkerRequirements) -> None:
        super().__init__(requirements)
        self._client = client
        self._address, self._timings = address, timings
        self._without_workers_since: float | None = None

    def _start(self, call: tuple[Any, ...]) -> tuple[Any, Any]:
        with self.reporting_loss():
            task = self._client.submit(run_remotely, *call, pure=False)
        return task, task

    @contextmanager
    def reporting_loss(self) -> Iterator[None]:
        """Explain errors of requests that fail because the scheduler is away (as a WorkerError)."""
        try:
            yield
        except Exception as error:
            if not self._is_lost(error):
                raise
            raise self._explained(error) from error

    def _is_lost(self, error: Exception) -> bool:
        """Whether an error means that the scheduler is away; a client that waited for it in vain closes itself."""
        if isinstance(error, RingfeedError):  # some of these are OSErrors, too
            return False
        return isinstance(error, _LOST) or self._client.status in ("closing", "closed")

    def _outcome(self, ended: Any) -> TaskOutcome:
        if ended.cancelled():  # if the client is closing, `result` would never return
            raise CancelledError
        outcome: TaskOutcome = ended.result(self._timings.result_seconds)
        return outcome

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, (asyncio.CancelledError, CancelledError)) or self._is_lost(error):
            return WorkerError(f"the Dask scheduler at {self._address} went away, or gave up the task or its result")
        if type(error).__name__ == "KilledWorker":
            return WorkerError(
                "a task was given up after it had ended several Dask workers, most likely for want of memory; give "
                "them more memory or fewer threads, or ask for smaller shards"
            )
        return error

    def _count(self) -> int | None:
        with suppress(WorkerError), self.reporting_loss():
            threads: dict[str, int] = self._client.nthreads()
            return sum(threads.values())
        return None

    def max_pending(self) -> int:
        """A few tasks for each thread of all workers; raises a WorkerError if no workers are left, and none appear."""
        processors, now = self._processors(), time.monotonic()
        since = self._without_workers_since = None if processors else self._without_workers_since or now
        if since is not None and now - since > self._timings.workers_seconds:
            raise WorkerError(
                f"the Dask cluster at {self._address} has no workers any more, most likely for want of memory; start "
                "some with more memory, and the same command again"
            )
        return TASKS_PER_WORKER * max(1, processors)

    def check_workers(self) -> None:
        """Refuse a cluster without workers, or with workers that cannot run the tasks.

        Raises:
            StorageError: there are no workers, and none appeared.
            ConfigError: a worker lacks something.
        """
        # A task that a worker cannot load ends it, so check first that it has ringfeed, and the same tasks.
        for worker, installed in self._client.run(version, "ringfeed", on_error="return").items():
            if isinstance(installed, ImportError):
                raise missing_package_error(f"Dask worker {worker}")
            if isinstance(installed, str) and installed != (here := version("ringfeed")):
                raise version_mismatch_error(f"Dask worker {worker}", "ringfeed", installed, here)
        for worker, task in self._client.run(resolve_name, _TASK, on_error="return").items():
            if isinstance(task, (ImportError, AttributeError)):
                raise missing_package_error(f"Dask worker {worker}")
        probe, again = self.submit(probe_task), True
        while True:
            try:
                probe.result(self._timings.workers_seconds)
                return
            except WorkerError as error:  # a finished result may fail to arrive once
                if not again or not isinstance(error.__cause__, (TimeoutError, asyncio.TimeoutError)):
                    raise
                probe, again = self.submit(probe_task), False
            except FutureTimeoutError as error:  # the workers may be busy with other work
                if not self._client.nthreads():
                    raise StorageError(f"the Dask cluster at {self._address} has no workers; start some") from error

    def await_others(self) -> None:
        """Wait for the tasks of a killed build, which may still write there; a WorkerError if they do not end."""
        started = time.monotonic()
        while any(self._on_each(stop_earlier_builds)):
            if time.monotonic() - started > self._timings.others_seconds:
                raise WorkerError(
                    f"tasks of an earlier build still run on the Dask cluster at {self._address}, and write to the "
                    "same place; wait for them, or restart its workers"
                )
            time.sleep(0.1)

    def cancel(self, futures: Collection[Future[Any]]) -> None:
        """Cancel tasks, and return once none of them runs.

        A worker's thread cannot be stopped, and Dask forgets a task that is cancelled while it runs.
        """
        with suppress(WorkerError), self.reporting_loss():  # workers without a scheduler end themselves
            self._client.cancel([self._tasks[future] for future in futures if future in self._tasks])
            while any(self._on_each(stop_build)):
                time.sleep(0.1)

    def _on_each(self, count: Callable[[str], int]) -> list[int]:
        """Call a function with the build's name on each worker; return the counts."""
        counts = self._client.run(count, self._requirements.build, on_error="return")
        return [n for n in counts.values() if isinstance(n, int)]  # other results are of workers just lost

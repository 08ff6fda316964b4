"""Tasks on a Dask cluster."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError  # no builtin before Python 3.11
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pkgutil import resolve_name
from typing import Any

from ..errors import ConfigError, RingfeedError, StorageError, WorkerError
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

__all__ = ["dask_executor"]

_LOST = (OSError, TimeoutError, asyncio.TimeoutError)  # what calls of the scheduler raise where it is away
_CONNECT_SECONDS = 5  # until a machine that does not answer is given up
_GREET_SECONDS = 20  # until what answers is taken for no scheduler
_LOST_SECONDS = 10  # until a scheduler that went away is given up
_WORKERS_SECONDS = 60.0  # until a cluster that has no workers is given up: one that grows with its load needs some
_OTHERS_SECONDS = 600.0  # until tasks of a killed build are taken for such as never end
_TASK = f"{run_remotely.__module__}:{run_remotely.__name__}"
_RESULT_SECONDS = 60.0  # until the result of a task that has ended, which is small, is taken for lost


@contextmanager
def dask_executor(address: str, *, local_spill: bool, leased_destination: str | None) -> Iterator[ClusterExecutor]:
    """An executor on the cluster of the scheduler at ``HOST:PORT``; see `engine.open_engine`."""
    try:
        import dask
        from distributed import Client
    except ImportError as error:
        raise ConfigError("--engine dask:// needs Dask; install it with: pip install 'ringfeed[dask]'") from error
    # What it has to say of workers that come and go is its business; what matters is raised. Dask asks whether large
    # arguments were meant to be sent, by a warning: those of our tasks are.
    settings = {"distributed.admin.large-graph-warning-threshold": "1GiB", "distributed.comm.retry.count": 0}
    with _quiet("distributed"), dask.config.set(settings):
        try:
            # Dask itself tries again and again where nobody listens, and waits for ever for a server that says nothing.
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
            with ThreadPoolExecutor(1) as thread:  # this one may have an event loop, as in notebooks
                thread.submit(asyncio.run, _greet(f"tcp://{address}")).result()
            client: Any = Client(f"tcp://{address}", timeout=_LOST_SECONDS, set_as_default=False)
        except Exception as error:  # of another server's answers Dask makes errors of many types
            raise StorageError(
                f"no Dask scheduler answers at {address}; check the address, and that it runs"
            ) from error
        try:
            executor = _DaskExecutor(
                client,
                address,
                WorkerRequirements.of_this_process(local_spill=local_spill, leased_destination=leased_destination),
            )
            with executor.telling_loss():
                executor.check_workers()
                executor.await_others()
            yield executor
        finally:
            with suppress(Exception):  # Dask may fail to close a lost client, and hide why it was lost
                client.close()


async def _greet(url: str) -> None:
    from distributed.comm.core import connect

    connection = await asyncio.wait_for(connect(url, timeout=_GREET_SECONDS), _GREET_SECONDS)
    await connection.close()


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Silence a logger and those below it, which have levels of their own."""
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
    """What `Client.get_executor` gives, but for results that cannot be fetched.

    There a future whose worker and scheduler die between the task's end and the coming of its result stays open for
    ever, and whoever waits for it with it (distributed 2026.8); nor can it be told when what was cancelled has ended.
    """

    def __init__(self, client: Any, address: str, terms: WorkerRequirements) -> None:
        super().__init__(terms)
        self._client = client
        self._address = address
        self._without_workers_since: float | None = None

    def _start(self, call: tuple[Any, ...]) -> tuple[Any, Any]:
        with self.telling_loss():
            task = self._client.submit(run_remotely, *call, pure=False)
        return task, task

    @contextmanager
    def telling_loss(self) -> Iterator[None]:
        """Of requests that fail for the scheduler is away, say so.

        Raises:
            WorkerError: it is.
        """
        try:
            yield
        except Exception as error:
            if not self._is_lost(error):
                raise
            raise self._explained(error) from error

    def _is_lost(self, error: Exception) -> bool:
        """Whether the scheduler is away; if it does not come back in time, the client closes itself."""
        if isinstance(error, RingfeedError):  # some are OSErrors, too
            return False
        return isinstance(error, _LOST) or self._client.status in ("closing", "closed")

    def _outcome(self, ended: Any) -> TaskOutcome:
        if ended.cancelled():  # perhaps as the client closes, whose event loop would begin `result` and not end it
            raise CancelledError
        outcome: TaskOutcome = ended.result(_RESULT_SECONDS)
        return outcome

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, (asyncio.CancelledError, CancelledError)) or self._is_lost(error):
            return WorkerError(f"the Dask scheduler at {self._address} went away, or gave the task up, or its result")
        if type(error).__name__ == "KilledWorker":
            return WorkerError(
                "a task was given up for it ended several Dask workers, most likely for want of memory; give them more "
                "memory or fewer threads, or ask for smaller shards"
            )
        return error

    def _count(self) -> int | None:
        with suppress(WorkerError), self.telling_loss():
            threads: dict[str, int] = self._client.nthreads()
            return sum(threads.values())
        return None

    def max_pending(self) -> int:
        """Some for each thread of all workers.

        Raises:
            WorkerError: there are none any more, and none come.
        """
        processors, now = self._processors(), time.monotonic()
        since = self._without_workers_since = None if processors else self._without_workers_since or now
        if since is not None and now - since > _WORKERS_SECONDS:
            raise WorkerError(
                f"the Dask cluster at {self._address} has no workers any more, most likely for want of memory; start "
                "some, with more of it, and the same command again"
            )
        return TASKS_PER_WORKER * max(1, processors)

    def check_workers(self) -> None:
        """Refuse a cluster that has no workers, or such as cannot do the work.

        Raises:
            StorageError: there are none, and none came.
            ConfigError: one of them lacks something.
        """
        # A task that a worker cannot load ends it: one that has no ringfeed, or one whose tasks are not the same.
        for worker, found in self._client.run(version, "ringfeed", on_error="return").items():
            if isinstance(found, ImportError):
                raise missing_package_error(f"Dask worker {worker}")
            if isinstance(found, str) and found != (here := version("ringfeed")):
                raise version_mismatch_error(f"Dask worker {worker}", "ringfeed", found, here)
        for worker, found in self._client.run(resolve_name, _TASK, on_error="return").items():
            if isinstance(found, (ImportError, AttributeError)):
                raise missing_package_error(f"Dask worker {worker}")
        probe, again = self.submit(probe_task), True
        while True:
            try:
                probe.result(_WORKERS_SECONDS)
                return
            except WorkerError as error:  # once, a result that had been there never came
                if not again or not isinstance(error.__cause__, (TimeoutError, asyncio.TimeoutError)):
                    raise
                probe, again = self.submit(probe_task), False
            except FutureTimeoutError as error:  # busy with the work of others, perhaps
                if not self._client.nthreads():
                    raise StorageError(f"the Dask cluster at {self._address} has no workers; start some") from error

    def await_others(self) -> None:
        """Wait for tasks of a build of the same destination whose own process was killed: they may still write there.

        Raises:
            WorkerError: they do not end.
        """
        started = time.monotonic()
        while any(self._on_each(stop_earlier_builds)):
            if time.monotonic() - started > _OTHERS_SECONDS:
                raise WorkerError(
                    f"tasks of an earlier build still run on the Dask cluster at {self._address}, and write to the "
                    "same place; wait for them, or restart its workers"
                )
            time.sleep(0.1)

    def cancel(self, futures: Collection[Future[Any]]) -> None:
        """Give up tasks, and return when none of them runs any more.

        A thread of a worker cannot be stopped, and Dask forgets a task that is cancelled while it runs.
        """
        with suppress(WorkerError), self.telling_loss():  # no knowing then: workers without a scheduler end themselves
            self._client.cancel([self._tasks[future] for future in futures if future in self._tasks])
            while any(self._on_each(stop_build)):
                time.sleep(0.1)

    def _on_each(self, count: Callable[[str], int]) -> list[int]:
        """What each worker counts of this build."""
        counts = self._client.run(count, self._terms.build, on_error="return")
        return [found for found in counts.values() if isinstance(found, int)]  # else it was lost just now

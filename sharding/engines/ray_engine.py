"""The executor on a Ray cluster."""

from __future__ import annotations

import logging
import re
import signal
import socket
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError  # no builtin before Python 3.11
from contextlib import contextmanager, suppress
from typing import Any

from ringfeed.sharding.common.stderr_filter import drop_stderr_lines
from ringfeed.sharding.errors import ConfigError, StorageError, WorkerError

from .cluster import RemoteExecutor, TaskOutcome, WorkerRequirements, missing_package_error, probe_task, run_remotely
from .executors import ClusterExecutor

_RETRIES = 3  # of a task whose worker was lost; tasks may run twice, and write the same bytes
_CONNECT_SECONDS = 5
_ATTEMPTS = 3  # to connect
_WORKERS_SECONDS = 60.0  # for a processor to become free: a cluster that grows needs some time
_NOISE = re.compile(rb".* task_manager\.cc:\d+: Failed to push error to driver ")  # logged as a connection closes


@contextmanager
def ray_executor(
    address: str, *, local_spill: bool, leased_destination: str | None, end_seconds: float = 60.0
) -> Iterator[ClusterExecutor]:
    """An executor on the cluster whose client server is at ``HOST:PORT``, or on ``auto``; see `engine.open_engine`.

    A program that is already connected to a cluster uses it with ``auto``, and stays connected. Otherwise tasks that
    still run after an interrupt have `end_seconds` to end.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError("--engine ray:// needs Ray; install it with: pip install 'ringfeed[ray]'") from error
    requirements = WorkerRequirements.of_this_process(local_spill=local_spill, leased_destination=leased_destination)
    connected = ray.is_initialized()
    if connected and address != "auto":
        raise ConfigError(
            "this program is connected to a Ray cluster already; use it with ray://auto, or call ray.shutdown() first"
        )
    try:
        if not connected:
            connect(ray, address)
        executor = _RayExecutor(ray, address, requirements, end_seconds=None if connected else end_seconds)
        executor.check_workers()
        yield executor
    finally:
        if not connected:
            disconnect(ray)


def connect(
    ray: Any, address: str, *, log_to_driver: bool = False, environment: Mapping[str, str] | None = None
) -> None:
    """Connect this program to the cluster whose client server is at ``HOST:PORT``, or to ``auto``.

    Args:
        log_to_driver: whether what its workers print appears here.

    Raises:
        StorageError: none answers, or it refuses this program.
    """
    try:
        if address != "auto":  # Ray's client would try for 30 s
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with _sigterm_kept():
                    ray.init(
                        address=address if address == "auto" else f"ray://{address}",
                        log_to_driver=log_to_driver,
                        logging_level=logging.ERROR,
                        runtime_env={"env_vars": dict(environment)} if environment else None,
                    )
                logging.getLogger("ray.util.client.logsclient").setLevel(logging.ERROR)  # ignores `logging_level`
                return
            except ConnectionAbortedError:  # its server for this client started too late, as on busy machines
                disconnect(ray)
                if attempt == _ATTEMPTS:
                    raise
    except OSError as error:
        raise StorageError(f"no Ray cluster answers at {address}; check the address, and that it runs") from error
    except RuntimeError as error:
        *_, reason = str(error).strip().splitlines() or [type(error).__name__]
        raise StorageError(f"the Ray cluster at {address} refuses: {reason.strip()}; see its logs") from error


def disconnect(ray: Any) -> None:
    """End the connection, and with it what runs for this program; without a word from Ray."""
    with drop_stderr_lines(_NOISE):
        ray.shutdown()


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Keep the process's own SIGTERM handler, which cleans up after a build and which Ray replaces."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # Only the main thread may set handlers; a handler that is no Python function reads as None.
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


class _RayExecutor(RemoteExecutor):
    def __init__(self, ray: Any, address: str, requirements: WorkerRequirements, *, end_seconds: float | None) -> None:
        super().__init__(requirements)
        self._ray = ray
        self._end_seconds = end_seconds
        self._run = ray.remote(max_retries=_RETRIES, num_cpus=1)(run_remotely)
        self._address = address

    def _start(self, call: tuple[Any, ...]) -> tuple[Any, Any]:
        try:
            task = self._run.remote(*call)
            return task, task.future()
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise self._explained(error) from error

    def _outcome(self, ended: Any) -> TaskOutcome:
        outcome: TaskOutcome = ended.result()
        return outcome

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, self._ray.exceptions.RayTaskError):  # the task could not even start
            return missing_package_error("a Ray worker")
        if isinstance(error, self._ray.exceptions.RayError | ConnectionError):
            return WorkerError(
                f"a worker or the Ray cluster at {self._address} was lost ({type(error).__name__}), most likely for "
                "want of memory; give the workers more of it, or ask for smaller shards"
            )
        return error

    def _count(self) -> int | None:
        with suppress(Exception):  # Ray's client turns a lost connection into errors of many types, even ValueError
            return int(self._ray.cluster_resources().get("CPU", 0))
        return None

    def max_pending(self) -> int:
        """One task for each processor, and a quarter more to let the cluster grow: few, because `cancel` waits."""
        count = self._processors()
        return count + count // 4 + 1

    def check_workers(self) -> None:
        """Refuse a cluster without a free processor, or with workers that cannot run the tasks.

        Raises:
            StorageError: it has no processor, and none appeared.
            ConfigError: a worker lacks something.
        """
        probe = self.submit(probe_task)
        while True:
            try:
                probe.result(_WORKERS_SECONDS)
                return
            except FutureTimeoutError as error:  # the workers may be busy with other work
                if self._count() == 0:
                    raise StorageError(f"the Ray cluster at {self._address} has no processor for a task") from error

    def cancel(self, futures: Collection[Future[Any]]) -> None:
        """Return once none of the tasks runs; after a minute, close the connection if it is our own, which ends them.

        `ray.cancel` is no option: if a task is just starting or ending, it loses the task or aborts this process (Ray
        2.60: "Tried to complete task that was not pending").
        """
        if wait(futures, self._end_seconds).not_done:
            disconnect(self._ray)

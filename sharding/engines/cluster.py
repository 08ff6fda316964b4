"""Tasks on a cluster, whichever it is: what runs on the workers, and the base of the executors that start them.

On a worker, `run_remotely` checks that it meets the requirements of the build, and returns errors with their traceback.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import traceback
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from typing import Any

from ringfeed.sharding.compute.keyed_random import derive_key
from ringfeed.sharding.errors import ConfigError, RingfeedError, WorkerError
from ringfeed.sharding.storage.client_errors import cause_chain
from ringfeed.sharding.storage.lease import LEASE_NAME, boot_id
from ringfeed.sharding.storage.storage import Storage

from .executors import ClusterExecutor, portable_error

_COUNT_SECONDS = 2.0  # between queries of the number of workers
_SHAPES_BYTES = ("ringfeed", "pyarrow", "numpy")  # packages whose versions may change the bytes that are written

_stopped: set[str] = set()
_running: dict[str, int] = {}
_lock = threading.Lock()


class WorkerTraceback(Exception):
    """The traceback of an error on a worker, as text, for `--debug`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequirements:
    """What a worker has to meet to take part in a build."""

    build: str  # name of the build, from `_name_build`
    versions: tuple[tuple[str, str], ...]  # required versions of the packages that shape the bytes, by name
    boot: str  # `boot_id` of the machine that workers have to be on; empty for any
    lease: str  # lease file that workers have to see if the destination is a local folder; empty for none

    @classmethod
    def of_this_process(cls, *, local_spill: bool, leased_destination: str | None) -> WorkerRequirements:
        """The requirements that this process meets; see `engine.open_engine`."""
        folder = None if leased_destination is None else Storage(leased_destination).local_path
        return cls(
            build=_name_build(leased_destination),
            versions=_versions(),
            boot=boot_id() if local_spill else "",
            lease="" if folder is None else str(folder / LEASE_NAME),
        )

    def check(self) -> None:
        """Refuse this process if it might write other bytes, or where no other process sees them (a ConfigError)."""
        here = dict(_versions())
        for name, expected in self.versions:
            if here[name] != expected:
                raise version_mismatch_error(f"a worker on {_host()}", name, here[name], expected)
        if self.boot and self.boot != boot_id():
            raise ConfigError(
                f"there are workers on another machine ({_host()}), which cannot reach this one's folder for temporary "
                "files; name a folder that all of them reach with --spill"
            )
        if self.lease and not os.path.exists(self.lease):
            raise ConfigError(
                f"there are workers ({_host()}) that do not see {os.path.dirname(self.lease)} as this machine does; "
                "name a destination that all of them reach, on a shared file system or a store"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """The result of a task, or its error and traceback."""

    result: Any = None
    error: Exception | None = None
    place: str = ""

    def settle(self, future: Future[Any]) -> None:
        """Set it on a future."""
        if self.error is None:
            future.set_result(self.result)
            return
        self.error.__cause__ = WorkerTraceback(self.place)
        future.set_exception(self.error)


@lru_cache(maxsize=1)
def _versions() -> tuple[tuple[str, str], ...]:
    return tuple((name, version(name)) for name in _SHAPES_BYTES)


def _host() -> str:
    return os.uname().nodename


def run_remotely(
    requirements: WorkerRequirements, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> TaskOutcome:
    """Run a task in this process unless its build was stopped here."""
    with _lock:
        if requirements.build in _stopped:
            return TaskOutcome(error=WorkerError("the build was stopped before this task began"))
        _running[requirements.build] = _running.get(requirements.build, 0) + 1
    try:
        requirements.check()
        return TaskOutcome(result=function(*arguments))
    except Exception as error:
        return TaskOutcome(error=portable_error(_placed(error)), place=f"on {_host()}:\n{traceback.format_exc()}")
    finally:
        with _lock:
            _running[requirements.build] -= 1


def _placed(error: Exception) -> Exception:
    """The error; it names this worker if a package is missing here."""
    if isinstance(error, RingfeedError) and any(isinstance(link, ImportError) for link in cause_chain(error)):
        return type(error)(f"on a worker ({_host()}): {error}")
    return error


def _name_build(destination: str | None) -> str:
    """Return a unique name for a build, which begins alike for all builds of one destination.

    Args:
        destination: destination whose lease the build holds, if any.
    """
    place = "" if destination is None else f"{derive_key(Storage(destination).address()):016x}"
    return f"{place}-{secrets.token_hex(8)}"


def stop_earlier_builds(build: str) -> int:
    """Stop all other builds of the same destination, which were killed; return how many of their tasks still run."""
    place = build.partition("-")[0]
    with _lock:
        others = [name for name in _running if place and name != build and name.partition("-")[0] == place]
        _stopped.update(others)
        return sum(_running[name] for name in others)


def stop_build(build: str) -> int:
    """Keep further tasks of a build from starting in this process; return how many still run."""
    with _lock:
        _stopped.add(build)
        return _running.get(build, 0)


def probe_task() -> None:
    """Do nothing, as a task that shows whether there are workers that meet the requirements."""


def missing_package_error(worker: str) -> ConfigError:
    """The error for a worker that cannot even load the task."""
    return ConfigError(f"{worker} cannot load the tasks; install there what is installed here: pip install ringfeed")


def version_mismatch_error(worker: str, package: str, there: str, here: str) -> ConfigError:
    """The error for a worker that has another version of a package."""
    return ConfigError(
        f"{worker} has {package} {there}, this machine {here}: they would not write the same bytes; install the same "
        "version on both"
    )


class RemoteExecutor(ClusterExecutor):
    """Base of executors on a cluster: their results arrive in futures of this process."""

    def __init__(self, requirements: WorkerRequirements) -> None:
        self._requirements = requirements
        self._tasks: dict[Future[Any], Any] = {}  # kept alive until their results arrive
        self._counted = (0, -_COUNT_SECONDS)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function on the cluster."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        self._tasks[future], ended = self._start((self._requirements, partial(fn, **kwargs), args))
        ended.add_done_callback(lambda done: self._settle(done, future))
        return future

    @abstractmethod
    def _start(self, call: tuple[Any, ...]) -> tuple[Any, Any]:
        """Start `run_remotely` on the cluster; return the task, and a future of any kind that ends with it."""

    @abstractmethod
    def _outcome(self, ended: Any) -> TaskOutcome:
        """The result of such a future; raises the errors of its library."""

    @abstractmethod
    def _explained(self, error: Exception) -> Exception:
        """The error to report for one of the cluster's; errors of tasks arrive as outcomes."""

    @abstractmethod
    def _count(self) -> int | None:
        """How many tasks the cluster runs in parallel; None if it does not answer, which its tasks will report."""

    def _settle(self, ended: Any, future: Future[Any]) -> None:
        try:
            self._outcome(ended).settle(future)
        except Exception as error:
            explained = self._explained(error)
            if explained is not error:
                explained.__cause__ = error
            future.set_exception(explained)
        finally:
            self._tasks.pop(future, None)

    def _processors(self) -> int:
        """The last result of `_count`, refreshed now and then because clusters grow."""
        count, when = self._counted
        if time.monotonic() - when >= _COUNT_SECONDS:
            current = self._count()
            self._counted = (count if current is None else current, time.monotonic())
        return self._counted[0]

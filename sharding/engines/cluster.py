"""Tasks on a cluster: what they have around them there, which checks that workers fit, and brings errors back whole;
and what is alike in all executors that start them.

Nothing here knows Dask or Ray.
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

from ..compute.keyed_random import derive_key
from ..errors import ConfigError, RingfeedError, WorkerError
from ..storage.lease import LEASE_NAME, boot_id
from ..storage.retry import cause_chain
from ..storage.storage import Storage
from .executors import ClusterExecutor, portable_error

__all__ = [
    "RemoteExecutor",
    "TaskOutcome",
    "WorkerRequirements",
    "WorkerTraceback",
    "missing_package_error",
    "probe_task",
    "run_remotely",
    "stop_build",
    "stop_earlier_builds",
    "version_mismatch_error",
]  # fmt: skip

_COUNT_SECONDS = 2.0  # for which the number of workers is taken for known
_SHAPES_BYTES = ("ringfeed", "pyarrow", "numpy")  # packages whose versions may show in what is written

_stopped: set[str] = set()
_running: dict[str, int] = {}
_lock = threading.Lock()


class WorkerTraceback(Exception):
    """Where in a task, on a worker, an error arose: as text, for `--debug`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequirements:
    """What a worker must agree with to take part in a build.

    Attributes:
        build: its name, see `_name_build`.
        versions: of the packages that shape the bytes.
        boot: of the machine that it has to be on, see `lease.boot_id`; empty: any.
        lease: a file that it has to see, of a destination in a folder of this machine; empty: none.
    """

    build: str
    versions: tuple[tuple[str, str], ...]
    boot: str
    lease: str

    @classmethod
    def of_this_process(cls, *, local_spill: bool, leased_destination: str | None) -> WorkerRequirements:
        """What this process would agree with; see `engine.open_engine`."""
        folder = None if leased_destination is None else Storage(leased_destination).local_path
        return cls(
            build=_name_build(leased_destination),
            versions=_versions(),
            boot=boot_id() if local_spill else "",
            lease="" if folder is None else str(folder / LEASE_NAME),
        )

    def check(self) -> None:
        """Refuse a worker that would write other bytes, or where others do not find them.

        Raises:
            ConfigError: this process is one.
        """
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
    """What came of a task: its result, or its error and where that arose."""

    result: Any = None
    error: Exception | None = None
    place: str = ""

    def settle(self, future: Future[Any]) -> None:
        """Hand it on."""
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


def run_remotely(terms: WorkerRequirements, function: Callable[..., Any], arguments: tuple[Any, ...]) -> TaskOutcome:
    """Run a task in this process, unless its build was stopped here."""
    with _lock:
        if terms.build in _stopped:
            return TaskOutcome(error=WorkerError("the build was stopped before this task began"))
        _running[terms.build] = _running.get(terms.build, 0) + 1
    try:
        terms.check()
        return TaskOutcome(result=function(*arguments))
    except Exception as error:
        return TaskOutcome(error=portable_error(_placed(error)), place=f"on {_host()}:\n{traceback.format_exc()}")
    finally:
        with _lock:
            _running[terms.build] -= 1


def _placed(error: Exception) -> Exception:
    """The error; if something is not installed, it says that it is this worker which lacks it."""
    if isinstance(error, RingfeedError) and any(isinstance(link, ImportError) for link in cause_chain(error)):
        return type(error)(f"on a worker ({_host()}): {error}")
    return error


def _name_build(destination: str | None) -> str:
    """A name that no other build has.

    Args:
        destination: that the build holds the lease of, if it does.
    """
    place = "" if destination is None else f"{derive_key(Storage(destination).locate()):016x}"
    return f"{place}-{secrets.token_hex(8)}"


def stop_earlier_builds(build: str) -> int:
    """As `stop_build`, for all builds of the same destination but this one: their own processes were killed."""
    place = build.partition("-")[0]
    with _lock:
        others = [name for name in _running if place and name != build and name.partition("-")[0] == place]
        _stopped.update(others)
        return sum(_running[name] for name in others)


def stop_build(build: str) -> int:
    """Let no task of a build begin in this process any more; returns how many run."""
    with _lock:
        _stopped.add(build)
        return _running.get(build, 0)


def probe_task() -> None:
    """A task that tells whether there are workers, and whether they fit."""


def missing_package_error(worker: str) -> ConfigError:
    """What to say if a worker cannot even load the task."""
    return ConfigError(f"{worker} cannot load the tasks; install there what is installed here: pip install ringfeed")


def version_mismatch_error(worker: str, package: str, there: str, here: str) -> ConfigError:
    """What to say of a worker that has another version of a package."""
    return ConfigError(
        f"{worker} has {package} {there}, this machine {here}: they would not write the same bytes; install the same "
        "version on both"
    )


# --- in the process that starts them -----------------------------------------------------------------------------


class RemoteExecutor(ClusterExecutor):
    """Tasks on a cluster, whose results become those of futures of this process.

    Args:
        terms: that workers must agree with.
    """

    def __init__(self, terms: WorkerRequirements) -> None:
        self._terms = terms
        self._tasks: dict[Future[Any], Any] = {}  # held until their results are here
        self._counted = (0, -_COUNT_SECONDS)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function on the cluster."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        self._tasks[future], ended = self._start((self._terms, partial(fn, **kwargs), args))
        ended.add_done_callback(lambda done: self._settle(done, future))
        return future

    @abstractmethod
    def _start(self, call: tuple[Any, ...]) -> tuple[Any, Any]:
        """Have `run_remotely` called: the task, and a future of any kind that ends with it."""

    @abstractmethod
    def _outcome(self, ended: Any) -> TaskOutcome:
        """The result of such a future; raises what its library does."""

    @abstractmethod
    def _explained(self, error: Exception) -> Exception:
        """What to say of that: errors of our own tasks are outcomes, so it was the cluster's."""

    @abstractmethod
    def _count(self) -> int | None:
        """How many tasks the cluster runs side by side; None if it cannot be asked: the tasks will say why."""

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
        """The last that `_count` told; it is asked now and then, for clusters grow."""
        count, when = self._counted
        if time.monotonic() - when >= _COUNT_SECONDS:
            asked = self._count()
            self._counted = (count if asked is None else asked, time.monotonic())
        return self._counted[0]

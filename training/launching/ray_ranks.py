"""Starts the ranks of a run on a Ray cluster, through Horovod's `RayExecutor`: a process for each of its workers.

The rank is not the worker itself: it has signals of its own, reports how it ends, and ends as it does elsewhere. It
ends with its worker, and the workers with the launcher. What it prints reaches the launcher through Ray.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ringfeed.sharding.engines.ray_engine import connect, disconnect
from ringfeed.sharding.errors import ConfigError, TrainingError
from ringfeed.training.ring.horovod import ray_ranks
from ringfeed.training.ring.launched import EndReport

from .endings import Ending, LauncherSignals, ending_of
from .process_group import ProcessGroup, ringfeed_command

_POLL_SECONDS = 0.1
_LISTEN_SECONDS = 1.0  # between two questions of a worker whether the launcher was told to stop
_START_SECONDS = 120  # for processors to become free
_QUIET = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}  # Horovod's workers use names that Ray has renamed

Ended = tuple[int, EndReport | None]  # exit status, report


def run_on_ray(address: str, size: int, command: Sequence[str], signals: LauncherSignals) -> Ending:
    """Start ranks with these arguments of `ringfeed` at ``ray://HOST:PORT`` or ``auto``, and wait for their end.

    Each rank takes a processor of the cluster, and a GPU if it has as many. A RingfeedError says what is not installed,
    that no cluster answers, that it is too small or busy, or that a worker was lost.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError("--ray needs Ray; install it with: pip install 'ringfeed[ray]'") from error
    connect(ray, address.removeprefix("ray://"), log_to_driver=True, environment=_QUIET)
    pool = ThreadPoolExecutor(1)
    try:
        resources = ray.cluster_resources()
        if (processors := int(resources.get("CPU", 0))) < size:
            raise ConfigError(f"-n {size} needs a processor for each rank, and the Ray cluster has {processors}")
        is_asked = ray.remote(num_cpus=0)(_Flag).remote()
        executor = ray_ranks(size, use_gpu=resources.get("GPU", 0) >= size, start_seconds=_START_SECONDS)
        return _wait(pool.submit(_run, executor, [list(command), os.getcwd(), is_asked]), signals, is_asked)
    except TimeoutError as error:
        raise TrainingError(
            f"the Ray cluster gave no {size} free processors within {_START_SECONDS} s: other work holds them; "
            "wait for it, or lower -n"
        ) from error
    except ray.exceptions.RayError as error:
        line = " ".join(str(error).split())
        raise TrainingError(f"a worker of the Ray cluster was lost: {line[:200]}") from error
    finally:
        disconnect(ray)  # which ends the workers, and so the wait in the pool
        pool.shutdown()


class _Flag:
    """An actor that tells the workers whether the launcher was told to stop."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set


def _run(executor: Any, arguments: Sequence[Any]) -> list[Ended]:
    executor.start()
    ended: list[Ended] = executor.run(_run_rank, args=list(arguments))
    return ended


def _run_rank(command: Sequence[str], folder: str, is_asked: Any) -> Ended:
    """Run one rank; in a worker of Ray, in whose environment Horovod has put the rank."""
    import ray

    if not Path(folder).is_dir():
        return 1, EndReport(message=f"{folder} is no folder on {os.uname().nodename}", status=1)
    os.chdir(folder)
    with ProcessGroup[int](ringfeed_command(command)) as group:  # the rank ends with this worker
        process = group.start(0, {"PYTHONWARNINGS": ""})
        listens_at, was_told = 0.0, False
        while (code := process.code) is None:
            if not was_told and time.monotonic() > listens_at:
                listens_at = time.monotonic() + _LISTEN_SECONDS
                if was_told := ray.get(is_asked.is_set.remote()):
                    group.terminate()
            group.listen(_POLL_SECONDS)
        group.listen_until(lambda: not process.sources)
        return code, process.report


def _wait(ended: Future[list[Ended]], signals: LauncherSignals, is_asked: Any) -> Ending:
    while not ended.done():
        if ending := signals.ending(is_asked.set.remote):
            return ending
        time.sleep(_POLL_SECONDS)
    codes = [code for code, _ in ended.result()]
    if not any(codes):
        return Ending(status=0)
    reports = {rank: report for rank, (_, report) in enumerate(ended.result()) if report is not None}
    first = next(rank for rank, code in enumerate(codes) if code)
    return ending_of(codes, reports, first=first, was_asked=signals.is_passed_on)

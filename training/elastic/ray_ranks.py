"""Starts the ranks of a run on a Ray cluster, through Horovod's `RayExecutor`: a process for each of its workers.

The rank is not the worker itself: it has signals of its own, reports how it ends, and ends as it does elsewhere. It
ends with its worker, and the workers with the launcher. What it prints reaches the launcher through Ray.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ringfeed.sharding.engines.ray_engine import connect, disconnect
from ringfeed.sharding.errors import ConfigError, TrainingError
from ringfeed.training.loop.stopping import INTERRUPTED, TERMINATED
from ringfeed.training.ring.horovod import ray_ranks
from ringfeed.training.ring.launched import Report

from .processes import SAVE_SECONDS, Asked, Ending, ending_of, start_rank

__all__ = ["run_on_ray"]

_POLL_SECONDS = 0.1
_LISTEN_SECONDS = 1.0  # between two questions of a worker whether the launcher was told to stop
_START_SECONDS = 120  # for processors to become free
_QUIET = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}  # Horovod's workers use names that Ray has renamed

Ended = tuple[int, bytes]  # exit status, report


def run_on_ray(address: str, size: int, command: Sequence[str], asked: Asked) -> Ending:
    """Start the ranks, and wait for their end.

    Args:
        address: of the cluster: ``ray://HOST:PORT`` of its client server, or ``auto``.
        size: number of ranks; each takes a processor, and a GPU if the cluster has as many.
        command: the arguments of `ringfeed` for each.
        asked: the launcher's signals.

    Raises:
        ConfigError: Ray is not installed, or the cluster is smaller than that.
        StorageError: no cluster answers at the address.
        TrainingError: Horovod is not installed, a worker was lost, or other work holds the processors.
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
        return _wait(pool.submit(_run, executor, [list(command), os.getcwd(), is_asked]), asked, is_asked)
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
        return 1, Report(message=f"{folder} is no folder on {os.uname().nodename}", status=1).encode()
    os.chdir(folder)
    holder, held = os.pipe()  # the rank ends when this worker does, which holds one end of it
    process, reader = start_rank(command, {"PYTHONWARNINGS": ""}, holder)
    os.close(holder)
    listens_at, was_told = 0.0, False
    while process.poll() is None:
        if not was_told and time.monotonic() > listens_at:
            listens_at = time.monotonic() + _LISTEN_SECONDS
            if was_told := ray.get(is_asked.is_set.remote()):
                process.send_signal(signal.SIGTERM)
        time.sleep(_POLL_SECONDS)
    os.close(held)
    return process.returncode, os.read(reader, 65536)


def _wait(ended: Future[list[Ended]], asked: Asked, is_asked: Any) -> Ending:
    deadline = float("inf")
    while not ended.done():
        if asked.number == signal.SIGINT:
            return Ending(status=INTERRUPTED, line="interrupted")
        if asked.number and deadline == float("inf"):
            deadline = time.monotonic() + SAVE_SECONDS
            is_asked.set.remote()
        if time.monotonic() > deadline:
            line = f"killed, since the ranks still ran {SAVE_SECONDS:.0f} s after SIGTERM"
            return Ending(status=TERMINATED, line=line)
        time.sleep(_POLL_SECONDS)
    codes = [code for code, _ in ended.result()]
    if not any(codes):
        return Ending(status=0)
    reports = {rank: Report.decode(text) for rank, (_, text) in enumerate(ended.result()) if text}
    first = next(rank for rank, code in enumerate(codes) if code)
    return ending_of(codes, reports, first=first, was_asked=deadline != float("inf"))

"""The workers of `tf.distribute.MultiWorkerMirroredStrategy`, as ``TF_CONFIG`` names them. Imports nothing heavy.

Tested in tests/training/ring/test_worker_ring.py.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from ringfeed.sharding.errors import ConfigError

from .tf_config import TF_CONFIG, WORKER, TaskConfig, read_tf_config
from .world import World

__all__ = ["free_ports", "local_rank_of_worker", "local_workers", "multi_worker_world", "worker_world"]

_EXAMPLE = '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}'


def worker_world(environ: Mapping[str, str]) -> World | None:
    """Return this process's place among the workers of ``TF_CONFIG``; None if it names none, or other tasks, too.

    >>> config = '{"cluster": {"worker": ["a:1", "b:1", "b:2"]}, "task": {"type": "worker", "index": 2}}'
    >>> worker_world({"TF_CONFIG": config})
    World(rank=2, size=3, local_size=2)
    """
    try:
        config = read_tf_config(environ)
    except (ValueError, KeyError):
        return None
    if list(config.tasks) != [WORKER]:
        return None
    hosts = config.hosts(WORKER)
    return World(rank=config.index, size=len(hosts), local_size=hosts.count(config.host))


def multi_worker_world(environ: Mapping[str, str]) -> World:
    """Return this process's place among the workers; a ConfigError if ``TF_CONFIG`` does not give it one."""
    world = worker_world(environ)
    if world is None:
        found = "has no cluster of workers with a task" if environ.get(TF_CONFIG) else "is not set"
        raise ConfigError(
            f"backend=multi_worker: {TF_CONFIG} {found}: ringfeed launch -n 2 train --config FILE on one machine, or "
            f"{TF_CONFIG} in the environment of each process elsewhere, such as {_EXAMPLE}"
        )
    return world


def local_rank_of_worker(environ: Mapping[str, str]) -> int:
    """Return the number of this worker on its host; `multi_worker_world` has found it."""
    config = read_tf_config(environ)
    return config.hosts(WORKER)[: config.index].count(config.host)


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens at."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


@contextmanager
def local_workers(size: int) -> Iterator[Sequence[dict[str, str]]]:
    """Yield the environment of each of some workers of this machine, as `local_ranks` does for Horovod's ranks."""
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(size))
    config = TaskConfig(tasks={WORKER: addresses}, kind=WORKER, index=0)
    yield [config.environment(WORKER, index) for index in range(size)]

"""``TF_CONFIG``: the processes of a run by TensorFlow's kinds of task, and which of them this one is.

The workers of `tf.distribute.MultiWorkerMirroredStrategy` are ranks. Imports nothing heavy.
Tested in tests/training/servers/test_cluster.py and tests/training/ring/test_worker_ring.py.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ringfeed.sharding.errors import ConfigError

from .world import World

TF_CONFIG = "TF_CONFIG"
WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """The addresses of all tasks, and one task."""

    tasks: Mapping[str, tuple[str, ...]]  # addresses ``host:port`` by kind
    # The task of this process
    kind: str
    index: int

    @property
    def host(self) -> str:
        return self.hosts(self.kind)[self.index]

    def hosts(self, kind: str) -> list[str]:
        return [address.rpartition(":")[0] for address in self.tasks[kind]]

    def environment(self, kind: str, index: int) -> dict[str, str]:
        """Return the variable that gives a process one of the tasks."""
        cluster = {name: list(found) for name, found in self.tasks.items()}
        return {TF_CONFIG: json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def read_tf_config(environ: Mapping[str, str]) -> TaskConfig:
    """Read ``TF_CONFIG``.

    Raises:
        KeyError: it lacks a key, or a kind has no tasks.
        ValueError: it is missing, is not JSON, has no address ``host:port`` for a task, or names no such task.

    >>> read_tf_config({"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'})
    TaskConfig(tasks={'worker': ('a:1', 'b:1')}, kind='worker', index=1)
    """
    tree = json.loads(environ.get(TF_CONFIG, ""))
    try:
        tasks = {str(kind): tuple(map(str, found)) for kind, found in tree["cluster"].items()}
        config = TaskConfig(tasks=tasks, kind=str(tree["task"]["type"]), index=int(tree["task"]["index"]))
    except (TypeError, AttributeError) as error:  # an object is something else
        raise ValueError(str(error)) from error
    if not 0 <= config.index < len(tasks[config.kind]):
        raise ValueError("there is no such task")
    if not all(host for kind in tasks for host in config.hosts(kind)):
        raise ValueError("tasks need addresses, each host:port")
    return config


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
def local_workers(hosts: Sequence[str]) -> Iterator[Sequence[dict[str, str]]]:
    """Yield the environment of each of some workers of this machine, as `ranks_on` does for Horovod's ranks."""
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(len(hosts)))
    config = TaskConfig(tasks={WORKER: addresses}, kind=WORKER, index=0)
    yield [config.environment(WORKER, index) for index in range(len(hosts))]

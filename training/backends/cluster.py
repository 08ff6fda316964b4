"""The cluster of a run on parameter servers, and this process's task in it, as ``TF_CONFIG`` says.

Imports nothing heavy: a wrong cluster is refused before TensorFlow is imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ...sharding.errors import ConfigError

__all__ = ["CHIEF", "PS", "TF_CONFIG", "WORKER", "Cluster", "cluster_from_environment"]

TF_CONFIG = "TF_CONFIG"
CHIEF, PS, WORKER = "chief", "ps", "worker"
_EXAMPLE = (
    '{"cluster": {"chief": ["a:2222"], "ps": ["a:2223"], "worker": ["a:2224", "b:2224"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The addresses of a cluster, and one task.

    Attributes:
        tasks: addresses ``host:port`` by kind: `CHIEF` (one), `PS` and `WORKER`.
        kind, index: the task of this process.
    """

    tasks: Mapping[str, tuple[str, ...]]
    kind: str
    index: int

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.tasks[WORKER])

    @property
    def servers(self) -> int:
        """Number of parameter servers."""
        return len(self.tasks[PS])

    @property
    def host(self) -> str:
        """The host of this process's task."""
        return _host(self.tasks[self.kind][self.index])

    @property
    def local_tasks(self) -> int:
        """Number of tasks on this process's host that compute: workers and parameter servers."""
        return sum(_host(address) == self.host for kind in (PS, WORKER) for address in self.tasks[kind])

    def environment(self, kind: str, index: int) -> dict[str, str]:
        """Return the variable that gives a process a task of this cluster."""
        value = {"cluster": {name: list(found) for name, found in self.tasks.items()}}
        return {TF_CONFIG: json.dumps({**value, "task": {"type": kind, "index": index}})}


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def cluster_from_environment(environ: Mapping[str, str]) -> Cluster:
    """Read ``TF_CONFIG``.

    Raises:
        ConfigError: it is missing, or does not name a chief, a parameter server, a worker, and a task.

    >>> task = '{"cluster": {"chief": ["a:1"], "ps": ["a:2"], "worker": ["a:3"]}, "task": {"type": "ps", "index": 0}}'
    >>> cluster = cluster_from_environment({"TF_CONFIG": task})
    >>> cluster.kind, cluster.workers, cluster.host, cluster.local_tasks
    ('ps', 1, 'a', 2)
    """
    text = environ.get(TF_CONFIG)
    if not text:
        raise ConfigError(
            "backend=parameter_server needs several processes: ringfeed launch --ps 1 --workers 2 train --config FILE "
            f"on one machine, or {TF_CONFIG} in the environment of each process elsewhere, such as {_EXAMPLE}"
        )
    try:
        tree = json.loads(text)
        tasks = {kind: tuple(map(str, tree["cluster"][kind])) for kind in (CHIEF, PS, WORKER)}
        cluster = Cluster(tasks=tasks, kind=tree["task"]["type"], index=int(tree["task"]["index"]))
        is_whole = all(":" in address for found in tasks.values() for address in found)
        if not (is_whole and len(tasks[CHIEF]) == 1 and tasks[PS] and tasks[WORKER]):
            raise ValueError("one chief, and at least one ps and worker, each host:port")
        if not 0 <= cluster.index < len(tasks[cluster.kind]):
            raise ValueError("there is no such task")
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ConfigError(f"{TF_CONFIG} is not a cluster with a task ({reason}); such as {_EXAMPLE}") from error
    return cluster

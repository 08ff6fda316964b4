"""The cluster of a run on parameter servers, and this process's task in it, as ``TF_CONFIG`` says.

Imports nothing heavy: a wrong cluster is refused before TensorFlow is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.ring.tf_config import TF_CONFIG, WORKER, TaskConfig, read_tf_config

CHIEF, PS = "chief", "ps"
Task = tuple[str, int]
_EXAMPLE = (
    '{"cluster": {"chief": ["a:2222"], "ps": ["a:2223"], "worker": ["a:2224", "b:2224"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


def task_name(kind: str, index: int) -> str:
    return {CHIEF: "the chief", PS: f"parameter server {index}", WORKER: f"worker {index}"}[kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(TaskConfig):
    """One `CHIEF`, and some `PS` and `WORKER`."""

    @property
    def workers(self) -> int:
        return len(self.tasks[WORKER])

    @property
    def servers(self) -> int:
        return len(self.tasks[PS])

    @property
    def local_tasks(self) -> int:
        """Number of tasks on this process's host that compute: workers and parameter servers, or a chief alone."""
        return sum(self.hosts(kind).count(self.host) for kind in (PS, WORKER)) or 1


def cluster_from_environment(environ: Mapping[str, str]) -> Cluster:
    """Read ``TF_CONFIG``; a ConfigError if it does not name a chief, a parameter server, a worker, and a task.

    >>> task = '{"cluster": {"chief": ["a:1"], "ps": ["a:2"], "worker": ["a:3"]}, "task": {"type": "ps", "index": 0}}'
    >>> cluster = cluster_from_environment({"TF_CONFIG": task})
    >>> cluster.kind, cluster.workers, cluster.host, cluster.local_tasks
    ('ps', 1, 'a', 2)
    """
    if not environ.get(TF_CONFIG):
        raise ConfigError(
            "backend=parameter_server needs several processes: ringfeed launch --ps 1 --workers 2 train --config FILE "
            f"on one machine, or {TF_CONFIG} in the environment of each process elsewhere, such as {_EXAMPLE}"
        )
    try:
        config = read_tf_config(environ)
        tasks = {kind: config.tasks[kind] for kind in (CHIEF, PS, WORKER)}
        if len(tasks[CHIEF]) != 1 or not (tasks[PS] and tasks[WORKER]):
            raise ValueError("one chief, and at least one ps and worker")
        return Cluster(tasks=tasks, kind=config.kind, index=config.index)
    except (ValueError, KeyError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ConfigError(f"{TF_CONFIG} is not a cluster with a task ({reason}); such as {_EXAMPLE}") from error

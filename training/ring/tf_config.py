"""``TF_CONFIG``: the processes of a run by TensorFlow's kinds of task, and which of them this one is.

Imports nothing heavy.
Tested in tests/training/servers/test_cluster.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["TF_CONFIG", "WORKER", "TaskConfig", "read_tf_config"]

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

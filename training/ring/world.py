"""The rank of this process, from the environment that its launcher set.

Imports nothing heavy: a wrong configuration is refused before TensorFlow is imported.
Tested in tests/training/ring/test_ring.py and tests/training/ring/test_worker_ring.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringfeed.sharding.errors import ConfigError

# Settings of Horovod's that would change results or reach what was never tried.
_REFUSED = {
    "HOROVOD_AUTOTUNE": "autotuning changes how gradients are fused while they are reduced, and so their bits",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "hierarchical reduction needs groups of hosts",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "hierarchical gathering needs groups of hosts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A process among the ranks: `rank` in [0, size), and the number of ranks on its host."""

    rank: int
    size: int
    local_size: int


# Variables of rank, world size and local size that launchers set for each process they start.
_LAUNCHERS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE"),  # horovodrun with Gloo
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),  # MPICH, Intel MPI
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),  # MVAPICH
)


def world_from_environment(environ: Mapping[str, str]) -> World | None:
    """Return what a launcher set for this process, or None if no launcher started it as a rank.

    >>> world_from_environment({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_SIZE": "2"})
    World(rank=1, size=4, local_size=2)
    >>> world_from_environment({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}) is None
    True
    """
    for rank, size, local_size in _LAUNCHERS:
        if rank in environ or size in environ:
            return World(
                rank=_integer(environ, rank, 0),
                size=_integer(environ, size, 1),
                local_size=_integer(environ, local_size, 1),
            )
    tasks = _integer(environ, "SLURM_STEP_NUM_TASKS", 1)  # set for every job step; a single task is no rank
    return World(rank=_integer(environ, "SLURM_PROCID", 0), size=tasks, local_size=1) if tasks > 1 else None


def _integer(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdigit() else default


def refuse_settings(environ: Mapping[str, str]) -> None:
    """Raise a ConfigError for a setting of Horovod's under which runs would not be the same again."""
    for name, reason in _REFUSED.items():
        if environ.get(name, "0") not in ("0", ""):
            raise ConfigError(f"{name} is set, which is not supported ({reason}); unset it")


def host_groups(hosts: Sequence[str]) -> list[list[int]]:
    """Return the ranks of each host, the leading one first; a ConfigError if there are no two levels.

    >>> host_groups(["a", "b", "a", "b", "c"])
    [[0, 2], [1, 3], [4]]
    """
    groups: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        groups.setdefault(host, []).append(rank)
    if len(groups) == 1 or len(groups) == len(hosts):
        count = "one host" if len(groups) == 1 else "one rank on each host"
        raise ConfigError(
            f"sync.hierarchical=true needs several hosts, and several ranks on one of them, got {len(hosts)} ranks and "
            f"{count}; use sync.hierarchical=false"
        )
    return list(groups.values())

"""Options of the backend, which starts the processes of a run and moves what they exchange."""

from __future__ import annotations

from dataclasses import dataclass

from .checks import Options, key

HOROVOD, NONE, MIRRORED, MULTI_WORKER = "horovod", "none", "mirrored", "multi_worker"
PARAMETER_SERVER = "parameter_server"
BACKENDS = (HOROVOD, NONE, MIRRORED, MULTI_WORKER, PARAMETER_SERVER)
MODES = ("async", "ssp", "asp", "sync")


@dataclass(frozen=True, kw_only=True)
class MirroredConfig(Options, group="mirrored"):
    """Options of a run on several devices of one process."""

    devices: int | None = key(
        None, "GPUs to use; null: all. Without GPUs: logical devices of the CPU, as a trial", at_least=2
    )


@dataclass(frozen=True, kw_only=True)
class ParameterServerConfig(Options, group="parameter_server"):
    mode: str = key("async", f"how workers' updates are applied: {', '.join(MODES)}", choices=MODES)
    staleness: int = key(4, "ssp: steps that a worker may be ahead of the slowest when it begins one", at_least=0)
    threshold: float = key(
        0.01, "asp: share of a weight that a change must exceed at first, later by 1 / sqrt(step)", at_least=0
    )
    shard_bytes: int | None = key(
        None, "split embedding tables of at least so many bytes by rows over the servers; null: none", at_least=1
    )
    backup_workers: int = key(0, "sync: workers whose gradients a step does not wait for", at_least=0)

    @property
    def is_set(self) -> bool:
        """Whether an option is not the default."""
        return self != ParameterServerConfig()

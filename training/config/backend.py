"""Options of the backend, which starts the processes of a run and moves what they exchange; and what it supports.

Tested in tests/training/config/test_config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringfeed.sharding.errors import ConfigError

from .checks import key, one_of, require, require_finite

__all__ = [
    "BACKENDS",
    "HOROVOD",
    "MIRRORED",
    "MULTI_WORKER",
    "NONE",
    "PARAMETER_SERVER",
    "MirroredConfig",
    "ParameterServerConfig",
    "check_backend",
]

HOROVOD, NONE, MIRRORED, MULTI_WORKER = "horovod", "none", "mirrored", "multi_worker"
PARAMETER_SERVER = "parameter_server"
BACKENDS = (HOROVOD, NONE, MIRRORED, MULTI_WORKER, PARAMETER_SERVER)
ROW_OPTIMIZERS = ("sgd", "adam", "adamw")  # whose updates of single rows are in `optimizers.rows`
MODES = ("async", "ssp", "asp", "sync")
_Only = Mapping[str, tuple[Any, str]]
_ON_SERVERS: _Only = {  # the only value of a key, and why
    "compression.method": ("none", "workers send their gradients as they are"),
    "sync.method": ("every_step", "workers hold no weights of their own that could be averaged"),
    "sync.shares": ("equal", "fast workers take over what slow ones have left"),
    "sync.batch_norm": (False, "workers share no batch"),
    "sync.hierarchical": (False, "workers reduce nothing among themselves"),
    "optimizer.accumulate": (1, "each batch of a worker is an update"),
    "ema.decay": (None, "its updates have no common order"),
    "checkpoint.commit_steps": (None, "workers hold no weights of their own"),
    "data.on_bad_shard": ("raise", "checkpoints do not hold what workers have found"),
    "output.records": (None, "the ranks of a ring write them"),
    "output.prometheus_port": (None, "the ranks of a ring write them"),
    "overfit_batches": (None, "each worker takes the next batches"),
    "callbacks": (None, "no process has the network and its steps"),
    "track.profile": (None, "the chief, which it would trace, takes no steps"),
    "track.timeline": (None, "it is of a ring"),
}
_BY_TENSORFLOW: _Only = {
    "compression.method": ("none", "TensorFlow reduces gradients as they are"),
    "sync.method": ("every_step", "TensorFlow reduces the gradients of every step"),
    "sync.shares": ("equal", "all have the same number of samples"),
    "sync.batch_norm": (False, "TensorFlow reduces gradients alone"),
    "sync.hierarchical": (False, "TensorFlow chooses the way"),
    "checkpoint.commit_steps": (None, "no rank that dies is replaced"),
    "track.timeline": (None, "Horovod writes it"),
}
_WITHOUT: Mapping[str, _Only] = {
    MIRRORED: {
        **_BY_TENSORFLOW,
        "output.records": (None, "the ranks of a ring write them"),
        "output.prometheus_port": (None, "the ranks of a ring write them"),
    },
    MULTI_WORKER: _BY_TENSORFLOW,
    PARAMETER_SERVER: _ON_SERVERS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredConfig:
    """Options of a run on several devices of one process."""

    devices: int | None = key(None, "GPUs to use; null: all. Without GPUs: logical devices of the CPU, as a trial")

    def __post_init__(self) -> None:
        if self.devices is not None:
            require(self.devices >= 2, "mirrored.devices", "at least 2", self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterServerConfig:
    """Options of a run on parameter servers."""

    mode: str = key("async", f"of the workers' updates: {', '.join(MODES)}", choices=MODES)
    staleness: int = key(4, "ssp: steps that a worker may be ahead of the slowest when it begins one")
    threshold: float = key(0.01, "asp: share of a weight that a change must exceed at first, later by 1 / sqrt(step)")
    shard_bytes: int | None = key(
        None, "split embedding tables of at least so many bytes by rows over the servers; null: none"
    )
    backup_workers: int = key(0, "sync: workers whose gradients a step does not wait for")

    def __post_init__(self) -> None:
        one_of("parameter_server.mode", self.mode, MODES)
        require(self.staleness >= 0, "parameter_server.staleness", "at least 0", self.staleness)
        require_finite("parameter_server.threshold", self.threshold)
        if self.shard_bytes is not None:
            require(self.shard_bytes >= 1, "parameter_server.shard_bytes", "at least 1", self.shard_bytes)
        require(self.backup_workers >= 0, "parameter_server.backup_workers", "at least 0", self.backup_workers)
        is_used = self.mode == "sync" or self.backup_workers == 0
        rule = f"0 with parameter_server.mode={self.mode}, for only mode sync has backup workers"
        require(is_used, "parameter_server.backup_workers", rule, self.backup_workers)


def check_backend(backend: str, options: ParameterServerConfig, precision: str, groups: Mapping[str, Any]) -> None:
    """Refuse what a backend does not support.

    Args:
        backend: name of the backend.
        options: those of parameter servers.
        precision: that of the run.
        groups: the other groups of the configuration, by name.

    Raises:
        ConfigError: the backend does not support a value; the message names both, the reason and a remedy.
    """
    one_of("backend", backend, BACKENDS)
    if backend != MIRRORED and groups["mirrored"] != MirroredConfig():
        raise ConfigError(f"mirrored.devices needs backend={MIRRORED}, got backend={backend}")
    if backend != PARAMETER_SERVER and options != ParameterServerConfig():
        raise ConfigError(f"parameter_server needs backend={PARAMETER_SERVER}, got backend={backend}")
    for name, (allowed, reason) in _WITHOUT.get(backend, {}).items():
        group, _, leaf = name.rpartition(".")
        value = getattr(groups[group], leaf)
        if value != allowed:
            shown = "null" if allowed is None else allowed
            raise ConfigError(f"{name}={value} does not go with backend={backend}: {reason}; use {name}={shown}")
    if backend != PARAMETER_SERVER:
        return
    if options.mode == "asp" and groups["optimizer"].name != "sgd":
        raise ConfigError(
            f"parameter_server.mode=asp does not go with optimizer.name={groups['optimizer'].name}: what is held back "
            "is measured by the update of SGD; use optimizer.name=sgd"
        )
    if options.shard_bytes is not None:
        _check_shards(options, groups["optimizer"].name)
    if precision == "float16":
        raise ConfigError(
            f"precision=float16 does not go with backend={backend}: workers do not agree on a loss scale; "
            "use precision=bfloat16"
        )


def _check_shards(options: ParameterServerConfig, optimizer: str) -> None:
    """Refuse to split tables where updates are of whole tables."""
    remedy = "or parameter_server.shard_bytes=null"
    if options.mode in ("sync", "asp"):
        raise ConfigError(
            f"parameter_server.shard_bytes does not go with parameter_server.mode={options.mode}, whose workers "
            f"exchange whole tables: use mode async or ssp, {remedy}"
        )
    if optimizer not in ROW_OPTIMIZERS:
        raise ConfigError(
            f"parameter_server.shard_bytes does not go with optimizer.name={optimizer}, which updates whole tables: "
            f"use optimizer.name={', '.join(ROW_OPTIMIZERS[:-1])} or {ROW_OPTIMIZERS[-1]}, {remedy}"
        )

"""Options of how ranks are kept in step: compression of gradients, and periodic averaging; and what goes with what.

Tested in tests/training/config/test_config.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ringfeed.sharding.errors import ConfigError

from .checks import key, one_of, require, require_finite, require_size
from .optimizer import OptimizerConfig

__all__ = [
    "COMPRESSIONS",
    "MOMENTUM_FIRST",
    "CompressionConfig",
    "SyncConfig",
    "check_synchronisation",
    "refuse_elastic",
]

COMPRESSIONS = ("none", "fp16", "bf16", "top_k", "dgc", "powersgd", "qsgd", "terngrad", "onebit")
METHODS = ("every_step", "local_sgd", "post_local_sgd", "diloco", "fedavg", "gossip")
AGGREGATES = ("mean", "median", "trimmed")
SHARES = ("equal", "speed")
STATES = ("keep", "average")
TOPOLOGIES = ("ring", "random")
MOMENTUM_FIRST = ("dgc", "onebit")
"""Methods that apply the momentum of SGD on each rank, before the average."""
ONEBIT_OPTIMIZERS = ("sgd", "adam", "adamw", "lamb")
_DENSE_SHARES = {"top_k": 0.1, "powersgd": 0.1, "onebit": 0.2}  # of a run: PyTorch's hook, 1-bit Adam say as much
_DGC_EPOCHS, _DGC_SHARE = 4.0, 0.3  # of warm-up: the paper's, but of a short run no more than a share


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionConfig:
    """Options of gradient compression."""

    method: str = key("none", f"of gradients on the wire: {', '.join(COMPRESSIONS)}", choices=COMPRESSIONS)
    ratio: float | None = key(None, "top_k, dgc: share of entries that are sent; null: 0.01 for top_k, 0.001 for dgc")
    rank: int = key(1, "powersgd: rank of the factors")
    min_rate: float = key(2.0, "powersgd: matrices that it makes less than this many times smaller stay dense")
    levels: int = key(127, "qsgd: positive levels of an entry, at most 127")
    clip_factor: float = key(2.5, "terngrad: clip at this many standard deviations; 0: do not")
    warmup_epochs: float | None = key(
        None, "dgc: epochs in which the share falls to ratio; null: 4, but at most 0.3 of the run"
    )
    local_clip_norm: float | None = key(None, "dgc: clip_norm of the mean gradient, applied on each rank")
    start_step: int | None = key(
        None,
        "dense steps at the start, after which onebit freezes the second moment of adam and lamb; null: none, but 0.1 "
        "of the run for top_k and powersgd, and 0.2 for onebit",
    )

    def __post_init__(self) -> None:
        one_of("compression.method", self.method, COMPRESSIONS)
        if self.ratio is not None:
            require(0 < self.ratio <= 1, "compression.ratio", "in (0, 1]", self.ratio)
        require_size("compression.rank", self.rank)
        require(1 <= self.min_rate < math.inf, "compression.min_rate", "finite and at least 1", self.min_rate)
        require(1 <= self.levels <= 127, "compression.levels", "in [1, 127]", self.levels)
        require_finite("compression.clip_factor", self.clip_factor)
        if self.warmup_epochs is not None:
            require_finite("compression.warmup_epochs", self.warmup_epochs)
        if self.local_clip_norm is not None:
            holds = 0 < self.local_clip_norm < math.inf
            require(holds, "compression.local_clip_norm", "finite and above 0", self.local_clip_norm)
            only_dgc = self.method == "dgc"
            require(only_dgc, "compression.local_clip_norm", "null but for dgc", self.local_clip_norm)
        if self.start_step is not None:
            require(self.start_step >= 0, "compression.start_step", "at least 0", self.start_step)
            warms_up = self.method != "dgc" or self.start_step == 0
            require(warms_up, "compression.start_step", "0 for dgc, which has warmup_epochs", self.start_step)

    def dense_steps(self, steps: int) -> int:
        """Return the number of steps before the first compressed one, of a run of `steps`.

        >>> CompressionConfig(method="powersgd").dense_steps(468)
        46
        """
        return int(steps * _DENSE_SHARES.get(self.method, 0)) if self.start_step is None else self.start_step

    def warmup_steps(self, steps: int, steps_per_epoch: int) -> int:
        """Return the number of steps in which the share that dgc sends falls, of a run of `steps`.

        >>> CompressionConfig(method="dgc").warmup_steps(468, 117)
        140
        """
        if self.warmup_epochs is None:
            return int(min(_DGC_EPOCHS * steps_per_epoch, _DGC_SHARE * steps))
        return round(self.warmup_epochs * steps_per_epoch)

    @property
    def sent_share(self) -> float:
        """Share of entries that top_k and dgc send."""
        if self.ratio is not None:
            return self.ratio
        return 0.001 if self.method == "dgc" else 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncConfig:
    """Options of when ranks synchronise, and what."""

    method: str = key("every_step", f"of keeping ranks in step: {', '.join(METHODS)}", choices=METHODS)
    every: int = key(8, "local_sgd, diloco, fedavg, gossip: steps of a round, which each rank does alone")
    start_step: int = key(0, "post_local_sgd: number of synchronous steps at the start")
    outer_learning_rate: float = key(0.7, "diloco: of the outer SGD")
    outer_momentum: float = key(0.9, "diloco: Nesterov's")
    aggregate: str = key(
        "mean", f"fedavg: {', '.join(AGGREGATES)} of the ranks' weights; mean counts samples", choices=AGGREGATES
    )
    trim: float = key(0.34, "fedavg, trimmed: share of ranks that is left out at either end, in (0, 0.5)")
    topology: str = key("ring", "gossip: ring (two neighbours in turn), or random pairs", choices=TOPOLOGIES)
    clients: tuple[str, ...] | None = key(
        None,
        "fedavg: the ranks' own parts, one each: names of splits, or conditions on data.train_split such as "
        "carrier == 'AA'; null: equal shares of each batch",
    )
    hierarchical: bool = key(False, "reduce within each host, between one rank of each host, and back within the host")
    batch_norm: bool = key(False, "normalise batches over the samples of all ranks, not each rank's own")
    shares: str = key(
        "equal", "of the ranks in each global batch: equal, or speed: what each can do in the same time", choices=SHARES
    )
    share_bound: float = key(4.0, "speed: a share is at most this many times more or less than an equal one")
    optimizer_state: str = key("keep", "after a round: keep each rank's own, or average it too", choices=STATES)

    def __post_init__(self) -> None:
        one_of("sync.method", self.method, METHODS)
        require_size("sync.every", self.every)
        require(self.start_step >= 0, "sync.start_step", "at least 0", self.start_step)
        if self.method == "post_local_sgd":
            require(self.start_step >= 1, "sync.start_step", "at least 1 for post_local_sgd", self.start_step)
        else:
            require(self.start_step == 0, "sync.start_step", "0 but for post_local_sgd", self.start_step)
        rate_holds = 0 < self.outer_learning_rate < math.inf
        require(rate_holds, "sync.outer_learning_rate", "finite and above 0", self.outer_learning_rate)
        require(0 <= self.outer_momentum < 1, "sync.outer_momentum", "in [0, 1)", self.outer_momentum)
        one_of("sync.aggregate", self.aggregate, AGGREGATES)
        require(0 < self.trim < 0.5, "sync.trim", "in (0, 0.5)", self.trim)
        one_of("sync.topology", self.topology, TOPOLOGIES)
        one_of("sync.shares", self.shares, SHARES)
        require(1 < self.share_bound < math.inf, "sync.share_bound", "finite and above 1", self.share_bound)
        one_of("sync.optimizer_state", self.optimizer_state, STATES)
        robust = self.method == "fedavg" or self.aggregate == "mean"
        require(robust, "sync.aggregate", "mean but for fedavg", self.aggregate)
        if self.clients is not None:
            require(self.method == "fedavg", "sync.clients", "null but for sync.method=fedavg", list(self.clients))
            require(all(self.clients), "sync.clients", "splits or conditions", list(self.clients))


def check_synchronisation(
    compression: CompressionConfig, sync: SyncConfig, optimizer: OptimizerConfig, precision: str, *, deterministic: bool
) -> None:
    """Refuse pairs of options that do not go together.

    Raises:
        ConfigError: two do not; the message names both, the reason and a remedy.
    """
    method = compression.method
    _check_hierarchical(compression, sync)
    if sync.shares == "speed" and deterministic:
        reason = "measured times differ between runs, and with the shares the order of additions"
        raise _refusal("sync.shares", "speed", "deterministic=true", reason, "deterministic=false")
    if sync.batch_norm and sync.method != "every_step":
        reason = "ranks with different weights have no common statistics"
        raise _refusal("sync.batch_norm", "true", f"sync.method={sync.method}", reason, "sync.batch_norm=false")
    if sync.shares == "speed" and sync.method != "every_step":
        reason = "a mean of weights counts ranks, not samples"
        raise _refusal("sync.shares", "speed", f"sync.method={sync.method}", reason, "sync.shares=equal")
    if sync.method != "every_step":
        if method != "none":
            raise _refusal(
                "compression.method",
                method,
                f"sync.method={sync.method}",
                "a round exchanges weights, not gradients",
                "compression.method=none",
            )
        if precision == "float16":
            raise _refusal(
                "sync.method",
                sync.method,
                "precision=float16",
                "the loss scales of the ranks could part",
                "precision=bfloat16",
            )
    _check_momentum_first(compression, optimizer)
    if method == "fp16" and precision == "float16":
        reason = "small gradients, which the loss scale saves, would be lost on the wire"
        raise _refusal("compression.method", method, "precision=float16", reason, "compression.method=bf16")


def refuse_elastic(sync: SyncConfig) -> None:
    """Refuse what an elastic run cannot do.

    Raises:
        ConfigError: `sync` asks for it.
    """
    if sync.hierarchical:
        raise ConfigError(
            "sync.hierarchical=true does not go with elastic runs: Horovod waits for ever where it removes the process "
            "sets of a rank that died; use sync.hierarchical=false, or leave out --elastic"
        )


def _check_hierarchical(compression: CompressionConfig, sync: SyncConfig) -> None:
    if not sync.hierarchical:
        return
    if compression.method != "none":
        reason = "only dense tensors are reduced in two levels"
        pair = f"compression.method={compression.method}"
        raise _refusal("sync.hierarchical", "true", pair, reason, "one of the two")
    if sync.method == "gossip":
        raise _refusal("sync.hierarchical", "true", "sync.method=gossip", "it exchanges pairs", "sync.method=local_sgd")
    if sync.batch_norm:
        reason = "statistics are reduced within the forward pass, whose gradient has one level"
        raise _refusal("sync.hierarchical", "true", "sync.batch_norm=true", reason, "one of the two")


def _check_momentum_first(compression: CompressionConfig, optimizer: OptimizerConfig) -> None:
    method = compression.method
    if method not in MOMENTUM_FIRST:
        return
    known = ONEBIT_OPTIMIZERS if method == "onebit" else ("sgd",)
    if optimizer.name not in known:
        reason = f"{method} applies momentum before the average, so any other rule would see momenta"
        remedy = f"optimizer.name={' or '.join(known)}, or compression.method=powersgd"
        raise _refusal("compression.method", method, f"optimizer.name={optimizer.name}", reason, remedy)
    if optimizer.clip_norm is not None:
        reason = "it would clip what momentum has accumulated"
        pair = f"optimizer.clip_norm={optimizer.clip_norm}"
        remedy = "compression.local_clip_norm" if method == "dgc" else "compression.method=powersgd"
        raise _refusal("compression.method", method, pair, reason, remedy)
    if optimizer.variant == "nvlamb":
        reason, remedy = "it would clip what momentum has accumulated", "optimizer.variant=paper or v1"
        raise _refusal("compression.method", method, "optimizer.variant=nvlamb", reason, remedy)
    if optimizer.name != "sgd" and compression.start_step == 0:
        pair = f"compression.method={method} and optimizer.name={optimizer.name}"
        reason = "the second moment, which freezes then, needs dense steps"
        raise _refusal("compression.start_step", "0", pair, reason, "about a fifth of the steps, or null")


def _refusal(name: str, value: str, pair: str, reason: str, remedy: str) -> ConfigError:
    return ConfigError(f"{name}={value} does not go with {pair}: {reason}; use {remedy}")

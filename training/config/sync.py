"""The keys of each way to keep ranks in step.

A method is a class here, its name in the table at the end, and the module that `built_by` names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .checks import SIZES, key, require
from .method import Method, Methods

SHARES = ("equal", "speed")
STATES = ("keep", "average")
AGGREGATES = ("mean", "median", "trimmed")
TOPOLOGIES = ("ring", "random")


@dataclass(frozen=True, kw_only=True)
class SyncConfig(Method, group="sync"):
    """Options of when ranks synchronise, and what."""

    method: str = key("", "")
    hierarchical: bool = key(False, "reduce within each host, between one rank of each host, and back within the host")
    batch_norm: bool = key(False, "normalise batches over the samples of all ranks, not each rank's own")
    shares: str = key(
        "equal", "each rank's share of a global batch: equal, or speed: what it can do in the same time", choices=SHARES
    )
    share_bound: float = key(4.0, "speed: a share is at most this many times more or less than an equal one", above=1)

    @property
    def clients(self) -> Sequence[str] | None:
        """The ranks' own parts of the data, one each, if they have such."""
        return None

    @property
    def start_step(self) -> int:
        """Number of synchronous steps at the start."""
        return 0


@dataclass(frozen=True, kw_only=True)
class EveryStepConfig(SyncConfig):
    """Gradients are exchanged in every step."""

    method: str = "every_step"


@dataclass(frozen=True, kw_only=True)
class RoundsConfig(SyncConfig):
    """Options of rounds of steps that each rank does alone."""

    every: int = key(8, "steps of a round, which each rank does alone", at_least=1, below=SIZES)
    optimizer_state: str = key("keep", "after a round: keep each rank's own, or average it too", choices=STATES)


@dataclass(frozen=True, kw_only=True)
class LocalSGDConfig(RoundsConfig, built_by="sync.periodic:Periodic"):
    method: str = "local_sgd"


@dataclass(frozen=True, kw_only=True)
class PostLocalSGDConfig(LocalSGDConfig):
    method: str = "post_local_sgd"
    start_step: int = key(0, "number of synchronous steps at the start, which must be given", at_least=1)


@dataclass(frozen=True, kw_only=True)
class DiLoCoConfig(RoundsConfig, built_by="sync.diloco:DiLoCo"):
    method: str = "diloco"
    outer_learning_rate: float = key(0.7, "learning rate of the outer SGD", above=0)
    outer_momentum: float = key(0.9, "Nesterov's momentum of the outer SGD", at_least=0, below=1)


@dataclass(frozen=True, kw_only=True)
class FedAvgConfig(RoundsConfig, built_by="sync.fedavg:FedAvg"):
    method: str = "fedavg"
    aggregate: str = key(
        "mean", f"{', '.join(AGGREGATES)} of the ranks' weights; mean counts samples", choices=AGGREGATES
    )
    trim: float = key(0.34, "trimmed: share of ranks that is left out at either end", above=0, below=0.5)
    clients: tuple[str, ...] | None = key(
        None,
        "the ranks' own parts, one each: names of splits, or conditions on data.train_split such as carrier == 'AA'; "
        "null: equal shares of each batch",
    )

    def check(self) -> None:
        require(all(self.clients or "all"), "sync.clients", "splits or conditions", list(self.clients or ()))


@dataclass(frozen=True, kw_only=True)
class GossipConfig(RoundsConfig, built_by="sync.gossip:Gossip"):
    method: str = "gossip"
    topology: str = key("ring", "ring (two neighbours in turn), or random pairs", choices=TOPOLOGIES)


@dataclass(frozen=True, kw_only=True)
class OwnSyncConfig(SyncConfig, built_by="sync.build:user_synchronizer"):
    """Options of a class or function of the user's."""

    options: Mapping[str, Any] = key(dict, "further arguments of the method")


SYNCS = Methods(
    "sync",
    "method",
    "how ranks are kept in step",
    (EveryStepConfig, LocalSGDConfig, PostLocalSGDConfig, DiLoCoConfig, FedAvgConfig, GossipConfig),
    own=OwnSyncConfig,
)

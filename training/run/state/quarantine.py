"""Damaged shards that a run trains without; its checkpoints name them, so that a resumed run does so from the start.

Each rank finds the damage of its own shards (docs/faults.md).
Tested in tests/training/run/test_loader_options.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringfeed.pipeline import Loader, Mixture
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.ring.ring import Ring
from ringfeed.training.run.inputs import open_loader
from ringfeed.training.run.shares import RankShares

__all__ = ["join_quarantine", "restore_quarantine"]


def join_quarantine(config: TrainConfig, ring: Ring, loader: Loader | Mixture) -> list[str]:
    """Return the paths of the shards that any rank has in quarantine (a collective, if shards may get there)."""
    own = _paths(loader)
    if config.data.on_bad_shard == "raise":
        return sorted(own)  # those of the checkpoint that the run resumed from
    return sorted({path for paths in ring.allgather_object(own) for path in paths})


def _paths(loader: Loader | Mixture) -> list[str]:
    """The paths of the shards that a loader has in quarantine; of a mixture, below the names of its datasets."""
    if isinstance(loader, Loader):
        return list(loader.quarantined)
    return [f"{name}/{path}" for name, paths in loader.quarantined.items() for path in paths]


def restore_quarantine(config: TrainConfig, ring: Ring, shares: RankShares, quarantined: Sequence[str]) -> None:
    """Let a rank read what it would read with the shards of a checkpoint in quarantine."""
    if quarantined:
        shares.replace_loader(open_loader(config, ring, quarantined=quarantined))

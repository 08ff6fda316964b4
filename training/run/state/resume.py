"""Starts a run where it stands: at its newest checkpoint, or with the initial weights of rank 0.

Tested in tests/training/test_train.py.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError, TrainingError
from ringfeed.training.checkpoint.background import Memory
from ringfeed.training.checkpoint.snapshot import (
    Parts,
    Position,
    check_resumable,
    check_servers,
    check_state,
    rank_state,
    restore,
    restore_rank_state,
    set_rank_seeds,
)
from ringfeed.training.checkpoint.store import Checkpoint, CheckpointStore
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.models.preprocess import check_masks
from ringfeed.training.ring.ring import Ring

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    position: Position = field(default_factory=Position)  # the position of its first step
    resumed_from: int | None = None  # the step of the checkpoint; None if the run is new
    history: Mapping[str, Any] = field(default_factory=dict)  # what the run has reported so far
    evaluated_step: int | None = None  # the step of the last evaluation, if it was of the same split
    quarantined: Sequence[str] = ()  # paths of the shards that the run found to be damaged
    run: str = ""  # id of the run, the same on all ranks and in all its checkpoints

    @property
    def skipped_steps(self) -> int:
        """Steps so far whose gradients were not finite."""
        return int(self.history.get("skipped_steps", 0))


def open_store(config: TrainConfig) -> CheckpointStore | None:
    options = config.checkpoint
    if options.url is None:
        return None
    return CheckpointStore(options.url, keep=options.keep, on_damage=options.on_damage, check=check_state)


def resume(
    config: TrainConfig,
    ring: Ring,
    parts: Parts,
    memory: Memory,
    manifest: Manifest,
    steps_per_epoch: int,
) -> Start:
    """Restore rank 0's commit, or the newest checkpoint, or share the initial weights of rank 0 (a collective).

    A RingfeedError says that the checkpoint is of another run, is damaged, or lies beyond the end of this run.
    """
    newest = _restore_newest(config, parts, memory, manifest) if ring.rank == 0 else None
    of_ranks = rank_state(newest.arrays) if newest else {}
    run = (newest.run if newest else "") or secrets.token_hex(8)  # checkpoints of earlier versions have none
    state, run = ring.allgather_object((newest.state if newest else None, run))[0]
    ring.broadcast(list(parts.variables().values()))
    if state is not None:
        restore_rank_state(ring, parts, of_ranks)
    elif parts.agreement:
        parts.agreement.begin()
    set_rank_seeds(parts.network, ring.rank)
    if state is None:
        return Start(run=run)
    position = Position(**state["position"])
    total_steps = config.total_steps(steps_per_epoch)
    _check_position(position, config, steps_per_epoch, total_steps)
    history, evaluated = state["history"], None
    if state["config"].get("data", {}).get("eval_split") == config.data.eval_split:
        evaluated = max((entry["step"] for entry in history["evaluations"]), default=None)
    if ring.rank == 0:
        _log_resumed(position.step, total_steps, "checkpoint" if memory.newest is None else "commit")
    return Start(
        position=position,
        resumed_from=position.step,
        history=history,
        evaluated_step=evaluated,
        quarantined=state["loader"].get("quarantined", ()),
        run=run,
    )


def _restore_newest(config: TrainConfig, parts: Parts, memory: Memory, manifest: Manifest) -> Checkpoint | None:
    """Restore the newest commit, or the newest checkpoint, and return it."""
    newest = memory.newest
    if newest is None:
        if (store := open_store(config)) is not None:
            store.check_free()
        newest = newest_checkpoint(config, manifest)
        if newest is None:
            return None
        check_servers(newest.state, parts, str(config.checkpoint.url))
    restore(parts, newest.arrays)
    return newest


def newest_checkpoint(config: TrainConfig, manifest: Manifest) -> Checkpoint | None:
    """Read the checkpoint that a run would resume from; None if it begins anew.

    A RingfeedError says that it is of another run or damaged, or that the folder holds one and `resume` is false.
    """
    store = open_store(config)
    if store is None:
        return None
    if not config.checkpoint.resume:
        if store.names():
            raise ConfigError(
                f"checkpoint.resume is false, but {config.checkpoint.url} holds checkpoints; "
                "remove them, or set another checkpoint.url"
            )
        return None
    newest = store.newest()
    if newest is not None:
        check_resumable(newest.state, config, manifest.identities)
        check_masks(newest.state, manifest, config.data, f"the newest checkpoint in {config.checkpoint.url}")
    return newest


def _check_position(position: Position, config: TrainConfig, steps_per_epoch: int, total_steps: int) -> None:
    if position.step > total_steps:
        raise TrainingError(
            f"the newest checkpoint in {config.checkpoint.url} is of step {position.step}, and this run "
            f"ends at step {total_steps}: raise epochs or max_steps, or set another checkpoint.url"
        )
    if (position.epoch, position.epoch_step) != divmod(position.step, steps_per_epoch):
        raise TrainingError(
            f"the newest checkpoint in {config.checkpoint.url} contradicts itself: {position} with "
            f"{steps_per_epoch} steps per epoch; remove it, or set another checkpoint.url"
        )


def _log_resumed(step: int, total_steps: int, kind: str) -> None:
    if step == total_steps and kind == "checkpoint":
        log.info(
            "the checkpoint of step %d is of the last step: nothing is left to train. To train on, raise "
            "epochs or max_steps; for another run, set another checkpoint.url",
            step,
        )
    else:
        log.info("resuming from the %s of step %d", kind, step)

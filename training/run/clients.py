"""Clients: ranks that train on parts of their own, of any sizes, as in federated learning.

Tested in tests/training/sync/test_epoch_plan.py and tests/training/run/test_modes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from ringfeed.pipeline import Loader, Mixture
from ringfeed.pipeline.select.where_expression import open_filter
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.ring.ring import Ring
from ringfeed.training.ring.world import World
from ringfeed.training.sync.epoch_plan import EpochPlan

from .shares import even_shares


def client_part(config: TrainConfig, ring: Ring | World, manifest: Manifest) -> str | None:
    """Return the split or condition of this rank's own part, if it has one.

    A ConfigError says that there is not one part for each rank, or that one is neither a split nor a condition.
    """
    clients = config.sync.clients
    if clients is None:
        return None
    if len(clients) != ring.size:
        raise ConfigError(
            f"sync.clients names {len(clients)} parts for {ring.size} ranks; name one for each rank, or start "
            f"{len(clients)} ranks"
        )
    if config.data.batch_size < ring.size:
        raise ConfigError(f"data.batch_size={config.data.batch_size} has no sample for some of {ring.size} ranks")
    for client in clients:
        try:
            if client not in manifest.splits:
                open_filter(client, manifest.schema)
        except ConfigError as error:
            splits = ", ".join(manifest.splits)
            raise ConfigError(f"sync.clients: {client!r} is no split ({splits}) and no condition: {error}") from error
    return clients[ring.rank]


def rank_epoch(config: TrainConfig, ring: Ring, loader: Loader | Mixture) -> EpochPlan:
    """Return the steps of this rank in an epoch (a collective, where ranks have parts of their own)."""
    batches = loader.steps_per_epoch
    if config.sync.clients is None:
        batch_size = config.data.batch_size
        share = even_shares(batch_size, ring.size)[ring.rank]
        repeats = config.overfit_batches is not None
        batches = min(batches, config.overfit_batches or batches)
        return EpochPlan(
            batches=batches,
            steps=batches,
            samples=batches * share,
            batch_size=share,
            step_samples=batch_size,
            repeats=repeats,
        )
    sizes = ring.allgather_object([batches, loader.records])
    steps = max(size[0] for size in sizes)
    return EpochPlan(
        batches=batches,
        steps=steps,
        samples=loader.records,
        batch_size=loader.local_batch_size,
        step_samples=sum(size[1] for size in sizes) / steps,
    )


def _real_samples(batch: Any) -> Any:
    """Return a batch without its fillers, which batch normalisation would count."""
    rows = tf.where(batch[2] > 0)[:, 0]
    return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), batch)


def batches_of_steps(read: Callable[[int], Iterable[Any]], epoch_plan: EpochPlan, start_step: int) -> Iterator[Any]:
    """Yield `(inputs, target, weight)` for each step of an epoch; where this rank rests, any batch with weights of 0.

    `read` returns the batches of the epoch from a number of batches on.
    """
    rests = not epoch_plan.trains(start_step)  # then the batch that it had before stands in
    batches = iter(read(epoch_plan.batches_before(start_step) - rests))
    batch: Any = next(batches) if rests else None
    for step in range(start_step, epoch_plan.steps):
        if not epoch_plan.trains(step):
            yield (*batch[:2], tf.zeros_like(batch[2]))
            continue
        batch = next(batches, None)
        if batch is None:
            return
        yield batch if epoch_plan.is_full(step) else _real_samples(batch)
    yield from batches

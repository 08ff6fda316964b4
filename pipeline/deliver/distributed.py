"""Epochs for `tf.distribute`: a worker's batches, shared by its replicas."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ringfeed.sharding.errors import ConfigError


def distribute(
    dataset: tf.data.Dataset, strategy: tf.distribute.Strategy, *, rank: int, world_size: int, local_batch: int
) -> Any:
    """Deal the batches of a rank to the replicas of its worker, in order.

    Global batches are then the same as without a strategy. With N workers, `strategy.experimental_distribute_dataset`
    would take each worker's share for a whole global batch, and cut it into N parts once more.

    Args:
        dataset: the batches of this rank.
        strategy: a strategy whose workers all have the same number of replicas.
        world_size: number of processes.
        local_batch: samples of this rank in a batch.

    Returns:
        A `tf.distribute.DistributedDataset`.

    Raises:
        ConfigError: this is no strategy, its workers are not the loader's ranks, or its replicas cannot share a batch
            equally.
    """
    given: object = strategy
    if not isinstance(given, tf.distribute.Strategy):
        raise ConfigError(f"strategy must be a tf.distribute.Strategy, got {given!r}")
    total = strategy.num_replicas_in_sync
    replicas = len(strategy.extended.worker_devices) if total > 1 else 1  # per worker
    workers = total // replicas
    if local_batch % replicas:
        raise ConfigError(f"a batch of {local_batch} cannot be shared by the {replicas} replicas of a worker")

    def worker_dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        _check(context.input_pipeline_id, workers, rank, world_size)
        return dataset if replicas == 1 else dataset.rebatch(local_batch // replicas, drop_remainder=True)

    if workers > 1:
        return strategy.distribute_datasets_from_function(worker_dataset)
    _check(0, workers, rank, world_size)
    return strategy.experimental_distribute_dataset(dataset)  # keeps the length, which Keras asks for


def _check(worker: int, workers: int, rank: int, world_size: int) -> None:
    if (worker, workers) != (rank, world_size):
        raise ConfigError(
            f"the strategy calls this worker {worker} of {workers}, the loader rank {rank} of {world_size}; "
            f"use Loader(..., rank={worker}, world_size={workers})"
        )

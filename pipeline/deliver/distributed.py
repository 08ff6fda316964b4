"""Epochs for `tf.distribute`: each worker's share, cut up for its replicas."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ...sharding.errors import ConfigError

__all__ = ["distribute"]


def distribute(
    dataset: tf.data.Dataset, strategy: tf.distribute.Strategy, *, rank: int, world_size: int, local_batch: int
) -> Any:
    """The batches of a rank, dealt to the replicas of its worker, in order.

    A global batch is then what it is without a strategy. Of N workers,
    `strategy.experimental_distribute_dataset` would cut the share of each N times over, as if it were the whole batch.

    Args:
        dataset: of batches of this rank.
        strategy: with one or more workers, each with as many replicas.
        rank: of this process.
        world_size: processes.
        local_batch: samples of this rank in a batch.

    Returns:
        A `tf.distribute.DistributedDataset`.

    Raises:
        ConfigError: it is no strategy, its workers are not the loader's ranks, or its replicas cannot share a batch
            equally.
    """
    given: object = strategy
    if not isinstance(given, tf.distribute.Strategy):
        raise ConfigError(f"strategy must be a tf.distribute.Strategy, got {given!r}")
    total = strategy.num_replicas_in_sync
    replicas = len(strategy.extended.worker_devices) if total > 1 else 1  # of this worker
    workers = total // replicas
    if local_batch % replicas:
        raise ConfigError(f"a batch of {local_batch} cannot be shared by the {replicas} replicas of a worker")

    def of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        _check(context.input_pipeline_id, workers, rank, world_size)
        return dataset if replicas == 1 else dataset.rebatch(local_batch // replicas, drop_remainder=True)

    if workers > 1:
        return strategy.distribute_datasets_from_function(of_worker)
    _check(0, workers, rank, world_size)
    return strategy.experimental_distribute_dataset(dataset)  # it knows its length, which Keras asks for


def _check(worker: int, workers: int, rank: int, world_size: int) -> None:
    if (worker, workers) != (rank, world_size):
        raise ConfigError(
            f"the strategy calls this worker {worker} of {workers}, the loader rank {rank} of {world_size}; "
            f"use Loader(..., rank={worker}, world_size={workers})"
        )

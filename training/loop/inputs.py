"""The loaders of a run, and its preprocessed batches."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import tensorflow as tf

from ...pipeline import Loader
from ...pipeline.fetch.shard_cache import open_cache
from ...sharding.dataset.dataset import open_dataset
from ...sharding.errors import ConfigError, DatasetError
from ..config.data import DataConfig
from ..config.train_config import TrainConfig
from ..models.preprocess import Preprocess, fill_values
from ..ring.ring import Ring
from ..ring.world import World
from .clients import own_part
from .shares import even_shares

__all__ = ["open_loader", "preprocessed", "traced"]

_PREFETCH_BATCHES = 4


def open_loader(
    config: TrainConfig, ring: Ring | World, *, split: str, training: bool, quarantined: Sequence[str] = ()
) -> Loader:
    """Open this rank's loader of a split; training drops the remainder, evaluation reads each sample once.

    A rank that trains on a part of its own reads each of its samples once, in batches of its share of the global batch.

    Args:
        config: configuration of the run.
        ring: the ranks.
        split: name of the split.
        training: whether to open it for training.
        quarantined: paths of shards that the run knows to be damaged.

    Raises:
        ConfigError: a training split cannot fill a batch, or there is not one part for each rank.
        DatasetError: there is no such split.
    """
    data = config.data
    batch_size = data.batch_size
    manifest = open_dataset(data.url).manifest
    if split not in manifest.splits:
        key, remedy = (
            ("train_split", "") if training else ("eval_split", "; to train without evaluation: data.eval_split: null")
        )
        known = ", ".join(map(repr, manifest.splits))
        raise DatasetError(f"data.{key}: there is no split {split!r}; the dataset has {known}{remedy}")
    records, own = manifest.split(split).records, own_part(config, ring, manifest) if training else None
    if training and own is None and records < batch_size:
        raise ConfigError(
            f"data.batch_size={batch_size} is more than the {records} records of {split!r}; use at most {records}"
        )
    multiple = ring.size * config.augment.mix_group
    if training and config.augment.mixes and batch_size % multiple:
        raise ConfigError(
            f"augment.mix_group={config.augment.mix_group} must divide each of {ring.size} ranks' share of "
            f"data.batch_size={batch_size}: use a multiple of {multiple}"
        )
    rank, ranks, where = ring.rank, ring.size, data.where
    if own is not None:
        split, condition = (own, None) if own in manifest.splits else (split, own)
        where = f"({where}) and ({condition})" if where and condition else where or condition
        batch_size = even_shares(batch_size, ranks)[rank]
        rank, ranks = 0, 1
    leaves_out = training and data.on_bad_shard == "quarantine"  # metrics of an evaluation would be of other records
    with _named_keys():
        return Loader(
            data.url,
            split=split,
            where=where,
            batch_size=batch_size,
            balance=data.balance if training else "natural",
            seed=config.seed,
            rank=rank,
            world_size=ranks,
            remainder="drop" if training and own is None else "pad",
            fill=fill_values(manifest, data),
            cache=open_cache(data.cache, data.cache_bytes),
            sample_keys=training and config.augment.random,
            streams=data.streams if training else None,
            window_shards=data.window_shards if training else 1,
            fetch_threads=data.fetch_threads,
            prefetch_bytes=data.prefetch_bytes,
            bucket_by=data.bucket_by if training else None,
            bucket_steps=data.bucket_steps,
            on_bad_shard="quarantine" if leaves_out else "raise",
            quarantined=quarantined,
        )


@contextmanager
def _named_keys() -> Iterator[None]:
    """Let errors about an argument of `Loader`, in the body, name the key of the configuration that holds it."""
    try:
        yield
    except ConfigError as error:
        word = re.match(r"\w+", str(error))
        if word is None or word[0] not in {key.name for key in fields(DataConfig)}:
            raise
        raise ConfigError(f"data.{error}") from error


def traced(function: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return a function, and the same traced once for all epochs."""
    return function, tf.function(function, autograph=False)


def preprocessed(
    loader: Loader, epoch: int, start_step: int, preprocess: Preprocess, traced: Preprocess, *, deterministic: bool
) -> Any:
    """Return the batches of a loader as `(inputs, target, weight)`, prefetched.

    Under op determinism tf.data runs any map after a generator on one thread, and prints an error if asked for more. A
    batch's images are still decoded in parallel, by `tf.map_fn`. Autotuning is off, as in the loader's own pipeline: on
    a busy host, dropping the first epoch's iterator waited 1 to 2 seconds for its thread (2026-11-21).

    Args:
        loader: the loader.
        epoch, start_step: first batch.
        preprocess: function from a loader's element to `(inputs, target, weight)`.
        traced: the same function as a `tf.function`.
        deterministic: whether op determinism is on.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    workers = None if deterministic else len(os.sched_getaffinity(0))
    batches = loader.epoch(epoch, start_step).map(traced, num_parallel_calls=workers)
    watched = loader.explain_failures(batches, [preprocess], epoch, start_step)
    return watched.prefetch(_PREFETCH_BATCHES).with_options(options)

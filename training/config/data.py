"""Options of the data of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from .checks import key, one_of, require, require_size

__all__ = ["DataConfig"]

SHARD_POLICIES = ("raise", "quarantine")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Options of the data: samples, batches and features."""

    url: str = key(MISSING, "dataset that shard-dataset wrote: a path, s3://..., hdfs://...", is_path=True)
    train_split: str = key("train", "split to train on")
    eval_split: str | None = key("test", "split to evaluate on; null: no evaluation")
    batch_size: int = key(1024, "samples per step over all ranks together (the global batch)")
    balance: str | Mapping[Any, float] = key("natural", "natural, uniform, power:A, X->Y:EPOCHS, or {class: weight}")
    include: tuple[str, ...] | None = key(None, "columns to use as features; null: all but label and target")
    exclude: tuple[str, ...] = key((), "columns to leave out of the features")
    target: str | None = key(None, "column to predict; null: the label, which the dataset was built with")
    positive: bool | int | float | str | None = key(
        None, "class of the label that task=binary takes as positive; null: the second of two"
    )
    categorical: tuple[str, ...] = key((), "integer columns that are codes: embedded, not standardised")
    where: str | None = key(None, "condition on columns that records must meet, also in evaluations; null: all records")
    bucket_by: str | None = key(None, "column of lists or texts; training batches then hold records of similar length")
    bucket_steps: int = key(32, "steps whose records bucket_by sorts by length together")
    on_bad_shard: str = key(
        "raise",
        "a damaged shard of the training split: raise, or quarantine: others' records stand in for its own",
        choices=SHARD_POLICIES,
    )
    cache: str = key("none", "where to keep copies of shards: none, memory, or a folder on a local disk", is_path=True)
    cache_bytes: int | None = key(
        None, "size limit of the cache; null: 1 GiB of memory, or 0.8 of the free space of the disk"
    )
    streams: int | None = key(None, "streams that a training batch is drawn from, of all ranks; null: up to 16")
    window_shards: int = key(1, "shards that a stream of training batches shuffles together")
    fetch_threads: int | None = key(None, "threads that fetch and open shards; null: 4, from a remote store up to 24")
    prefetch_bytes: int | None = key(None, "bytes of shards fetched ahead of need; null: 1.25 of the open windows")

    def __post_init__(self) -> None:
        require(bool(self.url), "data.url", "a path or URL", self.url)
        require_size("data.batch_size", self.batch_size)
        require(bool(self.cache), "data.cache", "none, memory or a path", self.cache)
        if self.cache_bytes is not None:
            require(self.cache_bytes >= 1, "data.cache_bytes", "at least 1", self.cache_bytes)
            require(self.cache != "none", "data.cache_bytes", "null without data.cache", self.cache_bytes)
        one_of("data.on_bad_shard", self.on_bad_shard, SHARD_POLICIES)
        require(self.where is None or bool(self.where.strip()), "data.where", "a condition, or null", self.where)
        require(self.bucket_steps >= 2, "data.bucket_steps", "at least 2", self.bucket_steps)
        for name in ("streams", "window_shards", "fetch_threads"):
            if (value := getattr(self, name)) is not None:
                require_size(f"data.{name}", value)
        if self.prefetch_bytes is not None:
            require(self.prefetch_bytes >= 0, "data.prefetch_bytes", "at least 0", self.prefetch_bytes)

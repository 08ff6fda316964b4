"""Options of the data of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, replace
from typing import Any

from ringfeed.sharding.errors import ConfigError

from .checks import SIZES, Options, key, require
from .class_names import by_class_name, class_name

AUTO = "auto"  # the split to evaluate on, where the dataset decides
TEST = "test"

SHARD_POLICIES = ("raise", "quarantine")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedDataset:
    """One dataset of a mixture, and the options that differ between them."""

    url: str = key(MISSING, "the dataset", kind="path")
    balance: str | Mapping[Any, float] | None = key(None, "as data.balance, within this dataset; null: data.balance")
    where: str | None = key(None, "as data.where, for this dataset; null: data.where")

    def __post_init__(self) -> None:
        object.__setattr__(self, "balance", by_class_name(self.balance))


@dataclass(frozen=True, kw_only=True)
class DataConfig(Options, group="data"):
    """Options of the data: samples, batches and features."""

    url: str | None = key(None, "dataset that shard-dataset wrote: a path, s3://..., hdfs://...", kind="path")
    mixture: Mapping[str, MixedDataset] | None = key(
        None, "in place of url, several datasets with the same columns, mixed in every batch: {name: {url: ...}, ...}"
    )
    weights: str | Mapping[str, float] = key(
        "natural", "of a mixture: natural, uniform, power:A, X->Y:EPOCHS, or {name: weight}"
    )
    train_split: str = key("train", "split to train on")
    eval_split: str | None = key(
        AUTO,
        "split to evaluate on while training; auto: validation, val, valid or dev if there is one, else test; null: no "
        "evaluation",
    )
    test_split: str | None = key(
        TEST, "split to evaluate on once, at the end, with the weights of output.model, if there is one; null: none"
    )
    batch_size: int = key(1024, "samples per step over all ranks together (the global batch)", at_least=1, below=SIZES)
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
    bucket_steps: int = key(32, "steps whose records bucket_by sorts by length together", at_least=2)
    on_bad_shard: str = key(
        "raise",
        "a damaged shard of the training split: raise, or quarantine: others' records stand in for its own",
        choices=SHARD_POLICIES,
    )
    cache: str = key("none", "where to keep copies of shards: none, memory, or a folder on a local disk", kind="path")
    cache_bytes: int | None = key(
        None, "size limit of the cache; null: 1 GiB of memory, or 0.8 of the free space of the disk", at_least=1
    )
    streams: int | None = key(
        None, "streams that a training batch is drawn from, of all ranks; null: up to 16", at_least=1, below=SIZES
    )
    window_shards: int = key(1, "shards that a stream of training batches shuffles together", at_least=1, below=SIZES)
    fetch_threads: int | None = key(
        None, "threads that fetch and open shards; null: 4, from a remote store up to 24", at_least=1, below=SIZES
    )
    prefetch_bytes: int | None = key(
        None, "bytes of shards fetched ahead of need; null: 1.25 of the open windows", at_least=0
    )

    def check(self) -> None:
        object.__setattr__(self, "balance", by_class_name(self.balance))
        if self.positive is not None:
            object.__setattr__(self, "positive", class_name(self.positive))
        require(self.where is None or bool(self.where.strip()), "data.where", "a condition, or null", self.where)
        if self.mixture is None:
            if self.url is None:
                raise ConfigError("data.url is missing")
            return
        object.__setattr__(self, "mixture", dict(sorted(self.mixture.items())))
        require(bool(self.mixture), "data.mixture", "at least one dataset by name", self.mixture)
        for name, dataset in self.mixture.items():
            holds = bool(name) and "/" not in name and name != "mixture"
            require(holds, "a name in data.mixture", "text without '/', and not 'mixture'", name)
            require(bool(dataset.url), f"data.mixture.{name}.url", "a path or URL", dataset.url)

    @property
    def urls(self) -> dict[str, str]:
        """The datasets by name; one alone has none."""
        if self.mixture is None:
            return {"": str(self.url)}
        return {name: dataset.url for name, dataset in self.mixture.items()}

    def of(self, name: str) -> MixedDataset:
        """The options of one dataset of a mixture; where it has none of its own, the options of all."""
        own = (self.mixture or {})[name] if name else MixedDataset(url=str(self.url))
        balance = self.balance if own.balance is None else own.balance
        return replace(own, balance=balance, where=self.where if own.where is None else own.where)

    @property
    def place(self) -> str:
        """Where the data is, for messages."""
        return ", ".join(self.urls.values())

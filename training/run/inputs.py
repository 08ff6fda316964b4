"""The datasets of a run, their loaders, and the preprocessed batches; the damaged shards that it trains without.

Each rank finds the damage of its own shards (docs/faults.md). Checkpoints name these shards, so that a resumed run
trains without them from the start.

A run trains on one split, and evaluates on another while it trains. Choices follow from these evaluations: the best
checkpoint, early stopping, and the settings of the next run. So a third split, which nothing chooses by, is kept for
the end.
Tested in tests/training/run/test_inputs.py, tests/training/run/test_splits.py, tests/training/run/test_mixture.py and
tests/training/run/test_loader_options.py.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import tensorflow as tf

from ringfeed.pipeline import Loader, Mixture
from ringfeed.pipeline.fetch.shard_cache import open_cache
from ringfeed.pipeline.mixture_loaders import name_dataset_in_errors
from ringfeed.pipeline.select.sample_columns import CLASS_ID
from ringfeed.pipeline.select.selected_columns import mask_fill
from ringfeed.pipeline.transforms.tabular import masked_columns
from ringfeed.sharding.dataset.combined import combined_manifest
from ringfeed.sharding.dataset.dataset import open_dataset
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError, DatasetError
from ringfeed.training.config.class_names import shares_by_class
from ringfeed.training.config.data import AUTO, TEST, DataConfig
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.models.preprocess import Preprocess, masked_features
from ringfeed.training.ring.ring import Ring
from ringfeed.training.ring.world import World

from .clients import client_part
from .shares import RankShares, even_shares

log = logging.getLogger(__name__)


_VALIDATION = ("validation", "val", "valid", "dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSource:
    """A dataset that evaluations read."""

    loader: Loader  # the loader of this rank's share
    class_ids: Sequence[int] | None = None  # the numbers of its classes in a mixture; None: their own

    def preprocess(self, whole: Any) -> Any:
        """Return a traced preprocessing of the run for the elements of this loader."""
        if self.class_ids is None:
            return whole
        plain, numbers = whole.python_function, self.class_ids
        return traced(lambda element: plain({**element, CLASS_ID: tf.gather(numbers, element[CLASS_ID])}))


def with_splits(config: TrainConfig, manifests: Mapping[str, Manifest]) -> TrainConfig:
    """Return a configuration that names the split to evaluate on, and one to test on if that is another.

    A ConfigError says that evaluations decide something, and there is only the split ``test`` to evaluate on.
    """
    data, splits = config.data, {split for manifest in manifests.values() for split in manifest.splits}
    evaluated, tested = data.eval_split, data.test_split
    if evaluated == AUTO:
        evaluated = next((name for name in _VALIDATION if name in splits), TEST)
        if evaluated == TEST and TEST in splits:
            _check_decides_nothing(config)
    if tested == evaluated or (tested == TEST and TEST not in splits):
        tested = None
    return replace(config, data=replace(data, eval_split=evaluated, test_split=tested))


def _check_decides_nothing(config: TrainConfig) -> None:
    stopping, checkpoint = config.early_stopping.metric, config.checkpoint.best
    if stopping is None and not checkpoint:
        return
    key = f"early_stopping.metric={stopping}" if stopping else f"checkpoint.best={checkpoint}"
    raise ConfigError(
        f"{key} chooses by evaluations, and the dataset has only the split 'test' for them, which then is no test any "
        "more: build it with --split train=0.8,val=0.1,test=0.1, or, to choose by it nonetheless, set "
        "data.eval_split=test"
    )


def open_loader(
    config: TrainConfig,
    ring: Ring | World,
    *,
    quarantined: Sequence[str] = (),
    manifests: Mapping[str, Manifest] | None = None,
) -> Loader | Mixture:
    """Open this rank's loader of the training split, without the remainder.

    A rank that trains on a part of its own reads each of its samples once, in batches of its share of the global batch.
    A ConfigError says that a training split cannot fill a batch, or that there is not one part for each rank. The paths
    of damaged shards, `quarantined`, are below the names of the datasets for a mixture.
    """
    data, split = config.data, config.data.train_split
    batch_size = data.batch_size
    manifests = manifests or open_manifests(data)
    for name, of_dataset in manifests.items():
        _check_split(of_dataset, split, name, "train_split")
    manifest = one_manifest(data, manifests)
    own = client_part(config, ring, manifest)
    _check_batch_size(config, ring, manifest.split(split).records if own is None else None)
    if data.mixture is not None:
        return _open_mixture(config, ring, manifests, quarantined)
    rank, ranks, where = ring.rank, ring.size, data.where
    if own is not None:
        split, condition = (own, None) if own in manifest.splits else (split, own)
        where = f"({where}) and ({condition})" if where and condition else where or condition
        batch_size = even_shares(batch_size, ranks)[rank]
        rank, ranks = 0, 1
    with _named_keys():
        return Loader(
            data.urls[""],
            split=split,
            where=where,
            batch_size=batch_size,
            balance=shares_by_class("data.balance", data.balance, manifest.classes),
            seed=config.seed,
            rank=rank,
            world_size=ranks,
            remainder="drop" if own is None else "pad",
            sample_keys=config.augment.random,
            streams=data.streams,
            bucket_by=data.bucket_by,
            bucket_steps=data.bucket_steps,
            quarantined=quarantined,
            **_reading(data, manifest, training=True),
        )


def _check_batch_size(config: TrainConfig, ring: Ring | World, records: int | None) -> None:
    """Refuse global batches that are larger than the split, if the ranks share it, or that ranks cannot mix."""
    batch_size, split, group = config.data.batch_size, config.data.train_split, config.augment.mix_group
    if records is not None and records < batch_size:
        raise ConfigError(
            f"data.batch_size={batch_size} is more than the {records} records of {split!r}; use at most {records}"
        )
    if config.augment.mixes and batch_size % (ring.size * group):
        raise ConfigError(
            f"augment.mix_group={group} must divide each of {ring.size} ranks' share of data.batch_size={batch_size}: "
            f"use a multiple of {ring.size * group}"
        )


def open_evaluations(
    config: TrainConfig, ring: Ring, manifests: Mapping[str, Manifest], *, for_test: bool = False
) -> dict[str, EvaluationSource]:
    """Open what evaluations read: the split of the dataset, or of each dataset of a mixture that has it, by name.

    It is `data.eval_split`, or `data.test_split` if `for_test`.
    """
    data = config.data
    key, split = ("test_split", data.test_split) if for_test else ("eval_split", data.eval_split)
    if split is None:
        return {}
    having = {name: manifest for name, manifest in manifests.items() if split in manifest.splits}
    if not having:
        name, first = next(iter(manifests.items()))
        _check_split(first, split, name, key)
    if ring.rank == 0 and (lacking := [name for name in manifests if name not in having]):
        log.info("evaluations read %s alone: there is no split %r in %s", ", ".join(having), split, ", ".join(lacking))
    manifest = one_manifest(data, manifests)
    numbers = {value: number for number, value in enumerate(manifest.classes)}
    found = {}
    for name, own in having.items():
        with _named_keys(), name_dataset_in_errors(name) if name else nullcontext():
            loader = Loader(
                data.urls[name],
                split=split,
                where=data.of(name).where,
                batch_size=data.batch_size,
                seed=config.seed,
                rank=ring.rank,
                world_size=ring.size,
                remainder="pad",
                **_reading(data, manifest, training=False),
            )
        class_ids = None if own.classes == manifest.classes else [numbers[value] for value in own.classes]
        found[name] = EvaluationSource(loader=loader, class_ids=class_ids)
    return found


def _open_mixture(
    config: TrainConfig, ring: Ring | World, manifests: Mapping[str, Manifest], quarantined: Sequence[str]
) -> Mixture:
    data = config.data
    reading = _reading(data, one_manifest(data, manifests), training=True)
    sources = {}
    for name in data.urls:
        own, prefix = data.of(name), f"{name}/"
        balance = shares_by_class(f"data.mixture.{name}.balance", own.balance, manifests[name].classes)
        bad = [path.removeprefix(prefix) for path in quarantined if path.startswith(prefix)]
        options = {"url": own.url, "split": data.train_split, "where": own.where, "balance": balance}
        sources[name] = {**options, "quarantined": bad, **reading}
    with _named_keys():
        return Mixture(
            sources,
            weights=data.weights,
            batch_size=data.batch_size,
            seed=config.seed,
            rank=ring.rank,
            world_size=ring.size,
            streams=data.streams,
            sample_keys=config.augment.random,
        )


def _reading(data: DataConfig, manifest: Manifest, *, training: bool) -> dict[str, Any]:
    """Arguments of a `Loader` that are the same for all datasets of a run."""
    leaves_out = training and data.on_bad_shard == "quarantine"  # metrics of an evaluation would be of other records
    return {
        "fill": mask_fill(manifest.schema, masked_columns(manifest)),  # also of columns that the model does not see
        "masks": [feature.name for feature in masked_features(manifest, data)],
        "cache": open_cache(data.cache, data.cache_bytes),
        "window_shards": data.window_shards if training else 1,
        "fetch_threads": data.fetch_threads,
        "prefetch_bytes": data.prefetch_bytes,
        "on_bad_shard": "quarantine" if leaves_out else "raise",
    }


def _check_split(manifest: Manifest, split: str, dataset: str, key: str) -> None:
    if split in manifest.splits:
        return
    remedy = "" if key == "train_split" else f"; to train without evaluation: data.{key}: null"
    if remedy and len(manifest.splits) == 1:
        remedy += "; to make splits: shard-dataset build --split train=0.8,val=0.1,test=0.1"
    known, which = ", ".join(map(repr, manifest.splits)), f"dataset {dataset!r}" if dataset else "the dataset"
    raise DatasetError(f"data.{key}: there is no split {split!r}; {which} has {known}{remedy}")


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


def traced(function: Preprocess) -> Any:
    """Return a function as a `tf.function`, which is traced once for all epochs."""
    return tf.function(function, autograph=False)


def open_manifests(data: DataConfig) -> dict[str, Manifest]:
    """Open the datasets of a run; return their manifests by name, as in `DataConfig.urls`."""
    manifests = {}
    for name, url in data.urls.items():
        try:
            manifests[name] = open_dataset(url).manifest
        except DatasetError as error:
            raise DatasetError(f"data.mixture.{name}: {error}" if name else str(error)) from error
    return manifests


def one_manifest(data: DataConfig, manifests: Mapping[str, Manifest]) -> Manifest:
    """Return the only manifest, or one for all datasets of a mixture; a ConfigError if features or labels differ."""
    return next(iter(manifests.values())) if data.mixture is None else combined_manifest(manifests)


def join_quarantine(config: TrainConfig, ring: Ring, loader: Loader | Mixture) -> list[str]:
    """Return the paths of the shards that any rank has in quarantine (a collective, if shards may get there)."""
    own = _paths(loader)
    if config.data.on_bad_shard == "raise":
        return sorted(own)  # the checkpoint that the run resumed from names them
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

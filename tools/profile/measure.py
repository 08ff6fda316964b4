"""`profile`: measures store, loader and training in turn, each for a bounded time, and puts the result together.

Each trial is a module of its own; `bottleneck` judges the loader, `verdict` the training; `command` is `ringfeed
profile`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...pipeline import Loader, StageStats
from ...pipeline.fetch.shard_cache import Cache, MemoryCache, ShardCache, open_cache
from ...pipeline.metrics.stage_counters import CACHE_STAGES, FAULT_STAGES
from ...sharding.dataset.dataset import open_dataset
from ...sharding.errors import ConfigError, RangesError
from ...sharding.url_secrets import public_url
from ..console import print_stderr
from .bottleneck import StageProfile, name_bottleneck, name_knob
from .loader_trial import LoaderTrial, try_loader
from .other_load import LoadClock
from .result import Profile, TriedKnob
from .store_trial import StoreTrial, try_store
from .training_trials import Workload, try_training
from .verdict import FirstBatchTrial, LoaderEpoch, judge
from .workloads import configured_workload, function_workload

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["profile", "profile_run"]

_LONG_WAIT = 0.2  # of an epoch of the loader: from here on fewer streams are tried
_FEW_STREAMS = 4


def profile(
    url: str,
    *,
    split: str = "train",
    batch_size: int = 1024,
    balance: str | Mapping[Any, float] = "natural",
    steps: int | None = None,
    seed: int = 0,
    fill: Mapping[str, Any] | None = None,
    rank: int = 0,
    world_size: int = 1,
    columns: Sequence[str] | None = None,
    where: str | pc.Expression | None = None,
    streams: int | None = None,
    window_shards: int = 1,
    fetch_threads: int | None = None,
    prefetch_bytes: int | None = None,
    cache: str | os.PathLike[str] | ShardCache | None = None,
    cache_bytes: int | None = None,
    step: Callable[[Any], Any] | None = None,
    transform: Callable[[Any], Any] | None = None,
    seconds: float = 30.0,
    try_knob: bool = False,
    progress: bool = False,
) -> Profile:
    """Read an epoch, or a number of steps, as fast as the loader delivers, and measure its stages.

    With a step, also measure the step on a batch held in memory, and training: whether it would be input-bound.

    Args:
        url: the dataset's URL.
        split, batch_size, balance, seed, fill, rank, world_size: arguments of `Loader`.
        columns, where, streams, window_shards, fetch_threads, prefetch_bytes, cache: arguments of `Loader`. The records
            that `where` selects are counted before the measurement starts.
        cache_bytes: size limit of a cache given by name.
        steps: number of batches, at least 2, however long they take; default: one epoch, or as much of it as there is
            time for. After the end of an epoch, the next one follows.
        step: the model's training step: a function of one batch, or of what `transform` returns.
        transform: function of a batch for `tf.data`'s ``map``, between loader and step; its time counts as input's.
        seconds: time for all measurements, in seconds; what compiles, or is opened, comes on top.
        try_knob: whether to read again with the options that the knob names, and measure what they bring.
        progress: whether to show a progress bar on standard error.

    Raises:
        RingfeedError: the dataset cannot be read with these arguments.
    """
    _check_arguments(url, split, batch_size, steps, cache, cache_bytes)
    _check_training(step, transform, seconds)
    loader = Loader(
        url, split=split, batch_size=batch_size, balance=balance, seed=seed, fill=fill, rank=rank,
        world_size=world_size, columns=columns, where=where, streams=streams, window_shards=window_shards,
        fetch_threads=fetch_threads, prefetch_bytes=prefetch_bytes, cache=open_cache(cache, cache_bytes),
    )  # fmt: skip
    workload = None if step is None else function_workload(loader, step, transform)
    request = _Request(seconds=seconds, steps=steps, try_knob=try_knob, progress=progress, cache_bytes=cache_bytes)
    return _measure(loader, workload, url, request)


def profile_run(
    config: str,
    overrides: Sequence[str] = (),
    *,
    seconds: float = 30.0,
    try_knob: bool = False,
    progress: bool = False,
) -> Profile:
    """Profile a run of `ringfeed train` on one rank: its loader, its preprocessing, its step, and all together.

    The run neither resumes nor writes anything.

    Args:
        config: path of the run's configuration.
        overrides: ``KEY=VALUE`` of keys to override.
        seconds, try_knob, progress: see `profile`.

    Raises:
        RingfeedError: the configuration is wrong, or the dataset cannot be read.
    """
    _check_training(None, None, seconds)
    workload = configured_workload(config, overrides)
    request = _Request(seconds=seconds, steps=None, try_knob=try_knob, progress=progress, cache_bytes=None)
    return _measure(workload.loader, workload, workload.loader.arguments["url"].locate(), request)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What the caller asked for; see `profile`."""

    seconds: float
    steps: int | None
    try_knob: bool
    progress: bool
    cache_bytes: int | None

    def read(self, loader: Loader, seconds: float) -> LoaderTrial:
        """Read the loader alone."""
        return try_loader(loader, seconds, steps=self.steps, progress=self.progress)

    def report(self, part: str) -> None:
        """Say what is measured next."""
        if self.progress:
            print_stderr(f"measuring {part}")


def _measure(loader: Loader, workload: Workload | None, url: str, request: _Request) -> Profile:
    clock = LoadClock()
    weights = {
        "store": 0 if loader.arguments["url"].local_path is not None else 1,
        "loader": 3,
        "tried": 3 if request.try_knob else 0,
        "training": 0 if workload is None else 5,
    }
    seconds = {part: request.seconds * weight / sum(weights.values()) for part, weight in weights.items()}
    store = _try_store(loader, seconds["store"], request) if weights["store"] else None
    result = _evaluate(loader, url, request.read(loader, seconds["loader"]), request, store)
    if request.try_knob and result.knob_options:
        result = replace(result, tried=_try_knob(loader, result, seconds["tried"], request))
    if workload is None:
        return replace(result, other_load=clock.other_load())
    trials = try_training(workload, seconds["training"], request.report)
    epoch = LoaderEpoch(
        samples=_epoch_samples(loader),
        first_batch_seconds=result.first_batch_seconds,
        samples_per_second=result.samples_per_second,
        streams=loader.streams,
    )
    fewer = _try_fewer_streams(loader, request) if epoch.first_batch_seconds > _LONG_WAIT * epoch.seconds else None
    other_load = clock.other_load()
    verdict = judge(trials, epoch, result.knob, fewer=fewer, other_load=other_load)
    return replace(result, training=trials, verdict=verdict, other_load=other_load)


def _try_store(loader: Loader, seconds: float, request: _Request) -> StoreTrial | None:
    """Measure the store alone; None if it does not read parts of files."""
    request.report("the store")
    dataset = open_dataset(loader.arguments["url"])
    try:
        return try_store(dataset.storage, dataset.split_shards(loader.arguments["split"]), seconds)
    except RangesError:
        return None


def _try_knob(loader: Loader, result: Profile, seconds: float, request: _Request) -> TriedKnob:
    other = Loader(**dict(loader.arguments) | result.knob_options)
    rate = _epoch_samples(other) / request.read(other, seconds).epoch_seconds(other)
    return TriedKnob(
        options=result.knob_options, epoch_samples_per_second=rate, gain=rate / result.epoch_samples_per_second
    )


def _try_fewer_streams(loader: Loader, request: _Request) -> FirstBatchTrial | None:
    """Measure the wait for the first batch with a few streams; None if there are as few."""
    streams = max(n for n in range(1, _FEW_STREAMS + 1) if loader.streams % n == 0)
    if streams == loader.streams:
        return None
    request.report(f"the first batch of {streams} streams")
    other = Loader(**dict(loader.arguments) | {"streams": streams})
    batches = other.epoch(0)
    start = time.perf_counter()
    with other.own_errors():
        next(iter(batches))
    return FirstBatchTrial(streams=streams, seconds=time.perf_counter() - start)


def _check_arguments(
    url: str,
    split: str,
    batch_size: int,
    steps: int | None,
    cache: str | os.PathLike[str] | ShardCache | None,
    cache_bytes: int | None,
) -> None:
    if steps is not None and steps < 2:
        raise ConfigError(f"a profile needs at least 2 steps, got {steps}")
    records = open_dataset(url).manifest.split(split).records
    if records < batch_size:
        raise ConfigError(
            f"batch_size={batch_size} is more than the {records} records of {split!r}; use at most {records}"
        )
    if cache_bytes is not None and not (isinstance(cache, str | os.PathLike) and cache != "none"):
        raise ConfigError(f"cache_bytes limits a cache that is given by name, got {cache_bytes} with cache={cache!r}")


def _check_training(step: object, transform: object, seconds: float) -> None:
    if transform is not None and step is None:
        raise ConfigError("transform is measured with a step; give step, too")
    if not 0 < seconds < math.inf:
        raise ConfigError(f"seconds must be positive, got {seconds!r}")


def _epoch_samples(loader: Loader) -> int:
    return loader.steps_per_epoch * loader.local_batch_size


def _evaluate(loader: Loader, url: str, trial: LoaderTrial, request: _Request, store: StoreTrial | None) -> Profile:
    """The profile of a loader that has been read."""
    options = loader.arguments
    stages = _stages(loader.stats(), trial.first_batch_seconds + trial.seconds)
    bottleneck = name_bottleneck(stages, parses=loader.undecoded and not loader.locates_features)
    knob = name_knob(bottleneck, stages, loader, trial.disk_bytes, store)
    samples = trial.steps * loader.local_batch_size
    epoch_seconds = trial.epoch_seconds(loader)
    return Profile(
        url=public_url(url),
        split=options["split"],
        batch_size=options["batch_size"],
        balance=options["balance"],
        rank=options["rank"],
        world_size=options["world_size"],
        steps=trial.steps,
        samples=samples,
        seconds=trial.seconds,
        first_batch_seconds=trial.first_batch_seconds,
        samples_per_second=(samples - loader.local_batch_size) / trial.seconds,
        epoch_seconds=epoch_seconds,
        epoch_samples_per_second=_epoch_samples(loader) / epoch_seconds,
        bytes_per_second=trial.decoded_bytes / trial.seconds,
        stages=stages,
        bottleneck=bottleneck,
        knob=knob.text,
        options=_options(loader, request.cache_bytes),
        knob_options=dict(knob.options),
        store=store,
    )


_SHOWN_OPTIONS = ("columns", "where", "streams", "window_shards", "fetch_threads", "prefetch_bytes", "cache")
_AS_JSON: dict[str, Callable[[Any], Any]] = {"columns": list, "where": str, "cache": lambda cache: _name_cache(cache)}


def _options(loader: Loader, cache_bytes: int | None) -> dict[str, Any]:
    """The options that the headline does not show yet, if they differ from their defaults, in JSON's types."""
    options = {name: loader.arguments[name] for name in _SHOWN_OPTIONS} | {"cache_bytes": cache_bytes}
    if options["window_shards"] == 1:
        del options["window_shards"]
    return {name: _AS_JSON.get(name, int)(value) for name, value in options.items() if value is not None}


def _name_cache(cache: ShardCache) -> str:
    if isinstance(cache, MemoryCache):
        return "memory"
    return str(cache.path) if isinstance(cache, Cache) else type(cache).__name__


def _stages(stats: Mapping[str, StageStats], seconds: float) -> tuple[StageProfile, ...]:
    return tuple(
        StageProfile(
            name=name,
            items=entry.items,
            bytes=entry.bytes,
            busy_seconds=entry.busy_seconds,
            wait_seconds=entry.wait_seconds,
            share=entry.busy_seconds / seconds,
        )
        for name, entry in stats.items()
        if entry.items or name not in CACHE_STAGES + FAULT_STAGES
    )

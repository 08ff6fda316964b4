"""`profile`: checks its arguments, measures store, loader and training in turn, and puts the result together.

`procedure` has the order of the measurements; each is a module of its own; `bottleneck` names what limits the
loader, `verdict` what limits training, `settings` what would help, by the simulator; `command` is `ringfeed profile`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ringfeed.pipeline import Loader
from ringfeed.pipeline.fetch.shard_cache import ShardCache, open_cache
from ringfeed.sharding.dataset.dataset import open_dataset
from ringfeed.sharding.errors import ConfigError
from ringfeed.tools.measure.workloads import configured_workload, function_workload
from ringfeed.tools.report.profile_result import Profile
from ringfeed.training.run.state.outputs import check_writable

from .procedure import Request, investigate

if TYPE_CHECKING:
    import pyarrow.compute as pc


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
    trace: str | None = None,
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
        trace: where to write a trace of a few steps, for https://ui.perfetto.dev; the result then has `inside`.
        progress: whether to show a progress bar on standard error.

    Raises:
        RingfeedError: the dataset cannot be read with these arguments.

    >>> result = profile("flights", batch_size=64, steps=5)
    >>> result.steps, result.samples
    (5, 320)
    """
    _check_arguments(url, split, batch_size, steps, cache, cache_bytes)
    _check_training(step, transform, seconds, trace)
    loader = Loader(
        url, split=split, batch_size=batch_size, balance=balance, seed=seed, fill=fill, rank=rank,
        world_size=world_size, columns=columns, where=where, streams=streams, window_shards=window_shards,
        fetch_threads=fetch_threads, prefetch_bytes=prefetch_bytes, cache=open_cache(cache, cache_bytes),
    )  # fmt: skip
    workload = None if step is None else function_workload(loader, step, transform)
    request = Request(
        seconds=seconds, steps=steps, try_knob=try_knob, trace=trace, progress=progress, cache_bytes=cache_bytes
    )
    return investigate(loader, workload, url, request)


def profile_run(
    config: str,
    overrides: Sequence[str] = (),
    *,
    seconds: float = 30.0,
    try_knob: bool = False,
    trace: str | None = None,
    progress: bool = False,
) -> Profile:
    """Profile a run of `ringfeed train` on one rank: its loader, its preprocessing, its step, and all together.

    The run neither resumes nor writes anything.

    Args:
        config: path of the run's configuration.
        overrides: ``KEY=VALUE`` of keys to override.
        seconds, try_knob, trace, progress: see `profile`.

    Raises:
        RingfeedError: the configuration is wrong, or the dataset cannot be read.

    >>> profile_run("flights.yaml", seconds=10.0).training  # doctest: +SKIP
    """
    _check_training("", None, seconds, trace)
    workload = configured_workload(config, overrides)
    request = Request(seconds=seconds, steps=None, try_knob=try_knob, trace=trace, progress=progress, cache_bytes=None)
    return investigate(workload.loader, workload, workload.loader.arguments["url"].locate(), request)


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


def _check_training(step: object, transform: object, seconds: float, trace: str | None) -> None:
    if transform is not None and step is None:
        raise ConfigError("transform is measured with a step; give step, too")
    if not 0 < seconds < math.inf:
        raise ConfigError(f"seconds must be positive, got {seconds!r}")
    if trace is not None:
        if step is None:
            raise ConfigError("a trace is of a step: name one by --step or --config, or the folder of a run's records")
        check_writable(trace)

"""`tune`: measures what the simulator needs, searches with it, and measures the best options beside the defaults."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from ringfeed.pipeline import Loader, MemoryCache
from ringfeed.sharding.common.argument_names import former_names
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.url_secrets import public_url
from ringfeed.tools.measure.dataset_shape import DatasetShape
from ringfeed.tools.measure.epochs_in_turn import Confirmed, confirm, is_better
from ringfeed.tools.measure.loader_costs import measure_costs
from ringfeed.tools.measure.training_trials import Workload
from ringfeed.tools.measure.workloads import configured_workload, function_workload
from ringfeed.tools.predict.search import Space, choose, search, try_shard_sizes
from ringfeed.tools.predict.setup import Setup
from ringfeed.tools.report.tuning_result import TriedOptions, Tuning

_MEASURE_SHARE = 0.3  # of the seconds; the rest confirms
_PARTS = 5  # of measuring: store, loader, cache, transform, step
_ROUNDS = 3
_MEMORY_SHARE, _DISK_SHARE = 0.25, 0.8  # shares of the free memory and disk that a cache may take
Report = Callable[[str, int, int, int], None]


@former_names(memory_bytes="memory")
def tune(
    url: str,
    *,
    split: str = "train",
    batch_size: int = 1024,
    step: Callable[[Any], Any] | None = None,
    transform: Callable[[Any], Any] | None = None,
    cache: str | None = None,
    epochs: int = 3,
    keep_order: bool = False,
    memory: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    seconds: float = 60.0,
    report: Report = lambda stage, done, total, amount: None,
) -> Tuning:
    """Search for options with which an epoch takes less time, and confirm them by measurement.

    Args:
        url: the dataset's URL.
        split, batch_size, rank, world_size: arguments of `Loader`.
        step: the model's training step: a function of one batch, or of what `transform` returns; without one the
            loader runs alone.
        transform: function of a batch for `tf.data`'s ``map``, between loader and step.
        cache: a folder on a local disk, or ``memory``: where a cache may be; None searches without one.
        epochs: epochs of the run, over which the time to fill a cache is spread.
        keep_order: whether to search only options that leave every batch as it is.
        memory: most bytes of shards and batches in each rank.
        seconds: time for measurements, in seconds; the search and what compiles come on top.
        report: called with a stage (``measure``, ``simulate``, ``confirm``), what is done of it, all of it, and 0.

    Raises:
        RingfeedError: the dataset cannot be read with these arguments.

    >>> tuning = tune("flights", batch_size=64, step=train_step)  # doctest: +SKIP
    >>> tuning.tried[tuning.chosen].options  # doctest: +SKIP
    """
    if transform is not None and step is None:
        raise ConfigError("transform is measured with a step; give step, too")
    loader = Loader(url, split=split, batch_size=batch_size, rank=rank, world_size=world_size)
    workload = None if step is None else function_workload(loader, step, transform)
    space = Space(epochs=epochs, keeps_order=keep_order, memory_bytes=memory)
    return _tune(loader, workload, url, space, cache, seconds, report)


@former_names(memory_bytes="memory")
def tune_run(
    config: str,
    overrides: Sequence[str] = (),
    *,
    cache: str | None = None,
    epochs: int = 3,
    keep_order: bool = False,
    memory: int | None = None,
    seconds: float = 60.0,
    report: Report = lambda stage, done, total, amount: None,
) -> Tuning:
    """Tune the input of a run of `ringfeed train`, on one rank; the run neither resumes nor writes anything.

    Args:
        config: path of the run's configuration.
        overrides: ``KEY=VALUE`` of keys to override.
        cache, epochs, keep_order, memory, seconds, report: see `tune`.

    Raises:
        RingfeedError: the configuration is wrong, or the dataset cannot be read.
    """
    workload = configured_workload(config, overrides)
    url = workload.loader.arguments["url"].locate()
    space = Space(epochs=epochs, keeps_order=keep_order, memory_bytes=memory)
    return _tune(workload.loader, workload, url, space, cache, seconds, report)


def _tune(
    loader: Loader, workload: Workload | None, url: str, space: Space, cache: str | None, seconds: float, report: Report
) -> Tuning:
    if cache is not None and loader.arguments["cache"] is not None:
        raise ConfigError("the run has a cache (data.cache): leave out --cache, or try others with data.cache=none")
    if not 0 < seconds < math.inf or space.epochs < 1:
        raise ConfigError(f"seconds must be positive and epochs at least 1, got {seconds!r} and {space.epochs!r}")
    parts = count()
    measured = measure_costs(
        loader, seconds * _MEASURE_SHARE, workload=workload, cache_folder=cache,
        report=lambda _: report("measure", next(parts), _PARTS, 0),
    )  # fmt: skip
    report("measure", _PARTS, _PARTS, 0)
    shape, costs = measured.shape, measured.costs
    base = _base(loader, shape, in_memory=cache == "memory")
    space = replace(space, cache_bytes=_cache_bytes(cache, shape))
    candidates = search(shape, costs, base, space, lambda done: report("simulate", done, max(done, 60), 0))
    report("simulate", len(candidates), len(candidates), 0)
    tried = [candidates[0], *choose(candidates)]
    confirmed = confirm(
        loader, workload, [one.options for one in tried[1:]], seconds=seconds * (1 - _MEASURE_SHARE), rounds=_ROUNDS,
        epochs=space.epochs, cache=cache, report=lambda done, total: report("confirm", done, total, 0),
    )  # fmt: skip
    best = _best(confirmed)
    return Tuning(
        url=public_url(url), batch_size=loader.arguments["batch_size"], epochs=space.epochs,
        tried=tuple(TriedOptions.of(one, result) for one, result in zip(tried, confirmed, strict=True)), chosen=best,
        simulated=len(candidates), reshard=try_shard_sizes(shape, costs, tried[best], base, space.epochs), cache=cache,
    )  # fmt: skip


def _best(confirmed: Sequence[Confirmed]) -> int:
    """The fastest of those that are better than the defaults beyond doubt; 0, the defaults, if none is."""
    better = [place for place, one in enumerate(confirmed) if place and is_better(one)]
    return max(better, key=lambda place: confirmed[place].gain, default=0)


def _base(loader: Loader, shape: DatasetShape, *, in_memory: bool) -> Setup:
    """The loader's options as a setup; ranks are those of one host. A cache that it has counts as filled.

    `in_memory` says whether the cache to search for is in memory; the loader's own says so itself.
    """
    options = loader.arguments
    same = ("batch_size", "streams", "window_shards", "fetch_threads", "prefetch_bytes", "seed")
    return Setup(
        **{name: options[name] for name in same},
        ranks=options["world_size"],
        cache_bytes=None if options["cache"] is None else 2 * shape.bytes,
        cache_in_memory=in_memory or isinstance(options["cache"], MemoryCache),
        is_warm=options["cache"] is not None,
    )


def _cache_bytes(cache: str | None, shape: DatasetShape) -> int | None:
    """The size of a cache that holds the dataset; None if there is no room for it."""
    if cache is None:
        return None
    if cache == "memory":
        room = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _MEMORY_SHARE
    else:
        folder = Path(cache).absolute()
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        room = shutil.disk_usage(existing).free * _DISK_SHARE
    needed = int(1.05 * shape.bytes) + (4096 << 1) * len(shape.records)  # files take whole blocks
    return needed if needed <= room else None

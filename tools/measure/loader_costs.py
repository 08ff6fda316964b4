"""What a loader costs on this machine, by the counters of its stages and the trials of its store and its hand-over.

Counters hold processor time, so other programs disturb it little; the model then lets the parts compete for the cores.
Tested in tests/tools/measure/test_loader_costs.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ringfeed.pipeline import Loader, StageStats
from ringfeed.pipeline.select.selected_columns import record_bytes
from ringfeed.sharding.dataset.dataset import open_dataset
from ringfeed.sharding.errors import ConfigError

from .costs import Costs, StoreCosts
from .dataset_shape import DatasetShape
from .epochs_in_turn import trial_cache
from .loader_trial import LoaderTrial, try_loader
from .part_trials import try_hand_over
from .store_trial import PIECE_BYTES, StoreTrial, try_store_of
from .training_costs import with_training
from .training_trials import Workload
from .trial import Trial

_OPENING = ("fetch", "cache", "verify", "open")  # the stages that bring a shard
_INDEXES = 3  # opened by themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDataset:
    """What `measure_costs` returns: the shape of the dataset, and the costs of reading it.

    >>> from ringfeed.tools.simulation import Costs, DatasetShape
    >>> import numpy as np
    >>> shape = DatasetShape(records=np.full(8, 1000), data_bytes=np.full(8, 64000), index_bytes=np.full(8, 8000))
    >>> MeasuredDataset(shape=shape, costs=Costs(file_seconds=0.01)).costs.file_seconds
    0.01
    """

    shape: DatasetShape
    costs: Costs


def measure_costs(
    loader: Loader,
    seconds: float = 10.0,
    *,
    workload: Workload | None = None,
    cache_folder: str | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> MeasuredDataset:
    """Measure what a simulation needs to know about a dataset, its store, and this machine.

    Args:
        loader: the loader; its cache is left out.
        seconds: time for all of it, after what is compiled.
        workload: transform and step to measure, too.
        cache_folder: folder for a cache; its cost is measured in an empty folder beside that.
        report: called with what is measured next.

    Raises:
        RingfeedError: the dataset cannot be read.

    >>> from ringfeed.pipeline import Loader
    >>> measured = measure_costs(Loader("flights", batch_size=64), seconds=0.2)
    >>> len(measured.shape.records)
    4
    """
    if not 0 < seconds < math.inf:
        raise ConfigError(f"seconds must be positive, got {seconds!r}")
    plain, store = Loader(**dict(loader.arguments) | {"cache": None}), None
    if plain.arguments["url"].local_path is None:
        report("the store")
        store = try_store_of(plain, seconds * 0.2)
    report("the loader")
    trial = try_loader(plain, seconds * 0.4, steps=None)
    measured = loader_costs(plain, plain.stats(), trial, store, try_hand_over(plain, seconds * 0.1))
    costs = measured.costs
    if cache_folder is not None:
        report("the cache")
        costs = _with_cache(plain, costs, cache_folder, seconds * 0.1)
    if workload is not None:
        costs = with_training(plain, workload, costs, seconds * 0.2, report)
    return replace(measured, costs=costs)


def loader_costs(
    loader: Loader,
    stats: Mapping[str, StageStats],
    trial: LoaderTrial,
    store: StoreTrial | None,
    hand_over: tuple[float, Trial] | None,
) -> MeasuredDataset:
    """Take the costs of a reading: processor time by its counters, all else by the trials of its parts.

    Args:
        loader: the loader, which was read.
        stats: its counters after that.
        trial: the reading.
        store: a remote store, as far as it reads parts of files.
        hand_over: seconds until an epoch's first batch if all is at hand, and handing over alone; None: not measured.
    """
    file_seconds, read_fraction = _open_some(loader)
    shape = shape_of(loader, read_fraction)
    files = stats["fetch"].items + stats["cache"].items
    opening = _opening_seconds(stats)
    byte_seconds = max(opening - files * file_seconds, 0.1 * opening) / _opened_bytes(stats)
    sample_bytes = trial.decoded_bytes / ((trial.steps - 1) * loader.local_batch_size)
    begin, handed = hand_over if hand_over is not None else (0.0, None)
    costs = Costs(
        store=_store_costs(loader, stats, trial, store, shape), file_seconds=file_seconds, byte_seconds=(byte_seconds,),
        hit_byte_seconds=byte_seconds, plan_seconds=stats["plan"].cpu_seconds / max(stats["plan"].items, 1),
        gather_seconds=stats["gather"].cpu_seconds / max(stats["gather"].items, 1),
        handover_seconds=0.0 if handed is None else loader.local_batch_size * handed.cpu_seconds / handed.samples,
        start_seconds=begin, memory_per_byte=sample_bytes * float(shape.records.sum()) / max(shape.bytes, 1),
    )  # fmt: skip
    return MeasuredDataset(shape=shape, costs=costs)


def shape_of(loader: Loader, read_fraction: float = 1.0) -> DatasetShape:
    """Return the sizes of a loader's shards, of whose files a fraction is read."""
    shards = open_dataset(loader.arguments["url"]).split_shards(loader.arguments["split"])
    with loader.open_streams() as streams:
        in_parts = streams.context.fetcher.in_parts
    manifest, features = loader.manifest, loader.schema.features
    sizes = np.array([(shard.records, shard.bytes, shard.index_bytes) for shard in shards], np.int64).T
    return DatasetShape(
        records=sizes[0], data_bytes=np.ceil(sizes[1] * read_fraction).astype(np.int64), index_bytes=sizes[2],
        in_parts=in_parts, is_mapped=manifest.shard_format == "tfrecord" and manifest.compression == "none",
        record_bytes=record_bytes(shards, manifest.schema, loader.schema), undecoded=loader.undecoded,
        ragged=any(feature.elements is None for feature in features),
        numbers=sum(feature.elements or 0 for feature in features if feature.numeric),
    )  # fmt: skip


def _open_some(loader: Loader) -> tuple[float, float]:
    """Processor time of a file, apart from its bytes: of some indexes, which are small; and the share read of a shard.

    Of a shard in columns, only those that are delivered are read.
    """
    shards = open_dataset(loader.arguments["url"]).split_shards(loader.arguments["split"])
    before = loader.stats()
    with loader.open_streams() as streams:
        fetcher = streams.context.fetcher
        for number in range(min(_INDEXES, len(shards))):
            fetcher.class_ids(number)
        indexes = loader.stats()
        fetcher.request(fetcher.whole(0)).result()
    files = sum(indexes[name].items - before[name].items for name in ("fetch", "cache"))
    read = _opened_bytes(loader.stats()) - _opened_bytes(indexes) - shards[0].index_bytes
    seconds = (_opening_seconds(indexes) - _opening_seconds(before)) / max(files, 1)
    return seconds, min(read / max(shards[0].bytes, 1), 1.0)


def _opening_seconds(stats: Mapping[str, StageStats]) -> float:
    return sum(stats[name].cpu_seconds for name in _OPENING)


def _opened_bytes(stats: Mapping[str, StageStats]) -> int:
    return max(stats["fetch"].bytes + stats["cache"].bytes, 1)


def _store_costs(
    loader: Loader, stats: Mapping[str, StageStats], trial: LoaderTrial, store: StoreTrial | None, shape: DatasetShape
) -> StoreCosts:
    """A read takes the store's latency, and then its bytes as they come through one connection.

    If mapped files came from a local disk, their readers' time off the cores is the disk's. A store that reads no parts
    is known by the loader's waits for it alone.
    """
    if store is not None:
        size = min(PIECE_BYTES, float(shape.data_bytes.mean()))
        transfer = size / store.rate_of(1) - store.latency_seconds
        return StoreCosts(
            latency_seconds=store.latencies or (store.latency_seconds,),
            connection_bytes_per_second=max(size / transfer, 1.0) if transfer > 0 else math.inf,
            bytes_per_second=max(store.best_bytes_per_second, 1.0),
        )
    if loader.arguments["url"].local_path is None:
        return StoreCosts(latency_seconds=(stats["fetch"].wait_seconds / max(stats["fetch"].items, 1),))
    read = _opened_bytes(stats)
    if trial.disk_bytes < read / 2:
        return StoreCosts(is_local=True)
    off_cores = sum(stats[name].busy_seconds - stats[name].cpu_seconds for name in _OPENING)
    one, all_threads = read / max(off_cores, 1e-9), read / (trial.first_batch_seconds + trial.seconds)
    return StoreCosts(bytes_per_second=max(one, all_threads), connection_bytes_per_second=one, is_local=True)


def _with_cache(loader: Loader, costs: Costs, folder: str, seconds: float) -> Costs:
    """Costs with those of a cache: processor time of a byte that it takes, and of one that it gives."""
    with trial_cache(folder) as empty:
        cached = Loader(**dict(loader.arguments) | {"cache": empty})
        filling = try_loader(cached, seconds * 0.6, steps=None)
        cold = cached.stats()
        try_loader(cached, seconds * 0.4, steps=filling.steps)
        warm = cached.stats()
    opened = max(_opened_bytes(warm) - _opened_bytes(cold), 1)
    return replace(
        costs,
        fill_byte_seconds=cold["fill"].cpu_seconds / max(cold["fill"].bytes, 1),
        hit_byte_seconds=(_opening_seconds(warm) - _opening_seconds(cold)) / opened,
    )

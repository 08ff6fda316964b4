"""Measure the costs that a simulation needs, on this machine: of the store, the loader's stages, transform and step.

Each part runs alone, one shard or batch after the other, and its processor time is counted (all threads of the process,
so other programs disturb it little). The model then lets the parts compete for the cores.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

from ringfeed.pipeline import Loader
from ringfeed.pipeline.select.selected_columns import record_bytes
from ringfeed.pipeline.streams.stream_reader import OpenStreams
from ringfeed.sharding.dataset.dataset import open_dataset
from ringfeed.sharding.dataset.manifest import ShardInfo
from ringfeed.sharding.errors import ConfigError
from ringfeed.tools.measure.dataset_shape import DatasetShape

from .costs import Costs, StoreCosts
from .epochs_in_turn import trial_cache
from .store_trial import try_store_of
from .training_costs import with_training
from .training_trials import Workload

_LEAST_SHARDS, _MOST_SHARDS = 3, 64
_LEAST_BATCHES = 8
_FULL_RATE = 20e9  # bytes a second from which on a connection counts as no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDataset:
    """What `measure_costs` returns: the shape of the dataset, and the costs of reading it.

    >>> from ringfeed.tools.simulation import Costs, DatasetShape, Setup, simulate
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
    plain = Loader(**dict(loader.arguments) | {"cache": None})
    shards = open_dataset(plain.arguments["url"]).split_shards(plain.arguments["split"])
    report("opening shards, one by one")
    opened = _open_shards(plain, shards, seconds * 0.3)
    is_local = plain.arguments["url"].local_path is not None
    rate = math.inf
    if not is_local:
        report("the store")
        store = try_store_of(plain, seconds * 0.2)
        rate = math.inf if store is None else store.best_bytes_per_second  # unknown, if it reads no parts
    report("the loader")
    reading = _read_batches(plain, opened, seconds * 0.3)
    costs = Costs(
        store=_store_costs(opened, rate, is_local=is_local),
        file_seconds=median(each.index_cpu for each in opened),
        byte_seconds=tuple(each.byte_seconds for each in opened),
        hit_byte_seconds=median(each.byte_seconds for each in opened),
        plan_seconds=reading.plan_seconds,
        gather_seconds=reading.gather_seconds,
        handover_seconds=reading.handover_seconds,
        start_seconds=reading.start_seconds,
        memory_per_byte=median(each.memory_bytes / each.size for each in opened),
    )
    if cache_folder is not None:
        report("the cache")
        costs = _with_cache(plain, shards, costs, cache_folder, seconds * 0.1)
    if workload is not None:
        costs = with_training(plain, workload, costs, seconds * 0.2, report)
    fraction = min(mean((each.size - each.index_bytes) / each.data_bytes for each in opened), 1.0)
    return MeasuredDataset(shape=shape_of(plain, fraction), costs=costs)


def shape_of(loader: Loader, read_fraction: float = 1.0) -> DatasetShape:
    """Return the sizes of a loader's shards, of whose files a fraction is read."""
    shards = open_dataset(loader.arguments["url"]).split_shards(loader.arguments["split"])
    with loader.open_streams() as streams:
        in_parts, manifest = streams.context.fetcher.in_parts, loader.manifest
    size = record_bytes(shards, loader.manifest.schema, loader.schema)
    return DatasetShape.of(
        shards,
        loader.schema,
        in_parts=in_parts,
        is_mapped=manifest.shard_format == "tfrecord" and manifest.compression == "none",
        undecoded=loader.undecoded,
        record_bytes=size,
        read_fraction=read_fraction,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """One shard opened alone: seconds of its index's fetch and of all fetches, processor time, bytes."""

    index_seconds: float
    index_cpu: float
    fetch_seconds: float
    cpu_seconds: float
    wall_seconds: float
    size: int
    data_bytes: int
    index_bytes: int
    memory_bytes: int

    @property
    def byte_seconds(self) -> float:
        """Processor time for a byte, apart from what each file takes."""
        return max(self.cpu_seconds - 2 * self.index_cpu, 0.1 * self.cpu_seconds) / self.size


def _open_shards(loader: Loader, shards: Sequence[ShardInfo], seconds: float) -> list[_Opened]:
    """Open shard after shard; the first, which makes connections, is not counted."""
    results: list[_Opened] = []
    order = itertools.cycle(range(len(shards)))
    with loader.open_streams() as streams:
        _open(loader, streams, shards, next(order))
        start = time.perf_counter()
        while len(results) < _LEAST_SHARDS or (len(results) < _MOST_SHARDS and time.perf_counter() - start < seconds):
            results.append(_open(loader, streams, shards, next(order)))
    return results


def _open(loader: Loader, streams: OpenStreams, shards: Sequence[ShardInfo], number: int) -> _Opened:
    fetcher, info = streams.context.fetcher, shards[number]
    before, cpu = loader.stats()["fetch"], time.process_time()
    fetcher.class_ids(number)
    between, cpu_between, start = loader.stats()["fetch"], time.process_time(), time.perf_counter()
    opened = fetcher.request(fetcher.whole(number)).result()
    after = loader.stats()["fetch"]
    wall, cpu_after = time.perf_counter() - start, time.process_time()
    return _Opened(
        index_seconds=between.busy_seconds - before.busy_seconds,
        index_cpu=cpu_between - cpu,
        fetch_seconds=after.busy_seconds - between.busy_seconds,
        cpu_seconds=cpu_after - cpu_between,
        wall_seconds=wall,
        size=max(after.bytes - between.bytes, 1),
        data_bytes=info.bytes,
        index_bytes=info.index_bytes,
        memory_bytes=sum(int(values.nbytes) for values in opened.columns.values()),
    )


def _store_costs(opened: Sequence[_Opened], rate: float, *, is_local: bool) -> StoreCosts:
    """Latency from the indexes, which are small; the rate of a connection from what larger files take beyond it.

    Of a local disk, shards are mapped: what opening them takes beyond processor time is the disk's.
    """
    size = mean(each.size for each in opened)
    if is_local:
        waiting = mean(max(each.wall_seconds - each.cpu_seconds, 0.0) for each in opened)
        slow = waiting > 0.2 * mean(each.wall_seconds for each in opened)
        disk = size / waiting if slow else math.inf
        return StoreCosts(bytes_per_second=disk, connection_bytes_per_second=disk, is_local=True)
    latencies = tuple(each.index_seconds for each in opened)
    transfer = mean(max(each.fetch_seconds, 0.0) for each in opened) - 2 * mean(latencies)
    connection = size / transfer if transfer > 0 else math.inf
    connection = math.inf if connection > _FULL_RATE else connection
    return StoreCosts(
        latency_seconds=latencies,
        connection_bytes_per_second=connection,
        bytes_per_second=max(rate, 0.0) or math.inf,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What reading batches costs beyond opening shards, for each record, sample and batch."""

    plan_seconds: float
    gather_seconds: float
    handover_seconds: float
    start_seconds: float


def _read_batches(loader: Loader, opened: Sequence[_Opened], seconds: float) -> _Reading:
    """Read batches as a program would.

    Of the processor time, what opening shards and planning took is subtracted; the calling thread's own is the
    hand-over; the rest is the gathering thread's.
    """
    for _ in loader.epoch(0).take(2):  # TensorFlow traces
        pass
    gather_seconds = _gather(loader, seconds * 0.4)
    before, cpu, own = loader.stats(), time.process_time(), time.thread_time()
    start, batches = time.perf_counter(), 0
    for _ in itertools.chain.from_iterable(map(loader.batches, itertools.count())):
        batches += 1
        if batches >= _LEAST_BATCHES and time.perf_counter() - start > seconds * 0.6:
            break
    handover = time.thread_time() - own
    after, total = loader.stats(), time.process_time() - cpu
    plan = after["plan"].busy_seconds - before["plan"].busy_seconds
    planned = max(after["plan"].items - before["plan"].items, 1)
    opening = (after["fetch"].bytes - before["fetch"].bytes) * median(each.byte_seconds for each in opened)
    opening += (after["fetch"].items - before["fetch"].items) * median(each.index_cpu for each in opened)
    samples = after["gather"].items - before["gather"].items
    return _Reading(
        plan_seconds=plan / planned,
        gather_seconds=max((total - handover - plan - opening) / samples, gather_seconds),
        handover_seconds=handover / batches,
        start_seconds=_start_seconds(loader),
    )


def _gather(loader: Loader, seconds: float) -> float:
    """Processor time to gather a sample, in a thread of its own."""
    samples, start, cpu = 0, time.perf_counter(), time.thread_time()
    for steps, _ in loader.chunks(0):
        samples += steps * loader.local_batch_size
        if time.perf_counter() - start > seconds:
            break
    return (time.thread_time() - cpu) / samples


def _start_seconds(loader: Loader) -> float:
    """Median time to make an epoch's iterator and the objects behind it: of an epoch that has no step left."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in loader.epoch(0, loader.steps_per_epoch):
            pass
        times.append(time.perf_counter() - start)
    return median(times)


def _with_cache(loader: Loader, shards: Sequence[ShardInfo], costs: Costs, folder: str, seconds: float) -> Costs:
    """Costs with those of a cache: processor time of a byte that it takes, and of one that it gives."""
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    start = time.perf_counter()
    with (
        trial_cache(folder) as empty,
        Loader(**dict(loader.arguments) | {"cache": empty}).open_streams() as streams,
    ):
        fetcher = streams.context.fetcher
        for number in range(min(len(shards), _MOST_SHARDS)):
            for known in times.values():
                cpu = time.process_time()
                fetcher.request(fetcher.whole(number)).result()
                known.append((time.process_time() - cpu) / (shards[number].bytes + shards[number].index_bytes))
            if number + 1 >= _LEAST_SHARDS and time.perf_counter() - start > seconds:
                break
    cold, warm = (median(known) for known in times.values())
    return replace(costs, fill_byte_seconds=max(cold - median(costs.byte_seconds), 0.0), hit_byte_seconds=warm)

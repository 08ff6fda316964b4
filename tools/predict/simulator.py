"""`simulate`: the epochs of a loader, or of training, on any number of ranks and hosts, as a discrete-event model.

Events are counted by shard, window and block of steps. A block is one chunk of the loader; in long epochs of many ranks
it is longer, up to a hundredth of the epoch. Within a block the steps of all ranks are drawn and their maxima summed in
NumPy, which is exact, since ranks meet after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import simpy

from ringfeed.pipeline.deliver.chunk_sizes import ChunkSizes
from ringfeed.pipeline.order.epoch_order import EpochOrder, default_streams
from ringfeed.pipeline.streams.prefetch_budget import default_prefetch_bytes
from ringfeed.pipeline.streams.shard_fetcher import LEAST_THREADS, MOST_THREADS
from ringfeed.sharding.errors import ConfigError
from ringfeed.tools.measure.costs import Costs
from ringfeed.tools.measure.dataset_shape import DatasetShape

from .loader_model import LoaderModel, LoaderSettings
from .resources import Barrier, CacheModel, Host
from .setup import Prices, Setup
from .simulation import EpochFigures, Simulation
from .training_model import Program, StepClock

_MOST_BLOCKS = 40_000  # of all ranks together
_LEAST_BLOCKS = 100  # of an epoch


def simulate(dataset: DatasetShape, costs: Costs, setup: Setup, prices: Prices | None = None) -> Simulation:
    """Simulate epochs and return their figures.

    Args:
        dataset: sizes of the shards.
        costs: what was measured.
        setup: how the dataset is read.
        prices: what bytes, requests and hosts cost.

    Raises:
        ConfigError: streams do not divide the batch, the ranks' shares differ too much, or records do not fill a batch.

    >>> shape = DatasetShape(records=np.full(8, 1000), data_bytes=np.full(8, 10**6), index_bytes=np.full(8, 0))
    >>> result = simulate(shape, Costs(gather_seconds=1e-3), Setup(batch_size=80, streams=8, cores=1))
    >>> round(result.samples_per_second)
    1000
    """
    if setup.batch_size < setup.ranks:
        raise ConfigError(f"a batch of {setup.batch_size} has no sample for some of {setup.ranks} ranks")
    if setup.cache_bytes is not None:
        dataset = replace(dataset, in_parts=False, is_mapped=False)  # a cache keeps whole files
    caches = _caches(dataset, setup)
    figures = [_epoch(dataset, costs, setup, epoch, caches) for epoch in range(setup.epochs)]
    return Simulation(
        setup=setup, streams=setup.geometry(int(dataset.records.sum())).streams, dataset_bytes=dataset.bytes,
        shards=len(dataset.records), is_training=costs.step is not None, prices=prices or Prices(),
        epochs=tuple(figures),
    )  # fmt: skip


def simulate_ranks(
    dataset: DatasetShape,
    costs: Costs,
    setup: Setup,
    ranks: Sequence[int],
    *,
    ranks_per_host: int,
    local_batch: int | None = None,
    prices: Prices | None = None,
    bounds: Sequence[Costs] = (),
    report: Callable[[str], None] = lambda _: None,
) -> list[Simulation]:
    """Simulate one number of ranks after the other: a scaling curve.

    Args:
        dataset, costs, setup, prices: see `simulate`.
        ranks: numbers of ranks; `setup` has the rest. If it names no streams, more ranks than `Loader` has streams by
            default get one each, so that they do not read the same records.
        ranks_per_host: most ranks of a host.
        local_batch: samples of each rank in a step, so that the global batch grows with the ranks (weak scaling);
            None: the batch of `setup` for any number of ranks (strong scaling).
        bounds: the lowest and the highest costs, if they have a range: `EpochFigures.seconds_between`.
        report: called with what is simulated next.

    Raises:
        ConfigError: see `simulate`.

    >>> from ringfeed.tools.simulation import Costs, DatasetShape, Setup, simulate
    >>> import numpy as np
    >>> shape = DatasetShape(records=np.full(8, 1000), data_bytes=np.full(8, 64000), index_bytes=np.full(8, 8000))
    >>> setup = Setup(batch_size=500, cores=2)
    >>> found = simulate_ranks(shape, Costs(file_seconds=0.01), setup, [1, 2], ranks_per_host=2)
    >>> [one.setup.ranks for one in found]
    [1, 2]
    """
    if ranks_per_host < 1 or min(ranks) < 1 or (local_batch or 1) < 1:
        raise ConfigError(
            f"ranks, ranks_per_host and local_batch must be at least 1, got {ranks}, {ranks_per_host}, {local_batch}"
        )
    records, results = int(dataset.records.sum()), []
    for n in ranks:
        batch_size = setup.batch_size if local_batch is None else n * local_batch
        streams = setup.streams
        if streams is None and n > default_streams(batch_size, records) and batch_size % n == 0:
            streams = n
        hosts = next(hosts for hosts in range(-(-n // ranks_per_host), n + 1) if n % hosts == 0)
        own = replace(setup, ranks=n, hosts=hosts, batch_size=batch_size, streams=streams)
        report(f"{n:,} rank{'s' if n > 1 else ''}")
        result = simulate(dataset, costs, own, prices)
        if bounds:
            ends = (simulate(dataset, each, own).epochs for each in bounds)
            epochs = zip(result.epochs, *ends, strict=True)
            between = (replace(one, seconds_between=(low.seconds, high.seconds)) for one, low, high in epochs)
            result = replace(result, epochs=tuple(between))
        results.append(result)
    return results


def _caches(dataset: DatasetShape, setup: Setup) -> list[CacheModel | None]:
    """The cache of each rank: its own, or its host's; perhaps filled."""
    if setup.cache_bytes is None:
        return [None] * setup.ranks
    number = setup.ranks if setup.cache_in_memory else setup.hosts
    caches = [CacheModel(limit_bytes=setup.cache_bytes) for _ in range(number)]
    if setup.is_warm:
        sizes = (dataset.data_bytes + dataset.index_bytes).tolist()
        for cache in caches:
            for shard in np.random.default_rng(setup.seed).permutation(len(sizes)).tolist():
                cache.put(shard, sizes[shard])
    return [caches[rank * number // setup.ranks] for rank in range(setup.ranks)]


def _epoch(
    dataset: DatasetShape, costs: Costs, setup: Setup, epoch: int, caches: list[CacheModel | None]
) -> EpochFigures:
    env, counts = simpy.Environment(), _cache_counts(caches)
    geometry = setup.geometry(int(dataset.records.sum()))
    steps = min(geometry.steps, setup.steps or geometry.steps)
    local_batch = geometry.local_batch(setup.ranks)
    sizes = dataset.chunk_sizes
    order = EpochOrder(geometry, dataset.records.tolist(), setup.seed, epoch)
    hosts, loaders, programs = zip(*_start(env, dataset, costs, setup, order, steps, sizes, caches), strict=True)
    env.run()
    seconds = max(program.waits.end for program in programs)
    hits, misses = (after - before for after, before in zip(_cache_counts(caches), counts, strict=True))
    ready_bytes = sizes.ready_batches(local_batch) * local_batch * dataset.record_bytes
    shards_bytes = max(loader.totals.peak_bytes for loader in loaders) * costs.memory_per_byte
    cached_bytes = max((cache.held_bytes for cache in caches if cache is not None), default=0)
    worked = sum(host.cores.done for host in dict.fromkeys(hosts))
    return EpochFigures(
        steps=steps, samples=steps * setup.batch_size, seconds=seconds,
        first_batch_seconds=max(program.waits.first for program in programs),
        wait_seconds=tuple(program.waits.input for program in programs),
        fetched_bytes=sum(loader.totals.fetched_bytes for loader in loaders),
        requests=sum(loader.totals.requests for loader in loaders), cache_hits=hits, cache_misses=misses,
        memory_bytes=int(shards_bytes) + ready_bytes + (cached_bytes if setup.cache_in_memory else 0),
        core_share=worked / max(setup.hosts * setup.cores * seconds, 1e-12),
    )  # fmt: skip


def _start(
    env: simpy.Environment,
    dataset: DatasetShape,
    costs: Costs,
    setup: Setup,
    order: EpochOrder,
    steps: int,
    sizes: ChunkSizes,
    caches: Sequence[CacheModel | None],
) -> list[tuple[Host, LoaderModel, Program]]:
    """Start loader and program of each rank, on its host."""
    store, geometry, block = costs.store, order.geometry, _block_steps(steps, setup.ranks)
    random, local_batch = np.random.default_rng((setup.seed, order.epoch)), geometry.local_batch(setup.ranks)
    clock, barrier = StepClock(costs, setup.ranks, local_batch, random), Barrier(env, setup.ranks)
    hosts = [
        Host(env, setup.cores, store.bytes_per_second, store.connection_bytes_per_second) for _ in range(setup.hosts)
    ]
    running = []
    for rank in range(setup.ranks):
        slices = geometry.rank_slices(rank, setup.ranks)
        settings = LoaderSettings(
            least_threads=setup.fetch_threads or LEAST_THREADS,
            most_threads=setup.fetch_threads or (LEAST_THREADS if store.is_local else MOST_THREADS),
            prefetch_bytes=_prefetch_bytes(dataset, setup, len(slices), is_local=store.is_local),
            first_chunk_steps=block,
            chunk_steps=max(sizes.chunk_steps(local_batch), block),
            ready_batches=max(sizes.ready_batches(local_batch), block),
            steps=steps,
        )
        host = hosts[rank * setup.hosts // setup.ranks]
        loader = LoaderModel(env, host, dataset, order, slices, settings, costs, caches[rank], random)
        program = Program(
            env=env, host=host, setup=setup, rank=rank, batches=loader.batches, steps=steps, block=block,
            local_batch=local_batch, costs=costs, clock=clock, barrier=barrier,
        )  # fmt: skip
        env.process(program.run())
        running.append((host, loader, program))
    return running


def _cache_counts(caches: Sequence[CacheModel | None]) -> tuple[int, int]:
    """Hits and misses of all caches so far."""
    distinct = {id(cache): cache for cache in caches if cache is not None}.values()
    return sum(cache.hits for cache in distinct), sum(cache.misses for cache in distinct)


def _block_steps(steps: int, ranks: int) -> int:
    """Steps that are taken at once: single ones, or as many as keep the number of events down."""
    return max(1, min(steps * ranks // _MOST_BLOCKS, steps // _LEAST_BLOCKS))


def _prefetch_bytes(dataset: DatasetShape, setup: Setup, streams: int, *, is_local: bool) -> int:
    """The limit of `Loader`."""
    if setup.prefetch_bytes is not None:
        return setup.prefetch_bytes
    window = dataset.window_bytes(setup.window_shards)
    return default_prefetch_bytes(window, streams, is_local=is_local, is_mapped=dataset.is_mapped)

"""The settings of a loader that may help against what limits it, each with what is expected of it.

Fetching is expected to scale as the store did alone; what does not fetch takes as long as with all shards at hand.
Tested in tests/tools/verdict/test_verdict.py and tests/tools/profile/test_predictions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from ringfeed.pipeline import Loader
from ringfeed.tools.measure.estimates import Estimate, ratio
from ringfeed.tools.measure.part_trials import OpenTrial, WarmTrial
from ringfeed.tools.measure.store_trial import PIECE_BYTES, StoreTrial
from ringfeed.tools.measure.trial import Trial

from .gains import ExpectedGain, MeasuredEpoch, expected_gain

_THREADS = 4  # the least number of fetching threads, unless it is given
_PREFETCH_BYTES = 64 << 20  # a loader's default for a remote store
_READY_BYTES, _READY_BATCHES = 16 << 20, 64  # see `ChunkSizes`
_FEW_STREAMS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderTrials:
    """What was measured of the loader's parts alone; None where it was not.

    Attributes:
        store: the remote store.
        warm: the loader with its shards on the local disk.
        hand_over: handing over one chunk again and again.
        larger: the same with batches of twice the size.
        opening: checksums and decoding.
    """

    store: StoreTrial | None = None
    warm: WarmTrial | None = None
    hand_over: Trial | None = None
    larger: Trial | None = None
    opening: OpenTrial | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """Sizes of a loader, for one rank.

    Attributes:
        streams: streams of all ranks.
        local_streams: streams of this rank.
        threads: fetching threads, the least number.
        busy_threads: threads that fetched at a time, on average.
        shards: shards of the split.
        shard_bytes: mean bytes of a shard with its index.
        window_bytes: mean bytes of a window.
        epoch_bytes: bytes that the rank reads in an epoch.
        record_bytes: bytes of a record.
        batch_size: global batch.
        local_batch_size: the rank's part of it.
        records: records of the split.
        is_local: whether the dataset is on a local disk.
        has_cache: whether there is a cache.
        prefetch_bytes: limit that was given, if any.
        fetch_bytes_per_second: what came, over the whole of the reading.
    """

    streams: int
    local_streams: int
    threads: int
    busy_threads: float
    shards: int
    shard_bytes: float
    window_bytes: float
    epoch_bytes: float
    record_bytes: float
    batch_size: int
    local_batch_size: int
    records: int
    is_local: bool
    has_cache: bool
    prefetch_bytes: int | None
    fetch_bytes_per_second: float

    @staticmethod
    def of(loader: Loader, busy_threads: float, fetch_bytes_per_second: float) -> LoaderFacts:
        """The facts of a loader, and of the reading of it."""
        options, split = loader.arguments, loader.manifest.split(loader.arguments["split"])
        plan = loader.plan()
        shard_bytes = sum(plan.bytes_per_rank) / max(split.shards, 1)
        epoch_bytes = plan.bytes_per_rank[options["rank"]]
        return LoaderFacts(
            streams=loader.streams,
            local_streams=max(loader.streams // options["world_size"], 1),
            threads=options["fetch_threads"] or _THREADS,
            busy_threads=busy_threads,
            shards=split.shards,
            shard_bytes=shard_bytes,
            window_bytes=min(options["window_shards"], split.shards) * shard_bytes,
            epoch_bytes=epoch_bytes,
            record_bytes=epoch_bytes / max(loader.steps_per_epoch * loader.local_batch_size, 1),
            batch_size=options["batch_size"],
            local_batch_size=loader.local_batch_size,
            records=loader.records,
            is_local=options["url"].local_path is not None,
            has_cache=options["cache"] is not None,
            prefetch_bytes=options["prefetch_bytes"],
            fetch_bytes_per_second=fetch_bytes_per_second,
        )

    def first_batch_bytes(self, streams: int) -> float:
        """Bytes that must have come before the first batch: a window of each stream."""
        return min(streams * self.window_bytes, self.epoch_bytes)

    def held_bytes(self, streams: int) -> float:
        """Bytes of shards in memory: a window of each stream, and the next one."""
        return min(2 * streams * self.window_bytes, self.epoch_bytes)

    def ready_bytes(self, batch_size: int) -> float:
        """Bytes of batches that wait in TensorFlow."""
        batch_bytes = self.record_bytes * self.local_batch_size * batch_size / self.batch_size
        return batch_bytes * min(max(_READY_BYTES / max(batch_bytes, 1), 2), _READY_BATCHES)


Makers = tuple[Callable[[LoaderFacts, MeasuredEpoch, LoaderTrials], Iterator[ExpectedGain]], ...]


def candidate_settings(
    limit: str, facts: LoaderFacts, figures: MeasuredEpoch, trials: LoaderTrials
) -> list[ExpectedGain]:
    """The settings that may help, the nearest remedy first.

    Args:
        limit: what limits the loader, or `shuffle_fill`.
        facts: the loader's sizes.
        figures: its epoch as measured.
        trials: its parts as measured.
    """
    makers: Mapping[str, Makers] = {
        "too_few_fetches": (_more_fetches, _more_prefetch, _cache),
        "store_latency": (_larger_shards, _cache),
        "store_bandwidth": (_cache,),
        "hand_over": (_larger_batches,),
        "shuffle_fill": (_fewer_streams,),
    }
    return [setting for make in makers.get(limit, ()) for setting in make(facts, figures, trials)]


def _more_fetches(facts: LoaderFacts, figures: MeasuredEpoch, trials: LoaderTrials) -> Iterator[ExpectedGain]:
    store = trials.store
    if store is None or store.best_threads <= facts.threads or _is_short(facts):
        return
    threads = store.best_threads
    faster = (figures.loader_seconds - _fixed_seconds(figures, trials)) / _fetch_seconds(store, facts, threads)
    yield _faster_fetching(
        faster, f"--fetch-threads {threads}", {"fetch_threads": threads},
        (threads - facts.threads) * facts.shard_bytes, figures, trials,
    )  # fmt: skip


def _more_prefetch(facts: LoaderFacts, figures: MeasuredEpoch, trials: LoaderTrials) -> Iterator[ExpectedGain]:
    if not _is_short(facts):
        return
    assert facts.prefetch_bytes is not None
    size = int(max(2 * facts.prefetch_bytes, _PREFETCH_BYTES))
    most = max(facts.epoch_bytes - facts.local_streams * facts.window_bytes, 0)
    held = min(size - facts.prefetch_bytes, most)
    faster = facts.threads / max(facts.busy_threads, 0.1)
    if trials.store is not None:
        fetching = figures.loader_seconds - _fixed_seconds(figures, trials)
        faster = fetching / _fetch_seconds(trials.store, facts, facts.threads)
    yield _faster_fetching(
        faster, f"--prefetch-bytes {size}", {"prefetch_bytes": size}, held, figures, trials
    )  # fmt: skip


def _fetch_seconds(store: StoreTrial, facts: LoaderFacts, threads: int) -> float:
    """Seconds in which so many threads fetch all shards: first its bytes, then the few of its index."""
    requests = threads / store.latency_seconds
    if store.sizes:
        small = min(store.sizes)
        requests = min(requests, store.sizes[small].best / small * max(threads / store.best_threads, 1.0))
    each = facts.shard_bytes / store.rate_of(threads) + 1 / requests
    fetches = facts.shards + (facts.streams if facts.shards % facts.streams else 0)  # streams cut shards
    rounds = ceil(fetches / threads) * threads / fetches  # in the last one not all threads have a shard
    return facts.shards * each * rounds


def _fixed_seconds(figures: MeasuredEpoch, trials: LoaderTrials) -> float:
    """Seconds until the first batch that faster fetching does not save."""
    return min(trials.warm.first_batch_seconds, figures.first_batch_seconds) if trials.warm is not None else 0.0


def _is_short(facts: LoaderFacts) -> bool:
    return facts.prefetch_bytes is not None and facts.busy_threads < facts.threads / 2


def _larger_shards(facts: LoaderFacts, figures: MeasuredEpoch, trials: LoaderTrials) -> Iterator[ExpectedGain]:
    store = trials.store
    if store is None or facts.shard_bytes >= PIECE_BYTES / 4:
        return
    # A shard and its index take the store's latency, each; larger ones take it less often.
    size = PIECE_BYTES
    shards = max(ceil(facts.shards * facts.shard_bytes / size), 1)
    now = ceil(facts.shards / facts.threads) * 2 * store.latency_seconds
    then = ceil(shards / facts.threads) * 2 * store.latency_seconds
    text = f"larger shards: shard-dataset reshard SRC DST --shard-size {size >> 20}MiB"
    more = facts.held_bytes(facts.local_streams) * (size / facts.shard_bytes - 1)
    yield _faster_fetching(now / then, text, {}, min(more, facts.epoch_bytes), figures, trials)


def _cache(facts: LoaderFacts, figures: MeasuredEpoch, trials: LoaderTrials) -> Iterator[ExpectedGain]:
    warm = trials.warm
    if warm is None or not warm.cached or facts.has_cache:
        return
    yield expected_gain(
        figures, {"cache": "FOLDER"}, "--cache FOLDER", first_batch_seconds=warm.first_batch_seconds,
        seconds=_around(warm.first_batch_seconds + figures.samples / warm.rate.value, warm.rate), memory_bytes=0,
        disk_bytes=facts.epoch_bytes, later=True,
    )  # fmt: skip


def _larger_batches(facts: LoaderFacts, figures: MeasuredEpoch, trials: LoaderTrials) -> Iterator[ExpectedGain]:
    small, large = trials.hand_over, trials.larger
    if small is None or large is None:
        return
    size = 2 * facts.batch_size
    # What is not handing over takes as long for each sample as before.
    rest = max(1 / figures.loader.value - 1 / small.samples_per_second, 0.0)
    gained = ratio(large.estimate, small.estimate)
    rate = 1 / (rest + 1 / large.samples_per_second)
    seconds = figures.first_batch_seconds + figures.samples / rate
    yield expected_gain(
        figures, {"batch_size": size}, f"--batch-size {size}", first_batch_seconds=figures.first_batch_seconds,
        seconds=_around(seconds, gained), memory_bytes=facts.ready_bytes(size) - facts.ready_bytes(facts.batch_size),
    )  # fmt: skip


def _fewer_streams(facts: LoaderFacts, figures: MeasuredEpoch, trials: LoaderTrials) -> Iterator[ExpectedGain]:
    streams = max(n for n in range(1, _FEW_STREAMS + 1) if facts.streams % n == 0)
    local = max(streams * facts.local_streams // facts.streams, 1)
    before = facts.first_batch_bytes(facts.local_streams)
    after = facts.first_batch_bytes(local)
    if streams == facts.streams or after >= before:
        return
    fixed = _fixed_seconds(figures, trials)
    fetching = figures.first_batch_seconds - fixed
    share = after / before if trials.store is None else _first_share(after, before, fetching, facts)
    first = fixed + fetching * share
    steady = figures.samples / figures.loader.value
    everything = max(figures.loader_seconds, fixed + fetching * facts.epoch_bytes / before * share)
    yield expected_gain(
        figures, {"streams": streams}, f"--streams {streams}", first_batch_seconds=first,
        seconds=_around(min(first + steady, everything), figures.loader),
        memory_bytes=facts.held_bytes(local) - facts.held_bytes(facts.local_streams),
    )  # fmt: skip


def _first_share(after: float, before: float, seconds: float, facts: LoaderFacts) -> float:
    """The wait for a first batch of `after` bytes / that for `before`, which took so many seconds.

    Fetches share the link. Of c at a time, the last of the k that the first batch needs comes on average after
    c k / (k + 1) of them, so that those beyond need delay it, too; c follows from how long the k took.
    """

    def shards(size: float) -> float:
        return max(size / facts.shard_bytes, 1.0)

    def last(needed: float) -> float:
        return max(needed, together * needed / (needed + 1))

    needed, came = shards(before), seconds * facts.fetch_bytes_per_second / facts.shard_bytes
    together = min(came * (needed + 1) / needed if came > needed else facts.threads, facts.shards)
    return last(shards(after)) / last(needed)


def _faster_fetching(
    faster: float,
    text: str,
    options: Mapping[str, Any],
    memory_bytes: float,
    figures: MeasuredEpoch,
    trials: LoaderTrials,
) -> ExpectedGain:
    """A setting that makes fetching faster by a factor, in an epoch that fetching limits."""
    fixed, warm = _fixed_seconds(figures, trials), 0.0  # seconds of the loader's epoch with all shards at hand
    if trials.warm is not None:
        warm = trials.warm.first_batch_seconds + figures.samples / trials.warm.rate.value
    elif trials.hand_over is not None:
        warm = figures.samples / trials.hand_over.samples_per_second
    return expected_gain(
        figures, options, text,
        first_batch_seconds=fixed + (figures.first_batch_seconds - fixed) / faster,
        seconds=_around(max(fixed + (figures.loader_seconds - fixed) / faster, warm), figures.loader),
        memory_bytes=max(memory_bytes, 0),
    )  # fmt: skip


def _around(value: float, rate: Estimate) -> Estimate:
    """A time with the relative uncertainty of a rate."""
    return Estimate(value=value, low=value * rate.value / rate.high, high=value * rate.value / rate.low)

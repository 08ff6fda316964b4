"""`profile`: measures the loader stage by stage, and training with it, each for a bounded time.

A notebook shows a `Profile` as a table. `command` is `ringfeed profile`; `bottleneck` judges the loader, `verdict` the
training.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

from ...pipeline import Loader, StageStats
from ...pipeline.fetch.shard_cache import Cache, MemoryCache, ShardCache, open_cache
from ...pipeline.metrics.stage_counters import CACHE_STAGES, FAULT_STAGES
from ...sharding.dataset.dataset import open_dataset
from ...sharding.errors import ConfigError, RangesError
from ...sharding.url_secrets import public_url
from ..console import align, human_bytes, human_seconds, print_stderr, stage_progress
from ..signals import deferred_signals
from .bottleneck import StageProfile, name_bottleneck, name_knob
from .other_load import LoadClock
from .store_trial import StoreTrial, try_store
from .training_trials import TrainingTrials, Workload, try_training
from .verdict import FirstBatchTrial, LoaderEpoch, Verdict, judge
from .workloads import configured_workload, function_workload

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["Profile", "StageProfile", "profile", "profile_run"]

_BLOCK_BYTES = 512  # of a block as getrusage counts them
_SHORT_SECONDS = 0.2  # a loader read for less is hardly judged
_LONG_WAIT = 0.2  # of an epoch of the loader: from here on fewer streams are tried
_FEW_STREAMS = 4
_OTHER_LOAD = 0.25  # other programs' share of the cores from which figures are said to be too low


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedKnob:
    """An epoch of the loader with other options: its rate, and the gain over the rate without them."""

    options: Mapping[str, Any]
    epoch_samples_per_second: float
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A measurement of the loader, and of training with it.

    Attributes:
        world_size: number of ranks; samples and rates are those of the measured `rank` alone.
        first_batch_seconds: seconds from the request of an epoch to its first batch.
        seconds: seconds from the first to the last batch, which are read at full speed and discarded.
        samples_per_second: rate in `seconds`.
        epoch_seconds: seconds that an epoch takes at these rates, from its request to its last batch.
        epoch_samples_per_second: rate of such an epoch.
        bytes_per_second: decoded bytes per second in `seconds`; strings count as those of the first batch.
        bottleneck: stage that holds the loader back.
        knob: what to do about the bottleneck.
        knob_options: the arguments of `Loader` in `knob` that can be tried at once.
        tried: what `knob_options` brought, if they were tried.
        store: what a remote store gives without the loader; None for a local one.
        options: other arguments of `Loader` that differ from their defaults, and ``cache_bytes``, by name.
        other_load: share of the cores that other programs took meanwhile, in [0, 1].
        training: what was measured of a step and its input; None without a step.
        verdict: what limits training; None without a step.
    """

    url: str
    split: str
    batch_size: int
    balance: Any
    rank: int
    world_size: int
    steps: int
    samples: int
    seconds: float
    first_batch_seconds: float
    samples_per_second: float
    epoch_seconds: float
    epoch_samples_per_second: float
    bytes_per_second: float
    stages: tuple[StageProfile, ...]
    bottleneck: str
    knob: str
    options: dict[str, Any]
    knob_options: dict[str, Any]
    tried: TriedKnob | None = None
    store: StoreTrial | None = None
    other_load: float = 0.0
    training: TrainingTrials | None = None
    verdict: Verdict | None = None

    def __str__(self) -> str:
        tables = [line for header, rows in self._tables() for line in (*align(header, rows), "")]
        return "\n".join([*self._headlines(), "", *tables, *self._conclusions()])

    def _repr_html_(self) -> str:
        return "".join(
            [
                *(f"<p>{escape(line)}</p>" for line in self._headlines()),
                *(_html_table(header, rows) for header, rows in self._tables()),
                *(f"<p><b>{escape(line)}</b></p>" for line in self._conclusions()),
            ]
        )

    def _headlines(self) -> list[str]:
        of_rank = f", rank {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        loader = (
            f"{self.url}: an epoch of the loader takes {human_seconds(self.epoch_seconds)}, "
            f"{self.epoch_samples_per_second:,.0f} samples/s: the first batch comes after "
            f"{self.first_batch_seconds:.2f} s, then {self.samples_per_second:,.0f} samples/s, "
            f"{human_bytes(self.bytes_per_second)}/s decoded ({self.steps} batches of {self.batch_size}{of_rank}, "
            f"split {self.split}, balance {self.balance}{options})"
        )
        return [loader] if self.verdict is None else [self.verdict.headline, loader]

    def _tables(self) -> list[tuple[Sequence[str], list[list[str]]]]:
        stages = [
            [
                stage.name,
                f"{stage.items:,}",
                human_bytes(stage.bytes) if stage.bytes else "",
                f"{stage.busy_seconds:.3f}",
                f"{stage.wait_seconds:.3f}",
                f"{stage.share:.0%}",
            ]
            for stage in self.stages
        ]
        tables: list[tuple[Sequence[str], list[list[str]]]] = [(_STAGE_HEADER, stages)]
        if self.store is not None:
            rates = [[f"{n}", f"{human_bytes(rate)}/s"] for n, rate in self.store.bytes_per_second.items()]
            tables.append(
                (("reads of the store at once", f"latency {self.store.latency_seconds * 1000:,.1f} ms"), rates)
            )
        if self.training is not None:
            tables.insert(0, (_PART_HEADER, self._parts(self.training)))
        return tables

    def _parts(self, trials: TrainingTrials) -> list[list[str]]:
        rates = [("loader alone", self.samples_per_second, "")]
        if trials.transform is not None:
            rates += [
                (f"{trials.transform_name} alone", trials.transform.samples_per_second, ""),
                ("loader and transform", trials.input.samples_per_second, ""),
            ]
        rates += [
            (f"{trials.step_name} alone", trials.step.samples_per_second, ""),
            ("training", trials.together.samples_per_second, f"{trials.utilisation:.0%}"),
        ]
        return [[name, f"{rate:,.0f}", utilisation] for name, rate, utilisation in rates]

    def _conclusions(self) -> list[str]:
        lines = []
        if self.other_load > _OTHER_LOAD:
            lines.append(f"other programs took {self.other_load:.0%} of the cores meanwhile: expect more without them")
        if self.verdict is None:
            seconds = self.first_batch_seconds + self.seconds
            short = f"; read for {seconds:.2f} s only, too short to be sure" if seconds < _SHORT_SECONDS else ""
            lines.append(f"bottleneck: {self.bottleneck}: {self.knob}{short}")
        else:
            name = f"loader ({self.bottleneck})" if self.verdict.bottleneck == "loader" else self.verdict.bottleneck
            gain = "" if self.verdict.gain is None else f" (up to {self.verdict.gain:.2f} x the epoch's rate)"
            lines.append(f"bottleneck: {name}: {self.verdict.advice}{gain}")
        if self.tried is not None:
            options = ", ".join(f"{name}={value!r}" for name, value in self.tried.options.items())
            lines.append(
                f"tried Loader({options}): an epoch of the loader has {self.tried.epoch_samples_per_second:,.0f} "
                f"samples/s, {self.tried.gain:.2f} x as many"
            )
        if self.verdict is None:
            lines.append("whether training would wait for this input: profile it with --step or --config")
        return lines


_STAGE_HEADER = ("stage of the loader", "items", "bytes", "busy s", "wait s", "busy")
_PART_HEADER = ("part of training", "samples/s", "utilisation")


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


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
    how = _How(seconds=seconds, steps=steps, try_knob=try_knob, progress=progress, cache_bytes=cache_bytes)
    return _measure(loader, workload, url, how)


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
    how = _How(seconds=seconds, steps=None, try_knob=try_knob, progress=progress, cache_bytes=None)
    return _measure(workload.loader, workload, workload.loader.arguments["url"].locate(), how)


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    """How to measure; see `profile`."""

    seconds: float
    steps: int | None
    try_knob: bool
    progress: bool
    cache_bytes: int | None

    def report(self, part: str) -> None:
        """Say what is measured next."""
        if self.progress:
            print_stderr(f"measuring {part}")


def _measure(loader: Loader, workload: Workload | None, url: str, how: _How) -> Profile:
    clock = LoadClock()
    weights = {
        "store": 0 if loader.arguments["url"].local_path is not None else 1,
        "loader": 3,
        "tried": 3 if how.try_knob else 0,
        "training": 0 if workload is None else 5,
    }
    seconds = {part: how.seconds * weight / sum(weights.values()) for part, weight in weights.items()}
    store = _try_store(loader, seconds["store"], how) if weights["store"] else None
    result = _evaluate(loader, url, _read(loader, seconds["loader"], how), how, store)
    if how.try_knob and result.knob_options:
        result = replace(result, tried=_try_knob(loader, result, seconds["tried"], how))
    if workload is None:
        return replace(result, other_load=clock.other_load())
    trials = try_training(workload, seconds["training"], how.report)
    epoch = LoaderEpoch(
        samples=loader.steps_per_epoch * loader.local_batch_size,
        first_batch_seconds=result.first_batch_seconds,
        samples_per_second=result.samples_per_second,
        streams=loader.streams,
    )
    fewer = _try_fewer_streams(loader, how) if epoch.first_batch_seconds > _LONG_WAIT * epoch.seconds else None
    other_load = clock.other_load()
    verdict = judge(trials, epoch, result.knob, fewer=fewer, other_load=other_load)
    return replace(result, training=trials, verdict=verdict, other_load=other_load)


def _try_store(loader: Loader, seconds: float, how: _How) -> StoreTrial | None:
    """Measure the store alone; None if it does not read parts of files."""
    how.report("the store")
    dataset = open_dataset(loader.arguments["url"])
    try:
        return try_store(dataset.storage, dataset.split_shards(loader.arguments["split"]), seconds)
    except RangesError:
        return None


def _try_knob(loader: Loader, result: Profile, seconds: float, how: _How) -> TriedKnob:
    other = Loader(**dict(loader.arguments) | result.knob_options)
    reading = _read(other, seconds, how)
    _, rate = _epoch(other, reading)
    return TriedKnob(
        options=result.knob_options, epoch_samples_per_second=rate, gain=rate / result.epoch_samples_per_second
    )


def _try_fewer_streams(loader: Loader, how: _How) -> FirstBatchTrial | None:
    """Measure the wait for the first batch with a few streams; None if there are as few."""
    streams = max(n for n in range(1, _FEW_STREAMS + 1) if loader.streams % n == 0)
    if streams == loader.streams:
        return None
    how.report(f"the first batch of {streams} streams")
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


def _epoch(loader: Loader, reading: _Reading) -> tuple[float, float]:
    """Seconds of an epoch that goes on as it was read, and its samples a second."""
    samples = loader.steps_per_epoch * loader.local_batch_size
    seconds = reading.first_batch_seconds + reading.seconds / (reading.steps - 1) * (loader.steps_per_epoch - 1)
    return seconds, samples / seconds


def _evaluate(loader: Loader, url: str, reading: _Reading, how: _How, store: StoreTrial | None) -> Profile:
    """The profile of a loader that has been read."""
    options = loader.arguments
    stages = _stages(loader.stats(), reading.first_batch_seconds + reading.seconds)
    bottleneck = name_bottleneck(stages, parses=loader.undecoded and not loader.locates_features)
    knob = name_knob(bottleneck, stages, loader, reading.disk_bytes, store)
    samples = reading.steps * loader.local_batch_size
    epoch_seconds, epoch_rate = _epoch(loader, reading)
    return Profile(
        url=public_url(url),
        split=options["split"],
        batch_size=options["batch_size"],
        balance=options["balance"],
        rank=options["rank"],
        world_size=options["world_size"],
        steps=reading.steps,
        samples=samples,
        seconds=reading.seconds,
        first_batch_seconds=reading.first_batch_seconds,
        samples_per_second=(samples - loader.local_batch_size) / reading.seconds,
        epoch_seconds=epoch_seconds,
        epoch_samples_per_second=epoch_rate,
        bytes_per_second=reading.decoded_bytes / reading.seconds,
        stages=stages,
        bottleneck=bottleneck,
        knob=knob.text,
        options=_options(loader, how.cache_bytes),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """Steps, seconds until the first batch and after it, decoded bytes after it, and bytes read from local disks."""

    steps: int
    first_batch_seconds: float
    seconds: float
    decoded_bytes: int
    disk_bytes: int


def _read(loader: Loader, seconds: float, how: _How) -> _Reading:
    """Read an epoch, or the given number of steps, and discard it; an epoch ends early once its time is up."""
    with deferred_signals() as deliver_signals:
        return _read_batches(loader, seconds, how, deliver_signals)


def _read_batches(loader: Loader, seconds: float, how: _How, deliver_signals: Callable[[], None]) -> _Reading:
    total = max(how.steps or loader.steps_per_epoch, 2)
    dataset = loader.epoch(0).take(total)  # TensorFlow is imported here, before the clock starts
    done = epoch = decoded_bytes = 0
    first_batch: Mapping[str, Any] = {}
    disk_bytes = _disk_bytes()
    start = first = now = time.perf_counter()
    end = math.inf if how.steps else start + seconds
    with loader.own_errors(), stage_progress({"read": "read"}, silent=not how.progress) as report:
        report("read", 0, total, 0)  # starts its clock
        while done < total and (now < end or done < 2):
            for batch in dataset:
                deliver_signals()
                done, now = done + 1, time.perf_counter()
                if done == 1:
                    first, first_batch = now, batch
                    continue
                decoded_bytes += sum(map(_tensor_bytes, batch.values()))
                if done % 64 == 0 or done == total:
                    report("read", done, total, done * loader.local_batch_size)
                if now >= end:
                    break
            epoch += 1
            dataset = loader.epoch(epoch).take(total - done)
    return _Reading(
        steps=done,
        first_batch_seconds=first - start,
        seconds=now - first,
        decoded_bytes=decoded_bytes + (done - 1) * sum(map(_string_bytes, first_batch.values())),
        disk_bytes=_disk_bytes() - disk_bytes,
    )


def _tensor_bytes(values: Any) -> int:
    """Bytes of a tensor's elements of fixed size."""
    flat = getattr(values, "flat_values", values)
    return int(flat.shape.num_elements() or 0) * int(flat.dtype.size)


def _string_bytes(values: Any) -> int:
    """Bytes of a tensor's strings. Counting them in every batch would take as long as reading small batches."""
    import tensorflow as tf

    flat = getattr(values, "flat_values", values)
    return int(tf.reduce_sum(tf.cast(tf.strings.length(flat), tf.int64))) if flat.dtype == tf.string else 0


def _disk_bytes() -> int:
    """Bytes that this process has read from local disks, mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock * _BLOCK_BYTES


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

"""`profile`: reads a dataset as fast as the loader can, and measures the loader stage by stage.

A notebook shows a `Profile` as a table. `command` is `ringfeed profile`; `bottleneck` judges the measurement.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from ...pipeline import Loader, StageStats
from ...pipeline.fetch.shard_cache import Cache, MemoryCache, ShardCache, open_cache
from ...pipeline.metrics.stage_counters import CACHE_STAGES, FAULT_STAGES
from ...sharding.dataset.dataset import open_dataset
from ...sharding.errors import ConfigError
from ...sharding.url_secrets import public_url
from ..console import align, human_bytes, stage_progress
from ..signals import deferred_signals
from .bottleneck import StageProfile, name_bottleneck, name_knob

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["Profile", "StageProfile", "profile"]

_BLOCK_BYTES = 512  # of a block as getrusage counts them


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A measurement of the loader.

    Attributes:
        world_size: number of ranks; samples and rates are those of the measured `rank` alone.
        first_batch_seconds: seconds from the request of an epoch to its first batch.
        seconds: seconds from the first to the last batch, which are read at full speed and discarded.
        samples_per_second: rate in `seconds`.
        overall_samples_per_second: rate including `first_batch_seconds`, with which each epoch begins.
        bytes_per_second: decoded bytes per second in `seconds`; strings count as those of the first batch.
        bottleneck: stage that holds the loader back.
        knob: what to do about the bottleneck.
        options: other arguments of `Loader` that differ from their defaults, and ``cache_bytes``, by name.
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
    overall_samples_per_second: float
    bytes_per_second: float
    stages: tuple[StageProfile, ...]
    bottleneck: str
    knob: str
    options: dict[str, Any]

    def _rows(self) -> list[list[str]]:
        return [
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

    def __str__(self) -> str:
        lines = align(_HEADER, self._rows())
        return "\n".join([self._headline(), "", *lines, "", f"bottleneck: {self.bottleneck}: {self.knob}"])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in _HEADER)
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self._rows())
        return (
            f"<p>{escape(self._headline())}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
            f"<p><b>bottleneck: {escape(self.bottleneck)}</b>: {escape(self.knob)}</p>"
        )

    def _headline(self) -> str:
        of_rank = f", rank {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return (
            f"{self.url}: {self.samples_per_second:,.0f} samples/s, {human_bytes(self.bytes_per_second)}/s decoded, "
            f"first batch after {self.first_batch_seconds:.2f} s, {self.overall_samples_per_second:,.0f} samples/s "
            f"with that wait ({self.steps} batches of {self.batch_size}{of_rank}, split {self.split}, "
            f"balance {self.balance}{options})"
        )


_HEADER = ("stage", "items", "bytes", "busy s", "wait s", "busy")


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
    progress: bool = False,
) -> Profile:
    """Read an epoch, or a number of steps, as fast as the loader delivers, and measure its stages.

    Args:
        url: the dataset's URL.
        split, batch_size, balance, seed, fill, rank, world_size: arguments of `Loader`.
        columns, where, streams, window_shards, fetch_threads, prefetch_bytes, cache: arguments of `Loader`. The records
            that `where` selects are counted before the measurement starts.
        cache_bytes: size limit of a cache given by name.
        steps: number of batches, at least 2; default: one epoch. After the end of an epoch, the next one follows.
        progress: whether to show a progress bar on standard error.

    Raises:
        RingfeedError: the dataset cannot be read with these arguments.
    """
    _check_arguments(url, split, batch_size, steps, cache, cache_bytes)
    loader = Loader(
        url, split=split, batch_size=batch_size, balance=balance, seed=seed, fill=fill, rank=rank,
        world_size=world_size, columns=columns, where=where, streams=streams, window_shards=window_shards,
        fetch_threads=fetch_threads, prefetch_bytes=prefetch_bytes, cache=open_cache(cache, cache_bytes),
    )  # fmt: skip
    total = max(steps or loader.steps_per_epoch, 2)
    with deferred_signals() as deliver_signals:
        reading = _read(loader, total, progress, deliver_signals)
    return _evaluate(loader, url, total, reading, cache_bytes)


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


def _evaluate(loader: Loader, url: str, steps: int, reading: _Reading, cache_bytes: int | None) -> Profile:
    """The profile of a loader that has read so many steps."""
    options = loader.arguments
    seconds = reading.first_batch_seconds + reading.seconds
    stages = _stages(loader.stats(), seconds)
    bottleneck = name_bottleneck(stages, parses=loader.undecoded and not loader.locates_features)
    samples = steps * loader.local_batch_size
    return Profile(
        url=public_url(url),
        split=options["split"],
        batch_size=options["batch_size"],
        balance=options["balance"],
        rank=options["rank"],
        world_size=options["world_size"],
        steps=steps,
        samples=samples,
        seconds=reading.seconds,
        first_batch_seconds=reading.first_batch_seconds,
        samples_per_second=(samples - loader.local_batch_size) / reading.seconds,
        overall_samples_per_second=samples / seconds,
        bytes_per_second=reading.decoded_bytes / reading.seconds,
        stages=stages,
        bottleneck=bottleneck,
        knob=name_knob(bottleneck, stages, loader, reading.disk_bytes),
        options=_options(loader, cache_bytes),
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
    """Seconds until the first batch and after it, decoded bytes after it, and bytes read from local disks."""

    first_batch_seconds: float
    seconds: float
    decoded_bytes: int
    disk_bytes: int


def _read(loader: Loader, total: int, progress: bool, deliver_signals: Callable[[], None]) -> _Reading:
    """Read `total` batches and discard them."""
    dataset = loader.epoch(0).take(total)  # TensorFlow is imported here, before the clock starts
    done = epoch = decoded_bytes = 0
    first_batch: Mapping[str, Any] = {}
    disk_bytes = _disk_bytes()
    start = first = time.perf_counter()
    with loader.own_errors(), stage_progress({"read": "read"}, silent=not progress) as report:
        report("read", 0, total, 0)  # starts its clock
        while done < total:
            for batch in dataset:
                deliver_signals()
                done += 1
                if done == 1:
                    first, first_batch = time.perf_counter(), batch
                    continue
                decoded_bytes += sum(map(_tensor_bytes, batch.values()))
                if done % 64 == 0 or done == total:
                    report("read", done, total, done * loader.local_batch_size)
            epoch += 1
            dataset = loader.epoch(epoch).take(total - done)
    end = time.perf_counter()
    return _Reading(
        first_batch_seconds=first - start,
        seconds=end - first,
        decoded_bytes=decoded_bytes + (total - 1) * sum(map(_string_bytes, first_batch.values())),
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

"""The loader: a manifest in, `tf.data` batches out, in an order whose whole state is (seed, epoch, step)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..sharding.class_counts import count_matrix
from ..sharding.dataset import open_dataset
from ..sharding.errors import ConfigError
from ..sharding.manifest import Manifest
from ..sharding.schema import Schema
from ..sharding.storage import Storage
from .balance import ClassSchedule, target_weights
from .buckets import Buckets
from .chunks import interleave
from .columns import Columns
from .counters import Counters, StageStats
from .frames import EXAMPLES, FRAMES, join_frames
from .keys import SAMPLE_KEY, sample_keys
from .order import EpochOrder, Geometry, Remainder, default_streams
from .plan import LoaderPlan, plan_epoch
from .shards import ShardFetcher
from .streams import CLASS_ID, WEIGHT, StreamReader
from .transform import Transform, apply_transform

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["Loader"]

_CHUNK_BYTES = 2 << 20  # of one crossing into TensorFlow: 1 MiB takes 1.2 times as long, 4 MiB 1.1 (2026-11-21)
_CHUNK_STEPS = 32
_LARGE_RECORD = 4096  # bytes, undecoded, from which on each crosses by itself, and chunks only say where they lie
_LARGE_STEPS = 8
_PREFETCH = 4
_PLAN_THREADS = 1  # two hinder each other: balanced then has 0.85 of natural's rate, not 0.91 (2 cores, 2026-11-21)


class Loader:
    """Streams one split of a dataset, one rank's share of it, epoch by epoch.

    The global batches depend on `seed`, the epoch and the step, and on the geometry (`batch_size`, `streams`,
    `window_shards`, `balance`); never on `rank` and `world_size`.

    Args:
        url: of the dataset, or its `Storage`.
        split: of the dataset.
        batch_size: of the GLOBAL batch; `world_size` divides it.
        balance: ``natural``: each record at most once an epoch. ``uniform``, or a share by class value: every batch
            is within one of the target of each class, minority records come more than once.
        seed: of the order.
        rank: of this process, in ``[0, world_size)``.
        world_size: processes that share each global batch.
        remainder: ``drop`` the records that fill no global batch, or ``pad``: every record exactly once, and the
            batches hold ``sample_weight``, 0 for padding.
        fill: what stands for missing values, by feature. Floats need none: NaN.
        streams: canonical streams, a divisor of `batch_size`; default: the largest up to 16.
        window_shards: shards' worth of records that a stream shuffles, and holds in memory, together.
        fetch_threads: that fetch and open shards.
        sample_keys: whether batches hold ``sample_key``, int64 [batch, 2], a key of (seed, epoch, position) for the
            random augmentation of each sample.
        bucket_by: a feature of variable length: batches then hold records of like length. See `Buckets`.
        bucket_steps: steps that records are put together within for it.

    Raises:
        ConfigError: an argument its rule forbids, a batch that the ranks cannot share, or missing values without
            `fill`.
        DatasetError: there is no dataset, or no such split.
        StorageError: the store refuses.

    Each element of `epoch` is ``{feature: tensor [batch_size / world_size, *shape]}``, and ``class_id``, the label's
    position in `manifest.classes`, int32.
    """

    def __init__(
        self,
        url: str | Storage,
        *,
        split: str = "train",
        batch_size: int,
        balance: str | Mapping[Any, float] = "natural",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        remainder: Remainder = "drop",
        fill: Mapping[str, Any] | None = None,
        streams: int | None = None,
        window_shards: int = 1,
        fetch_threads: int = 4,
        sample_keys: bool = False,
        bucket_by: str | None = None,
        bucket_steps: int = 32,
    ) -> None:
        self._dataset = open_dataset(url)
        self._split = split
        self._shards = self._dataset.split_shards(split)
        info = self.manifest.split(split)
        self._geometry = Geometry(
            records=info.records,
            batch_size=batch_size,
            streams=default_streams(batch_size, info.records) if streams is None else streams,
            window_shards=window_shards,
            remainder=remainder,
        )
        self._slices = self._geometry.rank_slices(rank, world_size)
        self._rank, self._world_size = rank, world_size
        self._weights = target_weights(balance, self.manifest.classes, info.class_counts)
        if self._weights is not None and remainder == "pad":
            raise ConfigError("remainder='pad' needs balance='natural': a balanced epoch has no rest to pad")
        self._seed = seed
        self._fill = dict(fill or {})
        _check_columns(self.manifest, split, self._fill)
        self._fetch_threads = fetch_threads
        self._sample_keys = sample_keys
        self._buckets = None if bucket_by is None else Buckets.of(self.schema, bucket_by, bucket_steps)
        self._counters = Counters()

    @property
    def manifest(self) -> Manifest:
        """Of the dataset."""
        return self._dataset.manifest

    @property
    def schema(self) -> Schema:
        """Of the dataset."""
        return self.manifest.schema

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch, the same on every rank."""
        return self._geometry.steps

    @property
    def local_batch_size(self) -> int:
        """Samples of this rank in each batch."""
        return self._geometry.batch_size // self._world_size

    def plan(self, epoch: int = 0) -> LoaderPlan:
        """Steps, remainder, class mix, bytes per rank and missing classes of an epoch; no shard is opened."""
        fetcher = self._fetcher()
        try:
            return plan_epoch(
                self._order(epoch),
                self._schedule(epoch),
                self._shards,
                self.manifest.classes,
                self._world_size,
                fetcher.class_ids,
            )
        finally:
            fetcher.close()

    def stats(self) -> dict[str, StageStats]:
        """What each stage did since the loader was made."""
        return self._counters.snapshot()

    def epoch(
        self,
        epoch: int,
        start_step: int = 0,
        *,
        transform: Transform | Sequence[Transform] | None = None,
        num_parallel_calls: int | None = None,
    ) -> tf.data.Dataset:
        """The batches of an epoch from a step on.

        Args:
            epoch: from 0; each has another order.
            start_step: in ``[0, steps_per_epoch]``; what comes before is not read.
            transform: function of each element, in TensorFlow operations, or several, one after the other.
            num_parallel_calls: batches that it works on at a time; by default one for each core.

        Raises:
            ConfigError: there is no such step.
        """
        from .delivery import to_dataset  # TensorFlow is needed from here on

        self._check_step(epoch, start_step)
        dataset = to_dataset(
            lambda: self._chunks(epoch, start_step),
            self.schema,
            self._fill,
            local_batch=self.local_batch_size,
            undecoded=self._undecoded,
            padded=self._geometry.remainder == "pad",
            keyed=self._sample_keys,
            large=self._large,
            prefetch=_PREFETCH,
        ).apply(_cardinality(self.steps_per_epoch - start_step))
        return dataset if transform is None else apply_transform(dataset, transform, num_parallel_calls)

    def chunks(self, epoch: int, start_step: int = 0) -> Iterator[tuple[int, Columns]]:
        """Runs of steps of an epoch, as NumPy and Arrow columns: what `epoch` is made of, without TensorFlow.

        Yields:
            The number of steps, and columns of ``steps * local_batch_size`` rows, step after step.
        """
        for steps, columns in self._chunks(epoch, start_step):
            yield steps, join_frames(columns)

    def _chunks(self, epoch: int, start_step: int) -> Iterator[tuple[int, Columns]]:
        """`chunks`, with undecoded examples where they lie in their shards."""
        self._check_step(epoch, start_step)
        order, schedule = self._order(epoch), self._schedule(epoch)
        counts = count_matrix([shard.class_counts for shard in self._shards])
        fetcher = self._fetcher()
        planner = ThreadPoolExecutor(_PLAN_THREADS, thread_name_prefix="ringfeed-plan")
        try:
            readers = [
                StreamReader(order, schedule, counts, fetcher, planner, self._counters, part, start_step, self._buckets)
                for part in self._slices
            ]
            widths = [part.stop - part.start for part in self._slices]
            per_chunk = self._chunk_steps()
            for step in range(start_step, self.steps_per_epoch, per_chunk):
                steps = min(per_chunk, self.steps_per_epoch - step)
                parts = [reader.take(step, steps) for reader in readers]
                with self._counters.busy("gather"):
                    columns = interleave(parts, widths, steps, self.schema, self.manifest.layout)
                    if self._sample_keys:
                        columns = {**columns, SAMPLE_KEY: sample_keys(self._seed, epoch, self._positions(step, steps))}
                asked = time.perf_counter()
                yield steps, columns
                waited = time.perf_counter() - asked
                self._counters.add("deliver", items=steps * self.local_batch_size, wait=waited)
        finally:
            planner.shutdown(wait=False, cancel_futures=True)
            fetcher.close()

    def _positions(self, step: int, steps: int) -> npt.NDArray[np.int64]:
        """Where this rank's samples of a run of steps lie in the epoch's global order."""
        place = self._rank * self.local_batch_size + np.arange(self.local_batch_size)
        return (np.arange(step, step + steps)[:, None] * self._geometry.batch_size + place).reshape(-1)

    @property
    def _undecoded(self) -> bool:
        return self.manifest.shard_format == "tfrecord" and self.manifest.layout is None

    def _check_step(self, epoch: int, start_step: int) -> None:
        if epoch < 0 or not 0 <= start_step <= self.steps_per_epoch:
            raise ConfigError(
                f"an epoch has steps 0 to {self.steps_per_epoch}, got epoch {epoch}, start_step {start_step}"
            )

    def _order(self, epoch: int) -> EpochOrder:
        return EpochOrder(self._geometry, [shard.records for shard in self._shards], self._seed, epoch)

    def _schedule(self, epoch: int) -> ClassSchedule | None:
        if self._weights is None:
            return None
        return ClassSchedule(
            self._weights, self._geometry.batch_size, self._geometry.steps, self._order(epoch).key("classes")
        )

    def _fetcher(self) -> ShardFetcher:
        return ShardFetcher(self._dataset, self._shards, self._fill, self._counters, self._fetch_threads)

    def _chunk_steps(self) -> int:
        """Steps that cross into TensorFlow at once: as many as fit `_CHUNK_BYTES`."""
        if not self._undecoded and any(feature.elements is None for feature in self.schema.features):
            return 1
        if self._large:
            return _LARGE_STEPS
        return int(np.clip(_CHUNK_BYTES // (self._record_bytes * self.local_batch_size), 1, _CHUNK_STEPS))

    @property
    def _large(self) -> bool:
        return self._undecoded and self._record_bytes >= _LARGE_RECORD

    @property
    def _record_bytes(self) -> int:
        return max(sum(s.bytes for s in self._shards) // max(self._geometry.records, 1), 1)


def _cardinality(steps: int) -> Any:
    import tensorflow as tf

    return tf.data.experimental.assert_cardinality(steps)


def _check_columns(manifest: Manifest, split: str, fill: Mapping[str, Any]) -> None:
    """Refuse what would fail in the midst of an epoch.

    Raises:
        ConfigError: says which column, and what to do.
    """
    for name in fill:
        if name not in manifest.schema.names:
            raise ConfigError(f"fill names {name!r}, which is no feature; they are: {', '.join(manifest.schema.names)}")
    for name in (CLASS_ID, WEIGHT, SAMPLE_KEY, EXAMPLES, FRAMES):
        if name in manifest.schema.names:
            raise ConfigError(f"a feature is called {name!r}, a name that the loader needs; rename it and build again")
    for feature in manifest.schema.features:
        statistics = manifest.split(split).statistics[feature.name]
        needs_fill = not feature.dtype.startswith("float") and feature.elements is not None
        if statistics.nulls and needs_fill and feature.name not in fill:
            raise ConfigError(
                f"feature {feature.name!r} has {statistics.nulls} missing values in split {split!r}; say what stands "
                f"for them: Loader(..., fill={{{feature.name!r}: ...}})"
            )

"""The loader: a manifest in, `tf.data` batches out, in an order whose whole state is (seed, epoch, step)."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..sharding.class_counts import count_matrix
from ..sharding.dataset import open_dataset
from ..sharding.errors import ConfigError
from ..sharding.manifest import Manifest
from ..sharding.schema import Schema
from ..sharding.storage import Storage
from .balance import ClassSchedule, target_weights
from .chunks import interleave
from .columns import Columns
from .counters import Counters, StageStats
from .features import delivered_schema, record_bytes
from .numpy_batches import NumpyBatch, iterate_numpy
from .order import EpochOrder, Geometry, Remainder, default_streams
from .plan import LoaderPlan, plan_epoch
from .selection import Selection
from .shards import ShardFetcher
from .streams import StreamReader

if TYPE_CHECKING:
    import pyarrow.compute as pc
    import tensorflow as tf

__all__ = ["Loader"]

_CHUNK_BYTES = 2 << 20  # of one crossing into TensorFlow: 1 MiB takes 1.2 times as long, 4 MiB 1.1 (2026-11-21)
_CHUNK_STEPS = 32
_PREFETCH = 4
_PREFETCH_BYTES = 16 << 20  # of decoded chunks that wait for a NumPy consumer
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
        columns: features to deliver, and to decode; default: all. `class_id` is there without the label, too.
        where: deliver only the records for which an expression is true: a text as `shard-dataset build --filter`
            takes, or one of `pyarrow.compute`. They are counted now, from what must be read for it.

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
        columns: Sequence[str] | None = None,
        where: str | pc.Expression | None = None,
    ) -> None:
        self._dataset = open_dataset(url)
        self._split = split
        self._shards = self._dataset.split_shards(split)
        info = self.manifest.split(split)
        self._selection = None if where is None else Selection(self._dataset, split, where, fetch_threads)
        if self._selection is not None:
            self._shards, info = self._selection.shards, self._selection.split
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
        self._schema = delivered_schema(self.manifest, split, columns, self._fill)
        self._record_bytes = record_bytes(self._dataset.split_shards(split), self.manifest.schema, self._schema)
        self._layout = self.manifest.layout and self.manifest.layout.select(self._schema.names)
        self._fetch_threads = fetch_threads
        self._counters = Counters()

    @property
    def manifest(self) -> Manifest:
        """Of the dataset."""
        return self._dataset.manifest

    @property
    def schema(self) -> Schema:
        """Of the features delivered: those of the dataset, or `columns`."""
        return self._schema

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
            plan = plan_epoch(
                self._order(epoch),
                self._schedule(epoch),
                self._shards,
                self.manifest.classes,
                self._world_size,
                fetcher.class_ids,
            )
            return plan if self._selection is None else replace(plan, row_filter=self._selection.plan)
        finally:
            fetcher.close()

    def stats(self) -> dict[str, StageStats]:
        """What each stage did since the loader was made."""
        return self._counters.snapshot()

    def epoch(self, epoch: int, start_step: int = 0, *, as_supervised: bool = False) -> tf.data.Dataset:
        """The batches of an epoch from a step on.

        Args:
            epoch: from 0; each has another order.
            start_step: in ``[0, steps_per_epoch]``; what comes before is not read.
            as_supervised: give ``(features, class_id)``, with padding ``(features, class_id, sample_weight)``, as
                `keras.Model.fit` takes them. The features are those but for the label: a dict, or the one there is.

        Raises:
            ConfigError: there is no such step.
        """
        from .delivery import supervised, to_dataset  # TensorFlow is needed from here on

        self._check_step(epoch, start_step)
        batches = to_dataset(
            lambda: self.chunks(epoch, start_step),
            self.schema,
            self._fill,
            local_batch=self.local_batch_size,
            undecoded=self._undecoded,
            padded=self._geometry.remainder == "pad",
            prefetch=_PREFETCH,
        )
        batches = supervised(batches, self.schema) if as_supervised else batches
        return batches.apply(_cardinality(self.steps_per_epoch - start_step))

    def distributed_epoch(
        self, strategy: tf.distribute.Strategy, epoch: int, start_step: int = 0, *, as_supervised: bool = False
    ) -> Any:
        """The same batches as a `tf.distribute.DistributedDataset`: each worker is a rank, whose replicas share it.

        Args:
            strategy: its workers are the loader's ranks.
            epoch: as for `epoch`.
            start_step: as for `epoch`.
            as_supervised: as for `epoch`.

        Raises:
            ConfigError: there is no such step, or the strategy has other workers than the loader has ranks.
        """
        from .distribute import distribute

        batches = self.epoch(epoch, start_step, as_supervised=as_supervised)
        ranks = {"rank": self._rank, "world_size": self._world_size, "local_batch": self.local_batch_size}
        return distribute(batches, strategy, **ranks)

    def numpy_epoch(
        self, epoch: int, start_step: int = 0, *, prefetch_bytes: int = _PREFETCH_BYTES
    ) -> Generator[NumpyBatch, None, None]:
        """The batches of an epoch from a step on as NumPy arrays: what `epoch` gives, with no TensorFlow.

        A background thread works ahead. It ends when the iterator has ended, was closed, or is let go of.

        Args:
            epoch: as for `epoch`.
            start_step: as for `epoch`.
            prefetch_bytes: that may be ready and not yet taken; 0 for no thread.

        Yields:
            By feature, and ``class_id``: numbers as arrays of the feature's dtype, strings and bytes as arrays of
            `bytes` objects, features of variable length as `Ragged`, which is ``(values, row_lengths)``.

        Raises:
            ConfigError: there is no such step.
        """
        self._check_step(epoch, start_step)

        return iterate_numpy(
            self.chunks(epoch, start_step),
            self.manifest.schema,
            self.schema,
            self._fill,
            counters=self._counters,
            prefetch_bytes=prefetch_bytes,
        )

    def chunks(self, epoch: int, start_step: int = 0) -> Generator[tuple[int, Columns], None, None]:
        """Runs of steps of an epoch, as NumPy and Arrow columns: what `epoch` is made of, without TensorFlow.

        Yields:
            The number of steps, and columns of ``steps * local_batch_size`` rows, step after step.
        """
        self._check_step(epoch, start_step)
        order, schedule = self._order(epoch), self._schedule(epoch)
        counts = count_matrix([shard.class_counts for shard in self._shards])
        fetcher = self._fetcher()
        planner = ThreadPoolExecutor(_PLAN_THREADS, thread_name_prefix="ringfeed-plan")
        try:
            readers = [
                StreamReader(order, schedule, counts, fetcher, planner, self._counters, part, start_step)
                for part in self._slices
            ]
            widths = [part.stop - part.start for part in self._slices]
            per_chunk = self._chunk_steps()
            for step in range(start_step, self.steps_per_epoch, per_chunk):
                steps = min(per_chunk, self.steps_per_epoch - step)
                parts = [reader.take(step, steps) for reader in readers]
                with self._counters.busy("gather"):
                    columns = interleave(parts, widths, steps, self.schema, self._layout)
                asked = time.perf_counter()
                yield steps, columns
                waited = time.perf_counter() - asked
                self._counters.add("deliver", items=steps * self.local_batch_size, wait=waited)
        finally:
            planner.shutdown(wait=False, cancel_futures=True)
            fetcher.close()

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
        return ShardFetcher(
            self._dataset,
            self._shards,
            self.schema,
            self._fill,
            self._counters,
            self._fetch_threads,
            self._selection,
        )

    def _chunk_steps(self) -> int:
        """Steps that cross into TensorFlow at once: as many as fit `_CHUNK_BYTES`."""
        if not self._undecoded and any(feature.elements is None for feature in self.schema.features):
            return 1
        return int(np.clip(_CHUNK_BYTES // (self._record_bytes * self.local_batch_size), 1, _CHUNK_STEPS))


def _cardinality(steps: int) -> Any:
    import tensorflow as tf

    return tf.data.experimental.assert_cardinality(steps)

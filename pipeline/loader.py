"""The loader: a manifest in, `tf.data` batches out, in an order whose whole state is (seed, epoch, step)."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..sharding.common.option_checks import boolean, integer, text, texts
from ..sharding.compute.class_counts import count_matrix
from ..sharding.dataset.dataset import open_dataset
from ..sharding.dataset.manifest import Manifest
from ..sharding.errors import ConfigError, CorruptionError
from ..sharding.storage.storage import Place
from ..sharding.storage.urls import public_url
from .base_loader import BaseLoader
from .decode.buffer_pool import BufferPool
from .decode.class_labels import ClassLabels
from .decode.columns import Columns
from .decode.interleave import interleave
from .decode.tfrecord_values import has_plain_values
from .fetch.quarantine import OnBadShard, Quarantine
from .fetch.shard_cache import ShardCache, open_cache
from .fetch.threads import Threads
from .metrics.stage_counters import StageStats
from .order.class_balance import ClassSchedule
from .order.class_shares import Balance, EpochLength, epoch_samples, parse_balance, settled_epoch, target_weights
from .order.epoch_order import EpochOrder, Geometry, Remainder, default_streams
from .order.epoch_plan import LoaderPlan, plan_epoch
from .order.shuffle_quality import ShuffleQuality, shuffle_quality
from .random_access import RandomAccess
from .resume_state import shares_digest
from .select.sample_columns import CLASS_ID, ORIGIN, Origin
from .select.selected_columns import check_fill, delivered_schema, record_bytes
from .select.selected_rows import Selection
from .streams.length_buckets import LengthBuckets
from .streams.prefetch_budget import PrefetchBudget
from .streams.shard_fetcher import ShardFetcher
from .streams.stream_reader import OpenStreams

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["Loader"]

_CHUNK_BYTES = 8 << 20  # of one crossing into TensorFlow: 4 MiB takes 1.1 times as long, 2 MiB 1.35 (2026-11-21)
_CHUNK_STEPS = 64
_LARGE_RECORD = 4096  # bytes, undecoded, from which on each crosses by itself, and chunks only say where they lie
_LARGE_STEPS = 32  # of views
_LARGE_BYTES = 8 << 20  # of one crossing
_READY_BYTES = 16 << 20  # of batches: a consumer that takes those of one crossing leaves those of the next to be made
_READY_BATCHES = 64
_AHEAD_BYTES = 64 << 20  # of shards: what a link of 10 Gbit/s brings in 50 ms
_COUNT_THREADS = 4
_PLAN_THREADS = 1  # two hinder each other: balanced then has 0.85 of natural's rate, not 0.91 (2 cores, 2026-11-21)


class Loader(BaseLoader):
    """Streams one split of a dataset, one rank's share of it, epoch by epoch.

    The global batches depend on `seed`, the epoch and the step, and on what says which samples there are and how they
    are put together (`batch_size`, `balance`, `epoch_length`, `remainder`, `shuffle`, `streams`, `window_shards`,
    `where`, `bucket_by`, `bucket_steps`, and which shards are in quarantine); never on the other arguments, such as
    `rank` and `world_size`.

    Args:
        url: of the dataset, or its path, or its `Storage`.
        split: of the dataset.
        batch_size: of the GLOBAL batch. Where `world_size` does not divide it, the ranks' shares differ by one; the
            smaller ones hold one more sample, and all ranks a `sample_weight`, which is 0 for that.
        balance: ``natural``: each record at most once an epoch. ``uniform``, ``power:A`` (shares proportional to
            records ** A) or a share by class value: every batch is within one of the target of each class, minority
            records come more than once. ``X->Y:N``, or a `Ramp`: from X to Y over N epochs. Or a function that
            returns one of them for an epoch.
        epoch_length: samples in an epoch, in whole batches; default: as many as records. Fewer need only a part of the
            shards, if shuffled another each epoch; more need a balance, whose ``natural`` epochs then are ``power:1``.
            Or, with one balance for all epochs, ``oversample``: as many as it takes to serve each record once, or
            ``undersample``: as many as there are with none twice, were the records of a class served evenly.
        seed: of the order.
        rank: of this process, in ``[0, world_size)``.
        world_size: processes that share each global batch.
        remainder: ``drop`` the records that fill no global batch; ``pad``: every record exactly once, and the batches
            hold `sample_weight`, 0 for padding; or ``wrap``: the last batch is filled up with records that the epoch
            began with.
        shuffle: False for the order of the dataset.
        fill: what stands for missing values, by feature: one value of its dtype. Floats need none: NaN.
        streams: canonical streams, a divisor of `batch_size`; default: the largest up to 16, or 1 without `shuffle`:
            with more, each stream has a part of the dataset, in its order.
        window_shards: shards' worth of records that a stream shuffles, and holds in memory, together.
        fetch_threads: that fetch and open shards. Default: 4; from a remote store 4 at first, and up to 24 while that
            brings more bytes.
        cache: where to keep copies of shards: nowhere, ``memory`` (of this process, 1 GiB), the path of a folder on a
            local disk (shared by the processes of a machine), or a `Cache` or `MemoryCache` with a limit; see
            docs/cache.md.
        columns: features to deliver, and to decode; default: all. `class_id` is there without the label, too.
        where: deliver only the records for which an expression is true: a text as `shard-dataset build --filter`
            takes, or one of `pyarrow.compute`. They are counted now, from what must be read for it.
        sample_keys: whether batches hold ``sample_key``, int64 [batch, 2], a key of (seed, epoch, position) for the
            random augmentation of each sample.
        bucket_by: a feature of variable length: batches then hold records of like length. See `LengthBuckets`. Not with
            ``wrap``.
        bucket_steps: steps that records are put together within for it; at most 65,536, or as many as an epoch has.
        on_bad_shard: what becomes of a shard whose bytes are not those that were written, nor when they are fetched
            again: ``raise``, or ``quarantine``: other records stand in for its own; see docs/faults.md.
        quarantined: paths of shards in quarantine, as `quarantined` told them in the run that is gone on with.
        hedging: whether a remote store is asked a second time for a file that is late; the first answer counts.
        prefetch_bytes: of shards' files that are fetched ahead of need, at most, what is needed soonest first. Default:
            a quarter more than the open windows have; from a remote store at least 64 MiB.

    Raises:
        ConfigError: an argument its rule forbids, or missing values without `fill`.
        CorruptionError: all that is needed is in quarantine.
        DatasetError: there is no dataset, or no such split.
        StorageError: the store refuses.

    Each element of `epoch` is ``{feature: tensor [local_batch_size, *shape]}``, and ``class_id``, the label's
    position in `manifest.classes`, int32.
    """

    def __init__(
        self,
        url: Place,
        *,
        split: str = "train",
        batch_size: int,
        balance: Balance = "natural",
        epoch_length: EpochLength | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        remainder: Remainder = "drop",
        shuffle: bool = True,
        fill: Mapping[str, Any] | None = None,
        streams: int | None = None,
        window_shards: int = 1,
        fetch_threads: int | None = None,
        cache: str | os.PathLike[str] | ShardCache | None = None,
        columns: Sequence[str] | None = None,
        where: str | pc.Expression | None = None,
        sample_keys: bool = False,
        bucket_by: str | None = None,
        bucket_steps: int = 32,
        on_bad_shard: OnBadShard = "raise",
        quarantined: Sequence[str] = (),
        hedging: bool = True,
        prefetch_bytes: int | None = None,
    ) -> None:
        fetch_threads = None if fetch_threads is None else integer("fetch_threads", fetch_threads, 1)
        prefetch_bytes = None if prefetch_bytes is None else integer("prefetch_bytes", prefetch_bytes, 0)
        batch_size, window_shards = integer("batch_size", batch_size, 1), integer("window_shards", window_shards)
        shuffle, bucket_steps = boolean("shuffle", shuffle), integer("bucket_steps", bucket_steps)
        split, quarantined = text("split", split), texts("quarantined", quarantined, "paths")
        columns = None if columns is None else texts("columns", columns, "at least one name")
        self._arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self._dataset = open_dataset(url)
        self._split = split
        self._shards = self._dataset.split_shards(split)
        info = self.manifest.split(split)
        self._selection: Selection | None = None
        if where is not None:
            self._selection = Selection(
                self._dataset,
                split,
                where,
                fetch_threads or _COUNT_THREADS,
                quarantine=on_bad_shard == "quarantine" or bool(quarantined),
            )
            self._shards, info = self._selection.shards, self._selection.split
        self._info = info
        self._balance = parse_balance(balance)
        samples, spread = epoch_samples(
            epoch_length, self._balance, self.manifest.classes, info.class_counts, batch_size
        )
        geometry = Geometry(
            records=info.records,
            batch_size=batch_size,
            streams=default_streams(batch_size, info.records, shuffle=shuffle)
            if streams is None
            else integer("streams", streams),
            window_shards=window_shards,
            remainder=remainder,
            samples=samples,
            spread=spread,
            shuffle=shuffle,
        )
        if balance != "natural" and remainder != "drop":
            raise ConfigError(
                f"remainder={remainder!r} needs balance='natural': a balanced epoch has no rest to {remainder}"
            )
        if balance != "natural" and not shuffle:
            raise ConfigError("shuffle=False needs balance='natural': in the dataset's order, no record comes twice")
        if bucket_by is not None and remainder == "wrap":
            raise ConfigError(
                "bucket_by needs remainder='drop' or 'pad': which records wrap around would hang on their lengths"
            )
        fill = check_fill(self.manifest.schema, fill)
        super().__init__(
            geometry,
            delivered_schema(self.manifest, split, columns, fill),
            self.manifest.schema,
            fill,
            seed=seed,
            rank=rank,
            world_size=world_size,
            sample_keys=sample_keys,
        )
        weights = self._weights(epoch=0)  # an impossible balance is refused now
        self._record_bytes = record_bytes(self._dataset.split_shards(split), self.manifest.schema, self.schema)
        self._layout = self.manifest.layout and self.manifest.layout.select(self.schema.names)
        self._fetch_threads = fetch_threads
        self._cache = open_cache(cache)
        self._buckets = None
        if bucket_by is not None:
            self._buckets = LengthBuckets.from_options(self.schema, bucket_by, bucket_steps, geometry.steps)
        self._hedging = boolean("hedging", hedging)
        self._prefetch_bytes = prefetch_bytes
        self._quarantine = Quarantine(self._dataset, split, self._shards, on_bad_shard, quarantined, self._counters)
        # That nothing is left is told now; but epochs that are to come may need no more than what is.
        self._quarantine.plan_shards(weights if self.is_settled else None)
        self.labels = ClassLabels.of(self.manifest, self.schema)
        self._access = RandomAccess(self._shards, self.schema, self._layout, self._fill, self.labels)

    @property
    def manifest(self) -> Manifest:
        """Of the dataset."""
        return self._dataset.manifest

    @property
    def arguments(self) -> dict[str, Any]:
        """See `BaseLoader`."""
        storage = self._dataset.storage
        place = replace(storage, url=storage.locate())  # the other process may be in another folder
        return {**self._arguments, "url": place, "cache": self._cache, "quarantined": self.quarantined}

    @property
    def identity(self) -> tuple[Any, ...]:
        """See `BaseLoader`."""
        return self.manifest.shards_checksum, self._geometry

    def _state(self, epoch: int) -> dict[str, Any]:
        return self.state_in([epoch])

    def state_in(self, epochs: Iterable[int]) -> dict[str, Any]:
        """What the batches of some epochs follow from, beside their numbers."""
        return {
            "seed": self._seed,
            "dataset": self.manifest.shards_checksum,
            **asdict(self._geometry),
            "shares": shares_digest(*map(self._weights, epochs)),
            **{name: self._arguments[name] for name in ("split", "bucket_by", "bucket_steps")},
            "where": None if (where := self._arguments["where"]) is None else str(where),
            "quarantined": list(self.quarantined),
        }

    @property
    def is_settled(self) -> bool:
        """Whether classes have the same shares in all epochs."""
        return settled_epoch(self._balance, 1) == 0

    @property
    def records(self) -> int:
        """Records in the split."""
        return self._geometry.records

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Paths of the shards that are left out: part of the state, beside (seed, epoch, step)."""
        return self._quarantine.paths

    def plan(self, epoch: int = 0) -> LoaderPlan:
        """Steps, remainder, class mix, bytes per rank and missing classes of an epoch; no shard is opened.

        Indexes are read where the manifest does not tell which classes a window lacks. One that is damaged is as in the
        epoch: an error, or its shard goes into quarantine.

        Raises:
            ConfigError: there is no such epoch, or its balance asks for what there is not.
            CorruptionError: an index is damaged, or all that is needed is in quarantine.
            StorageError: the store refuses.
        """
        epoch, _ = self._checked(epoch)
        fetcher = self._fetcher()
        try:
            while True:
                known = self.quarantined
                try:
                    return self._planned(epoch, fetcher)
                except CorruptionError:
                    if self.quarantined == known:  # else it is planned without what was found to be bad
                        raise
        finally:
            fetcher.close()

    def _planned(self, epoch: int, fetcher: ShardFetcher) -> LoaderPlan:
        plan = plan_epoch(
            self._order(epoch),
            self._schedule(epoch),
            self._quarantine.plan_shards(self._weights(epoch)),
            self.manifest.classes,
            self._info.class_counts,
            self._world_size,
            fetcher.class_ids,
            in_parts=fetcher.exact,
        )
        row_filter = None if self._selection is None else self._selection.plan
        return replace(plan, row_filter=row_filter, quarantined=self.quarantined)

    def sample(self, index: int) -> dict[str, Any]:
        """One record of the split, by its number in the order of the dataset, in ``[0, records)``.

        Its whole shard is fetched; the last few stay in memory.

        Returns:
            By feature: numbers as NumPy values of its dtype and shape, `str` and `bytes`; and ``class_id``.

        Raises:
            IndexError: there is no such record.
        """
        record, class_id = self._access.record(integer("index", index), self._fetcher)
        return record | {CLASS_ID: class_id}

    def shuffle_quality(self, epoch: int = 0) -> ShuffleQuality:
        """How far the natural order of an epoch is from a full shuffle, measured on the plan; no shard is opened.

        With class balance the windows are the same, and within one the classes decide. A split that fills no batch is
        measured in one that it fills in part.
        """
        order = self._order(self._checked(epoch)[0])
        remainder: Remainder = "pad" if self.records < self._geometry.batch_size else self._geometry.remainder
        natural = replace(self._geometry, samples=None, spread=False, remainder=remainder)
        return shuffle_quality(replace(order, geometry=natural))

    def stats(self) -> dict[str, StageStats]:
        """What each stage did since the loader was made."""
        return self._counters.snapshot()

    def _gather_chunks(
        self, epoch: int, start_step: int, *, locate_features: bool, with_origins: bool
    ) -> Iterator[tuple[int, Columns]]:
        with self.open_streams(locate_features=locate_features, with_origins=with_origins) as opened:
            readers = [opened.reader(epoch, part, start_step) for part in self._slices]
            widths = [part.width for part in self._slices]
            per_chunk = self.chunk_steps(self.local_batch_size)
            pool = BufferPool()
            for step in range(start_step, self.steps_per_epoch, per_chunk):
                steps = min(per_chunk, self.steps_per_epoch - step)
                parts = [reader.take(step, steps) for reader in readers]
                with self._counters.busy("gather"):
                    columns = interleave(parts, widths, steps, self.schema, self._layout, pool, self.labels)
                yield steps, columns

    def with_streams(self, streams: int) -> Loader:
        """The same loader with batches of one sample of each of so many streams: what a mixture takes from.

        Raises:
            ConfigError: there are fewer samples.
        """
        other = object.__new__(type(self))  # `copy` would make it of its arguments
        vars(other).update(vars(self))
        other._geometry = replace(self._geometry, batch_size=streams, streams=streams)
        other._slices = other._geometry.rank_slices(self._rank, self._world_size)
        other._make_dataset = None
        return other

    @contextmanager
    def open_streams(
        self, *, locate_features: bool = False, with_origins: bool = False, streams: range | None = None
    ) -> Iterator[OpenStreams]:
        """The streams of any epoch, for the body: what `chunks` and mixtures read from.

        Args:
            locate_features: see `ShardFetcher`.
            with_origins: see `ShardFetcher`.
            streams: that will be read; default: this rank's.
        """
        streams = self._streams if streams is None else streams
        ahead = self._default_prefetch(len(streams)) if self._prefetch_bytes is None else self._prefetch_bytes
        opened = OpenStreams(
            order=functools.lru_cache(maxsize=2)(self._order),  # each stream asks
            streams=streams,
            schedule=functools.lru_cache(maxsize=2)(self._schedule),
            class_counts=lambda: self._class_counts,
            fetcher=self._fetcher(locate_features=locate_features, with_origins=with_origins),
            planner=Threads(_PLAN_THREADS, "plan"),
            counters=self._counters,
            buckets=self._buckets,
            ahead=PrefetchBudget(ahead),
        )
        try:
            yield opened
        finally:
            opened.close()

    @functools.cached_property
    def _class_counts(self) -> npt.NDArray[np.unsignedinteger]:
        return count_matrix([shard.class_counts for shard in self._shards])

    def _origins(self, columns: Mapping[str, Any]) -> list[Origin]:
        return [self.origin(shard, row) for shard, row in columns[ORIGIN].tolist()]

    def origin(self, shard: int, row: int) -> Origin:
        """Where a record is, by the place of its shard among those that are read."""
        return Origin(dataset=public_url(self._dataset.storage.locate()), shard=self._shards[shard].path, record=row)

    @property
    def undecoded(self) -> bool:
        """Whether `chunks` holds whole examples, for TensorFlow to parse, and not features."""
        return self.manifest.shard_format == "tfrecord" and self.manifest.layout is None

    def _order(self, epoch: int) -> EpochOrder:
        return EpochOrder(self._geometry, [shard.records for shard in self._shards], self._seed, epoch)

    def _schedule(self, epoch: int) -> ClassSchedule | None:
        weights = self._weights(epoch)
        if weights is None:
            return None
        return ClassSchedule(
            weights, self._geometry.batch_size, self._geometry.steps, self._order(epoch).key("classes"), epoch
        )

    def _weights(self, epoch: int) -> npt.NDArray[np.float64] | None:
        classes, counts = self.manifest.classes, self._info.class_counts
        weights = target_weights(self._balance, classes, counts, epoch)
        if weights is None and self._geometry.spread:  # records have to come again, which only shares can tell
            return target_weights("power:1", classes, counts)
        return weights

    def _default_prefetch(self, streams: int) -> int:
        shards = min(self._geometry.window_shards, len(self._shards))
        window = sum(s.bytes for s in self._shards) * shards / len(self._shards)
        one_each = int(1.25 * window * streams)  # for windows differ in size
        return one_each if self._dataset.storage.local_path is not None else max(one_each, _AHEAD_BYTES)

    def _fetcher(self, *, locate_features: bool = False, with_origins: bool = False) -> ShardFetcher:
        return ShardFetcher(
            self._dataset,
            self._shards,
            self.schema if self.labels is None else self.labels.read_schema,
            self._fill,
            self._counters,
            self._fetch_threads,
            self._cache,
            self._selection,
            self._quarantine,
            hedging=self._hedging,
            locate_features=locate_features,
            with_origins=with_origins,
        )

    def chunk_steps(self, local_batch: int) -> int:
        """See `BaseLoader`: as many as fit `_CHUNK_BYTES`."""
        if not self.undecoded and any(feature.elements is None for feature in self.schema.features):
            return 1
        if self.large:
            return _LARGE_STEPS
        return int(np.clip(_CHUNK_BYTES // (self._record_bytes * local_batch), 1, _CHUNK_STEPS))

    def ready_batches(self, local_batch: int) -> int:
        """See `BaseLoader`: as many as fit `_READY_BYTES`, or two."""
        return int(np.clip(_READY_BYTES // (self._record_bytes * local_batch), 2, _READY_BATCHES))

    @property
    def locates_features(self) -> bool:
        """Whether the features of `undecoded` examples can be found when their shard is opened, and need no parsing."""
        return self.large and self._buckets is None and has_plain_values(self.manifest, self._split, self.schema)

    @property
    def large(self) -> bool:
        """Whether `undecoded` examples are so long that each had better cross into TensorFlow by itself."""
        return self.undecoded and self._record_bytes >= _LARGE_RECORD

    def large_steps(self, local_batch: int) -> int:
        """See `BaseLoader`: as many as fit `_LARGE_BYTES`."""
        return int(np.clip(_LARGE_BYTES // (self._record_bytes * local_batch), 1, _LARGE_STEPS)) if self.large else 0

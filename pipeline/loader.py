"""`Loader`: batches of one dataset in an order whose whole state is (seed, epoch, step)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ringfeed.sharding.common.validation import integer
from ringfeed.sharding.compute.class_counts import count_matrix
from ringfeed.sharding.dataset.dataset import open_dataset
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import CorruptionError
from ringfeed.sharding.url_secrets import public_url

from .base_loader import BaseLoader
from .decode.buffer_pool import BufferPool
from .decode.class_labels import ClassLabels
from .decode.columns import Columns
from .decode.interleave import interleave
from .decode.shard_opener import ReadContext
from .decode.tfrecord_values import has_plain_values
from .deliver.chunk_sizes import ChunkSizes, chunk_ranges
from .fetch.quarantine import Quarantine
from .fetch.shard_cache import open_cache
from .fetch.threads import Threads
from .loader_options import LoaderOptions, as_arguments, flat_arguments
from .metrics.stage_counters import StageStats
from .order.class_balance import ClassSchedule
from .order.class_shares import epoch_samples, parse_balance, settled_epoch, target_weights
from .order.epoch_order import EpochOrder, Geometry, Remainder, default_streams
from .order.epoch_plan import LoaderPlan, plan_epoch
from .order.missing_classes import SplitContents
from .order.shuffle_quality import ShuffleQuality, shuffle_quality
from .random_access import RandomAccess
from .resume_state import shares_digest
from .select.sample_columns import CLASS_ID, ORIGIN, Origin
from .select.selected_columns import check_fill, delivered_schema, mask_fill, record_bytes
from .select.selected_rows import Selection
from .streams.length_buckets import LengthBuckets
from .streams.prefetch_budget import PrefetchBudget, default_prefetch_bytes
from .streams.shard_fetcher import ShardFetcher
from .streams.stream_context import StreamContext
from .streams.stream_reader import OpenStreams

if TYPE_CHECKING:
    pass

_COUNT_THREADS = 4
_PLAN_THREADS = 1  # with two, balanced epochs reach 0.85 of the natural rate, with one 0.91 (2 cores, 2026-11-21)


class Loader(BaseLoader):
    """Streams one split of a dataset, one rank's share of it, epoch by epoch.

    The global batches depend on `seed`, the epoch and the step, on the arguments that choose samples and put them
    together (`batch_size`, `balance`, `epoch_length`, `remainder`, `shuffle`, `streams`, `window_shards`, `where`,
    `bucket_by`, `bucket_steps`), and on which shards are in quarantine; never on other arguments, such as `rank` and
    `world_size`.

    Args:
        url: URL or path of the dataset, or its `Storage`.
        split: name of the split.
        batch_size: samples in a GLOBAL batch. If `world_size` does not divide it, the ranks' shares differ by one
            sample: the smaller ones are filled up by one, and all ranks get a `sample_weight`, 0 for the filler.
        balance: ``natural``: each record at most once an epoch. ``uniform``, ``power:A`` (shares proportional to
            records ** A) or a weight by class value, ``{"a": 1, "b": 3}``: every batch is within one sample of the
            target of each class, and minority records come more than once. ``X->Y:N``, or a `Ramp`: from X to Y over
            N epochs. Or a function that returns one of these for an epoch.
        epoch_length: samples in an epoch, in whole batches; default: as many as records. A smaller number reads only a
            part of the shards, if shuffled another one each epoch; a larger one needs a balance, whose ``natural``
            epochs then count as ``power:1``. Or, with a balance that does not change, ``oversample``: as many as serve
            each record at least once, or ``undersample``: as many as serve none twice, if the records of each class
            are served evenly.
        seed: seed of the order.
        rank: rank of this process, in ``[0, world_size)``.
        world_size: number of processes that share each global batch.
        remainder: what to do with records that fill no global batch: ``drop`` them; ``pad``: every record comes
            exactly once, and batches hold a `sample_weight`, 0 for padding; or ``wrap``: fill the last batch with the
            records that the epoch began with.
        shuffle: False for the order of the dataset.
        fill: value for missing values, by feature, of its dtype. Missing floats are NaN by default.
        masks: features whose missing values are marked: each adds ``missing:NAME``, bool [batch]. Their missing values
            need no `fill`, and are then 0, NaN, or empty.
        streams: canonical streams, a divisor of `batch_size`; each reads its own part of the dataset.
            Default: the largest divisor up to 16, or 1 without `shuffle`.
        window_shards: shards' worth of records that a stream shuffles, and holds in memory, together.
        fetch_threads: threads that fetch and open shards. Default: 4; on a remote store up to 24, as long as more
            threads bring more bytes.
        cache: where to keep copies of shards: None for nowhere, ``memory`` (of this process, 1 GiB), the path of a
            folder on a local disk (shared by the processes of a machine), or a `Cache` or `MemoryCache` with a limit;
            see docs/cache.md.
        columns: features to deliver, and to decode; default: all. `class_id` comes even without the label.
        where: deliver only records for which an expression is true: text as for `shard-dataset build --filter`, or an
            expression of `pyarrow.compute`. The loader counts these records when it is made, and reads what it needs
            for that.
        sample_keys: whether batches hold ``sample_key``, int64 [batch, 2], a key made of (seed, epoch, position) for
            the random augmentation of each sample.
        bucket_by: a feature of variable length; batches then hold records of similar length. See `LengthBuckets`. Not
            with ``wrap``.
        bucket_steps: steps whose records are sorted by length together; at most 65,536 or an epoch.
        on_bad_shard: what to do about a shard that is damaged, also when fetched again: ``raise``, or ``quarantine``:
            other records stand in for its own; see docs/faults.md.
        quarantined: paths of shards in quarantine, from `quarantined` of the run to resume.
        hedging: whether to ask a remote store a second time for a file that is late, and take the first answer.
        prefetch_bytes: limit of shard bytes fetched ahead of need; what is needed soonest comes first. Default: 1.25
            times what the open windows hold, on a remote store at least 64 MiB; of shards that are mapped from a local
            disk twice that and at least 256 MiB, as far as this is at most a 32nd of the machine's memory.

    Raises:
        ConfigError: an argument breaks its rule, or values are missing and `fill` has none for them.
        CorruptionError: everything needed is in quarantine.
        DatasetError: there is no dataset, or no such split.
        StorageError: the store refuses.

    Each element of `epoch` is ``{feature: tensor [local_batch_size, *shape]}``, with ``class_id``, int32, the label's
    position in `manifest.classes`.

    >>> loader = Loader("flights", batch_size=64, balance="uniform", seed=7)
    >>> batch = next(iter(loader.numpy_epoch(0)))
    >>> batch["miles"].shape, batch["class_id"].dtype
    ((64,), dtype('int32'))
    """

    @flat_arguments(LoaderOptions)
    def __init__(self, options: LoaderOptions) -> None:
        self._options = options
        self._dataset = open_dataset(options.url)
        self._selection = self._select_rows()
        chosen = self._selection
        self._shards = self._dataset.split_shards(options.split) if chosen is None else chosen.shards
        self._info = self.manifest.split(options.split) if chosen is None else chosen.split
        self._balance = parse_balance(options.balance)
        stored = self.manifest.schema
        fill = check_fill(stored, options.fill)
        fill = mask_fill(stored, options.masks) | fill
        schema = delivered_schema(self.manifest, options.split, options.columns, fill, options.masks)
        super().__init__(options, self._make_geometry(), schema, stored, fill)
        weights = self._weights(epoch=0)  # refuses an impossible balance
        self._layout = self.manifest.layout and self.manifest.layout.select(self.schema.names)
        self.labels = ClassLabels.of(self.manifest, self.schema)
        self._buckets = self._make_buckets()
        self._cache = open_cache(options.cache)
        self._record_bytes = record_bytes(self._dataset.split_shards(options.split), stored, self.schema)
        self._quarantine = Quarantine(
            self._dataset, options.split, self._shards, options.on_bad_shard, options.quarantined, self._counters
        )
        # Refuses a quarantine that leaves nothing. With shares that change, a later epoch may need less than this one.
        self._quarantine.plan_shards(weights if self.is_settled else None)
        self._access = RandomAccess(self._shards, self.schema, self._layout, self.fill, self.labels, self.masks)

    def _select_rows(self) -> Selection | None:
        options = self._options
        if options.where is None:
            return None
        return Selection(
            self._dataset,
            options.split,
            options.where,
            options.fetch_threads or _COUNT_THREADS,
            quarantine=options.on_bad_shard == "quarantine" or bool(options.quarantined),
        )

    def _make_geometry(self) -> Geometry:
        options, records = self._options, self._info.records
        samples, spread = epoch_samples(
            options.epoch_length, self._balance, self.manifest.classes, self._info.class_counts, options.batch_size
        )
        streams = options.streams
        if streams is None:
            streams = default_streams(options.batch_size, records, shuffle=options.shuffle)
        return Geometry(
            records=records,
            batch_size=options.batch_size,
            streams=streams,
            window_shards=options.window_shards,
            remainder=options.remainder,
            samples=samples,
            spread=spread,
            shuffle=options.shuffle,
        )

    def _make_buckets(self) -> LengthBuckets | None:
        options = self._options
        if options.bucket_by is None:
            return None
        return LengthBuckets.from_options(self.schema, options.bucket_by, options.bucket_steps, self._geometry.steps)

    def _describe(self) -> str:
        where = "" if self._options.where is None else f" where {self._options.where}"
        return f"{public_url(self._dataset.storage.locate())}, split {self._options.split!r}{where}"

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset."""
        return self._dataset.manifest

    @property
    def arguments(self) -> dict[str, Any]:
        storage = self._dataset.storage
        place = replace(storage, url=storage.address())  # absolute: another process may run in another folder
        return {**as_arguments(self._options), "url": place, "cache": self._cache, "quarantined": self.quarantined}

    @property
    def identity(self) -> tuple[Any, ...]:
        return self.manifest.identity, self._geometry

    def _state(self, epoch: int) -> dict[str, Any]:
        return self.state_in([epoch])

    def state_in(self, epochs: Iterable[int]) -> dict[str, Any]:
        """What determines the batches of some epochs, apart from their numbers."""
        return {
            "seed": self._seed,
            "dataset": self.manifest.identity,
            **asdict(self._geometry),
            "shares": shares_digest(*map(self._weights, epochs)),
            "split": self._options.split,
            "bucket_by": self._options.bucket_by,
            "bucket_steps": self._options.bucket_steps,
            "where": None if self._options.where is None else str(self._options.where),
            "quarantined": list(self.quarantined),
        }

    @property
    def is_settled(self) -> bool:
        """Whether class shares are the same in all epochs."""
        return settled_epoch(self._balance, 1) == 0

    @property
    def _continues(self) -> bool:
        return self._geometry.is_short

    @property
    def serves_all(self) -> bool:
        """Whether an epoch serves each record once, with samples of weight 0 if need be."""
        return self._geometry.remainder == "pad"

    @property
    def records(self) -> int:
        """Records in the split."""
        return self._geometry.records

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Paths of the shards in quarantine: part of the state, beside (seed, epoch, step)."""
        return self._quarantine.paths

    def plan(self, epoch: int = 0) -> LoaderPlan:
        """Steps, remainder, class mix, bytes per rank and missing classes of an epoch; opens no shard.

        Reads shard indexes where the manifest does not say which classes a window lacks. A damaged index has the same
        effect as in the epoch: an error, or its shard goes into quarantine.

        Raises:
            ConfigError: there is no such epoch, or the split cannot give what its balance asks for.
            CorruptionError: an index is damaged, or everything needed is in quarantine.
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
                    if self.quarantined == known:  # else plan again without the shards just found bad
                        raise
        finally:
            fetcher.close()

    def _planned(self, epoch: int, fetcher: ShardFetcher) -> LoaderPlan:
        split = SplitContents(
            shards=self._quarantine.plan_shards(self._weights(epoch)),
            classes=self.manifest.classes,
            class_counts=self._info.class_counts,
            class_ids=fetcher.class_ids,
        )
        plan = plan_epoch(self._order(epoch), self._schedule(epoch), split, self._world_size, in_parts=fetcher.exact)
        row_filter = None if self._selection is None else self._selection.plan
        return replace(plan, row_filter=row_filter, quarantined=self.quarantined)

    def sample(self, index: int) -> dict[str, Any]:
        """One record of the split. Fetches its whole shard, and keeps the last few shards in memory.

        Args:
            index: number of the record in the order of the dataset, in ``[0, records)``.

        Returns:
            By feature, numbers as NumPy values of its dtype and shape, `str` or `bytes`; and ``class_id``.

        Raises:
            IndexError: there is no such record.
        """
        record, class_id = self._access.record(integer("index", index), self._fetcher)
        return record | {CLASS_ID: class_id}

    def record_numbers(self, step: int) -> npt.NDArray[np.int64]:
        """The numbers of this rank's samples of a step, in the order of the dataset, as `sample` takes them.

        Only for a loader with ``shuffle=False`` and no balance; numbers of samples of weight 0 mean nothing.
        """
        order, piece = self._order(0), self._geometry.piece
        starts = [order.stream_range(part.stream)[0] + step * piece for part in self._slices]
        numbers: npt.NDArray[np.int64] = np.concatenate(
            [start + part.offsets() for start, part in zip(starts, self._slices, strict=True)]
        )
        return numbers

    def shuffle_quality(self, epoch: int = 0) -> ShuffleQuality:
        """How far the natural order of an epoch is from a full shuffle, measured on the plan; opens no shard.

        Class balance keeps the windows, and reorders records within them by class. A split smaller than a batch is
        measured as one padded batch.
        """
        order = self._order(self._checked(epoch)[0])
        remainder: Remainder = "pad" if self.records < self._geometry.batch_size else self._geometry.remainder
        natural = replace(self._geometry, samples=None, spread=False, remainder=remainder)
        return shuffle_quality(replace(order, geometry=natural))

    def stats(self) -> dict[str, StageStats]:
        """What each stage has done since the loader was made."""
        return self._counters.snapshot()

    def _gather_chunks(
        self, epochs: range, start_step: int, *, locate_features: bool, with_origins: bool
    ) -> Iterator[tuple[int, Columns]]:
        with self.open_streams(locate_features=locate_features, with_origins=with_origins) as opened:
            widths = [part.width for part in self._slices]
            pool = BufferPool()
            for epoch, readers in opened.epochs(epochs, self._slices, start_step, self.steps_per_epoch):
                first = start_step if epoch == epochs.start else 0
                for chunk in chunk_ranges(first, self.steps_per_epoch, self.chunk_steps):
                    parts = [reader.take(chunk.start, len(chunk)) for reader in readers]
                    with self._counters.busy("gather"):
                        columns = interleave(parts, widths, len(chunk), self.schema, self._layout, pool, self.labels)
                    yield len(chunk), columns

    def with_streams(self, streams: int) -> Loader:
        """The same loader with this many streams, and batches of one sample of each, for a mixture to draw on.

        In natural order its epochs leave nothing out.

        Raises:
            ConfigError: the split has fewer samples than streams.
        """
        other = self._copy()
        other._geometry = replace(self._geometry, batch_size=streams, streams=streams)
        is_natural = self.is_settled and self._weights(0) is None
        if is_natural and (self._geometry.samples is None or self._geometry.shuffle):
            other._geometry = replace(other._geometry, samples=None, remainder="pad")  # each record once
        other._slices = other._geometry.rank_slices(self._rank, self._world_size)
        return other

    @contextmanager
    def open_streams(
        self, *, locate_features: bool = False, with_origins: bool = False, streams: range | None = None
    ) -> Iterator[OpenStreams]:
        """Open the streams of any epoch for the body to read; `chunks` and mixtures do.

        Args:
            locate_features, with_origins: see `ShardFetcher`.
            streams: the streams to read; default: this rank's.
        """
        streams = self._streams if streams is None else streams
        opened = OpenStreams(
            order=functools.lru_cache(maxsize=2)(self._order),  # every stream asks for it
            schedule=functools.lru_cache(maxsize=2)(self._schedule),
            context=StreamContext(
                streams=streams,
                class_counts=lambda: self._class_counts,
                fetcher=self._fetcher(locate_features=locate_features, with_origins=with_origins),
                planner=Threads(_PLAN_THREADS, "plan"),
                counters=self._counters,
                buckets=self._buckets,
            ),
            budget=PrefetchBudget(self._prefetch_limit(len(streams))),
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
        """Where a record is stored, by the position of its shard among those that are read."""
        return Origin(dataset=self._dataset.storage.locate(), shard=self._shards[shard].path, record=row)

    @property
    def undecoded(self) -> bool:
        return self.manifest.shard_format == "tfrecord" and self.manifest.layout is None and not self.masks

    @property
    def masks(self) -> tuple[str, ...]:
        return tuple(self._options.masks)

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
        if weights is None and self._geometry.spread:  # records repeat, which takes a schedule of shares
            return target_weights("power:1", classes, counts)
        return weights

    def _prefetch_limit(self, streams: int) -> int:
        if self._options.prefetch_bytes is not None:
            return self._options.prefetch_bytes
        shards = min(self._geometry.window_shards, len(self._shards))
        window = sum(s.bytes for s in self._shards) * shards / len(self._shards)
        is_local = self._dataset.storage.local_path is not None
        plain = self.manifest.shard_format == "tfrecord" and self.manifest.compression == "none"
        is_mapped = is_local and plain and self._cache is None
        return default_prefetch_bytes(window, streams, is_local=is_local, is_mapped=is_mapped)

    def read_context(self, *, locate_features: bool = False) -> ReadContext:
        """What shards are read with.

        Args:
            locate_features: see `ReadContext`.
        """
        return ReadContext(
            dataset=self._dataset,
            schema=self.schema if self.labels is None else self.labels.read_schema,
            fill=self.fill,
            masks=self.masks,
            counters=self._counters,
            cache=self._cache,
            selection=self._selection,
            hedging=self._options.hedging,
            locate_features=locate_features,
        )

    def _fetcher(self, *, locate_features: bool = False, with_origins: bool = False) -> ShardFetcher:
        context = self.read_context(locate_features=locate_features)
        return ShardFetcher(
            context, self._shards, self._quarantine, threads=self._options.fetch_threads, with_origins=with_origins
        )

    @property
    def _chunk_sizes(self) -> list[ChunkSizes]:
        ragged = any(feature.elements is None for feature in self.schema.features)
        numbers = sum(feature.elements or 0 for feature in self.schema.features if feature.numeric)
        return [ChunkSizes(record_bytes=self._record_bytes, undecoded=self.undecoded, ragged=ragged, numbers=numbers)]

    @property
    def locates_features(self) -> bool:
        large = self._chunk_sizes[0].large
        return large and self._buckets is None and has_plain_values(self.manifest, self._options.split, self.schema)

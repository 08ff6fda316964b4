"""Shards brought into memory: fetched, checked, opened; ahead of need, and shared by the streams of a process.

They are fetched whole, unless a few columns of Parquet are wanted, or only a part of the records, as where the cut
between two streams divides a shard; and there is no cache that would keep the rest, too.

A shard that nobody holds any more is let go at once, so memory is bounded by the windows that are open or ahead.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...sharding.compute import kernels
from ...sharding.dataset.dataset import Dataset
from ...sharding.dataset.manifest import ShardInfo
from ...sharding.errors import CorruptionError
from ...sharding.schema import Schema
from ..decode.shard_opener import OpenShard, ShardOpener
from ..fetch.adaptive_limit import AdaptiveLimit
from ..fetch.fetch_pool import FetchPool
from ..fetch.quarantine import Quarantine
from ..fetch.shard_cache import ShardCache
from ..metrics.stage_counters import Counters
from ..order.windows import Segment
from ..select.sample_columns import ORIGIN
from ..select.selected_rows import Selection
from .borrowed_records import BorrowedRecords

__all__ = ["ShardFetcher"]

T = TypeVar("T")
_THREADS = 4  # of a local disk, and of a remote store at first
_MOST_THREADS = 24  # of a remote store; its client keeps 32 connections, some for second requests
_NOW = -1  # sooner than any step
_SMALL_RECORD = 1024  # bytes: without kernels, to check these costs more than to read a whole shard from a local disk


class _Shared(Generic[T]):
    """What one brings in, and those that ask while somebody holds it share."""

    def __init__(self) -> None:
        self._held: Callable[[], T | None] = lambda: None
        self._lock = threading.Lock()

    def get(self, bring: Callable[[], T]) -> T:
        with self._lock:
            value = self._held()
            if value is None:
                value = bring()
                self._held = weakref.ref(value)
            return value


class ShardFetcher:
    """Opens the shards of one split in background threads.

    Args:
        dataset: opened.
        shards: of the split.
        schema: of the features wanted.
        fill: see `Loader`.
        counters: of the loader.
        threads: that fetch and decode; None: 4, and on a remote store up to 24, while that brings more bytes.
        cache: that keeps copies of the files, or None.
        selection: of the records that a filter lets through; None for all.
        quarantine: of the shards that are not to be read; None for none.
        hedging: see `Loader`.
        locate_features: find the features of undecoded records when a shard is opened; see `tfrecord_values.py`.
        with_origins: whether records say where they are from, by `ORIGIN`.

    Attributes:
        quarantine: the same.
        in_parts: whether of a shard that is needed in part not all is read.
        exact: whether no more is read than is needed; of Parquet the row groups are that hold it.
        borrowed: records of the shards, for windows that lack their class; for the thread that plans.
    """

    def __init__(
        self,
        dataset: Dataset,
        shards: Sequence[ShardInfo],
        schema: Schema,
        fill: Mapping[str, Any],
        counters: Counters,
        threads: int | None,
        cache: ShardCache | None = None,
        selection: Selection | None = None,
        quarantine: Quarantine | None = None,
        *,
        hedging: bool = True,
        locate_features: bool = False,
        with_origins: bool = False,
    ) -> None:
        self._dataset = dataset
        self._shards = shards
        self._counters = counters
        self._selection = selection
        self._with_origins = with_origins
        self.quarantine = quarantine
        self.in_parts = cache is None and self._reads_parts()
        self.exact = self.in_parts and dataset.manifest.shard_format == "tfrecord"
        self._opener = ShardOpener(
            dataset, schema, fill, counters, cache, selection, hedging=hedging, locate_features=locate_features
        )
        least, most = threads or _THREADS, threads or _MOST_THREADS
        most = least if dataset.storage.local_path is not None else most
        self._pool: FetchPool[OpenShard] = FetchPool(AdaptiveLimit(least, most), most)
        self._open: weakref.WeakValueDictionary[Segment, Future[OpenShard]] = weakref.WeakValueDictionary()
        self._indexes: defaultdict[int, _Shared[pa.RecordBatch]] = defaultdict(_Shared)  # of shards opened in parts
        self._wholes: defaultdict[int, _Shared[OpenShard]] = defaultdict(_Shared)  # of those that it turned out cannot
        self._lock = threading.Lock()
        self.borrowed = BorrowedRecords()

    def request(self, segment: Segment, step: int = _NOW) -> Future[OpenShard]:
        """Begin to open a segment of a shard, unless somebody holds it; keep the future as long as it is needed.

        Args:
            segment: of the records that are needed; there may be more in what is opened.
            step: that needs it; what is needed sooner goes first. Default: now.
        """
        shard = segment.shard
        whole = self.whole(shard)
        segment = segment if self.in_parts else whole
        with self._lock:
            future = self._open.get(whole) or self._open.get(segment)
            if future is None and self.quarantine is not None and shard in self.quarantine:
                future = Future()
                future.set_exception(self.quarantine.read_error(shard))
            elif future is None:
                self._counters.add("fetch", queue=1)
                future = self._pool.submit(step, partial(self._fetch, segment), self.bytes_of([segment]))
                future.add_done_callback(self._uncount)
                self._open[segment] = future
            else:
                self._pool.hasten(future, step)
            return future

    def whole(self, shard: int) -> Segment:
        """All records of a shard, by its position."""
        return Segment(shard=shard, start=0, stop=self._shards[shard].records)

    def bytes_of(self, segments: Sequence[Segment]) -> int:
        """Of the files of their shards, about as much as is read for them."""
        infos = [(self._shards[segment.shard], segment.rows) for segment in segments]
        data = sum(info.bytes * (rows / max(info.records, 1) if self.in_parts else 1.0) for info, rows in infos)
        return int(data * self._opener.read_fraction) + sum(info.index_bytes for info, _ in infos)

    def wait(self, future: Future[OpenShard]) -> OpenShard:
        """The shard, once it is open.

        Raises:
            CorruptionError: its bytes are not those that were written.
            StorageError: the store refused.
        """
        if future.done():
            return future.result()
        with self._counters.waiting("fetch"):
            return future.result()

    def wait_unless_bad(self, shard: int, future: Future[OpenShard]) -> OpenShard | None:
        """The shard, once it is open; None if it is in quarantine, or goes there now.

        Raises:
            CorruptionError: its bytes are not those that were written, and it is to stop the loader.
            StorageError: the store refused.
        """
        try:
            return self.wait(future)
        except CorruptionError as error:
            if self.quarantine is None or not self.quarantine.add(shard, error):
                raise
            return None

    def close(self) -> None:
        """Begin nothing more, and let the threads end."""
        self._pool.close()
        self._opener.close()

    def class_ids(self, shard: int) -> npt.NDArray[np.int32]:
        """The class of each record, from the index alone.

        Raises:
            CorruptionError: its bytes are not those that were written; if its shard may go into quarantine, it has.
            StorageError: the store refused.
        """
        info = self._shards[shard]
        try:
            class_ids: npt.NDArray[np.int32] = self._opener.index(info).column("class_id").to_numpy()
        except CorruptionError as error:
            if self.quarantine is not None:
                self.quarantine.add(shard, error)
            raise
        return class_ids if self._selection is None else self._selection.class_ids(info, class_ids)

    def _fetch(self, segment: Segment) -> OpenShard:
        opened = self._opened(segment)
        if not self._with_origins:
            return opened
        rows = opened.first + np.arange(len(opened.class_ids)) if opened.rows is None else opened.rows
        origin = np.stack([np.full(len(rows), segment.shard), rows], axis=1)
        return replace(opened, columns={**opened.columns, ORIGIN: origin})

    def _opened(self, segment: Segment) -> OpenShard:
        info = self._shards[segment.shard]
        if segment.rows == info.records:
            return self._opener.whole(info)
        with self._lock:
            index, whole = self._indexes[segment.shard], self._wholes[segment.shard]
        part = self._opener.part(info, index.get(partial(self._opener.index, info)), segment)
        return part or whole.get(partial(self._opener.whole, info))

    def _uncount(self, _: Future[OpenShard]) -> None:
        """Of those that are waited for, be it there or never to come."""
        self._counters.add("fetch", queue=-1)

    def _reads_parts(self) -> bool:
        """Whether of a shard that is needed in part only this part is read.

        What is in quarantine, and what a filter lets through, is told of whole shards.
        """
        manifest, storage = self._dataset.manifest, self._dataset.storage
        if self._selection is not None or (self.quarantine and self.quarantine.accepts):
            return False
        if manifest.shard_format == "parquet":
            return True
        records = sum(shard.records for shard in self._shards)
        small = sum(shard.bytes for shard in self._shards) < _SMALL_RECORD * records
        slow = small and storage.local_path is not None and not kernels.are_compiled()
        return manifest.compression == "none" and not slow

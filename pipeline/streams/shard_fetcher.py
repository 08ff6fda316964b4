"""Bring shards into memory: fetch, verify and open them, ahead of need, once for all streams of a process.

Shards are fetched whole, unless only a few columns of Parquet or a part of the records is needed (as where the cut
between two streams divides a shard) and there is no cache to keep the rest.

A shard is freed as soon as nobody holds it, so memory is bounded by the windows that are open or prefetched.
Tested in tests/pipeline/test_loader.py and tests/pipeline/streams/test_borrowed_records.py.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.pipeline.decode.shard_opener import OpenShard, ReadContext, ShardOpener
from ringfeed.pipeline.fetch.adaptive_limit import AdaptiveLimit
from ringfeed.pipeline.fetch.fetch_pool import FetchPool
from ringfeed.pipeline.fetch.quarantine import Quarantine
from ringfeed.pipeline.order.windows import Segment
from ringfeed.pipeline.select.sample_columns import ORIGIN
from ringfeed.sharding.compute import kernels
from ringfeed.sharding.dataset.manifest import ShardInfo
from ringfeed.sharding.errors import CorruptionError

from .borrowed_records import BorrowedRecords

T = TypeVar("T")
LEAST_THREADS = 4  # for a local disk, and at first for a remote store
MOST_THREADS = 24  # for a remote store: its client keeps 32 connections, some of them for second requests
_NOW = -1  # before any step
_SMALL_RECORD_BYTES = 1024  # without kernels, checking records this small takes longer than reading a local shard whole


class _Shared(Generic[T]):
    """A value that is made on demand and shared as long as somebody holds it."""

    def __init__(self) -> None:
        self._held: Callable[[], T | None] = lambda: None
        self._lock = threading.Lock()

    def get(self, make: Callable[[], T]) -> T:
        with self._lock:
            value = self._held()
            if value is None:
                value = make()
                self._held = weakref.ref(value)
            return value


class ShardFetcher:
    """Opens the shards of one split in background threads.

    Args:
        context: dataset, features, cache and counters.
        shards: shards of the split.
        quarantine: shards to leave out.
        threads: threads that fetch and decode; None: 4, and for a remote store up to 24 while throughput grows.
        with_origins: whether to add the column `ORIGIN`.

    Attributes:
        quarantine: the argument.
        in_parts: whether a part of a shard can be read alone.
        exact: whether exactly the requested rows are read; Parquet reads the row groups that hold them.
        borrowed: records lent to windows that lack a class; for the planning thread only.
    """

    def __init__(
        self,
        context: ReadContext,
        shards: Sequence[ShardInfo],
        quarantine: Quarantine,
        *,
        threads: int | None = None,
        with_origins: bool = False,
    ) -> None:
        self._dataset = context.dataset
        self._shards = shards
        self._counters = context.counters
        self._selection = context.selection
        self._with_origins = with_origins
        self.quarantine = quarantine
        self.in_parts = context.cache is None and self._reads_parts()
        self.exact = self.in_parts and context.dataset.manifest.shard_format == "tfrecord"
        self._opener = ShardOpener(context)
        least, most = threads or LEAST_THREADS, threads or MOST_THREADS
        most = least if context.dataset.storage.local_path is not None else most
        self._pool: FetchPool[OpenShard] = FetchPool(AdaptiveLimit(least, most), most)
        self._open: weakref.WeakValueDictionary[Segment, Future[OpenShard]] = weakref.WeakValueDictionary()
        self._indexes: defaultdict[int, _Shared[pa.RecordBatch]] = defaultdict(_Shared)  # of shards read in parts
        self._wholes: defaultdict[int, _Shared[OpenShard]] = defaultdict(_Shared)  # of shards that turned out not to
        self._lock = threading.Lock()
        self.borrowed = BorrowedRecords()

    def request(self, segment: Segment, step: int = _NOW) -> Future[OpenShard]:
        """Begin to open a segment of a shard, unless somebody holds it. Keep the future as long as it is needed.

        Args:
            segment: needed records; the opened shard may hold more.
            step: step that needs them; the earliest step goes first. Default: now.
        """
        shard = segment.shard
        whole = self.whole(shard)
        segment = segment if self.in_parts else whole
        with self._lock:
            future = self._open.get(whole) or self._open.get(segment)
            if future is None and shard in self.quarantine:
                future = Future()
                future.set_exception(self.quarantine.read_error(shard))
            elif future is None:
                self._counters.add("fetch", queue=1)
                future = self._pool.submit(step, partial(self._fetch, segment), self.bytes_of([segment]))
                future.add_done_callback(self._leave_queue)
                self._open[segment] = future
            else:
                self._pool.hasten(future, step)
            return future

    def whole(self, shard: int) -> Segment:
        """Return the segment of all records of a shard, by its position."""
        return Segment(shard=shard, start=0, stop=self._shards[shard].records)

    def bytes_of(self, segments: Sequence[Segment]) -> int:
        """Return about how many bytes are read for some segments."""
        infos = [(self._shards[segment.shard], segment.rows) for segment in segments]
        data = sum(info.bytes * (rows / max(info.records, 1) if self.in_parts else 1.0) for info, rows in infos)
        return int(data * self._opener.read_fraction) + sum(info.index_bytes for info, _ in infos)

    def wait(self, future: Future[OpenShard]) -> OpenShard:
        """Wait for a shard and return it.

        Raises:
            CorruptionError: the shard is damaged or in quarantine.
            StorageError: the store refuses access.
        """
        if future.done():
            return future.result()
        with self._counters.waiting("fetch"):
            return future.result()

    def wait_unless_bad(self, shard: int, future: Future[OpenShard]) -> OpenShard | None:
        """Wait for a shard and return it; None if it is in quarantine or goes there now.

        Raises:
            CorruptionError: the shard is damaged, and damage stops the loader.
            StorageError: the store refuses access.
        """
        try:
            return self.wait(future)
        except CorruptionError as error:
            if not self.quarantine.add(shard, error):
                raise
            return None

    def close(self) -> None:
        """Start no more work, and let the threads end."""
        self._pool.close()
        self._opener.close()

    def class_ids(self, shard: int) -> npt.NDArray[np.int32]:
        """Return the class of each record of a shard, from its index alone.

        Raises:
            CorruptionError: the index is damaged. If damaged shards go into quarantine, this one has.
            StorageError: the store refuses access.
        """
        info = self._shards[shard]
        try:
            class_ids: npt.NDArray[np.int32] = self._opener.index(info).column("class_id").to_numpy()
        except CorruptionError as error:
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

    def _leave_queue(self, _: Future[OpenShard]) -> None:
        self._counters.add("fetch", queue=-1)

    def _reads_parts(self) -> bool:
        """Return whether a part of a shard can be read alone. A filter and the quarantine need whole shards."""
        manifest, storage = self._dataset.manifest, self._dataset.storage
        if self._selection is not None or self.quarantine.accepts:
            return False
        if manifest.shard_format == "parquet":
            return True
        records = sum(shard.records for shard in self._shards)
        small = sum(shard.bytes for shard in self._shards) < _SMALL_RECORD_BYTES * records
        slow = small and storage.local_path is not None and not kernels.are_compiled()
        return manifest.compression == "none" and not slow

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
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..sharding.dataset import Dataset, read_checked
from ..sharding.errors import CorruptionError
from ..sharding.formats.encode import sums_in_index
from ..sharding.formats.parquet import groups_of_rows
from ..sharding.formats.tfrecord import decompress
from ..sharding.manifest import ShardInfo
from ..sharding.schema import Schema
from ..sharding.storage import public_url
from .cache import ShardCache
from .cache_folder import CacheKey
from .columns import Columns, open_parquet, take_columns
from .concurrency import Climber
from .counters import Counters
from .fetch_pool import FetchPool
from .frames import open_features, open_tfrecord
from .partial import NotWorthwhile
from .quarantine import Quarantine
from .reading import SourceReader
from .selection import Selection
from .values import open_values
from .windows import Segment

__all__ = ["OpenShard", "ShardFetcher"]

T = TypeVar("T")
_THREADS = 4  # of a local disk, and of a remote store at first
_MOST_THREADS = 24  # of a remote store; its client keeps 32 connections, some for second requests
_NOW = -1  # sooner than any step
_SMALL_RECORD = 1024  # bytes: checking such records one by one costs more than reading a whole shard from a local disk


@dataclass(frozen=True)
class OpenShard:
    """A shard in memory, or a part of it.

    Attributes:
        columns: of its records.
        class_ids: of each record, int32 [records].
        first: number of the first record in the shard.
        index: is held here for others that open parts of the same shard.
    """

    columns: Columns
    class_ids: npt.NDArray[np.int32]
    first: int = 0
    index: pa.RecordBatch | None = None


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
        found: whether the features of undecoded records are found when a shard is opened: see `values.py`.

    Attributes:
        quarantine: the same.
        in_parts: whether of a shard that is needed in part no more is read, where its format allows it.
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
        found: bool = False,
    ) -> None:
        self._dataset = dataset
        self._shards = shards
        self._schema = schema
        self._fill = fill
        self._counters = counters
        self._cache = cache
        self._identity = public_url(dataset.storage.locate())
        self._selection = selection
        self.quarantine = quarantine
        self._found = found
        self._columns = None if cache is not None else self._few_columns()
        self._share = 1.0  # of a shard's file that is read for its columns
        self.in_parts = self._reads_parts()
        self._reader = SourceReader(dataset, counters, mapped=cache is None, hedging=hedging)
        least, most = threads or _THREADS, threads or _MOST_THREADS
        most = least if dataset.storage.local_path is not None else most
        self._pool: FetchPool[OpenShard] = FetchPool(Climber(least, most), most)
        self._open: weakref.WeakValueDictionary[Segment, Future[OpenShard]] = weakref.WeakValueDictionary()
        self._indexes: defaultdict[int, _Shared[pa.RecordBatch]] = defaultdict(_Shared)  # of shards opened in parts
        self._wholes: defaultdict[int, _Shared[OpenShard]] = defaultdict(_Shared)  # of those that it turned out cannot
        self._lock = threading.Lock()

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
                future.set_exception(self.quarantine.error(shard))
            elif future is None:
                self._counters.add("fetch", queue=1)
                future = self._pool.submit(step, partial(self._fetch, segment), self.bytes_of([segment]))
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
        return int(data * self._share) + sum(info.index_bytes for info, _ in infos)

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
        self._reader.close()

    def class_ids(self, shard: int) -> npt.NDArray[np.int32]:
        """The class of each record, from the index alone."""
        info = self._shards[shard]
        buffer = read_checked(self._dataset.storage, info.index_path, info.index_bytes, info.index_checksum)
        class_ids: npt.NDArray[np.int32] = _decode_index(buffer).column("class_id").to_numpy()
        return class_ids if self._selection is None else self._selection.class_ids(info, class_ids)

    def _fetch(self, segment: Segment) -> OpenShard:
        info = self._shards[segment.shard]
        try:
            if segment.rows == info.records:
                return self._open_shard(info)
            part = self._open_part(segment)
            if part is not None:
                return part
            with self._lock:
                shared = self._wholes[segment.shard]
            return shared.get(partial(self._open_shard, info))
        finally:
            self._counters.add("fetch", queue=-1)

    def _reads_parts(self) -> bool:
        """Whether of a shard that is needed in part only this part is read.

        What is in quarantine, and what a filter lets through, is told of whole shards.
        """
        manifest, storage = self._dataset.manifest, self._dataset.storage
        if self._cache is not None or self._selection is not None or (self.quarantine and self.quarantine.takes):
            return False
        if manifest.shard_format == "parquet":
            return True
        records = sum(shard.records for shard in self._shards)
        small = sum(shard.bytes for shard in self._shards) < _SMALL_RECORD * records
        return manifest.compression == "none" and not (small and storage.local_path is not None)

    def _open_part(self, segment: Segment) -> OpenShard | None:
        """A segment of a shard; None if it is not to be had alone."""
        info = self._shards[segment.shard]
        with self._lock:
            shared = self._indexes[segment.shard]
        index = shared.get(partial(self._read_index, info))
        if index.num_rows != info.records:
            return None
        read = self._open_rows if self._dataset.manifest.shard_format == "parquet" else self._open_frames
        return read(info, index, segment)

    def _open_frames(self, info: ShardInfo, index: pa.RecordBatch, segment: Segment) -> OpenShard | None:
        own = index.slice(segment.start, segment.rows)
        start = own.column("offset")[0].as_py()
        data = self._reader.frames(info, start, own.column("length").to_numpy())
        if data is None:
            return None
        with self._counters.busy("open", items=1, size=data.size):
            own = own.set_column(0, "offset", pc.subtract(own.column("offset"), start))  # as if the file had no others
            ids = own.column("class_id").to_numpy()
            return OpenShard(columns=self._decode(data, own), class_ids=ids, first=segment.start, index=index)

    def _open_rows(self, info: ShardInfo, index: pa.RecordBatch, segment: Segment) -> OpenShard | None:
        rows, sums = (segment.start, segment.stop), sums_in_index(index)
        names = self._columns or frozenset(self._dataset.manifest.schema.names)
        try:
            part = None if sums is None else self._reader.columns(info, sums, names, rows)
        except NotWorthwhile:
            part = None
        if part is None:
            return None
        data, size = part
        with self._counters.busy("open", items=1, size=size):
            groups, there = groups_of_rows(data, rows)
            ids = index.column("class_id").to_numpy()[there.start : there.stop]
            columns = self._decode(data, index, groups)
            return OpenShard(columns=columns, class_ids=ids, first=there.start, index=index)

    def _open_shard(self, info: ShardInfo) -> OpenShard:
        few = self._columns
        if few is None:
            data = self._read_data(info)
            index, size = self._read_index(info), data.size
        else:
            index = self._read_index(info)
            data, size = self._read_columns(info, index, few)
        with self._counters.busy("open", items=1, size=size):
            records = info.records if self._selection is None else self._selection.written_records(info)
            if index.num_rows != records:
                raise CorruptionError(f"{info.index_path} has {index.num_rows} rows for {records} records")
            class_ids = index.column("class_id").to_numpy()
            if self._selection is None:
                columns = self._decode(data, index)
            else:
                picked = self._selection.pick(info, data, index)
                columns = take_columns(self._decode(data, index, picked.groups), picked.rows_read)
                class_ids = class_ids[picked.rows]
        return OpenShard(columns=columns, class_ids=class_ids)

    def _few_columns(self) -> frozenset[str] | None:
        """Names of the columns that are read of Parquet, if there are others."""
        manifest = self._dataset.manifest
        columns = frozenset(self._schema.names) | (self._selection.columns if self._selection else frozenset())
        few = manifest.shard_format == "parquet" and columns < frozenset(manifest.schema.names)
        return columns if few else None

    def _read_data(self, info: ShardInfo) -> pa.Buffer:
        return self._read(info.path, info.bytes, info.checksum, partial(self._reader.data, info))

    def _read_index(self, info: ShardInfo) -> pa.RecordBatch:
        read = partial(self._reader.index, info)
        return _decode_index(self._read(info.index_path, info.index_bytes, info.index_checksum, read))

    def _read_columns(self, info: ShardInfo, index: pa.RecordBatch, columns: frozenset[str]) -> tuple[pa.Buffer, int]:
        """The file of a shard, with these columns at least, and how many bytes of it were read."""
        sums = sums_in_index(index)
        part = None
        if sums is not None:
            try:
                part = self._reader.columns(info, sums, columns, None)
            except NotWorthwhile:
                self._columns = None  # nor will it be of the next
        if part is not None:
            self._share = part[1] / info.bytes
            return part
        data = self._read_data(info)
        return data, data.size

    def _read(self, path: str, size: int, expected: str, fetch: Callable[[], pa.Buffer]) -> pa.Buffer:
        if self._cache is None:
            return fetch()
        key = CacheKey(dataset=self._identity, path=path, size=size, checksum=expected)
        return self._cache.get(key, fetch, self._counters, partial(self._dataset.storage.copy_out, path))

    def _decode(self, data: pa.Buffer, index: pa.RecordBatch, groups: Sequence[int] | None = None) -> Columns:
        manifest = self._dataset.manifest
        if manifest.shard_format == "parquet":
            return open_parquet(data, self._schema, self._fill, groups)
        if manifest.compression != "none":
            data = pa.py_buffer(decompress(data.to_pybytes(), manifest.compression))
        if self._found:
            return open_values(data, index, manifest.schema, self._schema)
        columns = open_tfrecord(data, index, manifest.layout)
        if manifest.layout is None or self._schema.names == manifest.schema.names:
            return columns
        return open_features(columns, self._schema, manifest.layout.select(self._schema.names))


def _decode_index(data: pa.Buffer) -> pa.RecordBatch:
    return pa.ipc.open_file(pa.BufferReader(data)).read_all().combine_chunks().to_batches()[0]

"""Shards brought into memory: fetched whole, checked, opened; ahead of need, and shared by the streams of a process.

A shard that nobody holds any more is let go at once, so memory is bounded by the windows that are open or ahead.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..sharding.dataset import Dataset, read_checked
from ..sharding.errors import CorruptionError
from ..sharding.formats.tfrecord import decompress
from ..sharding.manifest import ShardInfo, checksum
from ..sharding.schema import Schema
from ..sharding.storage import public_url
from .cache import ShardCache
from .cache_folder import CacheKey
from .columns import Columns, open_parquet, take_columns
from .counters import Counters
from .frames import open_features, open_tfrecord
from .selection import Selection

__all__ = ["OpenShard", "ShardFetcher"]


@dataclass(frozen=True)
class OpenShard:
    """A shard in memory: its columns, and the class of each record, int32 [records]."""

    columns: Columns
    class_ids: npt.NDArray[np.int32]


class ShardFetcher:
    """Opens the shards of one split in background threads.

    Args:
        dataset: opened.
        shards: of the split.
        schema: of the features wanted.
        fill: see `Loader`.
        counters: of the loader.
        threads: that fetch and decode.
        cache: that keeps copies of the files, or None.
        selection: of the records that a filter lets through; None for all.
    """

    def __init__(
        self,
        dataset: Dataset,
        shards: Sequence[ShardInfo],
        schema: Schema,
        fill: Mapping[str, Any],
        counters: Counters,
        threads: int,
        cache: ShardCache | None = None,
        selection: Selection | None = None,
    ) -> None:
        self._dataset = dataset
        self._shards = shards
        self._schema = schema
        self._fill = fill
        self._counters = counters
        self._cache = cache
        self._identity = public_url(dataset.storage.locate())
        self._selection = selection
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ringfeed-fetch")
        self._open: weakref.WeakValueDictionary[int, Future[OpenShard]] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def request(self, shard: int) -> Future[OpenShard]:
        """Begin to open a shard, unless somebody holds it; keep the future as long as the shard is needed."""
        with self._lock:
            future = self._open.get(shard)
            if future is None:
                self._counters.add("fetch", queue=1)
                future = self._pool.submit(self._fetch, shard)
                self._open[shard] = future
            return future

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

    def close(self) -> None:
        """Begin nothing more, and let the threads end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def class_ids(self, shard: int) -> npt.NDArray[np.int32]:
        """The class of each record, from the index alone."""
        info = self._shards[shard]
        buffer = read_checked(self._dataset.storage, info.index_path, info.index_bytes, info.index_checksum)
        class_ids: npt.NDArray[np.int32] = _read_index(buffer).column("class_id").to_numpy()
        return class_ids if self._selection is None else self._selection.class_ids(info, class_ids)

    def _fetch(self, shard: int) -> OpenShard:
        info = self._shards[shard]
        data = self._read(info.path, info.bytes, info.checksum)
        index = _read_index(self._read(info.index_path, info.index_bytes, info.index_checksum))
        with self._counters.busy("open", items=1, size=data.size):
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
        self._counters.add("fetch", queue=-1)
        return OpenShard(columns=columns, class_ids=class_ids)

    def _read(self, path: str, size: int, expected: str) -> pa.Buffer:
        if self._cache is None:
            return self._read_source(path, size, expected)
        key = CacheKey(dataset=self._identity, path=path, size=size, checksum=expected)
        fetch = partial(self._read_source, path, size, expected)
        return self._cache.get(key, fetch, self._counters, partial(self._dataset.storage.copy_out, path))

    def _read_source(self, path: str, size: int, expected: str) -> pa.Buffer:
        storage = self._dataset.storage
        with self._counters.busy("fetch", items=1, size=size):
            try:
                copied = self._cache is not None and storage.local_path is not None  # a mapping would be no copy
                data = pa.py_buffer(storage.read(path)) if copied else storage.map(path)
            except FileNotFoundError as error:
                raise CorruptionError(f"{storage.locate(path)} is missing; see: shard-dataset verify") from error
        with self._counters.busy("verify", items=1, size=size):
            if data.size != size or checksum(data) != expected:
                raise CorruptionError(
                    f"{storage.locate(path)} is damaged ({data.size} of {size} bytes, or another checksum); "
                    "find out where with: shard-dataset verify"
                )
        return data

    def _decode(self, data: pa.Buffer, index: pa.RecordBatch, groups: Sequence[int] | None = None) -> Columns:
        manifest = self._dataset.manifest
        if manifest.shard_format == "parquet":
            return open_parquet(data, self._schema, self._fill, groups)
        if manifest.compression != "none":
            data = pa.py_buffer(decompress(data.to_pybytes(), manifest.compression))
        columns = open_tfrecord(data, index, manifest.layout)
        if manifest.layout is None or self._schema.names == manifest.schema.names:
            return columns
        return open_features(columns, self._schema, manifest.layout.select(self._schema.names))


def _read_index(data: pa.Buffer) -> pa.RecordBatch:
    return pa.ipc.open_file(pa.BufferReader(data)).read_all().combine_chunks().to_batches()[0]

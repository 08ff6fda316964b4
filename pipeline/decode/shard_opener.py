"""Opens shards, whole or in part: fetches their bytes, checks them and decodes them into columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.pipeline.fetch.disk_cache import CacheKey
from ringfeed.pipeline.fetch.parquet_ranges import PartTooLarge
from ringfeed.pipeline.fetch.shard_cache import ShardCache
from ringfeed.pipeline.fetch.shard_files import SourceReader
from ringfeed.pipeline.metrics.stage_counters import Counters
from ringfeed.pipeline.order.windows import Segment
from ringfeed.pipeline.select.selected_rows import Selection
from ringfeed.sharding.dataset.consistency import corruption_errors
from ringfeed.sharding.dataset.dataset import Dataset
from ringfeed.sharding.dataset.manifest import ShardInfo
from ringfeed.sharding.dataset.shard_index import index_rows
from ringfeed.sharding.formats.parquet import groups_of_rows
from ringfeed.sharding.formats.shard_encode import sums_in_index
from ringfeed.sharding.formats.tfrecord import decompress
from ringfeed.sharding.schema import Schema

from .columns import Columns, open_parquet, take_columns
from .page_locations import PageLocationCache
from .tfrecord_frames import open_features, open_tfrecord
from .tfrecord_values import open_masked, open_values

_page_locations = PageLocationCache()  # shared by all loaders, which make an opener for each epoch


@dataclass(frozen=True)
class OpenShard:
    """A shard in memory, or a part of it."""

    columns: Columns
    class_ids: npt.NDArray[np.int32]  # class of each record, int32 [records]
    first: int = 0  # number in the shard of the first record
    index: pa.RecordBatch | None = None  # the shard's index, kept alive for others that open parts of the same shard
    # Numbers in the shard of the records, if these do not run from `first` on
    rows: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """What a loader reads shards with."""

    dataset: Dataset  # the opened dataset
    schema: Schema  # features to read
    fill: Mapping[str, Any]  # value that replaces a missing one, by feature
    masks: Sequence[str] = ()  # features whose missing values are marked
    counters: Counters
    cache: ShardCache | None = None  # cache for the files; None reads from the source
    selection: Selection | None = None  # records that pass the filter; None for all records
    hedging: bool = True  # whether slow reads of a remote store may be sent a second time
    # Whether opening a shard locates the features of its undecoded records (see `tfrecord_values`)
    locate_features: bool = False


class ShardOpener:
    """Fetches and opens the shards of one split. Thread-safe.

    Args:
        context: dataset, features, cache and counters.

    Attributes:
        read_fraction: fraction of a whole shard's file that is read; below 1 where only some Parquet columns are.
    """

    def __init__(self, context: ReadContext) -> None:
        dataset, cache = context.dataset, context.cache
        self._dataset = dataset
        self._schema = context.schema
        self._fill = context.fill
        self._masks = context.masks
        self._counters = context.counters
        self._cache = cache
        self._identity = dataset.storage.locate()
        self._selection = context.selection
        self._locates_features = context.locate_features
        self._columns = None if cache is not None else self._few_columns()
        self.read_fraction = 1.0
        self._reader = SourceReader(dataset, context.counters, mapped=cache is None, hedging=context.hedging)

    def close(self) -> None:
        """Stop waiting for the store."""
        self._reader.close()

    def index(self, info: ShardInfo) -> pa.RecordBatch:
        """The index of a shard.

        Raises:
            CorruptionError: the shard is damaged.
            StorageError: the store refuses.
        """
        read = partial(self._reader.index, info)
        data = self._read(info.index_path, info.index_bytes, info.index_checksum, read)
        written = info if self._selection is None else self._selection.full_shard(info)
        return index_rows(data, self._dataset.manifest, written, self._dataset.storage.locate(info.index_path))

    def part(self, info: ShardInfo, index: pa.RecordBatch, segment: Segment) -> OpenShard | None:
        """Part of a shard: the records of a segment, perhaps with some around them; None to read the shard whole.

        Args:
            info: the shard.
            segment: the records that are needed.
        """
        read = self._open_rows if self._dataset.manifest.shard_format == "parquet" else self._open_frames
        return read(info, index, segment)

    def whole(self, info: ShardInfo) -> OpenShard:
        """A whole shard: all its records, or those that the filter lets through.

        Raises:
            CorruptionError: the shard is damaged.
            StorageError: the store refuses.
        """
        names = self._columns
        if names is None:
            data = self._read_data(info)
            index, size = self.index(info), data.size
        else:
            index = self.index(info)
            data, size = self._read_columns(info, index, names)
        with self._counters.busy("open", items=1, size=size), self._described(info):
            class_ids, rows = index.column("class_id").to_numpy(), None
            if self._selection is None:
                columns = self._decode(data, index, known_as=info.checksum)
                _check_rows(columns, index.num_rows)
            else:
                kept = self._selection.filter(info, data, index)
                columns = take_columns(self._decode(data, index, kept.groups), kept.rows_in_groups)
                class_ids, rows = class_ids[kept.rows], kept.rows
        return OpenShard(columns=columns, class_ids=class_ids, rows=rows)

    def _open_frames(self, info: ShardInfo, index: pa.RecordBatch, segment: Segment) -> OpenShard | None:
        own = index.slice(segment.start, segment.rows)
        start = own.column("offset")[0].as_py()
        data = self._reader.frames(info, start, own.column("length").to_numpy())
        if data is None:
            return None
        with self._counters.busy("open", items=1, size=data.size), self._described(info):
            own = own.set_column(0, "offset", pc.subtract(own.column("offset"), start))  # relative to the bytes read
            ids = own.column("class_id").to_numpy()
            return OpenShard(columns=self._decode(data, own), class_ids=ids, first=segment.start, index=index)

    def _open_rows(self, info: ShardInfo, index: pa.RecordBatch, segment: Segment) -> OpenShard | None:
        rows, sums = (segment.start, segment.stop), self._sums(info, index)
        names = self._columns or frozenset(self._dataset.manifest.schema.names)
        try:
            with self._described(info):
                part = None if sums is None else self._reader.columns(info, sums, names, rows)
        except PartTooLarge:
            part = None
        if part is None:
            return None
        data, size = part
        with self._counters.busy("open", items=1, size=size), self._described(info):
            groups, covered = groups_of_rows(data, rows)
            ids = index.column("class_id").to_numpy()[covered.start : covered.stop]
            columns = self._decode(data, index, groups)
            _check_rows(columns, len(ids))
            return OpenShard(columns=columns, class_ids=ids, first=covered.start, index=index)

    def _described(self, info: ShardInfo) -> AbstractContextManager[None]:
        return corruption_errors(self._dataset.storage.locate(info.path))

    def _sums(self, info: ShardInfo, index: pa.RecordBatch) -> bytes | None:
        with corruption_errors(self._dataset.storage.locate(info.index_path)):
            return sums_in_index(index)

    def _few_columns(self) -> frozenset[str] | None:
        """The columns to read from Parquet shards; None if that leaves out at most the label, which is small."""
        manifest = self._dataset.manifest
        columns = frozenset(self._schema.names) | (self._selection.columns if self._selection else frozenset())
        others = frozenset(manifest.schema.names) - columns - {manifest.schema.label}
        return columns if others and manifest.shard_format == "parquet" else None

    def _read_data(self, info: ShardInfo) -> pa.Buffer:
        return self._read(info.path, info.bytes, info.checksum, partial(self._reader.data, info))

    def _read_columns(self, info: ShardInfo, index: pa.RecordBatch, columns: frozenset[str]) -> tuple[pa.Buffer, int]:
        """A shard's file with at least these columns, and how many bytes of it were read."""
        sums = self._sums(info, index)
        part = None
        if sums is not None:
            try:
                with self._described(info):
                    part = self._reader.columns(info, sums, columns, None)
            except PartTooLarge:
                self._columns = None  # nor will a part of the next shard be worth it
        if part is not None:
            self.read_fraction = part[1] / info.bytes
            return part
        data = self._read_data(info)
        return data, data.size

    def _read(self, path: str, size: int, expected: str, fetch: Callable[[], pa.Buffer]) -> pa.Buffer:
        if self._cache is None:
            return fetch()
        key = CacheKey(dataset=self._identity, path=path, size=size, checksum=expected)
        return self._cache.get(key, fetch, self._counters, partial(self._dataset.storage.copy_out, path))

    def _decode(
        self, data: pa.Buffer, index: pa.RecordBatch, groups: Sequence[int] | None = None, known_as: str = ""
    ) -> Columns:
        """The columns of a file, or of some of its row groups; `known_as` is the checksum of a whole file."""
        manifest = self._dataset.manifest
        if manifest.shard_format == "parquet":
            find = partial(open_parquet, data, self._schema, self._fill, groups, self._masks)
            is_known = known_as and not self._masks  # locations say nothing about missing values
            return _page_locations.open(known_as, data, self._schema, find) if is_known else find()
        if manifest.compression != "none":
            data = pa.py_buffer(decompress(data.to_pybytes(), manifest.compression))
        if self._locates_features:
            return open_values(data, index, manifest.schema, self._schema)
        if self._masks:
            return open_masked(data, index, manifest, self._schema, self._fill, self._masks)
        columns = open_tfrecord(data, index, manifest.layout)
        if manifest.layout is None or self._schema.names == manifest.schema.names:
            return columns
        return open_features(columns, self._schema, manifest.layout.select(self._schema.names))


def _check_rows(columns: Columns, records: int) -> None:
    for name, values in columns.items():
        if len(values) != records:
            raise ValueError(f"it has {len(values)} records ({name!r}), not {records}")

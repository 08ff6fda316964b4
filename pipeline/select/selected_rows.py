"""The records of a split that pass a filter: counted before the epoch is ordered, selected as shards are opened.

The counts shape the order, so every rank counts for itself, from the same files. Counting reads as little as possible:
nothing for a filter on the label alone, which the manifest answers; of Parquet, the filter's columns in the row groups
that statistics do not rule out, verifying the checksum of each page. A shard opened later is verified as a whole, and
as many of its records must pass as were counted.
Tested in tests/pipeline/select/test_where_expression.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.pipeline.order.epoch_plan import FilterPlan
from ringfeed.sharding.compute.class_counts import ClassCounts, count_matrix
from ringfeed.sharding.dataset.consistency import corruption_errors
from ringfeed.sharding.dataset.dataset import Dataset, read_checked, repair_hint
from ringfeed.sharding.dataset.manifest import ShardInfo
from ringfeed.sharding.dataset.shard_records import decode_tfrecord, read_index_rows
from ringfeed.sharding.errors import ConfigError, CorruptionError, RingfeedError
from ringfeed.sharding.messages import brief

from .shard_filter import FilteredRows, filter_parquet, filter_records
from .where_expression import open_filter

if TYPE_CHECKING:
    import pyarrow.compute as pc

ClassIds = npt.NDArray[np.int32]


class Selection:
    """The records of a split that pass a filter.

    Args:
        dataset: opened dataset.
        split: name of the split.
        where: filter expression; see `Loader`.
        threads: threads that count.
        quarantine: whether shards may be unreadable; then the filter must use the label alone.

    Attributes:
        shards: shards with records that pass; `records` and `class_counts` count only these.
        split: split whose totals count only records that pass.
        plan: filter's part of the `LoaderPlan`.

    Raises:
        ConfigError: the expression is invalid, does not fit the columns, passes no record, or needs shards that may be
            unreadable.
        CorruptionError: a shard is damaged.
        StorageError: the store refuses access.
    """

    def __init__(
        self, dataset: Dataset, split: str, where: str | pc.Expression, threads: int, *, quarantine: bool = False
    ) -> None:
        shards = dataset.split_shards(split)
        self._dataset = dataset
        self._filter = open_filter(where, dataset.manifest.schema)
        self._full_shards = {shard.path: shard for shard in shards}
        self._classes = self._passing_classes()
        if quarantine and not self.by_label:
            raise ConfigError(
                "on_bad_shard='quarantine' needs a `where` on the label alone, or none: other filters cannot be "
                "evaluated for an unreadable shard"
            )
        with ThreadPoolExecutor(threads, thread_name_prefix="ringfeed-filter") as pool:
            counted = list(pool.map(self._count, shards))
        self.shards = tuple(shard for shard, _ in counted if shard.records)
        self.plan = FilterPlan(
            where=self._filter.text,
            records=sum(shard.records for shard in shards),
            kept=sum(shard.records for shard in self.shards),
            shards=len(shards),
            shards_kept=len(self.shards),
            row_groups=sum(kept.row_groups for _, kept in counted),
            row_groups_skipped=sum(p.row_groups - len(p.groups) for _, p in counted if p.groups is not None),
            bytes_read=sum(kept.bytes_read for _, kept in counted),
            bytes_skipped=sum(kept.bytes_skipped for _, kept in counted),
        )
        if not self.plan.kept:
            raise ConfigError(f"none of the {self.plan.records} records passes where {self._filter.text!r}")
        class_counts = count_matrix([shard.class_counts for shard in self.shards]).sum(axis=0, dtype=np.int64)
        info = dataset.manifest.split(split)
        self.split = replace(info, records=self.plan.kept, class_counts=tuple(class_counts.tolist()))

    @property
    def by_label(self) -> bool:
        """Whether the label alone decides, so that no shard is read to count."""
        return self._classes is not None

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that the filter reads from an opened shard."""
        return frozenset() if self.by_label else frozenset(self._filter.columns)

    def full_shard(self, shard: ShardInfo) -> ShardInfo:
        """Return a shard with the counts of all its records."""
        return self._full_shards[shard.path]

    def class_ids(self, shard: ShardInfo, class_ids: ClassIds) -> ClassIds:
        """Return the classes of the records that pass, given those of all records of a shard."""
        if self._classes is None:
            return class_ids[self._filter_stored(self._full_shards[shard.path]).rows]
        return class_ids[self._by_class(class_ids)]

    def filter(self, shard: ShardInfo, data: pa.Buffer, index: pa.RecordBatch) -> FilteredRows:
        """Filter the records of a shard in memory.

        Args:
            shard: one of `shards`.
            data: verified bytes of its file.

        Raises:
            CorruptionError: the number of records that pass is not the counted one.
        """
        if self._classes is not None:
            rows = self._by_class(index.column("class_id").to_numpy())
            kept = FilteredRows(rows=rows, rows_in_groups=rows)
        elif self._dataset.manifest.shard_format == "parquet":
            kept = filter_parquet(pa.BufferReader(data), self._filter, check_pages=False)
        else:
            kept = self._filter_tfrecord(shard, data, index)
        if len(kept.rows) != shard.records:
            raise CorruptionError(
                f"{self._dataset.storage.locate(shard.path)}: {shard.records} of its records passed where "
                f"{self._filter.text!r} when they were counted, and {len(kept.rows)} pass now: the shard has been "
                "replaced since, or was misread then; check it with: shard-dataset verify"
            )
        return kept

    def _passing_classes(self) -> npt.NDArray[np.bool_] | None:
        """Return whether each class passes; None unless the label alone decides."""
        manifest = self._dataset.manifest
        label = manifest.schema.label
        if label is None or self._filter.columns != {label}:
            return None
        values = pa.array(manifest.classes, manifest.schema[label].arrow_type)
        kept = np.zeros(len(values), np.bool_)
        kept[self._filter.rows({label: values})] = True
        return kept

    def _by_class(self, class_ids: ClassIds) -> npt.NDArray[np.int64]:
        assert self._classes is not None
        return np.flatnonzero(self._classes[class_ids])

    def _count(self, shard: ShardInfo) -> tuple[ShardInfo, FilteredRows]:
        """Return a shard that counts only the records that pass, and how they were found."""
        counts = np.asarray(shard.class_counts, np.int64)
        if self._classes is not None:
            nothing = np.empty(0, np.int64)
            counts = counts * self._classes
            kept = FilteredRows(rows=nothing, rows_in_groups=nothing)
        else:
            kept = self._filter_stored(shard)
            if not len(kept.rows):
                counts = np.zeros_like(counts)
            elif len(kept.rows) < shard.records:
                index = read_index_rows(self._dataset.storage, self._dataset.manifest, shard)
                ids = index.column("class_id").to_numpy()
                counts = np.bincount(ids[kept.rows], minlength=len(counts))
        return replace(shard, records=int(counts.sum()), class_counts=ClassCounts(counts)), kept

    def _filter_stored(self, shard: ShardInfo) -> FilteredRows:
        """Filter the records of a shard in the store."""
        storage, manifest = self._dataset.storage, self._dataset.manifest
        if manifest.shard_format == "parquet":
            with corruption_errors(storage.locate(shard.path)), self._opened(shard) as file:
                return filter_parquet(file, self._filter, check_pages=True)
        index = None if manifest.layout is not None else read_index_rows(storage, manifest, shard)
        return self._filter_tfrecord(shard, read_checked(storage, shard.path, shard.bytes, shard.checksum), index)

    def _filter_tfrecord(self, shard: ShardInfo, data: pa.Buffer, index: pa.RecordBatch | None) -> FilteredRows:
        full = self._full_shards[shard.path]
        batches = decode_tfrecord(self._dataset.manifest, full, data, index, sorted(self._filter.columns))
        with corruption_errors(self._dataset.storage.locate(shard.path)):
            return filter_records(batches, self._filter, shard.bytes)

    @contextmanager
    def _opened(self, shard: ShardInfo) -> Iterator[IO[bytes] | pa.NativeFile]:
        storage = self._dataset.storage
        where = storage.locate(shard.path)
        try:
            with storage.open_input(shard.path, read_ahead=False) as file:
                yield file
        except FileNotFoundError as error:
            raise CorruptionError(f"{where} is missing; {repair_hint(storage)}") from error
        except RingfeedError:
            raise
        except (OSError, pa.ArrowInvalid) as error:
            reason = brief(error)
            raise CorruptionError(
                f"{where} is damaged: {reason}; locate the damage with: shard-dataset verify"
            ) from error

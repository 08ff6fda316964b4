"""The records of a split that a filter lets through: counted before an epoch is ordered, found as shards are opened.

What is counted shapes the order, so all ranks count alike, each by itself, from the same files. Counting reads no more
than it must: nothing for a filter on the label, which the manifest answers; of Parquet the filter's columns, in the row
groups that their statistics do not rule out, each page held against its checksum. A shard that is opened later is
checked as a whole, and what it lets through must be what was counted.
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

from ...sharding.compute.class_counts import ClassCounts, count_matrix
from ...sharding.dataset.consistency import corruption_errors
from ...sharding.dataset.dataset import Dataset, read_checked, repair_hint
from ...sharding.dataset.manifest import ShardInfo
from ...sharding.dataset.shard_records import decode_tfrecord, read_index_rows
from ...sharding.errors import ConfigError, CorruptionError, RingfeedError
from ...sharding.messages import brief
from ..order.epoch_plan import FilterPlan
from .shard_filter import FilteredRows, filter_parquet, filter_records
from .where_expression import open_filter

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["Selection"]

ClassIds = npt.NDArray[np.int32]


class Selection:
    """The records of a split that a filter lets through.

    Args:
        dataset: opened.
        split: of it.
        where: see `Loader`.
        threads: that count.
        quarantine: whether shards may be unreadable; what is let through of these only a filter on the label tells.

    Attributes:
        shards: those with records that are let through; their `records` and `class_counts` are of these alone.
        split: its totals, likewise.
        plan: for `LoaderPlan`.

    Raises:
        ConfigError: the expression is none, does not fit the columns, or lets nothing through; or it needs shards that
            may be unreadable.
        CorruptionError: a shard is damaged.
        StorageError: the store refuses.
    """

    def __init__(
        self, dataset: Dataset, split: str, where: str | pc.Expression, threads: int, *, quarantine: bool = False
    ) -> None:
        shards = dataset.split_shards(split)
        self._dataset = dataset
        self._filter = open_filter(where, dataset.manifest.schema)
        self._written = {shard.path: shard for shard in shards}
        self._classes = self._classes_kept()
        if quarantine and not self.by_label:
            raise ConfigError(
                "on_bad_shard='quarantine' needs a `where` on the label alone, or none: what another lets through of a "
                "shard that cannot be read, nobody knows"
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
            raise ConfigError(f"where {self._filter.text!r} lets none of the {self.plan.records} records through")
        class_counts = count_matrix([shard.class_counts for shard in self.shards]).sum(axis=0, dtype=np.int64)
        info = dataset.manifest.split(split)
        self.split = replace(info, records=self.plan.kept, class_counts=tuple(class_counts.tolist()))

    @property
    def by_label(self) -> bool:
        """Whether the label alone decides: then no shard is read beforehand."""
        return self._classes is not None

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that are looked at in a shard that is opened."""
        return frozenset() if self.by_label else frozenset(self._filter.columns)

    def full_shard(self, shard: ShardInfo) -> ShardInfo:
        """The shard with all of its records."""
        return self._written[shard.path]

    def class_ids(self, shard: ShardInfo, class_ids: ClassIds) -> ClassIds:
        """Of the classes of all records of a shard, those of the records that are let through."""
        return class_ids[
            self._look(self._written[shard.path]).rows if self._classes is None else self._by_class(class_ids)
        ]

    def filter(self, shard: ShardInfo, data: pa.Buffer, index: pa.RecordBatch) -> FilteredRows:
        """The records of a shard in memory that are let through.

        Args:
            shard: one of `shards`.
            data: of the file, found to be whole.
            index: of the shard.

        Raises:
            CorruptionError: they are not as many as were counted.
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
                f"{self._filter.text!r} when they were counted, now {len(kept.rows)}: it was replaced since, or was "
                "misread then; see: shard-dataset verify"
            )
        return kept

    def _classes_kept(self) -> npt.NDArray[np.bool_] | None:
        """Whether each class is let through, if the label alone decides."""
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
        """A shard with the numbers of the records that are let through."""
        counts = np.asarray(shard.class_counts, np.int64)
        if self._classes is not None:
            nothing = np.empty(0, np.int64)
            counts = counts * self._classes
            kept = FilteredRows(rows=nothing, rows_in_groups=nothing)
        else:
            kept = self._look(shard)
            if not len(kept.rows):
                counts = np.zeros_like(counts)
            elif len(kept.rows) < shard.records:
                index = read_index_rows(self._dataset.storage, self._dataset.manifest, shard)
                ids = index.column("class_id").to_numpy()
                counts = np.bincount(ids[kept.rows], minlength=len(counts))
        left = replace(shard, records=int(counts.sum()), class_counts=ClassCounts(counts))
        return left, kept

    def _look(self, shard: ShardInfo) -> FilteredRows:
        """The records of a shard on storage that are let through."""
        storage, manifest = self._dataset.storage, self._dataset.manifest
        if manifest.shard_format == "parquet":
            with corruption_errors(storage.locate(shard.path)), self._opened(shard) as file:
                return filter_parquet(file, self._filter, check_pages=True)
        index = None if manifest.layout is not None else read_index_rows(storage, manifest, shard)
        return self._filter_tfrecord(shard, read_checked(storage, shard.path, shard.bytes, shard.checksum), index)

    def _filter_tfrecord(self, shard: ShardInfo, data: pa.Buffer, index: pa.RecordBatch | None) -> FilteredRows:
        written = self._written[shard.path]
        batches = decode_tfrecord(self._dataset.manifest, written, data, index, sorted(self._filter.columns))
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
            raise CorruptionError(f"{where} is damaged: {reason}; find out where with: shard-dataset verify") from error

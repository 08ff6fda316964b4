"""The task of the second round: read a part of the source and spill its records by bucket.

A task may run twice, in any process: its arguments can be pickled, and its result is an Arrow IPC file, whose record
batches each belong to one bucket. The next batch of the source is read in a thread while the last one is spilled.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.assignment.assignment import Assignment
from ringfeed.sharding.assignment.placement import Placement, Placer
from ringfeed.sharding.compute.arrays import Bools, Int32, Int64
from ringfeed.sharding.compute.arrow_casts import is_list
from ringfeed.sharding.compute.grouping import group
from ringfeed.sharding.destination.spill import PartSpill, Spill
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.prepare.screening.image_checks import check_images
from ringfeed.sharding.schema import Schema
from ringfeed.sharding.sources import Part, Source

PLACE, CLASS = "\0place", "\0class"  # extra columns of spill files; no column of a source has such a name
_SLICE_BYTES = 64 << 10  # of a bucket in one write; with less, the overhead of Arrow IPC would dominate

T = TypeVar("T")
Batches = Iterator[tuple[pa.RecordBatch, Int64]]  # records, and the bucket of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucketing:
    """Runs of consecutive shards. The bytes written do not depend on it."""

    assignment: Assignment  # assignment of records to shards
    shards_per_bucket: int  # shards in each bucket but the last

    @property
    def buckets(self) -> int:
        """Number of buckets."""
        return -(-self.assignment.shards // self.shards_per_bucket)

    def shards(self, bucket: int) -> range:
        """The shards of a bucket."""
        start = bucket * self.shards_per_bucket
        return range(start, min(start + self.shards_per_bucket, self.assignment.shards))

    def first_places(self) -> Int64:
        """The first place of each shard within its bucket, int64 [shards]."""
        sizes = np.concatenate([split.all_shard_records() for split in self.assignment.splits])
        firsts: Int64 = np.cumsum(sizes) - sizes
        result: Int64 = firsts - firsts[np.arange(len(sizes)) // self.shards_per_bucket * self.shards_per_bucket]
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTarget:
    """Where the records of all parts go."""

    bucketing: Bucketing  # buckets of the shards
    # Buckets that are yet to be assembled, bool [buckets]; records of the others are not spilled
    wanted: Bools
    spill: Spill  # spill folder
    run_bytes: int  # most bytes of records to collect before they are written


def partition_part(source: Source, part: Part, number: int, placement: Placement, target: PartitionTarget) -> PartSpill:
    """Read a part and spill its records by bucket; a SourceError if they are bad, or changed since the first pass."""
    bucketing, placer = target.bucketing, Placer(placement, number)
    first_places = bucketing.first_places()
    position = 0
    ranges: dict[str, tuple[int, int]] = {}
    has_nulls = False

    def tagged() -> Batches:
        nonlocal has_nulls, position
        for batch in read_ahead(source.drafts(part)):
            class_ids, shards, slots = placer.locate(batch)
            late = not set(source.schema.names).issubset(batch.schema.names)  # the rest may hold nulls, and is unread
            has_nulls = has_nulls or late or any(column.null_count for column in batch.columns)
            _check_elements(batch, part.path)
            check_images(source, part, batch, position)
            position += batch.num_rows
            widen_ranges(ranges, batch, source.schema)
            buckets = shards // bucketing.shards_per_bucket
            batch = _tag(batch, first_places[shards] + slots, class_ids)
            if not target.wanted.all():
                keep = target.wanted[buckets]
                batch, buckets = batch.filter(pa.array(keep)), buckets[keep]
            yield batch, buckets

    with target.spill.create(number) as sink:
        run_bytes = min(_SLICE_BYTES * bucketing.buckets, target.run_bytes)
        buckets = _write_by_bucket(_runs(tagged(), run_bytes), sink)
    result = PartSpill(
        buckets=buckets,
        records=placer.records,
        int_ranges=ranges,
        has_nulls=has_nulls,
        left_out=np.flatnonzero(~target.wanted),
    )
    target.spill.finish(number, result)
    return result


def _runs(batches: Batches, run_bytes: int) -> Batches:
    """Join batches until they hold `run_bytes`, so that each bucket's slice of them is worth a write."""
    run: list[tuple[pa.RecordBatch, Int64]] = []
    joined_bytes = 0
    for batch, buckets in batches:
        run.append((batch, buckets))
        joined_bytes += batch.get_total_buffer_size()
        if joined_bytes >= run_bytes:
            yield _join(run)
            run, joined_bytes = [], 0
    if run:
        yield _join(run)


def _join(run: Sequence[tuple[pa.RecordBatch, Int64]]) -> tuple[pa.RecordBatch, Int64]:
    if len(run) == 1:
        return run[0]
    batch = pa.concat_batches([batch for batch, _ in run])
    return batch, np.concatenate([buckets for _, buckets in run])


def _write_by_bucket(runs: Batches, sink: Any) -> Int64:
    """Write each bucket's records of a run as one record batch; return the bucket of each batch."""
    written = [np.empty(0, np.int64)]
    writer: pa.RecordBatchFileWriter | None = None
    for batch, buckets in runs:
        writer = writer or pa.ipc.new_file(sink, batch.schema)
        by_bucket = group(buckets)
        ordered = batch.take(pa.array(by_bucket.order))
        for start, stop in pairwise(by_bucket.bounds.tolist()):
            writer.write_batch(ordered.slice(start, stop - start))
        written.append(by_bucket.values.astype(np.int64))
    if writer is not None:
        writer.close()
    return np.concatenate(written)


def _check_elements(batch: pa.RecordBatch, path: str) -> None:
    """Refuse nulls inside a list, which `tf.train.Example` cannot hold; a whole value may be missing."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if is_list(column.type) and column.flatten().null_count:
            raise SourceError(
                f"{path}: lists in column {name!r} hold nulls; mark them with --mask-nulls {name}, fill them with "
                f"--fill-nulls {name}=VALUE, or drop those records with --drop-nulls {name}"
            )


def _tag(batch: pa.RecordBatch, places: Int64, class_ids: Int32) -> pa.RecordBatch:
    columns = [*batch.columns, pa.array(places), pa.array(class_ids)]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, PLACE, CLASS])


def widen_ranges(ranges: dict[str, tuple[int, int]], batch: pa.RecordBatch, schema: Schema) -> None:
    """Widen the ranges of the integer features of fixed shape to the values of a batch, as int64."""
    names = set(batch.schema.names)
    for feature in schema.features:
        if feature.example_kind != "int64" or feature.elements is None or feature.name not in names:
            continue
        column = batch.column(feature.name)
        values = column if feature.shape == () else column.flatten()
        values = values.cast(pa.int8()) if feature.dtype == "bool" else values
        bounds = pc.min_max(values).as_py()
        if bounds["min"] is None:
            continue
        low, high = bounds["min"], bounds["max"]
        low, high = (-1, 0) if high >= 1 << 63 else (low, high)  # a uint64 that is negative as int64
        widen_range(ranges, feature.name, low, high)


def widen_range(ranges: dict[str, tuple[int, int]], name: str, low: int, high: int) -> None:
    """Widen the range of a feature, ends included, to hold another."""
    seen = ranges.get(name, (low, high))
    ranges[name] = (min(low, seen[0]), max(high, seen[1]))


def read_ahead(items: Iterator[T]) -> Generator[T]:
    """Yield the items of an iterator, each fetched one ahead by a thread; its errors keep their place."""
    with ThreadPoolExecutor(1, thread_name_prefix="ringfeed-read-ahead") as thread:
        ahead = thread.submit(next, items, None)
        while (item := ahead.result()) is not None:
            ahead = thread.submit(next, items, None)
            yield item

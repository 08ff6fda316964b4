"""The pure tasks of a build: count a part's classes, partition a part, assemble the shards of a bucket.

Each is a function of values that can be sent to another process, may be run twice, and hands its result on through
files: a partition task writes one Arrow IPC file whose record batches each go to one bucket, a run of shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..assignment.assignment import Assignment
from ..assignment.placement import Placement, Placer
from ..common.read_ahead import read_ahead
from ..compute.arrow_casts import is_list
from ..compute.grouping import group
from ..dataset.file_names import index_name, shard_name
from ..destination.journal import ShardResult, record_shards
from ..destination.spill import PartSpill, Spill
from ..errors import SourceError
from ..prepare.screening.image_checks import check_images
from ..schema import Schema
from ..sources import Part, Source
from .shard_writer import ShardTarget, SmallFiles, write_shard

__all__ = ["Bucketing", "assemble_bucket", "partition_part", "shard_names"]

_PLACE, _CLASS = "\0place", "\0class"  # columns of spill files; no source has such names
_SLICE_BYTES = 64 << 10  # of a bucket, in one write to the spill file: less would drown in the overhead of Arrow IPC


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucketing:
    """Runs of shards that are partitioned, and assembled, together. What is written does not depend on it.

    Attributes:
        assignment: of records to shards.
        shards_per_bucket: so many in each but the last.
    """

    assignment: Assignment
    shards_per_bucket: int

    @property
    def buckets(self) -> int:
        """How many there are."""
        return -(-self.assignment.shards // self.shards_per_bucket)

    def shards(self, bucket: int) -> range:
        """The shards of a bucket."""
        start = bucket * self.shards_per_bucket
        return range(start, min(start + self.shards_per_bucket, self.assignment.shards))

    def first_places(self) -> npt.NDArray[np.int64]:
        """Where each shard's places begin within its bucket, int64 [shards]."""
        sizes = np.concatenate([split.all_shard_records() for split in self.assignment.splits])
        firsts: npt.NDArray[np.int64] = np.cumsum(sizes) - sizes
        result: npt.NDArray[np.int64] = (
            firsts - firsts[np.arange(len(sizes)) // self.shards_per_bucket * self.shards_per_bucket]
        )
        return result


def partition_part(
    source: Source,
    part: Part,
    number: int,
    bucketing: Bucketing,
    wanted: npt.NDArray[np.bool_],
    placement: Placement,
    spill: Spill,
    run_bytes: int,
) -> PartSpill:
    """Read a part and spill its records by the bucket each goes to.

    Args:
        source: of the records.
        part: of the source.
        number: of the part.
        bucketing: of the shards.
        wanted: the buckets that are still to be assembled, bool [buckets]; records of the others are left out.
        placement: of the part's records.
        spill: where to write.
        run_bytes: of records to gather, at most, before they are written.
    """
    placer = Placer(placement, number)
    first_places = bucketing.first_places()
    position = 0
    ranges: dict[str, tuple[int, int]] = {}
    has_nulls = False

    def tagged() -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int64]]]:
        nonlocal has_nulls, position
        for batch in read_ahead(source.drafts(part)):
            class_ids, shards, slots = placer.locate(batch)
            late = not set(source.schema.names).issubset(batch.schema.names)  # what these hold is known when it is read
            has_nulls = has_nulls or late or any(column.null_count for column in batch.columns)
            _check_elements(batch, part.path)
            check_images(source, part, batch, position)
            position += batch.num_rows
            _widen_ranges(ranges, batch, source.schema)
            buckets = shards // bucketing.shards_per_bucket
            batch = _tag(batch, first_places[shards] + slots, class_ids)
            if not wanted.all():
                keep = wanted[buckets]
                batch, buckets = batch.filter(pa.array(keep)), buckets[keep]
            yield batch, buckets

    with spill.create(number) as sink:
        buckets = _write_by_bucket(_runs(tagged(), min(_SLICE_BYTES * bucketing.buckets, run_bytes)), sink)
    result = PartSpill(
        buckets=buckets,
        records=placer.records,
        int_ranges=ranges,
        has_nulls=has_nulls,
        left_out=np.flatnonzero(~wanted),
    )
    spill.finish(number, result)
    return result


def _runs(
    batches: Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int64]]], enough_bytes: int
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int64]]]:
    """Join batches until they hold `enough_bytes`, so that each bucket's slice of them is worth a write."""
    held: list[tuple[pa.RecordBatch, npt.NDArray[np.int64]]] = []
    held_bytes = 0
    for batch, buckets in batches:
        held.append((batch, buckets))
        held_bytes += batch.get_total_buffer_size()
        if held_bytes >= enough_bytes:
            yield _join(held)
            held, held_bytes = [], 0
    if held:
        yield _join(held)


def _join(
    held: Sequence[tuple[pa.RecordBatch, npt.NDArray[np.int64]]],
) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
    if len(held) == 1:
        return held[0]
    batch = pa.concat_batches([batch for batch, _ in held])
    return batch, np.concatenate([buckets for _, buckets in held])


def _write_by_bucket(runs: Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int64]]], sink: Any) -> npt.NDArray[np.int64]:
    """Write each bucket's records of a run as one record batch; returns the bucket of each batch."""
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
    """A record may lack a value; a list that lacks some of its own has no place in a `tf.train.Example`."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if is_list(column.type) and column.flatten().null_count:
            raise SourceError(
                f"{path}: the lists of column {name!r} hold nulls; drop those records with --drop-nulls {name}, or "
                "fill them with a function (--map)"
            )


def _tag(batch: pa.RecordBatch, places: npt.NDArray[np.int64], class_ids: npt.NDArray[np.int32]) -> pa.RecordBatch:
    columns = [*batch.columns, pa.array(places), pa.array(class_ids)]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, _PLACE, _CLASS])


def _widen_ranges(ranges: dict[str, tuple[int, int]], batch: pa.RecordBatch, schema: Schema) -> None:
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
        seen = ranges.get(feature.name, (low, high))
        ranges[feature.name] = (min(low, seen[0]), max(high, seen[1]))


def shard_names(assignment: Assignment, shard: int, shard_format: str) -> tuple[str, str]:
    """File names of a shard and of its index."""
    split, number = assignment.shard(shard)
    path = shard_name(assignment.generation, split.name, number, split.shards, shard_format)
    return path, index_name(path)


def assemble_bucket(
    source: Source,
    target: ShardTarget,
    bucketing: Bucketing,
    bucket: int,
    wanted: Sequence[int],
    spill: Spill,
    batches: Sequence[tuple[int, Sequence[int]]],
) -> list[ShardResult]:
    """Gather a bucket's records, put them in order, write its shards and their indexes, and note that they are done.

    Args:
        source: of the records.
        target: where and how to write.
        bucketing: of the shards.
        bucket: its number.
        wanted: the shards of it that are not yet there.
        spill: where the records are.
        batches: number of each part with records of the bucket, and which record batches of its file they are.

    Raises:
        SourceError: records are missing or there twice: the source changed between the passes.
    """
    assignment, shards = bucketing.assignment, bucketing.shards(bucket)
    places_of_shards = bucketing.first_places()[shards.start : shards.stop].tolist()
    table = pa.Table.from_batches(_gather(spill, batches)).combine_chunks()
    row_of_place = _rows_of_places(table, sum(assignment.shard_records(shard) for shard in shards))
    small = SmallFiles(target.storage)
    results = []
    for number in wanted:
        first = places_of_shards[number - shards.start]
        row_of_slot = assignment.row_of_slot(number)
        rows = np.empty_like(row_of_slot)
        rows[row_of_slot] = row_of_place[first : first + len(row_of_slot)]
        split, _ = assignment.shard(number)
        path, index_path = shard_names(assignment, number, target.shard_format)
        info, statistics, dali = write_shard(
            _blocks(source, table, rows, target.block_rows),
            source.schema,
            target,
            small,
            split=split.name,
            classes=len(split.class_counts),
            path=path,
            index_path=index_path,
        )
        results.append(ShardResult(number=number, info=info, statistics=statistics, dali=dali))
    small.flush()
    record_shards(target.storage, target.plan, results)
    return results


def _gather(spill: Spill, batches: Sequence[tuple[int, Sequence[int]]]) -> Iterator[pa.RecordBatch]:
    for part, numbers in batches:
        with spill.open(part) as reader:
            yield from (reader.get_batch(int(number)) for number in numbers)


def _rows_of_places(table: pa.Table, records: int) -> npt.NDArray[np.int64]:
    """Which row of the table each place of the bucket is served by."""
    places = table.column(_PLACE).to_numpy()
    if len(places) != records or np.any(np.bincount(places, minlength=records) != 1):
        raise SourceError(
            f"the source changed while it was read: there are {len(places)} records for {records} places; build again"
        )
    rows = np.empty(records, np.int64)
    rows[places] = np.arange(records)
    return rows


def _blocks(
    source: Source, table: pa.Table, rows: npt.NDArray[np.int64], block_rows: int
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int32]]]:
    """The records at some rows of a table, complete, and their class ids; some at a time."""
    for start in range(0, len(rows), block_rows):
        drafts = table.take(pa.array(rows[start : start + block_rows])).combine_chunks()
        class_ids = drafts.column(_CLASS).to_numpy().astype(np.int32, copy=False)
        (batch,) = drafts.drop_columns([_PLACE, _CLASS]).to_batches()
        yield source.complete(batch), class_ids

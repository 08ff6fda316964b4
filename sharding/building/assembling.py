"""The task of the third round: gather the spilled records of a bucket and write its shards.

Like `partitioning`, a task may run twice, in any process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ringfeed.sharding.assignment.assignment import Assignment
from ringfeed.sharding.compute.arrays import Int32, Int64
from ringfeed.sharding.dataset.file_names import FileNames
from ringfeed.sharding.destination.journal import ShardResult, record_shards
from ringfeed.sharding.destination.spill import Spill
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.sources import Source

from .partitioning import CLASS, PLACE, Bucketing
from .shard_writer import ShardName, ShardTarget, SmallFiles, write_shard


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketInput:
    """A bucket to assemble."""

    number: int
    shards: Sequence[int]  # shards of the bucket that are yet to be written
    # By part, the record batches of its spill file that belong to the bucket
    batches: Sequence[tuple[int, Sequence[int]]]


def shard_names(names: FileNames, assignment: Assignment, shard: int, shard_format: str) -> tuple[str, str]:
    """File names of a shard and of its index."""
    split, number = assignment.shard(shard)
    path = names.shard(assignment.generation, split.name, number, split.shards, shard_format)
    return path, names.index(path)


def assemble_bucket(
    source: Source, target: ShardTarget, bucketing: Bucketing, spill: Spill, bucket: BucketInput
) -> list[ShardResult]:
    """Gather a bucket's records, order them, write the shards and their indexes, and record them in the journal.

    Raises:
        SourceError: records are missing or duplicated, so the source changed between the passes.
    """
    assignment, shards = bucketing.assignment, bucketing.shards(bucket.number)
    places_of_shards = bucketing.first_places()[shards.start : shards.stop].tolist()
    table = pa.Table.from_batches(_gather(spill, bucket.batches)).combine_chunks()
    row_of_place = _rows_of_places(table, sum(assignment.shard_records(shard) for shard in shards))
    small = SmallFiles(target.storage)
    results = []
    for number in bucket.shards:
        first = places_of_shards[number - shards.start]
        row_of_slot = assignment.row_of_slot(number)
        rows = np.empty_like(row_of_slot)
        rows[row_of_slot] = row_of_place[first : first + len(row_of_slot)]
        split, _ = assignment.shard(number)
        path, index_path = shard_names(target.names, assignment, number, target.encoding.shard_format)
        name = ShardName(number=number, split=split.name, path=path, index_path=index_path)
        blocks = _blocks(source, table, rows, target.block_rows)
        results.append(write_shard(blocks, target, small, name, len(split.class_counts)))
    small.flush()
    record_shards(target.storage, target.plan, results)
    return results


def _gather(spill: Spill, batches: Sequence[tuple[int, Sequence[int]]]) -> Iterator[pa.RecordBatch]:
    for part, numbers in batches:
        with spill.open(part) as reader:
            yield from (reader.get_batch(int(number)) for number in numbers)


def _rows_of_places(table: pa.Table, records: int) -> Int64:
    """The row of the table that belongs at each place of the bucket, int64 [records]."""
    places = table.column(PLACE).to_numpy()
    if len(places) != records or np.any(np.bincount(places, minlength=records) != 1):
        raise SourceError(
            f"the source changed while it was read: there are {len(places)} records for {records} places; build again"
        )
    rows = np.empty(records, np.int64)
    rows[places] = np.arange(records)
    return rows


def _blocks(source: Source, table: pa.Table, rows: Int64, block_rows: int) -> Iterator[tuple[pa.RecordBatch, Int32]]:
    """The completed records at some rows of a table and their class ids, up to `block_rows` at a time."""
    for start in range(0, len(rows), block_rows):
        drafts = table.take(pa.array(rows[start : start + block_rows])).combine_chunks()
        class_ids = drafts.column(CLASS).to_numpy().astype(np.int32, copy=False)
        (batch,) = drafts.drop_columns([PLACE, CLASS]).to_batches()
        yield source.complete(batch), class_ids

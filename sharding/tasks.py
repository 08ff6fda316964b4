"""The pure tasks of a build: count a part's classes, partition a part, assemble a shard.

Each is a function of values that can be sent to another process, may be run twice, and hands its result on through
files: a partition task writes one Arrow IPC file whose record batches each go to one shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .assign import Assignment
from .errors import ConfigError, SourceError
from .formats import RecordLayout, encode_shard
from .formats.encode import SUFFIXES
from .grouping import group
from .interop import dali
from .manifest import FileInfo, ShardInfo, checksum
from .schema import Schema
from .sources import Part, Source
from .statistics import FeatureStatistics, summarise
from .storage import Storage

__all__ = [
    "PartSpill",
    "ShardResult",
    "ShardTarget",
    "assemble_shard",
    "count_classes",
    "partition_part",
    "shard_names",
]

_SLOT, _CLASS = "\0slot", "\0class"  # columns of spill files; no source has such names


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSpill:
    """What a partition task left behind.

    Attributes:
        path: of its Arrow IPC file, on this machine.
        batch_shards: the shard that each record batch of the file goes to.
        records: in the part.
        int_ranges: least and greatest value, as int64, of each integer feature of fixed shape.
        has_nulls: whether any value is missing.
    """

    path: str
    batch_shards: npt.NDArray[np.int64]
    records: int
    int_ranges: Mapping[str, tuple[int, int]]
    has_nulls: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTarget:
    """All that shapes the bytes of the shards, the same for each of them."""

    storage: Storage
    assignment: Assignment
    shard_format: str
    compression: str
    layout: RecordLayout | None
    dali_index: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """A shard that was written, the statistics of its features by name, and what else was written, by path."""

    info: ShardInfo
    statistics: Mapping[str, FeatureStatistics]
    files: Mapping[str, FileInfo]


def count_classes(source: Source, part: Part) -> dict[Any, int]:
    """Records of each class in a part; with no label, all are of class None.

    Raises:
        SourceError: a label is missing or of a type that makes no classes.
    """
    total: Counter[Any] = Counter()
    record = part.first_record
    for labels in source.labels(part):
        if source.schema.label is None:
            total[None] += len(labels)
            continue
        if labels.null_count:
            record += int(np.flatnonzero(labels.is_null().to_numpy(zero_copy_only=False))[0])
            raise SourceError(
                f"{part.path}: record {record} (from 0) has no value for the label {source.schema.label!r}; "
                "drop or fill it first"
            )
        record += len(labels)
        counts = pc.value_counts(labels)
        total.update(dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)))
    return dict(total)


def partition_part(
    source: Source,
    part: Part,
    assignment: Assignment,
    classes: pa.Array,
    first_ordinals: npt.NDArray[np.int64],
    spill_path: str,
) -> PartSpill:
    """Read a part and spill its records by the shard each goes to.

    Args:
        source: of the records.
        part: of the source.
        assignment: of records to shards.
        classes: the class values, sorted.
        first_ordinals: how many records of each class come before this part, int64 [classes].
        spill_path: the file to write.
    """
    ordinals = first_ordinals.copy()
    shards_of_batches: list[npt.NDArray[np.int64]] = []
    ranges: dict[str, tuple[int, int]] = {}
    has_nulls = False
    writer: pa.RecordBatchFileWriter | None = None
    with pa.OSFile(spill_path, "wb") as sink:
        for batch in source.drafts(part):
            class_ids = _class_ids(batch, source.schema.label, classes)
            shards, slots = assignment.locate(class_ids, _take_ordinals(class_ids, ordinals))
            tagged = _tag(batch, slots, class_ids)
            writer = writer or pa.ipc.new_file(sink, tagged.schema)
            by_shard = group(shards)
            tagged = tagged.take(pa.array(by_shard.order))
            for start, stop in pairwise(by_shard.bounds.tolist()):
                writer.write_batch(tagged.slice(start, stop - start))
            shards_of_batches.append(by_shard.values.astype(np.int64))
            has_nulls = has_nulls or any(column.null_count for column in batch.columns)
            _check_elements(batch, part.path)
            _widen_ranges(ranges, batch, source.schema)
        if writer is not None:
            writer.close()
    none = np.empty(0, np.int64)
    return PartSpill(
        path=spill_path,
        batch_shards=np.concatenate([none, *shards_of_batches]),
        records=int((ordinals - first_ordinals).sum()),
        int_ranges=ranges,
        has_nulls=has_nulls,
    )


def _check_elements(batch: pa.RecordBatch, path: str) -> None:
    """A record may lack a value; a list that lacks some of its own has no place in a `tf.train.Example`."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if (pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type)) and column.flatten().null_count:
            raise SourceError(f"{path}: the lists of column {name!r} hold nulls; fill them, or drop the records first")


def _class_ids(batch: pa.RecordBatch, label: str | None, classes: pa.Array) -> npt.NDArray[np.int32]:
    if label is None:
        return np.zeros(batch.num_rows, np.int32)
    ids = pc.index_in(batch.column(label), value_set=classes)
    if ids.null_count:
        raise SourceError("the source changed while it was read: a label appeared that the first pass did not see")
    result: npt.NDArray[np.int32] = ids.to_numpy().astype(np.int32, copy=False)
    return result


def _take_ordinals(class_ids: npt.NDArray[np.int32], next_ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Number the records of each class on from `next_ordinals`, which is moved on."""
    by_class = group(class_ids)
    counts = np.diff(by_class.bounds)
    within = np.arange(len(class_ids)) - np.repeat(by_class.bounds[:-1], counts)
    result = np.empty(len(class_ids), np.int64)
    result[by_class.order] = within + np.repeat(next_ordinals[by_class.values], counts)
    next_ordinals[by_class.values] += counts
    return result


def _tag(batch: pa.RecordBatch, slots: npt.NDArray[np.int64], class_ids: npt.NDArray[np.int32]) -> pa.RecordBatch:
    columns = [*batch.columns, pa.array(slots), pa.array(class_ids)]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, _SLOT, _CLASS])


def _widen_ranges(ranges: dict[str, tuple[int, int]], batch: pa.RecordBatch, schema: Schema) -> None:
    for feature in schema.features:
        if feature.example_kind != "int64" or feature.elements is None or feature.name not in batch.schema.names:
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
    stem = f"{split.name}-{number:05d}-of-{split.shards:05d}"
    return f"{stem}.{SUFFIXES[shard_format]}", f"{stem}.index.arrow"


def assemble_shard(
    source: Source, target: ShardTarget, shard: int, spills: Sequence[tuple[str, Sequence[int]]]
) -> ShardResult:
    """Gather one shard's records, put them in order, and write the shard and its index.

    Args:
        source: of the records.
        target: where and how to write.
        shard: its number through all splits.
        spills: path of each spill file, and which of its record batches belong to the shard.

    Raises:
        SourceError: records are missing or there twice: the source changed between the passes.
    """
    split, number = target.assignment.shard(shard)
    drafts, class_ids = _in_order(_gather(spills), target.assignment.row_of_slot(shard), f"{split.name} shard {number}")
    batch = source.complete(drafts)
    encoded = encode_shard(
        batch,
        source.schema,
        class_ids,
        shard_format=target.shard_format,
        compression=target.compression,
        layout=target.layout,
    )
    path, index_path = shard_names(target.assignment, shard, target.shard_format)
    extra = {dali.index_name(path): dali.index_text(encoded.index)} if target.dali_index else {}
    target.storage.write_all({path: encoded.data, index_path: encoded.index, **extra})
    info = ShardInfo(
        split=split.name,
        path=path,
        bytes=encoded.data.size,
        records=batch.num_rows,
        checksum=checksum(encoded.data),
        class_counts=tuple(np.bincount(class_ids, minlength=len(split.class_counts)).tolist()),
        index_path=index_path,
        index_bytes=encoded.index.size,
        index_checksum=checksum(encoded.index),
    )
    statistics = {feature.name: summarise(batch.column(feature.name), feature) for feature in source.schema.features}
    files = {name: FileInfo(bytes=len(data), checksum=checksum(data)) for name, data in extra.items()}
    return ShardResult(info=info, statistics=statistics, files=files)


def _gather(spills: Sequence[tuple[str, Sequence[int]]]) -> Iterator[pa.RecordBatch]:
    for path, batches in spills:
        with pa.memory_map(path) as file:
            reader = pa.ipc.open_file(file)
            yield from (reader.get_batch(int(number)) for number in batches)


def _in_order(
    batches: Iterator[pa.RecordBatch], row_of_slot: npt.NDArray[np.int64], name: str
) -> tuple[pa.RecordBatch, npt.NDArray[np.int32]]:
    """All records in the order of their rows, and their class ids."""
    table = pa.Table.from_batches(batches)
    slots = table.column(_SLOT).to_numpy()
    if len(slots) != len(row_of_slot) or np.any(np.bincount(slots, minlength=len(slots)) != 1):
        raise SourceError(
            f"the source changed while it was read: {name} got {len(slots)} records for {len(row_of_slot)} places; "
            "build again"
        )
    order = np.empty(len(slots), np.int64)
    order[row_of_slot[slots]] = np.arange(len(slots))
    table = table.take(pa.array(order)).combine_chunks()
    class_ids = table.column(_CLASS).to_numpy().astype(np.int32, copy=False)
    batches_in_order = table.drop_columns([_SLOT, _CLASS]).to_batches()
    if len(batches_in_order) != 1:
        raise ConfigError(f"{name} holds more than the 2 GiB that one column of text or bytes can; ask for more shards")
    return batches_in_order[0], class_ids

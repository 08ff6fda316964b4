"""Checks of files whose bytes are right: the counts agree; in a deep check, every record parses and has its class.

Tested in tests/sharding/verifying/test_verify.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ringfeed.sharding.compute.arrays import Int32
from ringfeed.sharding.dataset.damage import Damage, first_difference, runs
from ringfeed.sharding.dataset.manifest import Manifest, ShardInfo
from ringfeed.sharding.dataset.shard_index import Index, classes_of_table, read_index
from ringfeed.sharding.formats.example_decode import decode_example
from ringfeed.sharding.formats.parquet import read_parquet, scan_row_groups
from ringfeed.sharding.formats.tfrecord_scan import scan_frames
from ringfeed.sharding.messages import brief, counted
from ringfeed.sharding.storage.file_contents import open_decompressed
from ringfeed.sharding.storage.storage import Storage


def check_counts(data: pa.Buffer, manifest: Manifest, shard: ShardInfo) -> list[Damage]:
    """Check the records of each class in an index against the table's counts."""
    base = Damage(path=shard.index_path, split=shard.split, kind="miscounted", problem="")
    try:
        class_ids = read_index(data, manifest).class_ids
    except ValueError as error:
        return [replace(base, kind="unparsable", problem=str(error))]
    return [replace(base, problem=problem) for problem in _miscounts(class_ids, shard, manifest)]


def check_meaning(storage: Storage, manifest: Manifest, shard: ShardInfo) -> list[Damage]:
    """Read every record of a shard and check it against the schema, the index and the table's counts.

    Returns:
        The first damage of the shard, and the first of its index.
    """
    with open_decompressed(storage, shard.index_path, size=shard.index_bytes) as stored:
        try:
            index = read_index(stored, manifest)
        except ValueError as error:
            return [Damage(path=shard.index_path, split=shard.split, kind="unparsable", problem=str(error))]
    with open_decompressed(storage, shard.path, manifest.file_compression, size=shard.bytes) as data:
        actual = _read_parquet(data, manifest) if manifest.shard_format == "parquet" else _read_tfrecord(data, manifest)
        if isinstance(actual, Damage):
            return [replace(actual, path=shard.path, split=shard.split)]
    base = Damage(path=shard.path, split=shard.split, kind="miscounted", problem="")
    miscounted = (replace(base, problem=problem) for problem in _miscounts(actual.class_ids, shard, manifest))
    return [*_compare_index(shard, index, actual), *miscounted]


def _read_tfrecord(data: pa.Buffer, manifest: Manifest) -> Index | Damage:
    view = memoryview(data)
    ids = {value: number for number, value in enumerate(manifest.classes)}
    label = manifest.schema.label
    offsets, class_ids = [0], []
    for frame in scan_frames(view, None):
        problem = frame.problem
        if not problem:
            try:
                values = decode_example(bytes(view[frame.payload]), manifest.schema)
                class_ids.append(0 if label is None else ids[values[label]])
                offsets.append(frame.stop)
                continue
            except Exception as error:  # on bytes that are no Example, the decoder raises anything
                problem = f"is not a record of this dataset: {type(error).__name__}: {error}"
        return Damage(
            path="",
            kind="unparsable",
            problem=f"record {frame.record} at offset {frame.offset} {problem}",
            record=frame.record,
            offset=frame.offset,
        )
    return Index(class_ids=np.array(class_ids, np.int32), offsets=np.array(offsets, np.int64))


def _read_parquet(data: pa.Buffer, manifest: Manifest) -> Index | Damage:
    try:
        for group in scan_row_groups(data):
            for column in group.damaged:
                return Damage(
                    path="",
                    kind="unparsable",
                    problem=f"row group {group.number}, column {column!r} cannot be read",
                    row_group=group.number,
                    column=column,
                    record=group.first_record,
                    offset=group.columns[column][0],
                )
        table = read_parquet(data)
        if not table.schema.remove_metadata().equals(manifest.schema.arrow.remove_metadata(), check_metadata=False):
            raise ValueError(f"its columns are {', '.join(map(str, table.schema))}")
        return Index(class_ids=classes_of_table(table, manifest), offsets=None)
    except (ValueError, pa.ArrowException, OSError) as error:
        return Damage(path="", kind="unparsable", problem=f"it cannot be read: {brief(error)}")


def _compare_index(shard: ShardInfo, index: Index, actual: Index) -> Iterator[Damage]:
    base = Damage(path=shard.index_path, split=shard.split, kind="stale", problem="")
    if len(index.class_ids) != len(actual.class_ids):
        numbers = f"{counted(len(index.class_ids), 'record')}, the shard holds {len(actual.class_ids)}"
        yield replace(base, problem=f"it has {numbers}")
        return
    differing = index.differing_records(actual).tolist()
    if not differing:
        return
    record = differing[0]
    same_offsets = (
        index.offsets is None
        or first_difference(index.offsets.tobytes(), b"" if actual.offsets is None else actual.offsets.tobytes())
        is None
    )
    kind = "mislabelled" if same_offsets else "stale"
    what = (
        f"class {index.class_ids[record]}, its label {actual.class_ids[record]}" if same_offsets else "another offset"
    )
    problem = f"record {record} has {what} ({counted(len(differing), 'such record')})"
    yield replace(base, kind=kind, problem=problem, record=record, records=runs(differing))


def _miscounts(class_ids: Int32, shard: ShardInfo, manifest: Manifest) -> Iterator[str]:
    """Yield how the records of each class differ from the table's counts, if they do."""
    if len(class_ids) != shard.records:
        yield f"it holds {counted(len(class_ids), 'record')}, the table says {shard.records}"
        return
    counts = np.bincount(class_ids, minlength=len(manifest.classes))
    written = np.asarray(shard.class_counts, np.int64)
    for number in np.flatnonzero(counts != written)[:1].tolist():
        value = manifest.classes[number]
        yield f"it holds {counted(int(counts[number]), 'record')} of class {value!r}, the table says {written[number]}"


def check_totals(manifest: Manifest, shards: Sequence[ShardInfo]) -> Iterator[Damage]:
    """Check the table's rows against the totals of each split in `dataset.json`."""
    for name, split in manifest.splits.items():
        members = [shard for shard in shards if shard.split == name]
        totals = np.zeros(len(manifest.classes), np.int64)
        for shard in members:
            if len(shard.class_counts) == len(totals):
                totals += np.asarray(shard.class_counts, np.int64)
        number, records, counts = len(members), sum(shard.records for shard in members), tuple(totals.tolist())
        for what, recorded, actual in (
            ("shards", split.shards, number),
            ("records", split.records, records),
            ("records by class", split.class_counts, counts),
        ):
            if recorded != actual:
                problem = f"split {name!r} has {actual} {what}, dataset.json says {recorded}"
                yield Damage(path=manifest.shards_path, split=name, kind="miscounted", problem=problem)
                break

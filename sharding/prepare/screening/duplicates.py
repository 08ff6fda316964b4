"""Exact de-duplication in bounded memory: hash the records to 128 bits, and compare the hashes bucket by bucket.

There are two kinds of task. One hashes a part and writes its hashes, grouped by their first byte, to a file. The other
reads one range of first bytes from all files, and finds every hash that occurred before. Two different records among n
have the same hash with a probability of n**2 / 2**129: 1e-21 for a billion records.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import IO, Any

import numpy as np

from ringfeed.sharding.compute.arrays import Bools, Int64, UInt64
from ringfeed.sharding.compute.grouping import group
from ringfeed.sharding.dataset.dataset import EarlierShards
from ringfeed.sharding.destination.spill import side_folder
from ringfeed.sharding.engines.executors import Job, run_tasks
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.prepare.column_names import check_columns
from ringfeed.sharding.prepare.image_source import ImageSource
from ringfeed.sharding.progress import Progress, Report, ignore
from ringfeed.sharding.sources import Part, Source, select_part
from ringfeed.sharding.sources.base import complete_slices, draft_columns, narrow_source
from ringfeed.sharding.sources.dropping_source import DroppingSource
from ringfeed.sharding.sources.ringfeed import RingfeedSource
from ringfeed.sharding.storage.storage import Storage

from .record_hashes import Hashes, hash_records

_PREFIXES = 256  # values of a hash's first byte


@dataclass(frozen=True, slots=True, kw_only=True)
class HashSizes:
    """How many hashes memory holds.

    Attributes:
        run_records: hashes that are grouped by prefix and written at once.
        bucket_records: hashes that are compared at once, in about 400 MB.
    """

    run_records: int = 1 << 20
    bucket_records: int = 1 << 22


_SIZES = HashSizes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """The duplicates in each part of a source, as ascending positions among its drafts."""

    within_source: Sequence[Int64]  # records equal to an earlier record of the source
    in_dataset: Sequence[Int64]  # records equal to a record that a dataset holds already


def existing_records(earlier: EarlierShards) -> Source:
    """The records of a dataset, or of its first generations, as a source."""
    folders = ((shard, earlier.folder(shard)) for shard in earlier.shards)
    return RingfeedSource(
        url=earlier.storage.url,
        schema=earlier.manifest.schema,
        parts=tuple(Part(path=folder.locate(shard.path), pieces=(shard, folder)) for shard, folder in folders),
        fingerprint="",
        manifest=replace(earlier.manifest, splits={}, files={}),
    )


def drop_duplicates(
    source: Source,
    columns: Sequence[str],
    pool: Executor | None,
    root: Storage,
    report: Report = ignore,
    *,
    existing: Source | None = None,
    earlier_fingerprints: Collection[str] = (),
    sizes: HashSizes = _SIZES,
) -> Source:
    """A source without the records that equal an earlier one.

    Its fingerprint does not depend on the existing records, so that records that were appended before are recognised.

    Args:
        source: source of all records. Its images are compared with each other before they are resized or encoded, and
            with those of `existing` after it.
        columns: columns to compare; empty: all.
        pool: executor of the tasks; None: this process.
        root: folder to spill to, which every task reaches.
        existing: records that a dataset holds already, with the columns of the source.
        earlier_fingerprints: fingerprints of the sources of earlier generations. If this source is one of them, the
            records that the dataset holds may be its own, so they are not dropped.
    """
    before, images = _before_images(source)
    transformed = not images.isdisjoint(columns or source.schema.names)
    with side_folder(root) as folder:
        duplicates = find_duplicates(
            before, columns, pool, folder, report, existing=None if transformed else existing, sizes=sizes
        )
    alone = DroppingSource.over(source, duplicates.within_source)
    if existing is None or alone.fingerprint in earlier_fingerprints:
        return alone
    in_dataset = duplicates.in_dataset
    if transformed:
        with side_folder(root) as folder:
            in_dataset = find_duplicates(
                source, columns, pool, folder, report, existing=existing, as_stored=True, sizes=sizes
            ).in_dataset
    if not any(map(len, in_dataset)):
        return alone
    dropped = [np.union1d(*both) for both in zip(duplicates.within_source, in_dataset, strict=True)]
    return DroppingSource.over(source, dropped, fingerprint_override=alone.fingerprint)


def _before_images(source: Any) -> tuple[Any, frozenset[str]]:
    """The source before its images are resized or encoded, and the columns of those images."""
    if isinstance(source, ImageSource):
        return source.inner, frozenset(source.columns)
    if not hasattr(source, "inner"):
        return source, frozenset()
    inner, images = _before_images(source.inner)
    return replace(source, inner=inner), images


def find_duplicates(
    source: Source,
    columns: Sequence[str],
    pool: Executor | None,
    folder: Storage,
    report: Report = ignore,
    *,
    existing: Source | None = None,
    as_stored: bool = False,
    sizes: HashSizes = _SIZES,
) -> Duplicates:
    """Find the records that equal an earlier one.

    Args:
        columns: columns to compare; empty: all.
        pool: executor of the tasks; None: this process.
        existing: records that a dataset holds already.
        as_stored: whether to compare images as they will be stored: resized and encoded.

    Raises:
        ConfigError: a column does not exist, or no two records can be equal.
    """
    check_columns("--dedup", columns, source.schema.names)
    lazy = set(source.schema.names) - draft_columns(source)
    if not columns and lazy and "path" in source.schema.names:
        raise ConfigError(
            "--dedup: each record has its own path, so no two records are equal in all columns; name the columns to "
            f"compare, such as --dedup {sorted(lazy)[0] if 'image' not in lazy else 'image'}"
        )
    compared = tuple(columns) or source.schema.names
    complete = as_stored or not lazy.isdisjoint(compared)
    reader = source if as_stored else narrow_source(source, compared)
    hashing = (compared, folder, sizes.run_records)
    jobs = [] if existing is None else _hash_jobs(narrow_source(existing, compared), 0, False, *hashing)
    existing_parts = len(jobs)
    jobs += _hash_jobs(reader, existing_parts, complete, *hashing)

    def progress(done: int, records: int) -> None:
        report(Progress(stage="dedup", done=done, total=len(jobs) + 1, records=records))

    hashed = run_tasks(pool, jobs, lambda done, _: progress(done, 0))
    records = sum(hashed)
    count = min(_PREFIXES, -(-records // sizes.bucket_records))
    bounds = [_PREFIXES * i // max(1, count) for i in range(count + 1)]
    buckets = [
        (find_duplicates_in_bucket, (folder, len(jobs), first, stop, existing_parts))
        for first, stop in pairwise(bounds)
    ]
    results = run_tasks(pool, buckets, lambda done, _: progress(len(jobs) + (done == count), records))
    none = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0, np.bool_))
    part, position, within, in_dataset = (np.concatenate(arrays) for arrays in zip(none, *results, strict=True))
    return Duplicates(
        within_source=_by_part(part[within], position[within], len(source.parts)),
        in_dataset=_by_part(part[in_dataset], position[in_dataset], len(source.parts)),
    )


def _hash_jobs(
    source: Source, first: int, complete: bool, columns: Sequence[str], folder: Storage, run_records: int
) -> list[Job[int]]:
    """A task for each part of a source; the parts are numbered from `first`."""
    return [
        (hash_part, (select_part(source, n), part, first + n, complete, columns, folder, run_records))
        for n, part in enumerate(source.parts)
    ]


def _by_part(parts: Int64, positions: Int64, count: int) -> list[Int64]:
    result = [np.empty(0, np.int64) for _ in range(count)]
    for number, places in group(parts):
        result[number] = np.sort(positions[places])
    return result


def hash_part(
    source: Source, part: Part, number: int, complete: bool, columns: Sequence[str], folder: Storage, run_records: int
) -> int:
    """Hash the records of a part; write ``NUMBER.hashes``, of uint64 [records, 3], and ``NUMBER.runs.npy``.

    A row of the first file is a hash and the position of its record. Rows lie in runs, each grouped by prefix. Row r
    of the second file holds where the rows of each prefix of run r begin in the first, and where the last ends.

    Args:
        source: source of the records, which may have more columns than those that are hashed.
        complete: whether the drafts must be completed first.
        run_records: records of a run, about.

    Returns:
        The number of records.
    """
    runs: list[Int64] = []
    written = 0
    with folder.open_output(_hashes_name(number), durable=False) as file:
        for rows in _in_runs(_hashes(source, part, columns, complete), run_records):
            by_prefix = group((rows[:, 0] >> np.uint64(56)).astype(np.int64))
            file.write(rows[by_prefix.order].data.cast("B"))
            counts = np.zeros(_PREFIXES, np.int64)
            counts[by_prefix.values] = np.diff(by_prefix.bounds)
            runs.append(written + np.concatenate([[0], np.cumsum(counts)]))
            written += len(rows)
    table = io.BytesIO()
    np.save(table, np.array(runs, np.int64).reshape(-1, _PREFIXES + 1), allow_pickle=False)
    folder.write(_runs_name(number), table.getvalue(), durable=False)
    return written


def _hashes_name(number: int) -> str:
    return f"{number:06d}.hashes"


def _runs_name(number: int) -> str:
    return f"{number:06d}.runs.npy"


def _hashes(source: Source, part: Part, columns: Sequence[str], complete: bool) -> Iterator[Hashes]:
    for drafts in source.drafts(part):
        for batch in complete_slices(source, drafts) if complete else [drafts]:
            yield hash_records(batch.select(list(columns)))


def _in_runs(batches: Iterator[Hashes], run_records: int) -> Iterator[UInt64]:
    """Rows of hash and position, [up to about run_records, 3]."""
    run: list[UInt64] = []
    position = count = 0
    for hashes in batches:
        numbers = np.arange(position, position + len(hashes), dtype=np.uint64)
        run.append(np.column_stack([hashes, numbers]))
        position += len(hashes)
        count += len(hashes)
        if count >= run_records:
            yield np.concatenate(run)
            run, count = [], 0
    if count:
        yield np.concatenate(run)


def find_duplicates_in_bucket(
    folder: Storage, parts: int, first: int, stop: int, existing_parts: int
) -> tuple[Int64, Int64, Bools, Bools]:
    """Find the duplicates among the records whose hash has a prefix in ``[first, stop)``.

    Args:
        stop: end of the prefixes, excluded.
        existing_parts: number of parts, the first ones, that hold existing records, which are not reported.

    Returns:
        Of each duplicate: its part, numbered from 0 after the existing ones; its position; whether an earlier record
        of the source equals it; and whether an existing record does.
    """
    rows, numbers = [np.empty((0, 3), np.uint64)], [np.empty(0, np.int64)]
    for number in range(parts):
        runs = np.load(io.BytesIO(folder.read(_runs_name(number))), allow_pickle=False)
        if not runs.size:
            continue
        with folder.open_input(_hashes_name(number)) as file:
            tables = [_read_rows(file, int(run[first]), int(run[stop])) for run in runs]
        rows += tables
        numbers.append(np.full(sum(map(len, tables)), number, np.int64))
    bucket, part = np.concatenate(rows), np.concatenate(numbers)
    order = np.lexsort((bucket[:, 1], bucket[:, 0]))  # stable: equal hashes stay in the order of the source
    hashes, part = bucket[order, :2], part[order]
    is_new = np.ones(len(order), np.bool_)  # the hash differs from the row before
    is_new[1:] = (hashes[1:] != hashes[:-1]).any(axis=1)
    firsts = np.flatnonzero(is_new)[np.cumsum(is_new) - 1]  # the first row with the hash of each row
    own = part >= existing_parts
    in_dataset = ~own[firsts]
    within_source = own & ~is_new
    within_source[1:] &= own[:-1]  # the row before has the same hash, and is one of the source
    duplicate = own & (within_source | in_dataset)
    positions = bucket[order[duplicate], 2].astype(np.int64)
    return part[duplicate] - existing_parts, positions, within_source[duplicate], in_dataset[duplicate]


def _read_rows(file: IO[bytes], start: int, stop: int) -> UInt64:
    row_bytes = 3 * np.dtype(np.uint64).itemsize
    file.seek(start * row_bytes)
    return np.frombuffer(file.read((stop - start) * row_bytes), np.uint64).reshape(-1, 3)

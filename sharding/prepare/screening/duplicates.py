"""Exact de-duplication, in bounded memory: records are hashed to 128 bits, and the hashes compared bucket by bucket.

Two tasks, as those of a build: one hashes a part and writes its hashes, sorted by their first byte, to a file; the
other reads one range of first bytes from all files and finds every hash that came before. Two different records have
the same hash with a probability of n**2 / 2**129 for n records: 1e-21 for a thousand million of them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from ...compute.arrow_casts import is_list
from ...compute.grouping import group
from ...dataset.earlier_shards import EarlierShards
from ...destination.spill import side_folder
from ...engines.executors import Job, run_tasks
from ...errors import ConfigError, SourceError
from ...formats.arrow_binary import binary_array, binary_rows, data_of, offsets_of
from ...sources import Part, Source, select_part
from ...sources.base import complete_slices, draft_columns, narrow_source
from ...sources.dropping_source import DroppingSource
from ...sources.ringfeed import RingfeedSource
from ...storage.storage import Storage
from ..column_names import check_columns
from ..image_source import ImageSource

__all__ = [
    "Duplicates",
    "drop_duplicates",
    "existing_records",
    "find_duplicates",
    "find_duplicates_in_bucket",
    "hash_part",
    "hash_records",
]  # fmt: skip

Int64 = npt.NDArray[np.int64]
Truth = npt.NDArray[np.bool_]
Hashes = npt.NDArray[np.uint64]  # [records, 2]: of each record, high half and low half

_PREFIXES = 256  # of a hash: its first byte
_RUN_RECORDS = 1 << 20  # hashes that are sorted by prefix and written at once
_BUCKET_RECORDS = 1 << 22  # hashes that are compared at once: about 400 MB with all that it takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """For each part of a source the positions among its drafts, ascending, of the records that come again.

    Attributes:
        among: of those that another before them in the source is equal to.
        there: of those that one is equal to which was there before.
    """

    among: Sequence[Int64]
    there: Sequence[Int64]


def existing_records(earlier: EarlierShards) -> Source:
    """The records of a dataset, or of the first of its generations."""
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
    report: Callable[[int, int, int], None],
    there: Source | None = None,
    known: Collection[str] = (),
) -> Source:
    """A source without the records that another before them is equal to.

    Its fingerprint does not depend on what is there, so that records which were appended are known again.

    Args:
        source: of all records. Images are compared with each other as they are before they are resized or encoded, and
            as they are after it with those that are there.
        columns: that are compared; none: all.
        pool: where to run the tasks; None is this process.
        root: folder to spill to, that every task reaches.
        report: called with tasks done, tasks in all, and records hashed.
        there: records that come before them, which have the columns of the source.
        known: fingerprints of what was appended before; if this is one of them, records may be there already.
    """
    before, images = _before_images(source)
    anew = not images.isdisjoint(columns or source.schema.names)
    with side_folder(root) as folder:
        found = find_duplicates(before, columns, pool, folder, report, None if anew else there)
    alone = DroppingSource.over(source, found.among)
    if there is None or alone.fingerprint in known:
        return alone
    if anew:
        with side_folder(root) as folder:
            found = replace(
                found, there=find_duplicates(source, columns, pool, folder, report, there, stored=True).there
            )
    if not any(map(len, found.there)):
        return alone
    dropped = [np.union1d(among, there) for among, there in zip(found.among, found.there, strict=True)]
    return DroppingSource.over(source, dropped, fingerprint_override=alone.fingerprint)


def _before_images(source: Any) -> tuple[Any, frozenset[str]]:
    """The source with images as they are before they are resized or encoded; and the columns of those that are."""
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
    report: Callable[[int, int, int], None],
    there: Source | None = None,
    *,
    stored: bool = False,
) -> Duplicates:
    """Find the records that come again.

    Args:
        source: of the records.
        columns: that are compared; none: all.
        pool: where to run the tasks; None is this process.
        folder: for the files of hashes, seen by every task.
        report: called with tasks done, tasks in all, and records hashed.
        there: records that come before them.
        stored: whether records are compared as they will be stored, with images resized and encoded.

    Raises:
        ConfigError: there is no such column, or no record can come again.
    """
    check_columns("--dedup", columns, source.schema.names)
    lazy = set(source.schema.names) - draft_columns(source)
    if not columns and lazy and "path" in source.schema.names:
        raise ConfigError(
            "--dedup: each record has a path of its own, so that no two are equal as a whole; name the columns to "
            f"compare, such as --dedup {sorted(lazy)[0] if 'image' not in lazy else 'image'}"
        )
    compared = tuple(columns) or source.schema.names
    complete = stored or not lazy.isdisjoint(compared)
    reader = source if stored else narrow_source(source, compared)
    jobs = [] if there is None else _hash_jobs(narrow_source(there, compared), 0, compared, False, folder)
    before = len(jobs)
    jobs += _hash_jobs(reader, before, compared, complete, folder)
    hashed = run_tasks(pool, jobs, lambda done, _: report(done, len(jobs) + 1, 0))
    records = sum(hashed)
    count = min(_PREFIXES, -(-records // _BUCKET_RECORDS))
    bounds = [_PREFIXES * i // max(1, count) for i in range(count + 1)]
    buckets = [
        (find_duplicates_in_bucket, (folder, len(jobs), first, stop, before)) for first, stop in pairwise(bounds)
    ]
    found = run_tasks(pool, buckets, lambda done, _: report(len(jobs) + (done == count), len(jobs) + 1, records))
    none = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0, np.bool_))
    part, position, among, of_there = (np.concatenate(arrays) for arrays in zip(none, *found, strict=True))
    return Duplicates(
        among=_by_part(part[among], position[among], len(source.parts)),
        there=_by_part(part[of_there], position[of_there], len(source.parts)),
    )


def _hash_jobs(source: Source, first: int, columns: Sequence[str], complete: bool, folder: Storage) -> list[Job[int]]:
    """A task for each part; their numbers are counted from `first`."""
    return [
        (hash_part, (select_part(source, n), part, first + n, columns, complete, folder))
        for n, part in enumerate(source.parts)
    ]


def _by_part(parts: Int64, positions: Int64, count: int) -> list[Int64]:
    result = [np.empty(0, np.int64) for _ in range(count)]
    for number, places in group(parts):
        result[number] = np.sort(positions[places])
    return result


def hash_part(source: Source, part: Part, number: int, columns: Sequence[str], complete: bool, folder: Storage) -> int:
    """Hash the records of a part; write ``NUMBER.hashes``, of uint64 [records, 3], and ``NUMBER.runs.npy``.

    A row is a hash and the record's position. Rows lie in runs, each sorted by prefix; row r of the second file holds
    where in the first the prefixes of run r begin, and where the last ends.

    Args:
        source: of the records, which may have other columns beside those that are hashed.
        part: of the source.
        number: of the part.
        columns: that are hashed.
        complete: whether the drafts must be completed for that.
        folder: of the files.

    Returns:
        The number of records.
    """
    runs: list[Int64] = []
    written = 0
    with folder.open_output(_hashes_name(number), durable=False) as file:
        for rows in _in_runs(_hashes(source, part, columns, complete)):
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


def _in_runs(batches: Iterator[Hashes]) -> Iterator[npt.NDArray[np.uint64]]:
    """Rows of hash and position, [up to about _RUN_RECORDS, 3]."""
    held: list[npt.NDArray[np.uint64]] = []
    position = count = 0
    for hashes in batches:
        numbers = np.arange(position, position + len(hashes), dtype=np.uint64)
        held.append(np.column_stack([hashes, numbers]))
        position += len(hashes)
        count += len(hashes)
        if count >= _RUN_RECORDS:
            yield np.concatenate(held)
            held, count = [], 0
    if count:
        yield np.concatenate(held)


def find_duplicates_in_bucket(
    folder: Storage, files: int, first: int, stop: int, there: int
) -> tuple[Int64, Int64, Truth, Truth]:
    """The records that come again, of those whose hash has a prefix in ``[first, stop)``.

    Args:
        folder: of what `hash_part` wrote.
        files: how many parts it wrote of.
        first: prefix.
        stop: prefix.
        there: so many parts, the first, are of records that were there before, and are not told of.

    Returns:
        Part, from the first that was not there, and position of each; whether another that was not there comes before
        it; and whether one that was there does.
    """
    rows, parts = [np.empty((0, 3), np.uint64)], [np.empty(0, np.int64)]
    for number in range(files):
        runs = np.load(io.BytesIO(folder.read(_runs_name(number))), allow_pickle=False)
        if not runs.size:
            continue
        with folder.open_input(_hashes_name(number)) as file:
            found = [_read_rows(file, int(run[first]), int(run[stop])) for run in runs]
        rows += found
        parts.append(np.full(sum(map(len, found)), number, np.int64))
    bucket, part = np.concatenate(rows), np.concatenate(parts)
    order = np.lexsort((bucket[:, 1], bucket[:, 0]))  # stable: equal ones stay in the order of the source
    hashes, part = bucket[order, :2], part[order]
    new = np.ones(len(order), np.bool_)  # its hash is another than that of the row before it
    new[1:] = (hashes[1:] != hashes[:-1]).any(axis=1)
    firsts = np.flatnonzero(new)[np.cumsum(new) - 1]  # of the rows with the hash of each
    own = part >= there
    of_there = ~own[firsts]
    among = own & ~new
    among[1:] &= own[:-1]  # the row before it has its hash, and was not there
    again = own & (among | of_there)
    return part[again] - there, bucket[order[again], 2].astype(np.int64), among[again], of_there[again]


def _read_rows(file: IO[bytes], start: int, stop: int) -> npt.NDArray[np.uint64]:
    row_bytes = 3 * np.dtype(np.uint64).itemsize
    file.seek(start * row_bytes)
    return np.frombuffer(file.read((stop - start) * row_bytes), np.uint64).reshape(-1, 3)


# --- hashing ---------------------------------------------------------------------------------------------------


def hash_records(batch: pa.RecordBatch) -> Hashes:
    """The XXH3-128 of each record: of its values' bytes, bit by bit; nulls differ from every value.

    The hash of a record does not depend on the batch that it lies in, nor on the names of the columns.
    """
    pieces: list[Any] = []
    for column in batch.columns:
        pieces += [_prefixes(column), _bytes(column)]
    joined = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))
    data = memoryview(data_of(joined))
    digest = xxhash.xxh3_128_digest
    digests = b"".join([digest(data[start:stop]) for start, stop in pairwise(offsets_of(joined).tolist())])
    return np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)


def _prefixes(column: pa.Array) -> pa.LargeBinaryArray:
    """Of each value: whether it is there, and where lengths vary, its length in bytes, so that no two records agree."""
    valid = pc.is_valid(column).cast(pa.uint8()).to_numpy().reshape(-1, 1)
    if _width(column.type) is not None:
        return binary_rows(valid)
    lengths = pc.binary_length(_bytes(column)).to_numpy().astype("<i8").reshape(-1, 1).view(np.uint8)
    return binary_rows(np.concatenate([valid, lengths], axis=1))


def _width(kind: pa.DataType) -> int | None:
    """Bytes of every value of a type, or None where they vary."""
    if pa.types.is_fixed_size_list(kind):
        width = _width(kind.value_type)
        return None if width is None else width * kind.list_size
    return None if kind in (pa.string(), pa.binary()) or pa.types.is_list(kind) else max(8, kind.bit_width) // 8


def _bytes(column: pa.Array) -> pa.LargeBinaryArray:
    """The bytes of each value, none or zeros where it is missing; of lists of text with each element's length.

    Raises:
        SourceError: a list lacks elements.
    """
    kind = column.type
    if kind in (pa.string(), pa.binary()):
        return pc.cast(pc.cast(column, pa.binary()), pa.large_binary()).fill_null(b"")
    if not is_list(kind):
        return binary_rows(_matrix(column))
    elements = column.flatten()  # leaves out what lies under a null
    if elements.null_count:
        raise SourceError("lists hold nulls, and cannot be compared; drop those records with --drop-nulls")
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    width = _width(elements.type)
    if width is not None:
        return binary_array(bounds * width, _matrix(elements))
    joined = pc.binary_join_element_wise(_prefixes(elements), _bytes(elements), pa.scalar(b"", pa.large_binary()))
    return binary_array(offsets_of(joined)[bounds], data_of(joined))


def _matrix(column: pa.Array) -> npt.NDArray[np.uint8]:
    """The bytes of numbers, in little-endian order, uint8 [n, width]; zeros where one is missing."""
    values = column.cast(pa.uint8()) if column.type == pa.bool_() else column
    width = values.type.bit_width // 8
    bits = values.view(pa.type_for_alias(f"uint{8 * width}")).fill_null(0).to_numpy()
    return np.ascontiguousarray(bits, f"<u{width}").view(np.uint8).reshape(len(column), width)

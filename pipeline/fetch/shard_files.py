"""Read the files of shards from the dataset, and verify their checksums.

Bytes that fail verification may have been damaged in transit, so they are read once more. If they fail again, the error
locates the damage in the shard, or says that the dataset has been replaced since it was opened.
Tested in tests/pipeline/test_faults.py.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.pipeline.metrics.stage_counters import Counters
from ringfeed.sharding.common.checksums import Checksum, checksum
from ringfeed.sharding.dataset.dataset import Dataset, open_dataset, repair_hint
from ringfeed.sharding.dataset.manifest import ShardInfo
from ringfeed.sharding.errors import CorruptionError, DatasetError, RangesError, RingfeedError, StorageError
from ringfeed.sharding.formats.block_checksums import BLOCK_BYTES, blocks_match
from ringfeed.sharding.formats.tfrecord import frames_are_intact
from ringfeed.sharding.storage.client_errors import is_transient
from ringfeed.sharding.storage.file_contents import FileInfo, digest_file, iterate_blocks
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.temporary_folder import temporary_folder
from ringfeed.sharding.verifying.locate import locate_damage

from .hedged_reads import Hedging, Latencies
from .page_cache import READ_BYTES, is_in_page_cache, read_into_page_cache
from .parquet_ranges import read_blocks

_ATTEMPTS = 2  # each with the retries of the store
_SMALL_BYTES = 1 << 19  # reading a file this small takes less processor time than mapping it (2026-11-28)
_GAP_BYTES = 1 << 20  # reading so many bytes takes as long as a request to a remote store


@dataclass(frozen=True, slots=True, kw_only=True)
class _BadFile:
    """What was read in place of a file; no data if it is missing."""

    data: pa.Buffer | None = None
    cause: Exception | None = None


class SourceReader:
    """Reads the files of a dataset's shards, whole or in part. Any thread may call it.

    Args:
        dataset: opened dataset.
        counters: counters of the loader.
        mapped: whether to map files on a local disk rather than copy them into memory.
        hedging: whether to send late reads of a remote store a second time.
    """

    def __init__(self, dataset: Dataset, counters: Counters, *, mapped: bool, hedging: bool) -> None:
        self._dataset = dataset
        self._storage = dataset.storage
        self._counters = counters
        self._mapped = mapped
        self._reads_ranges = True  # until the store refuses to read a range of a file
        self._remote: Hedging | None = None
        if self._storage.local_path is None:
            self._remote = Hedging(counters, self._storage.timings, second=hedging)
        self._of_data, self._of_parts, self._of_indexes = Latencies(), Latencies(), Latencies()

    def close(self) -> None:
        """End all waits for a remote store."""
        if self._remote is not None:
            self._remote.close()

    def data(self, shard: ShardInfo) -> pa.Buffer:
        """Return the verified bytes of a shard's data file.

        Raises:
            CorruptionError: the file is damaged or missing.
            DatasetError: the dataset has been replaced since it was opened.
            StorageError: the store refuses access or does not answer.
        """
        buffer = self._read(shard.path, shard.bytes, shard.checksum, self._of_data)
        if isinstance(buffer, pa.Buffer):
            return buffer
        raise self._error(shard, buffer, in_index=False)

    def frames(self, shard: ShardInfo, start: int, lengths: npt.NDArray[np.integer]) -> pa.Buffer | None:
        """Return the verified frames of some adjacent records of an uncompressed TFRecord shard.

        Args:
            start: offset of the first frame in the file.
            lengths: lengths of the frames, in bytes.

        Returns:
            Bytes of the frames; None if they cannot be read intact. Then `data` reads the shard or raises the error.
        """
        stop = start + int(lengths.sum())
        for _ in range(_ATTEMPTS if self._reads_ranges else 0):
            try:
                with self._counters.busy("fetch", items=1, size=stop - start):
                    if self._remote is not None:
                        data = self._fetch_part(shard.path, start, stop)
                        intact = None
                    else:
                        whole = self._storage.map(shard.path, will_need=False)
                        intact = self._read_frames(shard.path, start, lengths)
                        data = whole[start:stop]
            except (FileNotFoundError, StorageError) as error:
                self._refuse_part(error)
                return None
            with self._counters.busy("verify", items=1, size=stop - start):
                if frames_are_intact(data, lengths) if intact is None else intact:
                    return data
        return None

    def _read_frames(self, path: str, start: int, lengths: npt.NDArray[np.integer]) -> bool | None:
        """Bring frames of a mapped file into the page cache; whether they are intact, or None if that was not seen."""
        ends = np.cumsum(lengths, dtype=np.int64)
        stop, cuts = start + int(ends[-1]), _whole_frames(ends)
        if cuts is None:
            self._read_ahead(path, partial(read_into_page_cache, start=start, stop=stop))
            return None
        groups = iter(np.split(lengths, cuts[:-1]))
        intact: list[bool] = []
        sizes = np.diff(ends[np.array(cuts) - 1], prepend=0).tolist()

        def check(block: memoryview) -> None:
            intact.append(frames_are_intact(pa.py_buffer(block), next(groups)))

        read = partial(read_into_page_cache, start=start, stop=stop, check=check, blocks=sizes)
        is_kept = self._read_ahead(path, read)
        return all(intact) and len(intact) == len(cuts) if is_kept else None

    def columns(
        self, shard: ShardInfo, sums: bytes, columns: Collection[str], rows: tuple[int, int] | None
    ) -> tuple[pa.Buffer, int] | None:
        """Return a Parquet shard's file with only the footer and some columns and rows read and verified.

        All other bytes of the buffer are empty or unverified, and must not be used.

        Args:
            sums: checksums of the blocks of its file.
            columns: names of the columns.
            rows: rows ``[start, stop)``; their row groups are read whole. None for all.

        Returns:
            A buffer of the size of the file, and the number of bytes read. None if they cannot be read intact; then
            `data` reads the shard or raises the error.

        Raises:
            PartTooLarge: the part is most of the file.
        """
        if not self._reads_ranges:
            return None
        try:
            memory = (
                None if self._remote is None else mmap.mmap(-1, shard.bytes)
            )  # takes memory only where it is written
            data = self._storage.map(shard.path, will_need=False) if memory is None else pa.py_buffer(memory)
            if data.size != shard.bytes:
                return None

            def read(start: int, stop: int) -> pa.Buffer | None:
                for _ in range(_ATTEMPTS):
                    with self._counters.busy("fetch", size=stop - start):
                        if memory is None:
                            self._read_ahead(shard.path, partial(read_into_page_cache, start=start, stop=stop))
                        else:
                            memory[start:stop] = self._fetch_part(shard.path, start, stop)
                        part = data.slice(start, stop - start)
                    with self._counters.busy("verify", size=stop - start):
                        if blocks_match(part, start // BLOCK_BYTES, sums):
                            return part
                return None

            blocks = read_blocks(read, shard.bytes, columns, 0 if memory is None else _GAP_BYTES, rows)
        except (FileNotFoundError, StorageError) as error:
            self._refuse_part(error)
            return None
        self._counters.add("fetch", items=1)
        self._counters.add("verify", items=1)
        return None if blocks is None else (data, blocks)

    def index(self, shard: ShardInfo) -> pa.Buffer:
        """Return the verified bytes of a shard's index; raises as `data` does."""
        buffer = self._read(shard.index_path, shard.index_bytes, shard.index_checksum, self._of_indexes)
        if isinstance(buffer, pa.Buffer):
            return buffer
        raise self._error(shard, buffer, in_index=True)

    def _read(self, path: str, size: int, expected: str, kind: Latencies) -> pa.Buffer | _BadFile:
        bad = _BadFile()
        for _ in range(_ATTEMPTS):
            digest = Checksum()
            with self._counters.busy("fetch", items=1, size=size):
                try:
                    data, is_digested = self._fetch(path, size, kind, digest)
                except FileNotFoundError as error:
                    bad = _BadFile(cause=error)
                    continue
            with self._counters.busy("verify", items=1, size=size):
                if data.size == size and (digest.text if is_digested else checksum(data)) == expected:
                    return data
            bad = _BadFile(data=data)
        return bad

    def _fetch(self, path: str, size: int, kind: Latencies, digest: Checksum) -> tuple[pa.Buffer, bool]:
        """Return the content of a file, and whether the digest covers all of it."""
        if self._remote is not None:
            read = partial(_read_whole, self._storage, path)
            with self._counters.waiting("fetch"):
                return self._remote.call(read, kind, size, self._storage.locate(path)), False
        if not self._mapped or size <= _SMALL_BYTES:
            # A thread that reads from memory may wait for Python's lock or a core, but not for a disk.
            is_here = is_in_page_cache(self._local(path), size)
            with nullcontext() if is_here else self._counters.waiting("fetch"):
                return pa.py_buffer(self._storage.read(path)), False
        content = self._storage.map(path, will_need=False)  # refuses special files, which reading would wait for
        read_file = partial(read_into_page_cache, start=0, stop=content.size, check=digest.update)
        return content, bool(self._read_ahead(path, read_file))

    def _read_ahead(self, path: str, read: Callable[[str], bool | None]) -> bool | None:
        """Bring a mapped file into the page cache by `read_into_page_cache`, and count the wait for the disk."""
        begun = time.perf_counter()
        with self._storage.errors("read", path):
            is_kept = read(self._local(path))
        if is_kept is not None:
            self._counters.add("fetch", wait=time.perf_counter() - begun)
        return is_kept

    def _local(self, path: str) -> str:
        assert self._storage.local_path is not None
        return os.path.join(self._storage.local_path, path)

    def _fetch_part(self, path: str, start: int, stop: int) -> pa.Buffer:
        assert self._remote is not None
        read = partial(self._storage.map_range, path, start, stop)
        with self._counters.waiting("fetch"):
            return self._remote.call(read, self._of_parts, stop - start, self._storage.locate(path))

    def _refuse_part(self, error: OSError) -> None:
        """Raise a transient error, which reading the whole file would meet again after as long a wait."""
        if is_transient(error):
            raise error
        self._reads_ranges = not isinstance(error, RangesError)

    def _error(self, shard: ShardInfo, bad: _BadFile, *, in_index: bool) -> RingfeedError:
        full = next(known for known in self._dataset.shards if known.path == shard.path)  # a filter changes the counts
        where = self._storage.locate(full.index_path if in_index else full.path)
        error = self._replaced_error(full, where)
        if error is None and bad.data is None:
            error = CorruptionError(f"{where} is missing; {repair_hint(self._storage)}")
        elif error is None:
            damage = self._damage(full, bad.data, in_index=in_index)
            error = CorruptionError(f"{where} is damaged: {damage}; {repair_hint(self._storage)}")
        error.__cause__ = bad.cause
        return error

    def _replaced_error(self, shard: ShardInfo, where: str) -> RingfeedError | None:
        """Return the error to raise if the dataset has been replaced since it was opened. Appending is no change."""
        try:
            now = open_dataset(self._storage)
            if now.manifest == self._dataset.manifest or shard in now.shards:
                return None
            reason = "the dataset was rewritten while it was read: its dataset.json has changed"
        except DatasetError:
            reason = "the dataset was removed or is being rewritten while it is read: its dataset.json is gone"
        except RingfeedError:  # report the shard instead
            return None
        return DatasetError(
            f"{where} is no longer the file of the dataset that was opened: {reason}; make a new Loader and restart "
            "the epoch, because the order of its records has changed"
        )

    def _damage(self, shard: ShardInfo, data: pa.Buffer, *, in_index: bool) -> str:
        """Describe the damage and its place: record and offset, or row group and column."""
        measured = FileInfo(bytes=data.size, checksum=checksum(data))
        try:
            if self._storage.local_path is not None:
                return self._locate(self._storage, shard, measured, in_index=in_index)
            with temporary_folder() as folder:
                here = Storage(str(folder))
                here.write(shard.index_path if in_index else shard.path, data, durable=False)
                other = shard.path if in_index else shard.index_path
                here.write(other, self._storage.read(other), durable=False)
                return self._locate(here, shard, measured, in_index=in_index)
        except (RingfeedError, OSError):  # no room for a copy, or the store fails now
            size = shard.index_bytes if in_index else shard.bytes
            if data.size != size:
                return f"it has {data.size} bytes, not {size}"
            return "its checksum does not match"

    def _locate(self, storage: Storage, shard: ShardInfo, measured: FileInfo, *, in_index: bool) -> str:
        path, other = (shard.index_path, shard.path) if in_index else (shard.path, shard.index_path)
        intact = digest_file(storage, other) == shard.files[other]
        return locate_damage(storage, self._dataset.manifest, shard, path, measured, other_intact=intact).problem


def _whole_frames(ends: npt.NDArray[np.int64]) -> list[int] | None:
    """Cut frames into groups of at most `READ_BYTES`; None if a frame is larger.

    Args:
        ends: end of each frame, from the start of the first.

    Returns:
        Number of the frame after each group.

    >>> _whole_frames(np.array([100_000, 200_000, 300_000]))
    [2, 3]
    """
    cuts = [0]
    while cuts[-1] < len(ends):
        begin = ends[cuts[-1] - 1] if cuts[-1] else 0
        cuts.append(int(np.searchsorted(ends, begin + READ_BYTES, side="right")))
        if cuts[-1] == cuts[-2]:
            return None
    return cuts[1:]


def _read_whole(storage: Storage, path: str) -> pa.Buffer:
    """Read a file of a remote store, even if its client rejects the store's own checksum: ours is verified later."""
    try:
        return storage.map(path)
    except StorageError as error:
        if type(error.__cause__).__name__ != "FlexibleChecksumError":  # of botocore
            raise
        return pa.py_buffer(b"".join(iterate_blocks(storage, path)))  # ranges have no checksum

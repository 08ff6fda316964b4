"""The files of shards, read from where the dataset lies, and held against their checksums.

Bytes that are not those that were written may have been damaged on their way: they are asked for once more. If they
are wrong again, the error says where in the shard, or that the dataset is no longer the one that was opened.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...sharding.common.checksums import checksum
from ...sharding.dataset.damage import Damage
from ...sharding.dataset.dataset import Dataset, open_dataset, repair_hint
from ...sharding.dataset.manifest import ShardInfo
from ...sharding.dataset.shard_index import Index, read_index
from ...sharding.errors import CorruptionError, DatasetError, RangesError, RingfeedError, StorageError
from ...sharding.formats.block_checksums import BLOCK_BYTES, blocks_match
from ...sharding.formats.tfrecord import frames_are_intact
from ...sharding.storage.file_contents import FileInfo, iterate_blocks
from ...sharding.storage.retry import is_transient
from ...sharding.storage.storage import Storage
from ...sharding.verifying.locate import locate_in_index, locate_in_shard
from ..metrics.stage_counters import Counters
from .hedged_reads import Hedging, Latencies
from .parquet_ranges import read_blocks

__all__ = ["SourceReader"]

_ATTEMPTS = 2  # the store's own are within each
_GAP_BYTES = 1 << 20  # a request of a remote store takes as long


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wrong:
    """What was found where a file should be; no data, if it is missing."""

    data: pa.Buffer | None = None
    cause: Exception | None = None


class SourceReader:
    """Reads the files of a dataset's shards, whole or in parts. Any thread may ask.

    Args:
        dataset: opened.
        counters: of the loader.
        mapped: whether files on a local disk are mapped, and not copied into memory.
        hedging: whether a remote store may be asked a second time for what is late.
    """

    def __init__(self, dataset: Dataset, counters: Counters, *, mapped: bool, hedging: bool) -> None:
        self._dataset = dataset
        self._storage = dataset.storage
        self._counters = counters
        self._mapped = mapped
        self._parted = True  # as far as is known, the store reads parts of files
        self._remote = None if self._storage.local_path is not None else Hedging(counters, second=hedging)
        self._of_data, self._of_parts, self._of_indexes = Latencies(), Latencies(), Latencies()

    def close(self) -> None:
        """Wait for no store any more."""
        if self._remote is not None:
            self._remote.close()

    def data(self, shard: ShardInfo) -> pa.Buffer:
        """The bytes of a shard's data file, as they were written.

        Raises:
            CorruptionError: they are others, or the file is missing.
            DatasetError: the dataset was written anew since it was opened.
            StorageError: the store refuses, or does not answer.
        """
        found = self._read(shard.path, shard.bytes, shard.checksum, self._of_data)
        if isinstance(found, pa.Buffer):
            return found
        raise self._explained(shard, found, in_index=False)

    def frames(self, shard: ShardInfo, start: int, lengths: npt.NDArray[np.integer]) -> pa.Buffer | None:
        """Some records of a TFRecord shard that is not compressed, with their frames, as they were written.

        Args:
            shard: of the dataset.
            start: of the first one's frame in the file.
            lengths: of the frames.

        Returns:
            Their bytes; None where they are not to be had as they were written: `data` will say why, or bring them.
        """
        stop = start + int(lengths.sum())
        for _ in range(_ATTEMPTS if self._parted else 0):
            try:
                with self._counters.busy("fetch", items=1, size=stop - start):
                    if self._remote is not None:
                        data = pa.py_buffer(self._fetch_part(shard.path, start, stop))
                    else:
                        data = self._storage.map(shard.path)[start:stop]
            except (FileNotFoundError, StorageError) as error:
                self._refuse_part(error)
                return None
            with self._counters.busy("verify", items=1, size=stop - start):
                if frames_are_intact(data, lengths):
                    return data
        return None

    def columns(
        self, shard: ShardInfo, sums: bytes, columns: Collection[str], rows: tuple[int, int] | None
    ) -> tuple[pa.Buffer, int] | None:
        """A Parquet shard's data file, of which the footer and some columns and rows are there, as they were written.

        What else is in the buffer is to be left alone: it is empty, or nobody has checked it.

        Args:
            shard: of the dataset.
            sums: of the blocks of its file.
            columns: names of them.
            rows: ``[start, stop)``, of which the whole row groups are read; None for all.

        Returns:
            A buffer of the file's size, and how many bytes of it were read; None where they are not to be had as they
            were written: `data` will say why, or bring them.

        Raises:
            PartTooLarge: they are most of the file.
        """
        if not self._parted:
            return None
        try:
            memory = None if self._remote is None else mmap.mmap(-1, shard.bytes)  # takes what is written to
            data = self._storage.map(shard.path) if memory is None else pa.py_buffer(memory)
            if data.size != shard.bytes:
                return None

            def read(start: int, stop: int) -> pa.Buffer | None:
                for _ in range(_ATTEMPTS):
                    with self._counters.busy("fetch", size=stop - start):
                        if memory is not None:
                            memory[start:stop] = self._fetch_part(shard.path, start, stop)
                        part = data.slice(start, stop - start)
                    with self._counters.busy("verify", size=stop - start):
                        if blocks_match(part, start // BLOCK_BYTES, sums):
                            return part
                return None

            found = read_blocks(read, shard.bytes, columns, 0 if memory is None else _GAP_BYTES, rows)
        except (FileNotFoundError, StorageError) as error:
            self._refuse_part(error)
            return None
        self._counters.add("fetch", items=1)
        self._counters.add("verify", items=1)
        return None if found is None else (data, found)

    def index(self, shard: ShardInfo) -> pa.Buffer:
        """The bytes of a shard's index, likewise."""
        found = self._read(shard.index_path, shard.index_bytes, shard.index_checksum, self._of_indexes)
        if isinstance(found, pa.Buffer):
            return found
        raise self._explained(shard, found, in_index=True)

    def _read(self, path: str, size: int, expected: str, kind: Latencies) -> pa.Buffer | _Wrong:
        wrong = _Wrong()
        for _ in range(_ATTEMPTS):
            with self._counters.busy("fetch", items=1, size=size):
                try:
                    data = self._fetch(path, size, kind)
                except FileNotFoundError as error:
                    wrong = _Wrong(cause=error)
                    continue
            with self._counters.busy("verify", items=1, size=size):
                if data.size == size and checksum(data) == expected:
                    return data
            wrong = _Wrong(data=data)
        return wrong

    def _fetch(self, path: str, size: int, kind: Latencies) -> pa.Buffer:
        if self._remote is not None:
            read = partial(_read_whole, self._storage, path)
            return self._remote.call(read, kind, size, self._storage.locate(path))
        copied = not self._mapped and self._storage.local_path is not None
        return pa.py_buffer(self._storage.read(path)) if copied else self._storage.map(path)

    def _fetch_part(self, path: str, start: int, stop: int) -> bytes:
        assert self._remote is not None
        read = partial(self._storage.read_range, path, start, stop)
        return self._remote.call(read, self._of_parts, stop - start, self._storage.locate(path))

    def _refuse_part(self, error: OSError) -> None:
        """Raise an error that the whole of a file would end in as well, after being waited for as long again."""
        if is_transient(error):
            raise error
        self._parted = not isinstance(error, RangesError)

    def _explained(self, shard: ShardInfo, wrong: _Wrong, *, in_index: bool) -> RingfeedError:
        written = next(known for known in self._dataset.shards if known.path == shard.path)  # a filter changes numbers
        where = self._storage.locate(written.index_path if in_index else written.path)
        error = self._rewritten(written, where)
        if error is None and wrong.data is None:
            error = CorruptionError(f"{where} is missing; {repair_hint(self._storage)}")
        elif error is None:
            damage = self._damage(written, wrong.data, in_index=in_index)
            error = CorruptionError(f"{where} is damaged: {damage}; {repair_hint(self._storage)}")
        error.__cause__ = wrong.cause
        return error

    def _rewritten(self, shard: ShardInfo, where: str) -> RingfeedError | None:
        """What to say if the dataset is no longer the one that was opened; records that were appended do not matter."""
        try:
            now = open_dataset(self._storage)
            if now.manifest == self._dataset.manifest or shard in now.shards:
                return None
            reason = "the dataset was rewritten while it was read, its dataset.json is another now"
        except DatasetError:
            reason = "the dataset was removed or is being rewritten while it is read, its dataset.json is gone"
        except RingfeedError:  # the shard is what the caller asked for
            return None
        return DatasetError(
            f"{where} is not the file that was written when the dataset was opened: {reason}; make a new Loader, and "
            "begin the epoch anew: the order of its records is another"
        )

    def _damage(self, shard: ShardInfo, data: pa.Buffer, *, in_index: bool) -> str:
        """What is wrong, and where: by record and offset, or by row group and column."""
        found = FileInfo(bytes=data.size, checksum=checksum(data))
        try:
            if self._storage.local_path is not None:
                return _locate(self._storage, self._dataset, shard, found, in_index=in_index).problem
            with tempfile.TemporaryDirectory(prefix="ringfeed-") as folder:
                here = Storage(folder)
                here.write(shard.index_path if in_index else shard.path, data, durable=False)
                other = shard.path if in_index else shard.index_path
                here.write(other, self._storage.read(other), durable=False)
                return _locate(here, self._dataset, shard, found, in_index=in_index).problem
        except (RingfeedError, OSError):  # no room for a copy, or the store fails now; what is known is enough
            return f"it has {data.size} of {shard.index_bytes if in_index else shard.bytes} bytes, or another checksum"


def _read_whole(storage: Storage, path: str) -> pa.Buffer:
    """A file of a remote store, also where its client refuses it for the store's own checksum: here is another."""
    try:
        return storage.map(path)
    except StorageError as error:
        if type(error.__cause__).__name__ != "FlexibleChecksumError":  # of botocore
            raise
        return pa.py_buffer(b"".join(iterate_blocks(storage, path)))  # which of ranges says nothing


def _locate(storage: Storage, dataset: Dataset, shard: ShardInfo, found: FileInfo, *, in_index: bool) -> Damage:
    if in_index:
        data = storage.map(shard.path)
        intact = data.size == shard.bytes and checksum(data) == shard.checksum
        return locate_in_index(storage, dataset.manifest, shard, found, shard_intact=intact)
    return locate_in_shard(storage, dataset.manifest, shard, found, _intact_index(storage, dataset, shard))


def _intact_index(storage: Storage, dataset: Dataset, shard: ShardInfo) -> Index | None:
    try:
        data = storage.map(shard.index_path)
    except FileNotFoundError:
        return None
    return read_index(data, dataset.manifest) if checksum(data) == shard.index_checksum else None

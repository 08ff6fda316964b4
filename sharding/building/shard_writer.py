"""Write one shard and its indexes block by block, so that memory holds one block whatever the size of the shard.

Small shards of a remote store are written side by side, since each file waits for its server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any

import numpy as np
import pyarrow as pa

from ringfeed.sharding.common.checksums import Checksum, checksum
from ringfeed.sharding.compute.arrays import Int32, Int64
from ringfeed.sharding.compute.class_counts import ClassCounts
from ringfeed.sharding.dataset.companion_files import dali_index
from ringfeed.sharding.dataset.file_names import FileNames
from ringfeed.sharding.dataset.manifest import ShardInfo, file_info
from ringfeed.sharding.dataset.statistics import FeatureStatistics, merge_statistics, summarise
from ringfeed.sharding.destination.journal import ShardResult
from ringfeed.sharding.formats import ShardEncoding, encode_shard, open_encoder
from ringfeed.sharding.formats.block_checksums import BlockSums
from ringfeed.sharding.schema import check_categories
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.streams import Sink

Block = tuple[pa.RecordBatch, Int32]  # records, and their class ids

_FILES_AT_ONCE = 32  # connections to S3 that a process may have
_HELD_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTarget:
    """What shapes the bytes of all shards alike."""

    storage: Storage  # storage to write to
    plan: str  # fingerprint of the plan, for the journal
    encoding: ShardEncoding
    block_rows: int  # rows that are read, encoded and written at a time; one row group of Parquet
    names: FileNames  # names of the dataset's files
    dali_index: bool = False  # whether each shard gets an index for NVIDIA DALI


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardName:
    """A shard to write."""

    number: int  # number of the shard among those of all splits
    split: str  # name of its split
    path: str
    index_path: str  # path of its index


class SmallFiles:
    """Files of a remote store, held until there are enough to write many side by side."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._files: dict[str, bytes | pa.Buffer] = {}

    def add(self, files: Mapping[str, bytes | pa.Buffer]) -> None:
        """Write files, now or together with later ones."""
        self._files |= files
        held_bytes = sum(len(memoryview(data)) for data in self._files.values())
        if len(self._files) >= _FILES_AT_ONCE or held_bytes >= _HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write all files that are held."""
        self._storage.write_all(self._files)
        self._files = {}


def write_shard(
    blocks: Iterator[Block], target: ShardTarget, small: SmallFiles, name: ShardName, classes: int
) -> ShardResult:
    """Encode and write the records of a shard.

    Args:
        small: takes a remote shard of one block and its indexes; the caller flushes it.
    """
    counts = np.zeros(classes, np.int64)
    statistics: dict[str, FeatureStatistics] = {}
    counted = _counted(blocks, target.encoding, counts, statistics)
    is_remote = target.storage.local_path is None
    ready = deque(islice(counted, 2 if is_remote else 1))
    is_small = is_remote and len(ready) == 1  # a shard of usual size: one request, sent beside those of other files
    files: dict[str, bytes | pa.Buffer] = {}
    if is_small:
        batch, class_ids = ready.pop()
        files[name.path], index = encode_shard(batch, class_ids, target.encoding)
        data_bytes, data_checksum = len(memoryview(files[name.path])), checksum(files[name.path])
    else:
        sink, index = _write_blocks(ready, counted, target, name.path)
        data_bytes, data_checksum = sink.tell(), sink.checksum
    dali_file = {target.names.dali(name.path): dali_index(index)} if target.dali_index else {}
    files |= {name.index_path: index, **dali_file}
    if is_small:
        small.add(files)
    else:
        target.storage.write_all(files)
    info = ShardInfo(
        split=name.split,
        path=name.path,
        bytes=data_bytes,
        records=int(counts.sum()),
        checksum=data_checksum,
        class_counts=ClassCounts(counts),
        index_path=name.index_path,
        index_bytes=index.size,
        index_checksum=checksum(index),
    )
    dali = next((file_info(text) for text in dali_file.values()), None)
    return ShardResult(number=name.number, info=info, statistics=statistics, dali=dali)


def _counted(
    blocks: Iterator[Block], encoding: ShardEncoding, counts: Int64, statistics: dict[str, FeatureStatistics]
) -> Iterator[Block]:
    """The blocks, with their categories checked; adds each to the class counts and to the statistics as it passes."""
    for batch, class_ids in blocks:
        check_categories(batch, encoding.stored)
        counts += np.bincount(class_ids, minlength=len(counts))
        for feature in encoding.schema.features:
            more = summarise(batch.column(feature.name), feature)
            before = statistics.get(feature.name)
            statistics[feature.name] = more if before is None else merge_statistics(before, more)
        yield batch, class_ids
        del batch, class_ids  # hold no block while the next one is made


def _write_blocks(
    ready: deque[Block], more: Iterator[Block], target: ShardTarget, path: str
) -> tuple[_HashingSink, pa.Buffer]:
    """Write a shard block by block, first those that are `ready`, then `more`; returns the sink and the index."""
    with target.storage.open_output(path) as file:
        sink: Any = _HashingSink(file, blocks=target.encoding.shard_format == "parquet")
        encoder = open_encoder(sink, target.encoding)
        while ready:
            encoder.write(*ready.popleft())
            ready.extend(islice(more, 0 if ready else 1))
        return sink, encoder.finish(sink.sums)


class _HashingSink(Sink):
    """A file that counts and checksums the bytes written to it, in blocks too if asked."""

    def __init__(self, file: IO[bytes], *, blocks: bool) -> None:
        super().__init__(self._pass_on)
        self._file = file
        self._digest = Checksum()
        self._blocks = BlockSums() if blocks else None

    @property
    def checksum(self) -> str:
        return self._digest.text

    def sums(self) -> bytes:
        return b"" if self._blocks is None else self._blocks.finish()

    def _pass_on(self, data: memoryview) -> None:
        self._digest.update(data)
        if self._blocks is not None:
            self._blocks.update(data)
        self._file.write(data)

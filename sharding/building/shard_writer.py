"""Write one shard and its indexes block by block, so that memory holds one block whatever the size of the shard.

Small shards of a remote store are written side by side, since each file waits for its server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..common.checksums import Checksum, checksum
from ..compute.class_counts import ClassCounts
from ..dataset import dali_index
from ..dataset.manifest import ShardInfo, file_info
from ..dataset.statistics import FeatureStatistics, merge_statistics, summarise
from ..destination.journal import ShardResult
from ..formats import RecordLayout, encode_shard, open_encoder
from ..formats.block_checksums import BlockSums
from ..schema import Schema
from ..storage.atomic_files import Bytes
from ..storage.storage import Storage
from ..storage.streams import Sink

__all__ = ["ShardName", "ShardTarget", "SmallFiles", "write_shard"]

Block = tuple[pa.RecordBatch, npt.NDArray[np.int32]]  # records, and their class ids

_FILES_AT_ONCE = 32  # connections to S3 that a process may have
_HELD_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTarget:
    """What shapes the bytes of all shards alike.

    Attributes:
        storage: storage to write to.
        plan: fingerprint of the plan, for the journal.
        shard_format: ``tfrecord`` or ``parquet``.
        compression: compression of the shards.
        layout: layout that all records share; None if they share none.
        block_rows: rows that are read, encoded and written at a time; one row group of Parquet.
        dali_index: whether each shard gets an index for NVIDIA DALI.
    """

    storage: Storage
    plan: str
    shard_format: str
    compression: str
    layout: RecordLayout | None
    block_rows: int
    dali_index: bool = False

    def encoding(self) -> dict[str, Any]:
        """Keyword arguments of the encoders."""
        return {"shard_format": self.shard_format, "compression": self.compression, "layout": self.layout}

    def dali_file(self, path: str, index: pa.Buffer) -> dict[str, bytes]:
        """The DALI index of a shard, by its path; empty if none is asked for."""
        return {dali_index.index_name(path): dali_index.index_text(index)} if self.dali_index else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardName:
    """A shard to write.

    Attributes:
        number: number of the shard among those of all splits.
        split: name of its split.
        path: path of the shard.
        index_path: path of its index.
    """

    number: int
    split: str
    path: str
    index_path: str


class SmallFiles:
    """Files of a remote store, held until there are enough to write many side by side.

    Args:
        storage: storage to write to.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The files of a shard: size and checksum of its data, its index, and its DALI index by path."""

    data_bytes: int
    data_checksum: str
    index: pa.Buffer
    dali_file: Mapping[str, bytes]


def write_shard(
    blocks: Iterator[Block], schema: Schema, target: ShardTarget, small: SmallFiles, name: ShardName, classes: int
) -> ShardResult:
    """Encode and write the records of a shard.

    Args:
        blocks: records in order, at least one block.
        schema: schema of the dataset.
        target: where and how to write.
        small: takes a remote shard of one block and its indexes; the caller flushes it.
        name: name of the shard.
        classes: number of classes of the dataset.
    """
    counts = np.zeros(classes, np.int64)
    statistics: dict[str, FeatureStatistics] = {}
    counted = _counted(blocks, schema, counts, statistics)
    is_remote = target.storage.local_path is None
    ready = deque(islice(counted, 2 if is_remote else 1))
    if is_remote and len(ready) == 1:  # a shard of usual size: one request, sent beside those of other files
        written = _write_whole(*ready.pop(), schema, target, small, name)
    else:
        written = _write_blocks(ready, counted, schema, target, name)
    info = ShardInfo(
        split=name.split,
        path=name.path,
        bytes=written.data_bytes,
        records=int(counts.sum()),
        checksum=written.data_checksum,
        class_counts=ClassCounts(counts),
        index_path=name.index_path,
        index_bytes=written.index.size,
        index_checksum=checksum(written.index),
    )
    dali = next((file_info(text) for text in written.dali_file.values()), None)
    return ShardResult(number=name.number, info=info, statistics=statistics, dali=dali)


def _counted(
    blocks: Iterator[Block], schema: Schema, counts: npt.NDArray[np.int64], statistics: dict[str, FeatureStatistics]
) -> Iterator[Block]:
    """The blocks; adds each to the class counts and to the statistics as it passes."""
    for batch, class_ids in blocks:
        counts += np.bincount(class_ids, minlength=len(counts))
        for feature in schema.features:
            more = summarise(batch.column(feature.name), feature)
            before = statistics.get(feature.name)
            statistics[feature.name] = more if before is None else merge_statistics(before, more)
        yield batch, class_ids
        del batch, class_ids  # hold no block while the next one is made


def _write_whole(
    batch: pa.RecordBatch,
    class_ids: npt.NDArray[np.int32],
    schema: Schema,
    target: ShardTarget,
    small: SmallFiles,
    name: ShardName,
) -> _Written:
    """Encode a shard of one block, and hand its files to `small`."""
    data, index = encode_shard(batch, schema, class_ids, **target.encoding())
    dali_file = target.dali_file(name.path, index)
    small.add({name.path: data, name.index_path: index, **dali_file})
    return _Written(data_bytes=data.size, data_checksum=checksum(data), index=index, dali_file=dali_file)


def _write_blocks(
    ready: deque[Block], more: Iterator[Block], schema: Schema, target: ShardTarget, name: ShardName
) -> _Written:
    """Write a shard block by block: first those that are `ready`, then `more`."""
    with target.storage.open_output(name.path) as file:
        sink: Any = _HashingSink(file, blocks=target.shard_format == "parquet")
        encoder = open_encoder(sink, schema, **target.encoding())
        while ready:
            encoder.write(*ready.popleft())
            ready.extend(islice(more, 0 if ready else 1))
        index = encoder.finish(sink.sums)
    dali_file = target.dali_file(name.path, index)
    target.storage.write_all({name.index_path: index, **dali_file})
    return _Written(data_bytes=sink.tell(), data_checksum=sink.checksum, index=index, dali_file=dali_file)


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

    def _pass_on(self, pieces: Sequence[Bytes]) -> None:
        for piece in pieces:
            self._digest.update(piece)
            if self._blocks is not None:
                self._blocks.update(piece)
        self._file.writelines(pieces)

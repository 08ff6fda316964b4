"""Write one shard and its indexes, block by block: what is held in memory is a block, whatever the shard's size.

Small shards of a remote store are written side by side, for each file waits for its server.
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
from ..dataset import dali_index as dali
from ..dataset.manifest import FileInfo, ShardInfo, file_info
from ..dataset.statistics import FeatureStatistics, merge_statistics, summarise
from ..formats import RecordLayout, encode_shard, open_encoder
from ..formats.block_checksums import BlockSums
from ..schema import Schema
from ..storage.atomic_files import Bytes
from ..storage.storage import Storage
from ..storage.streams import Sink

__all__ = ["ShardTarget", "SmallFiles", "write_shard"]

Block = tuple[pa.RecordBatch, npt.NDArray[np.int32]]

_FILES_AT_ONCE = 32  # connections to S3 that a process may have
_HELD_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTarget:
    """All that shapes the bytes of the shards, the same for each of them.

    Attributes:
        storage: to write to.
        plan: its fingerprint, for the journal.
        shard_format: ``tfrecord`` or ``parquet``.
        compression: of the shards.
        layout: that all records share, if they do.
        block_rows: rows that are read, encoded and written at a time; Parquet's row groups.
        dali_index: whether each shard has an index for DALI.
    """

    storage: Storage
    plan: str
    shard_format: str
    compression: str
    layout: RecordLayout | None
    block_rows: int
    dali_index: bool = False


class SmallFiles:
    """Files of a remote store that are held until there are enough of them, and then written side by side.

    Args:
        storage: to write to.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._files: dict[str, bytes | pa.Buffer] = {}

    def add(self, files: Mapping[str, bytes | pa.Buffer]) -> None:
        """Write them, now or with those that follow."""
        self._files |= files
        held_bytes = sum(len(memoryview(data)) for data in self._files.values())
        if len(self._files) >= _FILES_AT_ONCE or held_bytes >= _HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Have all of them written."""
        self._storage.write_all(self._files)
        self._files = {}


def write_shard(
    blocks: Iterator[Block],
    schema: Schema,
    target: ShardTarget,
    small: SmallFiles,
    *,
    split: str,
    classes: int,
    path: str,
    index_path: str,
) -> tuple[ShardInfo, Mapping[str, FeatureStatistics], FileInfo | None]:
    """Encode and write the rows of a shard.

    Args:
        blocks: of rows in their order, and their class ids; at least one.
        schema: of the dataset.
        target: where and how to write.
        small: takes a shard of one block and its indexes, if the storage is remote; the caller has them flushed.
        split: that the shard belongs to.
        classes: of the dataset.
        path: of the shard.
        index_path: of its index.

    Returns:
        What the manifest says of it, the statistics of its features, and what the manifest says of the index for DALI.
    """
    counts = np.zeros(classes, np.int64)
    statistics: dict[str, FeatureStatistics] = {}

    def counted() -> Iterator[Block]:
        for batch, class_ids in blocks:
            counts[:] += np.bincount(class_ids, minlength=classes)
            for feature in schema.features:
                more = summarise(batch.column(feature.name), feature)
                known = statistics.get(feature.name)
                statistics[feature.name] = more if known is None else merge_statistics(known, more)
            yield batch, class_ids
            del batch, class_ids  # nothing is to hold a block while the next is made

    how: dict[str, Any] = {
        "shard_format": target.shard_format, "compression": target.compression, "layout": target.layout
    }  # fmt: skip
    each = counted()
    is_local = target.storage.local_path is not None
    ready = deque(islice(each, 1 if is_local else 2))
    if len(ready) == 1 and not is_local:  # a shard of usual size: one write, beside those of the index and of others
        batch, class_ids = ready.pop()
        data, index = encode_shard(batch, schema, class_ids, **how)
        extra = _dali_file(path, index) if target.dali_index else {}
        small.add({path: data, index_path: index, **extra})
        data_bytes, data_checksum = data.size, checksum(data)
    else:
        with target.storage.open_output(path) as file:
            sink: Any = _HashingSink(file, blocks=target.shard_format == "parquet")
            encoder = open_encoder(sink, schema, **how)
            while ready:
                encoder.write(*ready.popleft())
                ready.extend(islice(each, 0 if ready else 1))
            index = encoder.finish(sink.sums)
        data_bytes, data_checksum = sink.tell(), sink.checksum
        extra = _dali_file(path, index) if target.dali_index else {}
        target.storage.write_all({index_path: index, **extra})
    info = ShardInfo(
        split=split,
        path=path,
        bytes=data_bytes,
        records=int(counts.sum()),
        checksum=data_checksum,
        class_counts=ClassCounts(counts),
        index_path=index_path,
        index_bytes=index.size,
        index_checksum=checksum(index),
    )
    return info, statistics, next((file_info(text) for text in extra.values()), None)


def _dali_file(path: str, index: pa.Buffer) -> dict[str, bytes]:
    return {dali.index_name(path): dali.index_text(index)}


class _HashingSink(Sink):
    """A file that knows the size and the checksum of what was written to it, and of its blocks if that is asked for."""

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

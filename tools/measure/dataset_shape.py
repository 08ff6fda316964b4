"""The shape of a dataset: sizes of the shards of a split.

Tested in tests/tools/predict/test_simulator.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ringfeed.pipeline.deliver.chunk_sizes import ChunkSizes
from ringfeed.sharding.errors import ConfigError

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DatasetShape:
    """Sizes of the shards of a split, int64 [shards] each.

    Attributes:
        records: records of each shard.
        data_bytes: bytes fetched of each shard.
        index_bytes: bytes of each index.
        in_parts: whether a part of a shard can be read alone.
        is_mapped: whether a loader maps shards on a local disk.
        record_bytes: bytes of a delivered sample.
        undecoded: whether TensorFlow parses the samples.
        ragged: whether a feature varies in length.
        numbers: numbers in a delivered sample.

    >>> import numpy as np
    >>> shape = DatasetShape(records=np.full(8, 1000), data_bytes=np.full(8, 64000), index_bytes=np.full(8, 8000))
    >>> int(shape.records.sum())
    8000
    """

    records: Int64
    data_bytes: Int64
    index_bytes: Int64
    in_parts: bool = True
    is_mapped: bool = False
    record_bytes: int = 64
    undecoded: bool = False
    ragged: bool = False
    numbers: int = 0

    @property
    def chunk_sizes(self) -> ChunkSizes:
        """How many samples a loader hands over at once, and keeps ready."""
        return ChunkSizes(
            record_bytes=max(self.record_bytes, 1), undecoded=self.undecoded, ragged=self.ragged, numbers=self.numbers
        )

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return int(self.data_bytes.sum() + self.index_bytes.sum())

    def window_bytes(self, window_shards: int) -> float:
        """Return the mean bytes of a window of so many shards, without their indexes."""
        return float(self.data_bytes.mean()) * min(window_shards, len(self.records))

    def resharded(self, shards: int) -> DatasetShape:
        """Return the same records in this many shards of equal size."""
        total = int(self.records.sum())
        if not 1 <= shards <= total:
            raise ConfigError(f"{total} records make 1 to {total} shards, got {shards}")
        records = np.diff(np.arange(shards + 1) * total // shards)
        share = records / total
        return replace(
            self,
            records=records,
            data_bytes=np.ceil(self.data_bytes.sum() * share).astype(np.int64),
            index_bytes=np.ceil(self.index_bytes.sum() * share).astype(np.int64),
        )

    def repeated(self, records: int) -> DatasetShape:
        """Return more shards like these, with about this many records in all."""
        order = np.arange(max(round(records / self.records.mean()), 1)) % len(self.records)
        return replace(
            self, records=self.records[order], data_bytes=self.data_bytes[order], index_bytes=self.index_bytes[order]
        )

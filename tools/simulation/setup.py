"""What is simulated: the shape of a dataset, and how it is read, by how many ranks on how many hosts.

Tested in tests/tools/simulation/test_simulator.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ringfeed.pipeline.order.epoch_order import Geometry, default_streams
from ringfeed.sharding.dataset.manifest import ShardInfo
from ringfeed.sharding.errors import ConfigError

__all__ = ["DatasetShape", "Prices", "Setup"]

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

    @classmethod
    def of(
        cls, shards: Sequence[ShardInfo], *, in_parts: bool, is_mapped: bool, record_bytes: int, read_fraction: float
    ) -> DatasetShape:
        """Return the shape of a split's shards, of whose files a fraction is read."""
        sizes = np.array([(shard.records, shard.bytes, shard.index_bytes) for shard in shards], np.int64).T
        return cls(
            records=sizes[0],
            data_bytes=np.ceil(sizes[1] * read_fraction).astype(np.int64),
            index_bytes=sizes[2],
            in_parts=in_parts,
            is_mapped=is_mapped,
            record_bytes=record_bytes,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a cloud asks for: of a GB (10^9 bytes) fetched, of 1,000 requests, of a host for an hour.

    >>> from ringfeed.tools.simulation import Costs, DatasetShape, Setup, simulate
    >>> import numpy as np
    >>> shape = DatasetShape(records=np.full(8, 1000), data_bytes=np.full(8, 64000), index_bytes=np.full(8, 8000))
    >>> prices = Prices(per_host_hour=3.0)
    >>> simulation = simulate(shape, Costs(file_seconds=0.01), Setup(batch_size=500, cores=2), prices)
    >>> simulation.epochs[0].steps
    16
    """

    per_gb: float = 0.0
    per_thousand_requests: float = 0.0
    per_host_hour: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How the dataset is read.

    Attributes:
        batch_size: samples of a global batch.
        ranks: processes, spread evenly over `hosts`.
        cores: cores of a host.
        streams, window_shards, fetch_threads, prefetch_bytes: arguments of `Loader`; None: its defaults.
        cache_bytes: limit of a cache; None: no cache.
        cache_in_memory: whether each rank keeps its own in memory, or the ranks of a host share one on its disk.
        is_warm: whether that holds the dataset at first, as far as it fits.
        epochs: epochs to simulate, each with an order of its own.
        steps: steps of an epoch to simulate; None: all.
        seed: seed of the order of samples, and of the draws.

    Raises:
        ConfigError: a value breaks its rule.

    >>> from ringfeed.tools.simulation import Costs, DatasetShape, Setup, simulate
    >>> import numpy as np
    >>> shape = DatasetShape(records=np.full(8, 1000), data_bytes=np.full(8, 64000), index_bytes=np.full(8, 8000))
    >>> simulation = simulate(shape, Costs(file_seconds=0.01), Setup(batch_size=500, cores=2))
    >>> simulation.epochs[0].steps
    16
    """

    batch_size: int = 1024
    ranks: int = 1
    hosts: int = 1
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    streams: int | None = None
    window_shards: int = 1
    fetch_threads: int | None = None
    prefetch_bytes: int | None = None
    cache_bytes: int | None = None
    cache_in_memory: bool = False
    is_warm: bool = False
    epochs: int = 1
    steps: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "ranks", "hosts", "cores", "window_shards", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("streams", "fetch_threads", "steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if self.ranks % self.hosts:
            raise ConfigError(f"hosts must divide the {self.ranks} ranks, got {self.hosts}")

    def geometry(self, records: int) -> Geometry:
        """Return how an epoch of so many records is cut.

        Raises:
            ConfigError: the streams do not divide the batch, or there are fewer records than a batch has.
        """
        streams = default_streams(self.batch_size, records) if self.streams is None else self.streams
        return Geometry(records=records, batch_size=self.batch_size, streams=streams, window_shards=self.window_shards)

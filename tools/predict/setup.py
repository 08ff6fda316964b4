"""How a simulated dataset is read: by how many ranks on how many hosts, with which options, at which prices."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ringfeed.pipeline.order.epoch_order import Geometry, default_streams
from ringfeed.sharding.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a cloud asks for: of a GB (10^9 bytes) fetched, of 1,000 requests, of a host for an hour.

    >>> Prices(per_host_hour=3.0).per_gb
    0.0
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

    >>> Setup(batch_size=500, streams=4).geometry(8000).steps
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

    @property
    def ranks_of_host(self) -> int:
        """Ranks on each host."""
        return self.ranks // self.hosts

    def geometry(self, records: int) -> Geometry:
        """Return how an epoch of so many records is cut.

        Raises:
            ConfigError: the streams do not divide the batch, or there are fewer records than a batch has.
        """
        streams = default_streams(self.batch_size, records) if self.streams is None else self.streams
        return Geometry(records=records, batch_size=self.batch_size, streams=streams, window_shards=self.window_shards)

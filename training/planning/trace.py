"""The records that a run reads in each step, computed from its configuration, since no run writes a log of its order.

The order of a run is a function of its seed, the epoch and the step. Resumes do not change it. The number of ranks
decides only which rank reads which of a step's records; damaged shards that a run has left out are in its checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any

import pyarrow as pa

from ringfeed.pipeline import Loader, Mixture
from ringfeed.pipeline.select.sample_columns import Origin
from ringfeed.sharding.dataset.dataset import Dataset, open_dataset
from ringfeed.sharding.dataset.shard_records import read_shard
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import did_you_mean, listed
from ringfeed.sharding.repairing.source_places import SourcePlace, find_source_places
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.ring.world import World
from ringfeed.training.run.clients import rank_epoch
from ringfeed.training.run.inputs import open_loader
from ringfeed.training.run.state.resume import open_store
from ringfeed.training.sync.epoch_plan import EpochPlan

_BEFORE = 10  # a loss is compared with the median of so many entries before it


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRecord:
    step: int  # step of the run, from 0 on
    epoch: int
    rank: int  # rank that reads it
    position: int  # its place in the rank's batch
    origin: Origin


@dataclass(frozen=True)
class RunTrace:
    """The order of a run, whose ranks must not train on parts of their own (`sync.clients`)."""

    config: TrainConfig
    ranks: int

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ConfigError(f"--ranks must be at least 1, got {self.ranks}")
        if self.config.sync.clients is not None:
            raise ConfigError("sync.clients gives each rank a part of its own, which cannot be traced")

    @cached_property
    def quarantined(self) -> Sequence[str]:
        """Paths of the damaged shards that the run has left out, by its newest checkpoint."""
        store = open_store(self.config)
        newest = None if store is None else store.newest()
        return () if newest is None else tuple(newest.state["loader"].get("quarantined", ()))

    @cached_property
    def _loaders(self) -> list[Loader | Mixture]:
        config = replace(self.config, data=replace(self.config.data, cache="none"))
        worlds = [World(rank=rank, size=self.ranks, local_size=self.ranks) for rank in range(self.ranks)]
        return [open_loader(config, world, quarantined=self.quarantined) for world in worlds]

    @cached_property
    def epoch_plan(self) -> EpochPlan:
        ring: Any = World(rank=0, size=self.ranks, local_size=self.ranks)
        return rank_epoch(self.config, ring, self._loaders[0])

    @property
    def total_steps(self) -> int:
        return self.config.total_steps(self.epoch_plan.steps)

    def records(self, step: int) -> list[TracedRecord]:
        """Return the records of a step, rank by rank, in batch order; a ConfigError if the run has no such step."""
        if not 0 <= step < self.total_steps:
            raise ConfigError(f"--step: the run has the steps 0 to {self.total_steps - 1}, got {step}")
        epoch, inner = self.epoch_plan.batch_at(step)
        batches = [loader.batch_with_origins(epoch, inner)[1] for loader in self._loaders]
        return [found for rank, origins in enumerate(batches) for found in self._traced(step, rank, origins)]

    def _traced(self, step: int, rank: int, origins: Sequence[Origin]) -> list[TracedRecord]:
        place = {"step": step, "epoch": step // self.epoch_plan.steps, "rank": rank}
        return [TracedRecord(**place, position=number, origin=origin) for number, origin in enumerate(origins)]

    def uses(self, shard: str, record: int) -> Iterator[TracedRecord]:
        """Yield where the run reads a record of a shard, step after step; every epoch is read for it.

        A ConfigError says that no dataset of the run has such a record.
        """
        self._check(shard, record)
        for first in range(0, self.total_steps, self.epoch_plan.steps):
            epoch, start = self.epoch_plan.batch_at(first)
            found = []
            for rank, loader in enumerate(self._loaders):
                for inner, origins in loader.origins(epoch, start):
                    if inner >= self.epoch_plan.steps or first + inner >= self.total_steps:
                        break
                    traced = self._traced(first + inner, rank, origins)
                    found += [use for use in traced if (use.origin.shard, use.origin.record) == (shard, record)]
            yield from sorted(found, key=lambda use: use.step)

    def values(self, records: Sequence[TracedRecord], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return columns of records, as they are stored; also of columns that the run leaves out."""
        if not columns:
            return [{} for _ in records]
        shards = {(record.origin.dataset, record.origin.shard) for record in records}
        tables = {place: self._read(*place, columns) for place in sorted(shards)}
        rows = [(tables[record.origin.dataset, record.origin.shard], record.origin.record) for record in records]
        return [table.slice(row, 1).to_pylist()[0] for table, row in rows]

    def sources(self, records: Sequence[TracedRecord], *, trust_code: bool = False) -> list[SourcePlace]:
        """Return where in the source of its dataset each record comes from; see `find_source_places`."""
        origins = [record.origin for record in records]
        places = {
            url: find_source_places(
                open_dataset(url).storage,
                [(origin.shard, origin.record) for origin in origins if origin.dataset == url],
                trust_code=trust_code,
            )
            for url in dict.fromkeys(origin.dataset for origin in origins)
        }
        return [places[origin.dataset][origin.shard, origin.record] for origin in origins]

    @cached_property
    def image_columns(self) -> list[str]:
        schema = next(iter(self._datasets.values())).manifest.schema
        return [feature.name for feature in schema.features if feature.is_image]

    @cached_property
    def _datasets(self) -> Mapping[str, Dataset]:
        return {url: open_dataset(url) for url in dict.fromkeys(self.config.data.urls.values())}

    def _read(self, url: str, path: str, columns: Sequence[str]) -> pa.Table:
        dataset = open_dataset(url)
        names = dataset.manifest.schema.names
        for name in columns:
            if name not in names:
                hint = did_you_mean(name, list(names), f"the columns are: {listed(list(names))}")
                raise ConfigError(f"--show: {url} has no column {name!r}; {hint}")
        shard = next(shard for shard in dataset.split_shards(self.config.data.train_split) if shard.path == path)
        return pa.Table.from_batches(read_shard(dataset.storage, dataset.manifest, shard, columns))

    def _check(self, shard: str, record: int) -> None:
        split = self.config.data.train_split
        known = {each.path: each.records for one in self._datasets.values() for each in one.split_shards(split)}
        if shard not in known:
            hint = did_you_mean(shard, list(known), f"they are: {listed(list(known))}")
            raise ConfigError(f"--record: the split {split!r} has no shard {shard!r}; {hint}")
        if not 0 <= record < known[shard]:
            raise ConfigError(f"--record: {shard} has the records 0 to {known[shard] - 1}, got {record}")


def find_spikes(entries: Sequence[Mapping[str, Any]], count: int) -> list[tuple[range, float, float]]:
    """Return the largest spikes of the loss, at most `count`: the steps of each, its loss, and the median before it.

    An entry is a spike if its loss is above the median of the ten entries before it; the largest ratio comes first. The
    entries have ``step``, the steps done, and ``loss``, their mean since the last entry.

    >>> losses = [1.0, 0.9, 5.0, 0.8]
    >>> find_spikes([{"step": 10 * n + 10, "loss": loss} for n, loss in enumerate(losses)], 1)
    [(range(20, 30), 5.0, 0.95)]
    """
    found = []
    for place, entry in enumerate(entries):
        before = [one["loss"] for one in entries[max(0, place - _BEFORE) : place] if one.get("loss") is not None]
        if before and entry.get("loss") is not None and entry["loss"] > (usual := median(before)):
            found.append((range(entries[place - 1]["step"], entry["step"]), entry["loss"], usual))
    return sorted(found, key=lambda spike: spike[1] / max(spike[2], 1e-12), reverse=True)[:count]

"""Several datasets as one: every batch holds given shares of each, with the guarantees of a single loader.

Each dataset is cut into the same number of canonical streams, and stream k of the mixture draws on stream k of each.
A `ClassSchedule` with datasets for classes says which dataset fills which seat of a global batch. Epochs of equal
shares have only a few different schedules, which repeat in turn. Each dataset is served pass after pass (`Passes`). How
far it has come is a count of seats (`SeatLedger`), which the schedules give for any step, so the whole state is
(seed, epoch, step) here too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ringfeed.sharding.compute.keyed_random import derive_key
from ringfeed.sharding.dataset.combined import combined_manifest
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError

from .base_loader import BaseLoader
from .decode.columns import Column, Columns, concat_columns, take_columns
from .decode.interleave import interleave
from .deliver.chunk_sizes import ChunkSizes, chunk_ranges
from .loader_options import ALL_DATASETS, MixtureOptions, as_arguments, flat_arguments
from .metrics.stage_counters import StageStats
from .mixture_loaders import common_fill, common_schema, name_dataset_in_errors, open_loaders
from .mixture_streams import DatasetReader
from .order.class_balance import ClassNumbers, ClassSchedule
from .order.class_shares import DATASET_TERMS, parse_balance, settled_epoch, target_weights
from .order.epoch_order import Geometry
from .order.passes import EpochDraws, Passes
from .order.plan_table import MixRow, PlanTable, mix_rows, share_bars
from .order.seat_ledger import SeatLedger
from .resume_state import shares_digest
from .select.sample_columns import CLASS_ID, ORIGIN, SOURCE_ID, WEIGHT, Origin
from .streams.stream_reader import OpenStreams

Int64 = npt.NDArray[np.int64]
_CYCLE = 16
_CYCLE_STEPS = 1 << 12  # in longer epochs, one seat more or less does not matter


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMix:
    """One dataset in an epoch of a mixture.

    Attributes:
        records: records in its split.
        samples: its samples in the epoch.
        per_batch: the fewest and the most of its samples in a global batch.
        repeats: samples / records, how often a record comes on average.

    >>> from ringfeed.pipeline import Mixture
    >>> Mixture({"a": {"url": "flights"}}, batch_size=64).plan().sources["a"].records
    320
    """

    records: int
    samples: int
    per_batch: tuple[int, int]
    repeats: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixturePlan:
    """One epoch of a mixture, for all ranks.

    Attributes:
        epoch: number of the epoch.
        steps: global batches, the same on every rank.
        batch_size: samples in a global batch.
        streams: canonical streams.
        sources: the mix by name of dataset.

    >>> from ringfeed.pipeline import Mixture
    >>> plan = Mixture({"a": {"url": "flights"}}, batch_size=64).plan()
    >>> plan.steps
    5
    """

    epoch: int
    steps: int
    batch_size: int
    streams: int
    sources: dict[str, SourceMix]

    def __str__(self) -> str:
        return str(self._table())

    def _repr_html_(self) -> str:
        return self._table().html() + share_bars(self._mix(), "dataset")

    def _mix(self) -> list[MixRow]:
        return [(name, mix.records, mix.samples, mix.per_batch, mix.repeats) for name, mix in self.sources.items()]

    def _table(self) -> PlanTable:
        line = f"epoch {self.epoch}: {self.steps:,} steps of {self.batch_size:,} samples, streams: {self.streams}"
        return PlanTable([line], ["dataset", "records", "samples", "per batch", "repeats"], mix_rows(self._mix()))


class Mixture(BaseLoader):
    """Streams several datasets with the same features, mixed in every batch.

    Every global batch holds each dataset's share of `weights` to within one sample, and so does the epoch. Within a
    dataset, order and balance are those of its own loader: in natural order, a record comes again once all others have
    been served, whatever its `epoch_length`. A ramp of the dataset's balance counts the dataset's own epochs.

    Args:
        sources: by name of dataset, the arguments of its `Loader`: ``url``, and where they differ from the defaults
            ``split``, ``balance``, ``fill`` and so on. Batch size, ranks, seed, streams and sample keys are the
            mixture's; remainders and buckets do not apply.
        batch_size: samples in a GLOBAL batch; `Loader` says what happens if `world_size` does not divide it.
        weights: as `Loader`'s ``balance``, with datasets for classes: ``natural``, in proportion to their records;
            ``uniform``; ``power:A``; a weight by name; ``X->Y:N``, a `Ramp` or a function of the epoch.
        seed: seed of the whole order.
        rank: rank of this process, in ``[0, world_size)``.
        world_size: number of processes that share each global batch.
        steps_per_epoch: default: as many as all records fill.
        streams: canonical streams, a divisor of `batch_size`; default: the largest up to 16 (and up to the samples in
            an epoch of any dataset).
        sample_keys: as for a `Loader`, by positions in the mixture.

    Raises:
        ConfigError: an argument breaks its rule, features differ between datasets, or one is called ``mixture``.
        CorruptionError: everything needed of a dataset is in quarantine.
        DatasetError: there is no such dataset or split.
        StorageError: a store refuses.

    Elements of `epoch` are as a loader's, with ``source_id``, int32, the dataset's position in `sources`; their
    ``class_id`` is the label's position in `classes`.

    >>> mixture = Mixture({"a": {"url": "flights"}, "b": {"url": "flights", "split": "test"}}, batch_size=8)
    >>> mixture.plan().sources["a"].per_batch
    (6, 7)
    """

    @flat_arguments(MixtureOptions)
    def __init__(self, options: MixtureOptions) -> None:
        self._options = options
        self._names = tuple(options.sources)
        self._weights = parse_balance(options.weights, DATASET_TERMS)
        self._loaders = open_loaders(options)
        self._records = [loader.records for loader in self._loaders]
        super().__init__(
            options,
            self._make_geometry(),
            common_schema(self._names, self._loaders),
            self._loaders[0].manifest.schema,
            common_fill(self._loaders),
        )
        target_weights(self._weights, self._names, self._records, terms=DATASET_TERMS)  # refuses impossible shares
        self.classes: tuple[Any, ...] = tuple(
            dict.fromkeys(value for loader in self._loaders for value in loader.manifest.classes)
        )
        numbers = {value: number for number, value in enumerate(self.classes)}
        self._class_ids = [
            np.array([numbers[value] for value in loader.manifest.classes], np.int32) for loader in self._loaders
        ]

    def _make_geometry(self) -> Geometry:
        batch_size, steps = self._options.batch_size, self._options.steps_per_epoch
        if steps is None:
            steps = sum(self._records) // batch_size
        if steps < 1:
            raise ConfigError(
                f"an epoch must have at least one global batch of {batch_size} samples: the datasets have "
                f"{sum(self._records)} records, steps_per_epoch is {self._options.steps_per_epoch}"
            )
        streams = self._loaders[0].local_batch_size  # a loader's batch is one sample of each stream
        return Geometry(records=steps * batch_size, batch_size=batch_size, streams=streams)

    def _describe(self) -> str:
        return ", ".join(self._names)

    @property
    def arguments(self) -> dict[str, Any]:
        sources = {
            name: {
                **self._options.sources[name],
                **{key: loader.arguments[key] for key in ("url", "cache", "quarantined")},
            }
            for name, loader in zip(self._names, self._loaders, strict=True)
        }
        return {**as_arguments(self._options), "sources": sources}

    @property
    def identity(self) -> tuple[Any, ...]:
        return self._geometry, *(loader.identity for loader in self._loaders)

    def _state(self, epoch: int) -> dict[str, Any]:
        changing = min(settled_epoch(self._weights, epoch), epoch)  # earlier epochs decide what has been served
        return {
            "seed": self._seed,
            **asdict(self._geometry),
            "sources": list(self._names),
            "shares": shares_digest(*(self._schedule(each).weights for each in (*range(changing), epoch))),
            "datasets": {
                name: self._dataset_state(source, [0] if loader.is_settled else _ends(self._own_epochs(source, epoch)))
                for source, (name, loader) in enumerate(zip(self._names, self._loaders, strict=True))
            },
        }

    def _dataset_state(self, source: int, epochs: Sequence[int]) -> dict[str, Any]:
        """The state of a dataset in epochs of its own."""
        with name_dataset_in_errors(self._names[source]):
            return self._loaders[source].state_in(epochs)

    def _own_epochs(self, source: int, epoch: int) -> range:
        """The epochs of a balanced dataset that an epoch of the mixture reads."""
        ledger, length = self._ledger(epoch), self._loaders[source].steps_per_epoch
        starts, total = (
            ledger.before(epoch)[:, source],
            ledger.schedule(epoch).seats_before(self.steps_per_epoch, self.streams),
        )
        ends = starts + total[:, source]
        if not total[:, source].any():
            return range(0)
        return range(int(starts.min()) // length, (int(ends.max()) - 1) // length + 1)

    def _checked(self, epoch: int, start_step: int = 0) -> tuple[int, int]:
        epoch, start_step = super()._checked(epoch, start_step)
        if (epoch + 1) * self._geometry.records >= 1 << 63:  # samples are counted in int64
            raise ConfigError(
                f"all epochs of a mixture together must have fewer than 2**63 samples, got epoch {epoch} of "
                f"{self._geometry.records} each"
            )
        return epoch, start_step

    @property
    def quarantined(self) -> dict[str, tuple[str, ...]]:
        """Paths of the shards in quarantine, by name of dataset: part of the state; see `Loader`."""
        return {name: loader.quarantined for name, loader in zip(self._names, self._loaders, strict=True)}

    @functools.cached_property
    def manifest(self) -> Manifest:
        """One manifest for all datasets: their features and classes, and by split their records and statistics."""
        return combined_manifest(
            {name: loader.manifest for name, loader in zip(self._names, self._loaders, strict=True)}
        )

    @property
    def _continues(self) -> bool:
        return any(loader.serves_all for loader in self._loaders)

    @property
    def records(self) -> int:
        """Records in the splits of all datasets."""
        return sum(self._records)

    @property
    def masks(self) -> tuple[str, ...]:
        """See `BaseLoader`; the same for all datasets."""
        return self._loaders[0].masks

    @property
    def undecoded(self) -> bool:
        """See `Loader`; the same for all datasets."""
        return self._loaders[0].undecoded

    def plan(self, epoch: int = 0) -> MixturePlan:
        """Steps of an epoch, and how much of each dataset is in it; opens no shard.

        Raises:
            ConfigError: a dataset cannot give what its balance asks for.
            CorruptionError: everything needed of a dataset is in quarantine.
        """
        epoch, _ = self._checked(epoch)
        for source, loader in enumerate(self._loaders):
            own_epochs = [] if loader.is_settled else self._own_epochs(source, epoch)
            self._dataset_state(source, own_epochs)  # refuses impossible shares
            for own in own_epochs if loader.quarantined else ():
                loader.plan(own)
        samples, fewest, most = self._schedule(epoch).seats_of_epoch()
        return MixturePlan(
            epoch=epoch,
            steps=self._geometry.steps,
            batch_size=self._geometry.batch_size,
            streams=self._geometry.streams,
            sources={
                name: SourceMix(
                    records=records,
                    samples=int(samples[i]),
                    per_batch=(int(fewest[i]), int(most[i])),
                    repeats=float(samples[i] / records),
                )
                for i, (name, records) in enumerate(zip(self._names, self._records, strict=True))
            },
        )

    def stats(self) -> dict[str, dict[str, StageStats]]:
        """What each stage has done so far, by name of dataset; ``mixture`` holds the work for all of them together."""
        return {name: loader.stats() for name, loader in zip(self._names, self._loaders, strict=True)} | {
            ALL_DATASETS: self._counters.snapshot()
        }

    def _gather_chunks(
        self, epochs: range, start_step: int, *, locate_features: bool, with_origins: bool
    ) -> Iterator[tuple[int, Columns]]:
        assert not locate_features  # `locates_features` is not overridden
        ledger = self._ledger(epochs.start)
        with ExitStack() as stack:
            opened = [
                stack.enter_context(loader.open_streams(with_origins=with_origins, streams=self._streams))
                for loader in self._loaders
            ]
            readers = [
                DatasetReader(streams, self._drawer(source, streams, ledger, epochs.start, start_step))
                for source, streams in enumerate(opened)
            ]
            for epoch in epochs:  # the readers continue: an epoch begins with the records after the last one's
                if epoch != epochs.start:
                    ledger = self._ledger(epoch)
                schedule = ledger.schedule(epoch)
                for chunk in chunk_ranges(start_step, self.steps_per_epoch, self.chunk_steps):
                    steps = np.arange(chunk.start, chunk.stop)
                    yield len(chunk), self._gather(readers, schedule.classes_at(steps, range(schedule.batch_size)))
                start_step = 0

    def _drawer(
        self, source: int, opened: OpenStreams, ledger: SeatLedger, epoch: int, step: int
    ) -> Passes | EpochDraws:
        """What says which record of a dataset each of its seats serves, from a step on."""
        if not self._loaders[source].serves_all:
            served = ledger.before(epoch, step)[:, source]
            return EpochDraws(self._loaders[source].steps_per_epoch, served)
        ranges = [opened.order(0).stream_range(stream) for stream in range(self.streams)]
        return Passes.at(np.array([stop - start for start, stop in ranges]), ledger, source, epoch, step)

    def _origins(self, columns: Mapping[str, Any]) -> list[Origin]:
        rows = zip(columns[SOURCE_ID].tolist(), columns[ORIGIN].tolist(), strict=True)
        return [self._loaders[source].origin(*origin) for source, origin in rows]

    def _added(self) -> dict[str, npt.DTypeLike]:
        return {SOURCE_ID: np.int32, **super()._added()}

    def _schedule(self, epoch: int) -> ClassSchedule:
        weights = target_weights(self._weights, self._names, self._records, epoch, DATASET_TERMS)
        if weights is None:
            weights = np.array(self._records) / sum(self._records)
        key = derive_key(self._seed, "mixture")
        return ClassSchedule(weights, self._geometry.batch_size, self._geometry.steps, key, epoch % self._cycle)

    @property
    def _cycle(self) -> int:
        """Epochs of equal shares after which schedules repeat; 1 for long epochs, which all have the same."""
        return max(min(_CYCLE_STEPS // self._geometry.steps, _CYCLE), 1)

    def _ledger(self, epoch: int) -> SeatLedger:
        """The seats of each dataset before any step up to an epoch."""
        changing = settled_epoch(self._weights, epoch)
        return SeatLedger(self._schedule, changing=changing, cycle=self._cycle, epoch=epoch, streams=self.streams)

    def _gather(self, readers: Sequence[DatasetReader], sources: ClassNumbers) -> dict[str, Column]:
        """The samples of some steps, step after step; `sources` is the dataset of each seat, [steps, batch]."""
        piece = self._geometry.piece
        own = np.concatenate([part.stream * piece + part.offsets() for part in self._slices])
        mine = sources[:, own]
        parts: list[Columns] = []
        places: list[Int64] = []
        for source, reader in enumerate(readers):
            seats = np.flatnonzero(mine == source)
            with name_dataset_in_errors(self._names[source]):
                for taken, numbers in reader.take(sources == source, own):
                    parts.append(self._label(taken, source))
                    places.append(seats[numbers])
        with self._counters.busy("gather"):
            order = np.empty(mine.size, np.int64)
            order[np.concatenate(places)] = np.arange(len(order))
            columns = take_columns(concat_columns(parts), order)
        if self._slices[0].weighted:
            counts = np.concatenate([part.is_real() for part in self._slices])
            columns[WEIGHT] = np.tile(counts, len(mine)).astype(np.float32)
        return columns

    def _label(self, columns: Columns, source: int) -> Columns:
        """Decode one dataset's samples, and number their classes and their dataset as the mixture does."""
        loader, rows = self._loaders[source], len(columns[CLASS_ID])
        decoded = interleave([columns], [rows], 1, loader.schema, loader.manifest.layout, labels=loader.labels)
        return {
            **decoded,
            CLASS_ID: self._class_ids[source][columns[CLASS_ID]],
            SOURCE_ID: np.full(rows, source, np.int32),
        }

    @property
    def _chunk_sizes(self) -> list[ChunkSizes]:
        return [size for loader in self._loaders for size in loader._chunk_sizes]


def _ends(epochs: range) -> Sequence[int]:
    return epochs and (epochs[0], epochs[-1])

"""Several datasets as one: every batch holds samples of each in given shares, with the promises of a single loader.

Each dataset is cut into the same number of canonical streams, and stream k of the mixture is fed by stream k of each.
Which dataset fills which seat of a global batch is a `ClassSchedule` that has datasets for classes; of epochs of equal
shares there are few, one after the other and over again. A stream takes each dataset's samples one after the other,
through one epoch of that dataset and into the next, so how far it has come is a number of seats, which the schedules
tell for any step: the whole state is (seed, epoch, step) here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..sharding.common.option_checks import integer, mapping, text
from ..sharding.compute.keyed_random import derive_key
from ..sharding.errors import ConfigError
from .base_loader import BaseLoader
from .decode.columns import Column, Columns, concat_columns, copy_columns, take_columns
from .decode.interleave import interleave
from .metrics.stage_counters import StageStats
from .mixture_loaders import common_fill, common_schema, name_dataset_in_errors, open_loaders
from .order.class_balance import ClassSchedule
from .order.class_shares import DATASET_TERMS, Balance, parse_balance, settled_epoch, target_weights
from .order.epoch_order import Geometry, StreamSlice
from .resume_state import shares_digest
from .select.sample_columns import CLASS_ID, ORIGIN, SOURCE_ID, WEIGHT, Origin
from .streams.stream_reader import OpenStreams, StreamReader

__all__ = ["Mixture", "MixturePlan", "SourceMix"]

Int64 = npt.NDArray[np.int64]
_CYCLE = 16
_CYCLE_STEPS = 1 << 12  # in longer epochs a seat more or less is none
_TOGETHER = "mixture"  # in `Mixture.stats`, what is done for all datasets


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMix:
    """One dataset in an epoch of a mixture.

    Attributes:
        records: in its split.
        samples: in the epoch.
        per_batch: the fewest and the most in a global batch.
        repeats: samples / records, how often a record comes on average.
    """

    records: int
    samples: int
    per_batch: tuple[int, int]
    repeats: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixturePlan:
    """One epoch of a mixture, for all ranks.

    Attributes:
        epoch: its number.
        steps: global batches; every rank makes so many.
        batch_size: of the global batch.
        streams: canonical streams.
        sources: by the datasets' names.
    """

    epoch: int
    steps: int
    batch_size: int
    streams: int
    sources: dict[str, SourceMix]


class Mixture(BaseLoader):
    """Streams several datasets of the same features, mixed in every batch.

    Every global batch holds each dataset's share of `weights` to within one sample, and so does the epoch. Within a
    dataset, order and balance are as its own loader would give them, through one epoch of its own and into the next:
    in natural order its records come again when all its others (but fewer than `streams`, or than its `epoch_length`
    leaves out) have been served, and a ramp of its balance goes by these epochs.

    Args:
        sources: by a name for each dataset, the arguments of its `Loader`: ``url``, and what is to differ from a
            loader's defaults among ``split``, ``balance``, ``fill`` and the like. Batch, ranks, seed, streams and keys
            are those of the mixture; remainders and buckets it has none.
        batch_size: of the GLOBAL batch; see `Loader` for a `world_size` that does not divide it.
        weights: as a loader's ``balance``, with the datasets for classes: ``natural``, by their numbers of records;
            ``uniform``; ``power:A``; a share by name; ``X->Y:N``, a `Ramp` or a function of the epoch.
        seed: of the whole order.
        rank: of this process, in ``[0, world_size)``.
        world_size: processes that share each global batch.
        steps_per_epoch: default: as many as all records fill.
        streams: canonical streams, a divisor of `batch_size`; default: the largest up to 16 (and up to the samples in
            an epoch of any dataset).
        sample_keys: as for a `Loader`, of the mixture's positions.

    Raises:
        ConfigError: an argument its rule forbids, datasets whose features differ, or one called ``mixture``.
        CorruptionError: all that is needed of a dataset is in quarantine.
        DatasetError: there is no such dataset or split.
        StorageError: a store refuses.

    Each element of `epoch` is as a loader's, with ``source_id``, int32, the dataset's position in `sources`, and
    ``class_id`` the label's position in `classes`.
    """

    def __init__(
        self,
        sources: Mapping[str, Mapping[str, Any]],
        *,
        batch_size: int,
        weights: Balance = "natural",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        steps_per_epoch: int | None = None,
        streams: int | None = None,
        sample_keys: bool = False,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        for name, given in mapping("sources", sources, "Loaders' arguments by dataset").items():
            text("the name of a dataset in sources", name)  # as it is in a state, after JSON
            mapping(f"dataset {name!r} of the mixture", given, "its Loader's arguments")
        if not sources:
            raise ConfigError("a mixture needs at least one dataset")
        if _TOGETHER in sources:
            raise ConfigError(f"no dataset of a mixture may be called {_TOGETHER!r}: stats() calls all together so")
        batch_size, seed = integer("batch_size", batch_size, 1), integer("seed", seed)
        streams = None if streams is None else integer("streams", streams, 1)
        self._names = tuple(sources)
        self._weights = parse_balance(weights, DATASET_TERMS)
        self._loaders = open_loaders(sources, batch_size, seed, streams)
        self._records = [loader.records for loader in self._loaders]
        steps = (
            sum(self._records) // batch_size if steps_per_epoch is None else integer("steps_per_epoch", steps_per_epoch)
        )
        if steps < 1:
            raise ConfigError(
                f"an epoch must have at least one global batch of {batch_size} samples: the datasets have "
                f"{sum(self._records)} records, steps_per_epoch is {steps_per_epoch}"
            )
        super().__init__(
            Geometry(records=steps * batch_size, batch_size=batch_size, streams=self._loaders[0].local_batch_size),
            common_schema(self._names, self._loaders),
            self._loaders[0].manifest.schema,
            common_fill(sources, self._loaders),
            seed=seed,
            rank=rank,
            world_size=world_size,
            sample_keys=sample_keys,
        )
        self._seats_of: dict[tuple[int, bytes, int], Int64] = {}
        target_weights(
            self._weights, self._names, self._records, terms=DATASET_TERMS
        )  # impossible shares are refused now
        self.classes: tuple[Any, ...] = tuple(
            dict.fromkeys(value for loader in self._loaders for value in loader.manifest.classes)
        )
        numbers = {value: number for number, value in enumerate(self.classes)}
        self._class_ids = [
            np.array([numbers[value] for value in loader.manifest.classes], np.int32) for loader in self._loaders
        ]

    @property
    def arguments(self) -> dict[str, Any]:
        """See `BaseLoader`."""
        given: Mapping[str, Mapping[str, Any]] = self._arguments["sources"]
        sources = {
            name: {**given[name], **{key: loader.arguments[key] for key in ("url", "cache", "quarantined")}}
            for name, loader in zip(self._names, self._loaders, strict=True)
        }
        return {**self._arguments, "sources": sources}

    @property
    def identity(self) -> tuple[Any, ...]:
        """See `BaseLoader`."""
        return self._geometry, *(loader.identity for loader in self._loaders)

    def _state(self, epoch: int) -> dict[str, Any]:
        changing = min(settled_epoch(self._weights, epoch), epoch)  # what was served before follows from these, too
        return {
            "seed": self._seed,
            **asdict(self._geometry),
            "sources": list(self._names),
            "shares": shares_digest(*(self._schedule(each).weights for each in (*range(changing), epoch))),
            "datasets": {
                name: self._state_of(source, [0] if loader.is_settled else _ends(self._own_epochs(source, epoch)))
                for source, (name, loader) in enumerate(zip(self._names, self._loaders, strict=True))
            },
        }

    def _state_of(self, source: int, epochs: Sequence[int]) -> dict[str, Any]:
        """Of a dataset, in epochs of its own."""
        with name_dataset_in_errors(self._names[source]):
            return self._loaders[source].state_in(epochs)

    def _own_epochs(self, source: int, epoch: int) -> range:
        """The epochs of a dataset that an epoch of the mixture reads."""
        streams, length = range(self._geometry.streams), self._loaders[source].steps_per_epoch
        begun, over = (self._served(each, 0, streams)[:, source].tolist() for each in (epoch, epoch + 1))
        if begun == over:
            return range(0)
        return range(min(begun) // length, (max(over) - 1) // length + 1)

    def _checked(self, epoch: int, start_step: int = 0) -> tuple[int, int]:
        epoch, start_step = super()._checked(epoch, start_step)
        if (epoch + 1) * self._geometry.records >= 1 << 63:  # which is how samples are counted
            raise ConfigError(
                f"all epochs of a mixture together must have fewer than 2**63 samples, got epoch {epoch} of "
                f"{self._geometry.records} each"
            )
        return epoch, start_step

    @property
    def quarantined(self) -> dict[str, tuple[str, ...]]:
        """Paths of the shards that are left out, by the datasets' names: part of the state; see `Loader`."""
        return {name: loader.quarantined for name, loader in zip(self._names, self._loaders, strict=True)}

    @property
    def undecoded(self) -> bool:
        """See `Loader`; the same for all datasets."""
        return self._loaders[0].undecoded

    def plan(self, epoch: int = 0) -> MixturePlan:
        """Steps, and how much of each dataset is in an epoch; no shard is opened.

        Raises:
            ConfigError: a dataset's balance asks for what there is not.
            CorruptionError: all that is needed of a dataset is in quarantine.
        """
        epoch, _ = self._checked(epoch)
        for source, loader in enumerate(self._loaders):
            own_epochs = [] if loader.is_settled else self._own_epochs(source, epoch)
            self._state_of(source, own_epochs)  # impossible shares are refused
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
        """What each stage did since the mixture was made, by dataset; ``mixture`` is what is done for all together."""
        return {name: loader.stats() for name, loader in zip(self._names, self._loaders, strict=True)} | {
            _TOGETHER: self._counters.snapshot()
        }

    def _gather_chunks(
        self, epoch: int, start_step: int, *, locate_features: bool, with_origins: bool
    ) -> Iterator[tuple[int, Columns]]:
        assert not locate_features  # for `locates_features` is not overridden
        schedule = self._schedule(epoch)
        with ExitStack() as stack:
            opened = [
                stack.enter_context(loader.open_streams(with_origins=with_origins, streams=self._streams))
                for loader in self._loaders
            ]
            lanes = []
            had = self._served(epoch, start_step, self._streams)
            for part, served in zip(self._slices, had, strict=True):
                tapes = [
                    _Tape(source, part.stream, loader.steps_per_epoch)
                    for source, loader in zip(opened, self._loaders, strict=True)
                ]
                lanes.append(_Lane(schedule, part, self._geometry.piece, served, tapes))
            per_chunk = self.chunk_steps(self.local_batch_size)
            for step in range(start_step, self.steps_per_epoch, per_chunk):
                steps = np.arange(step, min(step + per_chunk, self.steps_per_epoch))
                yield len(steps), self._gather(lanes, steps)

    def _origins(self, columns: Mapping[str, Any]) -> list[Origin]:
        own = zip(columns[SOURCE_ID].tolist(), columns[ORIGIN].tolist(), strict=True)
        return [self._loaders[source].origin(*origin) for source, origin in own]

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
        """After how many epochs of equal shares their seats are the same again; of long ones all have the same."""
        return max(min(_CYCLE_STEPS // self._geometry.steps, _CYCLE), 1)

    def _served(self, epoch: int, step: int, streams: Sequence[int]) -> Int64:
        """How many samples of each dataset some streams have had before a step, in all epochs; [streams, datasets]."""
        schedule = self._schedule(epoch)
        served = np.stack([schedule.seats_before(step, self._places_of(stream)) for stream in streams])
        changing = min(settled_epoch(self._weights, epoch), epoch)
        for earlier in range(changing):
            served += self._served_in(earlier, streams)
        for first in range(changing, min(changing + self._cycle, epoch)):
            served += -(-(epoch - first) // self._cycle) * self._served_in(first, streams)
        return served

    def _served_in(self, epoch: int, streams: Sequence[int]) -> Int64:
        """The same of all of an epoch, and no other."""
        schedule = self._schedule(epoch)
        keys = [(stream, schedule.weights.tobytes(), schedule.epoch) for stream in streams]
        for key in keys:
            if key not in self._seats_of:
                self._seats_of[key] = schedule.seats_before(self._geometry.steps, self._places_of(key[0]))
        return np.stack([self._seats_of[key] for key in keys])

    def _places_of(self, stream: int) -> range:
        """Of a stream's piece in the global batch."""
        return range(stream * self._geometry.piece, (stream + 1) * self._geometry.piece)

    def _gather(self, lanes: Sequence[_Lane], steps: Int64) -> dict[str, Column]:
        """The samples of some steps, step after step."""
        parts: list[Columns] = []
        places: list[Int64] = []
        first = 0
        for lane in lanes:
            for source, (numbers, seats) in enumerate(lane.seats(steps)):
                if len(numbers):
                    with name_dataset_in_errors(self._names[source]):
                        taken = lane.tapes[source].take(numbers)
                    parts.append(self._labelled(taken, source))
                    places.append(seats // lane.width * self.local_batch_size + first + seats % lane.width)
            first += lane.width
        with self._counters.busy("gather"):
            order = np.empty(len(steps) * self.local_batch_size, np.int64)
            order[np.concatenate(places)] = np.arange(len(order))
            columns = take_columns(concat_columns(parts), order)
        if self._geometry.weighted(self._world_size):
            counts = np.concatenate([part.is_real() for part in self._slices])
            columns[WEIGHT] = np.tile(counts, len(steps)).astype(np.float32)
        return columns

    def _labelled(self, columns: Columns, source: int) -> Columns:
        """Features of one dataset's samples, with the mixture's number for each class, and the dataset's own."""
        loader, rows = self._loaders[source], len(columns[CLASS_ID])
        decoded = interleave([columns], [rows], 1, loader.schema, loader.manifest.layout, labels=loader.labels)
        return {
            **decoded,
            CLASS_ID: self._class_ids[source][columns[CLASS_ID]],
            SOURCE_ID: np.full(rows, source, np.int32),
        }

    def chunk_steps(self, local_batch: int) -> int:
        """See `BaseLoader`."""
        return min(loader.chunk_steps(local_batch) for loader in self._loaders)

    def large_steps(self, local_batch: int) -> int:
        """See `BaseLoader`."""
        return min(loader.large_steps(local_batch) for loader in self._loaders)

    def ready_batches(self, local_batch: int) -> int:
        """See `BaseLoader`."""
        return min(loader.ready_batches(local_batch) for loader in self._loaders)


def _ends(epochs: range) -> Sequence[int]:
    return epochs and (epochs[0], epochs[-1])


class _Lane:
    """One stream of the mixture: which sample of which dataset sits in each of its seats.

    Args:
        schedule: of datasets.
        part: the stream, and which samples of each of its pieces this rank takes.
        piece: samples of the stream in a step.
        served: samples of each dataset that it has had, int64 [datasets].
        tapes: of each dataset, the stream.
    """

    def __init__(
        self, schedule: ClassSchedule, part: StreamSlice, piece: int, served: Int64, tapes: Sequence[_Tape]
    ) -> None:
        self._schedule = schedule
        self._positions = range(part.stream * piece, (part.stream + 1) * piece)
        self._places = part.offsets()
        self._served = served.copy()
        self.width = part.width
        self.tapes = tapes

    def seats(self, steps: Int64) -> Iterator[tuple[Int64, Int64]]:
        """By dataset, the numbers of its samples that this rank takes, and the seats they sit in.

        Args:
            steps: that follow those of the last call.

        Yields:
            Numbers in the order in which the stream comes to the dataset's samples, and seats among the rank's own,
            step after step; ascending both.
        """
        sources = self._schedule.classes_at(steps, self._positions)
        for source in range(len(self.tapes)):
            here = sources == source
            numbers = self._served[source] + np.cumsum(here).reshape(here.shape) - 1
            self._served[source] += np.count_nonzero(here)
            own = here[:, self._places]
            yield numbers[:, self._places][own], np.flatnonzero(own)


class _Tape:
    """A stream of one dataset, epoch after epoch.

    Args:
        opened: the dataset.
        stream: which of its streams; a step takes one sample of it.
        length: samples of the stream in an epoch.
    """

    def __init__(self, opened: OpenStreams, stream: int, length: int) -> None:
        self._opened = opened
        self._part = StreamSlice(stream=stream, start=0, stop=1)
        self._length = length
        self._epoch = -1
        self._reader: StreamReader | None = None

    def take(self, numbers: Int64) -> Columns:
        """The samples of ascending numbers, from 0 in the first epoch on; later ones only."""
        parts: list[Columns] = []
        while len(numbers):
            if parts:
                parts[-1] = copy_columns(parts[-1])
            epoch, position = divmod(int(numbers[0]), self._length)
            if self._reader is None or epoch != self._epoch:
                if self._reader is not None:
                    self._reader.close()
                self._epoch, self._reader = epoch, self._opened.reader(epoch, self._part, position, scattered=True)
            until = int(np.searchsorted(numbers, (epoch + 1) * self._length))
            parts.append(self._reader.at(numbers[:until] - epoch * self._length))
            numbers = numbers[until:]
        return concat_columns(parts)

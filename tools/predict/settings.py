"""The settings of a loader that may help against what limits it, each with what the simulator expects of it.

The measured epoch is expected to change by the factor by which the simulated one does.
Tested in tests/tools/verdict/test_conclusion.py and tests/tools/profile/test_predictions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from ringfeed.pipeline import Loader
from ringfeed.tools.measure.costs import Costs, StoreCosts
from ringfeed.tools.measure.dataset_shape import DatasetShape
from ringfeed.tools.measure.estimates import Estimate, exactly
from ringfeed.tools.measure.loader_costs import MeasuredDataset
from ringfeed.tools.measure.part_trials import OpenTrial, WarmTrial
from ringfeed.tools.measure.store_trial import PIECE_BYTES, StoreTrial
from ringfeed.tools.measure.trial import Trial

from .gains import ExpectedGain, MeasuredEpoch, expected_gain
from .setup import Setup
from .simulation import EpochFigures
from .simulator import simulate

_THREADS = 4  # the least number of fetching threads, unless it is given
_FEW_STREAMS = 4
_SIMULATED_SHARDS = 512  # of a larger dataset, an epoch's beginning with about so many is simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderTrials:
    """What was measured of the loader's parts alone; None where it was not.

    Attributes:
        store: the remote store.
        warm: the loader with its shards on the local disk.
        hand_over: handing over one chunk again and again.
        opening: checksums and decoding.
    """

    store: StoreTrial | None = None
    warm: WarmTrial | None = None
    hand_over: Trial | None = None
    opening: OpenTrial | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """Sizes of a loader, for one rank.

    Attributes:
        streams: streams of all ranks.
        local_streams: streams of this rank.
        threads: fetching threads, the least number.
        shards: shards of the split.
        shard_bytes: mean bytes of a shard with its index.
        window_bytes: mean bytes of a window.
        epoch_bytes: bytes that the rank reads in an epoch.
        record_bytes: bytes of a record.
        batch_size: global batch.
        local_batch_size: the rank's part of it.
        is_local: whether the dataset is on a local disk.
        has_cache: whether there is a cache.
        fetch_bytes_per_second: what came, over the whole of the reading.
    """

    streams: int
    local_streams: int
    threads: int
    shards: int
    shard_bytes: float
    window_bytes: float
    epoch_bytes: float
    record_bytes: float
    batch_size: int
    local_batch_size: int
    is_local: bool
    has_cache: bool
    fetch_bytes_per_second: float

    @staticmethod
    def of(loader: Loader, fetch_bytes_per_second: float) -> LoaderFacts:
        """The facts of a loader, and of the reading of it."""
        options, split = loader.arguments, loader.manifest.split(loader.arguments["split"])
        plan = loader.plan()
        shard_bytes = sum(plan.bytes_per_rank) / max(split.shards, 1)
        epoch_bytes = plan.bytes_per_rank[options["rank"]]
        return LoaderFacts(
            streams=loader.streams, local_streams=max(loader.streams // options["world_size"], 1),
            threads=options["fetch_threads"] or _THREADS, shards=split.shards, shard_bytes=shard_bytes,
            window_bytes=min(options["window_shards"], split.shards) * shard_bytes, epoch_bytes=epoch_bytes,
            record_bytes=epoch_bytes / max(loader.steps_per_epoch * loader.local_batch_size, 1),
            batch_size=options["batch_size"], local_batch_size=loader.local_batch_size,
            is_local=options["url"].local_path is not None, has_cache=options["cache"] is not None,
            fetch_bytes_per_second=fetch_bytes_per_second,
        )  # fmt: skip

    def first_batch_bytes(self, streams: int) -> float:
        """Bytes that must have come before the first batch: a window of each stream."""
        return min(streams * self.window_bytes, self.epoch_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSimulation:
    """What the simulator is told of a rank's loader: its dataset, what its parts cost, and how it reads.

    Attributes:
        shape: the shards that the rank reads.
        costs: of the loader alone.
        setup: one rank, with this one's part of each batch.
    """

    shape: DatasetShape
    costs: Costs
    setup: Setup

    @staticmethod
    def of(loader: Loader, measured: MeasuredDataset) -> LoaderSimulation:
        """Take the loader's options, and what was measured of it."""
        options, ranks = loader.arguments, loader.arguments["world_size"]
        return LoaderSimulation(
            shape=measured.shape if ranks == 1 else _share(measured.shape, ranks),
            costs=measured.costs,
            setup=Setup(
                batch_size=loader.local_batch_size,
                streams=max(loader.streams // ranks, 1),
                window_shards=options["window_shards"],
                fetch_threads=options["fetch_threads"],
                prefetch_bytes=options["prefetch_bytes"],
            ),
        )

    def at_hand(self) -> WarmTrial:
        """Expect what a cache on the local disk would bring."""
        epoch = replace(self, costs=replace(self.costs, store=StoreCosts(is_local=True))).epoch()
        first = epoch.first_batch_seconds
        rate = exactly(epoch.samples / max(epoch.seconds - first, 1e-9))
        return WarmTrial(first_batch_seconds=first, rate=rate, steps=0, cached=True)

    def epoch(self, shards: int | None = None, **options: Any) -> EpochFigures:
        """Simulate an epoch with other shards or options; of many shards its beginning, prolonged to all of it."""
        shape, setup = self.shape, replace(self.setup, **options)
        if shards is not None:
            shape = shape.resharded(shards)
        streams = range(setup.streams or 1, 0, -1)
        setup = replace(setup, streams=next(n for n in streams if setup.batch_size % n == 0))
        total = setup.geometry(int(shape.records.sum())).steps
        steps = max(ceil(total * min(_SIMULATED_SHARDS / len(self.shape.records), 1.0)), min(total, 2))
        epoch = simulate(shape, self.costs, replace(setup, steps=steps)).epochs[0]
        seconds = epoch.seconds * total / steps  # the first batch waits for some of the shards, the others come later
        return replace(epoch, steps=total, samples=total * setup.batch_size, seconds=seconds)


def _share(shape: DatasetShape, ranks: int) -> DatasetShape:
    """The shards of one of some ranks, all of one size."""
    shards = max(round(len(shape.records) / ranks), 1)
    whole = shape.resharded(shards * ranks)
    return replace(
        whole, records=whole.records[:shards], data_bytes=whole.data_bytes[:shards],
        index_bytes=whole.index_bytes[:shards],
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A loader as measured, from which settings are simulated."""

    facts: LoaderFacts
    figures: MeasuredEpoch
    trials: LoaderTrials
    simulation: LoaderSimulation

    def expect(
        self, options: Mapping[str, Any], text: str, *, memory_bytes: float = 0.0, **simulated: Any
    ) -> ExpectedGain:
        """What a setting brings, by an epoch as it is and one with what is to be simulated; options if nothing is.

        Memory is what it takes more in the simulation, and `memory_bytes`.
        """
        figures, now = self.figures, self.simulation.epoch()
        then = self.simulation.epoch(**simulated or options)
        seconds = figures.loader_seconds * then.seconds / now.seconds * now.samples / then.samples
        first = figures.first_batch_seconds * then.first_batch_seconds / now.first_batch_seconds
        return expected_gain(
            figures, options, text, first_batch_seconds=first, seconds=_around(seconds, figures.loader),
            memory_bytes=then.memory_bytes - now.memory_bytes + memory_bytes,
        )  # fmt: skip


def candidate_settings(
    limit: str,
    options: Mapping[str, Any],
    facts: LoaderFacts,
    figures: MeasuredEpoch,
    trials: LoaderTrials,
    simulation: LoaderSimulation,
) -> list[ExpectedGain]:
    """The settings that may help, the nearest remedy first.

    Args:
        limit: what limits the loader, or `shuffle_fill`.
        options: arguments of `Loader` that the stage which limits it suggests.
        facts: the loader's sizes.
        figures: its epoch as measured.
        trials: its parts as measured.
        simulation: what the simulator is told of it.
    """
    makers: Mapping[str, tuple[Callable[[_Case], Iterator[ExpectedGain]], ...]] = {
        "too_few_fetches": (_cache,),
        "store_latency": (_larger_shards, _cache),
        "store_bandwidth": (_cache,),
        "shuffle_fill": (_fewer_streams,),
    }
    case = _Case(facts=facts, figures=figures, trials=trials, simulation=simulation)
    suggested = [_suggested(case, options)] if options else []
    return [*suggested, *(setting for make in makers.get(limit, ()) for setting in make(case))]


def _suggested(case: _Case, options: Mapping[str, Any]) -> ExpectedGain:
    """Options by the stages; the gain is unknown where the simulator does not know what they change."""
    facts, store = case.facts, case.trials.store
    text = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
    if not options.keys() <= {"prefetch_bytes", "batch_size"} | ({"fetch_threads"} if store is not None else set()):
        first = case.figures.first_batch_seconds
        return ExpectedGain(options=options, text=text, gain=None, first_batch_seconds=(first, first))
    simulated = dict(options)
    if "batch_size" in options:  # of all ranks
        simulated["batch_size"] = options["batch_size"] * facts.local_batch_size // facts.batch_size
    more = max(options.get("fetch_threads", 0) - facts.threads, 0) * facts.shard_bytes
    return case.expect(options, text, memory_bytes=more, **simulated)


def _larger_shards(case: _Case) -> Iterator[ExpectedGain]:
    shape = case.simulation.shape
    if case.trials.store is not None and case.facts.shard_bytes < PIECE_BYTES / 4:
        text = f"larger shards: shard-dataset reshard SRC DST --shard-size {PIECE_BYTES >> 20}MiB"
        yield case.expect({}, text, shards=max(ceil(shape.bytes / PIECE_BYTES), 1))


def _cache(case: _Case) -> Iterator[ExpectedGain]:
    warm, figures = case.trials.warm, case.figures
    if warm is None or not warm.cached or case.facts.has_cache:
        return
    yield expected_gain(
        figures, {"cache": "FOLDER"}, "--cache FOLDER", first_batch_seconds=warm.first_batch_seconds,
        seconds=_around(warm.first_batch_seconds + figures.samples / warm.rate.value, warm.rate),
        disk_bytes=case.facts.epoch_bytes, later=True,
    )  # fmt: skip


def _fewer_streams(case: _Case) -> Iterator[ExpectedGain]:
    facts = case.facts
    streams = max(n for n in range(1, _FEW_STREAMS + 1) if facts.streams % n == 0)
    local = max(streams * facts.local_streams // facts.streams, 1)
    if facts.first_batch_bytes(local) < facts.first_batch_bytes(facts.local_streams):
        yield case.expect({"streams": streams}, f"--streams {streams}", streams=local)


def _around(value: float, rate: Estimate) -> Estimate:
    """A time with the relative uncertainty of a rate."""
    return Estimate(value=value, low=value * rate.value / rate.high, high=value * rate.value / rate.low)

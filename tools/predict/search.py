"""Search for better options of a loader with the simulator: one option after the other, twice. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ringfeed.pipeline.streams.prefetch_budget import default_prefetch_bytes
from ringfeed.tools.measure.costs import Costs
from ringfeed.tools.measure.dataset_shape import DatasetShape

from .setup import Setup
from .simulation import Simulation
from .simulator import simulate

_STREAMS = (1, 2, 4, 8, 16, 32, 64)
_THREADS = (1, 2, 4, 8, 16, 32, 64)
_PREFETCH_FACTORS = (0.25, 0.5, 2, 4, 8)  # of the loader's own limit
_LEAST_MIX = 4  # a batch must still mix at least this many shards
_ROUNDS = 2
_SIMPLER = 0.005  # of the time: what each further option that differs must bring
_WORTH_IT = 1.02  # predicted gain from which on a candidate is worth measuring
_RESHARD_FACTORS = (1 / 8, 1 / 4, 1 / 2, 2, 4, 8)
_RESHARD_GAIN = 1.05
_LEAST_SHARD_BYTES, _MOST_SHARD_BYTES = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What may be searched.

    Attributes:
        epochs: epochs of the run, over which the cost of filling a cache is spread.
        cache_bytes: size of a cache that may be used; None for none.
        keeps_order: whether only options are searched that leave every batch as it is.
        memory_bytes: most bytes of shards and batches of a rank; None for any.
    """

    epochs: int
    cache_bytes: int | None = None
    keeps_order: bool = False
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Options, and what is predicted of them.

    Attributes:
        setup: the options.
        simulation: an epoch, and with a cache a second one.
        seconds: mean seconds of the run's epochs.
        changed: names of the options that differ from the defaults.
    """

    setup: Setup
    simulation: Simulation
    seconds: float
    changed: tuple[str, ...]

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `Loader` that differ; ``cache_bytes`` is the limit of its cache."""
        return {name: getattr(self.setup, name) for name in self.changed}

    @property
    def keeps_order(self) -> bool:
        """Whether the batches are the same as with the defaults."""
        return not {"streams", "window_shards"} & set(self.changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshard:
    """Other shards: their number, bytes of each, and the predicted gain over the best options without them."""

    shards: int
    shard_bytes: int
    gain: float


def evaluate(shape: DatasetShape, costs: Costs, setup: Setup, base: Setup, epochs: int) -> Candidate:
    """Simulate options for a run of so many epochs."""
    several = setup.cache_bytes is not None and epochs > 1
    simulation = simulate(shape, costs, replace(setup, epochs=2 if several else 1))
    first, last = simulation.epochs[0].seconds, simulation.epochs[-1].seconds
    names = ("streams", "window_shards", "fetch_threads", "prefetch_bytes", "cache_bytes")
    changed = tuple(name for name in names if getattr(setup, name) != getattr(base, name))
    seconds = (first + (epochs - 1) * last) / epochs
    return Candidate(setup=setup, simulation=simulation, seconds=seconds, changed=changed)


def search(
    shape: DatasetShape, costs: Costs, base: Setup, space: Space, report: Callable[[int], None] = lambda _: None
) -> list[Candidate]:
    """Simulate the base and its variations, and return all, the base first.

    Args:
        shape, costs: what was measured.
        base: the default options.
        space: what may be searched.
        report: called with the number of simulations so far.
    """
    known: dict[Setup, Candidate] = {}

    def rated(setup: Setup) -> float:
        if setup not in known:
            known[setup] = evaluate(shape, costs, setup, base, space.epochs)
            report(len(known))
        found = known[setup]
        fits = space.memory_bytes is None or found.simulation.memory_bytes <= space.memory_bytes
        return found.seconds * (1 + _SIMPLER * len(found.changed)) if fits or setup == base else float("inf")

    best = base
    rated(base)
    streams = known[base].simulation.streams
    for _ in range(_ROUNDS):
        for name, values in _variations(shape, base, space, streams, is_local=costs.store.is_local):
            options = [replace(best, **{name: value}) for value in values]  # type: ignore[arg-type]
            best = min([best, *(one for one in options if _mixes(one, base, streams))], key=rated)
    return list(known.values())


def _variations(
    shape: DatasetShape, base: Setup, space: Space, streams: int, *, is_local: bool
) -> Iterator[tuple[str, Sequence[int | None]]]:
    """Each option with the values to try."""
    if not space.keeps_order:
        yield "streams", [n for n in _STREAMS if base.batch_size % n == 0 and n % base.ranks == 0 and n != streams]
        yield "window_shards", [n for n in (1, 2, 4) if n != base.window_shards]
    yield "fetch_threads", [None, *_THREADS]
    window, own_streams = shape.window_bytes(base.window_shards), -(-streams // base.ranks)
    own = default_prefetch_bytes(window, own_streams, is_local=is_local, is_mapped=shape.is_mapped)
    yield "prefetch_bytes", [None, *(int(own * factor) for factor in _PREFETCH_FACTORS)]
    if space.cache_bytes is not None:
        yield "cache_bytes", [None, space.cache_bytes]


def _mixes(setup: Setup, base: Setup, streams: int) -> bool:
    """Whether a batch still holds records of enough shards."""
    least = min(_LEAST_MIX, (base.streams or streams) * base.window_shards)
    return (setup.streams or streams) * setup.window_shards >= least


def choose(candidates: Sequence[Candidate], most: int = 3) -> list[Candidate]:
    """Choose what to measure: the best of all, the best that keeps every batch, the best without a cache, and others.

    Args:
        candidates: what `search` returned, the base first.
        most: how many to choose at most.
    """
    base = candidates[0]
    better = sorted(
        (one for one in candidates[1:] if base.seconds / one.seconds >= _WORTH_IT),
        key=lambda one: one.seconds * (1 + _SIMPLER * len(one.changed)),
    )
    kinds: list[Callable[[Candidate], bool]] = [
        lambda one: True,
        lambda one: one.keeps_order,
        lambda one: "cache_bytes" not in one.changed,
    ]
    chosen: list[Candidate] = []
    for kind in kinds:
        found = next((one for one in better if kind(one)), None)
        if found is not None and found not in chosen:
            chosen.append(found)
    chosen += [one for one in better if one not in chosen]
    return chosen[:most]


def try_shard_sizes(shape: DatasetShape, costs: Costs, best: Candidate, base: Setup, epochs: int) -> Reshard | None:
    """Return the shard size that is predicted to bring most beyond the best options; None if none brings much."""
    found = None
    for factor in _RESHARD_FACTORS:
        shards = max(round(len(shape.records) / factor), 1)
        size = shape.bytes // shards
        streams = best.simulation.streams
        if shards % streams or not _LEAST_SHARD_BYTES <= size <= _MOST_SHARD_BYTES or shards > shape.records.sum():
            continue
        other = evaluate(shape.resharded(shards), costs, best.setup, base, epochs)
        gain = best.seconds / other.seconds
        if gain > (_RESHARD_GAIN if found is None else found.gain):
            found = Reshard(shards=shards, shard_bytes=size, gain=gain)
    return found

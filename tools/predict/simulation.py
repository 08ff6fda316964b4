"""The result of a simulation: its figures, and how a terminal and a notebook show them.

Tested in tests/tools/predict/test_simulator.py and tests/tools/measure/test_loader_costs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ringfeed.pipeline.order.plan_table import html_table
from ringfeed.tools.charts.bars import Bars
from ringfeed.tools.console import align, human_bytes, human_seconds

from .setup import Prices, Setup

_MUCH_MORE = 1.25  # times the dataset: at cuts between ranks, indexes and row groups are read twice
_BOUND = 0.05  # share of an epoch, as in the profiler's verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFigures:
    """What one simulated epoch took, of all ranks together unless said otherwise.

    Attributes:
        steps, samples: steps, and samples in them.
        seconds: from the request of the epoch to the end of its last step.
        first_batch_seconds: until the last rank had its first batch.
        wait_seconds: seconds that each rank waited for input, the first batch included.
        fetched_bytes, requests: what came from the store.
        cache_hits, cache_misses: shards asked of the cache.
        memory_bytes: most bytes of shards and batches that a rank held.
        core_share: share of the hosts' cores that worked, in [0, 1].
        seconds_between: `seconds` with the lowest costs, and with the highest; None if costs have no range.

    >>> from ringfeed.tools.simulation import Costs, DatasetShape, Setup, simulate
    >>> import numpy as np
    >>> shape = DatasetShape(records=np.full(8, 1000), data_bytes=np.full(8, 64000), index_bytes=np.full(8, 8000))
    >>> simulation = simulate(shape, Costs(file_seconds=0.01), Setup(batch_size=500, cores=2))
    >>> simulation.epochs[0].steps, simulation.epochs[0].samples
    (16, 8000)
    """

    steps: int
    samples: int
    seconds: float
    first_batch_seconds: float
    wait_seconds: tuple[float, ...]
    fetched_bytes: int
    requests: int
    cache_hits: int
    cache_misses: int
    memory_bytes: int
    core_share: float
    seconds_between: tuple[float, float] | None = None

    @property
    def samples_per_second(self) -> float:
        """Rate of all ranks together."""
        return self.samples / self.seconds

    @property
    def input_share(self) -> float:
        """Share of the epoch that the rank which waited longest spent waiting for input, in [0, 1]."""
        return max(self.wait_seconds) / self.seconds

    @property
    def hit_share(self) -> float | None:
        """Share of the shards that the cache had; None if it was asked for none."""
        asked = self.cache_hits + self.cache_misses
        return self.cache_hits / asked if asked else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Simulated epochs of a setup.

    Attributes:
        setup: what was simulated.
        streams: streams of all ranks together.
        dataset_bytes, shards: size of the split.
        is_training: whether there is a step, or the loader runs alone.
        prices: what bytes, requests and hosts cost.
        epochs: figures of each epoch in turn.

    >>> from ringfeed.tools.simulation import Costs, DatasetShape, Setup, simulate
    >>> import numpy as np
    >>> shape = DatasetShape(records=np.full(8, 1000), data_bytes=np.full(8, 64000), index_bytes=np.full(8, 8000))
    >>> simulation = simulate(shape, Costs(file_seconds=0.01), Setup(batch_size=500, cores=2))
    >>> simulation.shards, len(simulation.epochs)
    (8, 1)
    """

    setup: Setup
    streams: int
    dataset_bytes: int
    shards: int
    is_training: bool
    prices: Prices
    epochs: tuple[EpochFigures, ...]

    @property
    def samples_per_second(self) -> float:
        """Rate of all ranks and epochs together."""
        return sum(epoch.samples for epoch in self.epochs) / sum(epoch.seconds for epoch in self.epochs)

    @property
    def memory_bytes(self) -> int:
        """Most bytes of shards and batches that a rank held."""
        return max(epoch.memory_bytes for epoch in self.epochs)

    @property
    def cost(self) -> float:
        """Price of all epochs: bytes fetched, requests, and hosts for as long as they take."""
        prices = self.prices
        hours = sum(epoch.seconds for epoch in self.epochs) / 3600
        return (
            prices.per_gb * sum(epoch.fetched_bytes for epoch in self.epochs) / 1e9
            + prices.per_thousand_requests * sum(epoch.requests for epoch in self.epochs) / 1000
            + prices.per_host_hour * hours * self.setup.hosts
        )

    def __str__(self) -> str:
        return "\n".join(align(*table_of([self])))

    def _repr_html_(self) -> str:
        return html_table(*table_of([self])) + self.chart.html()

    @property
    def chart(self) -> Bars:
        """How long each epoch takes, and how much of that the first batch and later waits are."""
        values: dict[str, float] = {}
        for number, epoch in enumerate(self.epochs):
            name = f"epoch {number}: " if len(self.epochs) > 1 else ""
            waited = max(epoch.wait_seconds)
            values[f"{name}first batch"] = epoch.first_batch_seconds
            values[f"{name}later waits"] = max(waited - epoch.first_batch_seconds, 0.0)
            values[f"{name}steps"] = max(epoch.seconds - max(waited, epoch.first_batch_seconds), 0.0)
        share = max(epoch.input_share for epoch in self.epochs)
        return Bars(
            title=f"Predicted: {self.samples_per_second:,.0f} samples/s; up to {share:.0%} of an epoch is input wait",
            values=values,
            texts=[f"{value:,.3g} s" for value in values.values()],
            highlighted=max(values, key=values.__getitem__),
            x_label="seconds",
        )

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON has them."""
        derived = ("samples_per_second", "input_share", "hit_share")
        epochs = [asdict(epoch) | {name: getattr(epoch, name) for name in derived} for epoch in self.epochs]
        setup = asdict(self.setup) | {"streams": self.streams}
        totals = {"samples_per_second": self.samples_per_second, "memory_bytes": self.memory_bytes, "cost": self.cost}
        return {"setup": setup, "dataset_bytes": self.dataset_bytes, "shards": self.shards, "epochs": epochs} | totals


def table_of(simulations: Sequence[Simulation]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table with a row for each epoch of each simulation."""
    rows = [_row(each, number, epoch) for each in simulations for number, epoch in enumerate(each.epochs)]
    is_shown = {
        "epoch no.": any(len(each.epochs) > 1 for each in simulations),
        "between": any(epoch.seconds_between for each in simulations for epoch in each.epochs),
        "cost, all": any(each.cost for each in simulations),
    }
    header = [name for name in rows[0] if is_shown.get(name, True)]
    return header, [[row[name] for name in header] for row in rows]


def _row(simulation: Simulation, number: int, epoch: EpochFigures) -> dict[str, str]:
    """The cells of an epoch, by column."""
    setup = simulation.setup
    return {
        "ranks": f"{setup.ranks:,}",
        "hosts": f"{setup.hosts:,}",
        "batch": f"{setup.batch_size:,}",
        "streams": f"{simulation.streams:,}",
        "epoch no.": f"{number}",
        "samples/s": f"{epoch.samples_per_second:,.0f}",
        "epoch": human_seconds(epoch.seconds),
        "between": " - ".join(map(human_seconds, epoch.seconds_between or ())),
        "first batch": human_seconds(epoch.first_batch_seconds),
        "input wait": f"{epoch.input_share:.0%}",
        "memory/rank": human_bytes(epoch.memory_bytes),
        "fetched": human_bytes(epoch.fetched_bytes),
        "requests": f"{epoch.requests:,}",
        "cache hits": "" if epoch.hit_share is None else f"{epoch.hit_share:.0%}",
        "cores": f"{epoch.core_share:.0%}",
        "cost, all": f"{simulation.cost:,.4g}",
    }


def advice_on(simulations: Sequence[Simulation]) -> list[str]:
    """Return a line on each thing that a user would change: records read several times, and waits for input."""
    lines = []
    for each in simulations:
        epoch, ranks = each.epochs[-1], each.setup.ranks
        times = epoch.fetched_bytes / max(each.dataset_bytes, 1)
        if times > _MUCH_MORE and each.streams % ranks:
            lines.append(
                f"{ranks:,} ranks read the dataset {times:.1f} times: with --streams {ranks:,}, or a multiple, each "
                "reads its own records"
            )
        if epoch.input_share > _BOUND and each.is_training:
            lines.append(
                f"{ranks:,} ranks wait for input for {epoch.input_share:.0%} of an epoch, of that "
                f"{human_seconds(epoch.first_batch_seconds)} for the first batch: ringfeed tune searches for better "
                "options"
            )
    return lines

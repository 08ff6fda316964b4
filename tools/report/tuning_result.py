"""The result of tuning: what was predicted and measured of each candidate, and what to take.

Tested in tests/tools/tune/test_tune.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ringfeed.tools.charts.shown import Shown, Table
from ringfeed.tools.console import human_bytes, human_seconds
from ringfeed.tools.measure.epochs_in_turn import Confirmed
from ringfeed.tools.predict.search import Candidate, Reshard

_HEADER = (
    "options", "predicted", "measured", "gain", "lowest", "highest", "memory", "shards in a batch", "same batches",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedOptions:
    """Options, and what was predicted and measured of them.

    Attributes:
        options: arguments of `Loader`; ``cache_bytes`` is the limit of its cache.
        predicted_seconds, measured_seconds: of an epoch, as a mean of the run's; measured as a median of the rounds.
        gains: measured rate / rate with the defaults, by round.
        memory_bytes: predicted bytes of shards and batches of a rank.
        shards_in_batch: streams times the shards of a window: how many shards the records of a batch come from.
        keeps_order: whether the batches are the same as with the defaults.
    """

    options: Mapping[str, Any]
    predicted_seconds: float
    measured_seconds: float
    gains: tuple[float, ...]
    memory_bytes: int
    shards_in_batch: int
    keeps_order: bool

    @classmethod
    def of(cls, candidate: Candidate, confirmed: Confirmed) -> TriedOptions:
        """Options as they were simulated and measured."""
        return cls(
            options=candidate.options, predicted_seconds=candidate.seconds,
            measured_seconds=median(confirmed.seconds), gains=confirmed.gains,
            memory_bytes=candidate.simulation.memory_bytes, keeps_order=candidate.keeps_order,
            shards_in_batch=candidate.simulation.streams * candidate.setup.window_shards,
        )  # fmt: skip

    @property
    def gain(self) -> float:
        """Median gain of the rounds; 1 for the defaults."""
        return median(self.gains)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning(Shown):
    """What `tune` found.

    Attributes:
        url: the dataset.
        batch_size: samples of a global batch.
        epochs: epochs that a cache's filling was spread over.
        tried: the defaults, and what was measured beside them.
        chosen: place in `tried` of what to take; 0 for the defaults.
        simulated: number of options that were simulated.
        reshard: other shards, which were only simulated; None if they would bring little.
        cache: where the cache of ``cache_bytes`` is to be.

    >>> from ringfeed.tools.tune import tune
    >>> tune("flights", step=train_step).chosen  # doctest: +SKIP
    """

    url: str
    batch_size: int
    epochs: int
    tried: tuple[TriedOptions, ...]
    chosen: int
    simulated: int
    reshard: Reshard | None
    cache: str | None

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `Loader` to take beside those given; with a cache its place, and ``cache_bytes``."""
        options = dict(self.tried[self.chosen].options)
        return ({"cache": self.cache} if "cache_bytes" in options else {}) | options

    @property
    def gain(self) -> float:
        """Measured gain of what was chosen, as a median; 1 for the defaults."""
        return self.tried[self.chosen].gain

    def headlines(self) -> list[str]:
        count = f"{self.simulated} options simulated, {len(self.tried) - 1} measured beside the defaults"
        if not self.chosen:
            return [f"{self.url}: keep the defaults, nothing is faster beyond noise ({count})"]
        low, high = min(self.tried[self.chosen].gains), max(self.tried[self.chosen].gains)
        return [f"{self.url}: {self.gain:.2f} x as fast ({low:.2f} to {high:.2f}) with {self.loader_call()} ({count})"]

    def loader_call(self) -> str:
        """The call of `Loader` with what was chosen."""
        options = {"batch_size": self.batch_size} | self.options
        limit = options.pop("cache_bytes", None)
        words = [f"{name}={value!r}" for name, value in options.items() if name != "cache"]
        if limit is not None:
            words.append(f"cache=MemoryCache({limit})" if self.cache == "memory" else f"cache={self.cache!r}")
        return f"Loader({self.url!r}, {', '.join(words)})"

    def tables(self) -> list[Table]:
        rows = [
            [
                ", ".join(f"{name}={value}" for name, value in one.options.items()) or "defaults",
                *map(human_seconds, (one.predicted_seconds, one.measured_seconds)),
                *(f"{gain:.2f}" for gain in (one.gain, min(one.gains), max(one.gains))),
                human_bytes(one.memory_bytes),
                f"{one.shards_in_batch}",
                "yes" if one.keeps_order else "no",
            ]
            for one in self.tried
        ]
        return [(_HEADER, rows)]

    def conclusions(self) -> list[str]:
        chosen, base = self.tried[self.chosen], self.tried[0]
        lines = []
        if self.chosen:
            more = chosen.memory_bytes - base.memory_bytes
            lines.append(
                f"memory: {human_bytes(chosen.memory_bytes)} of shards and batches in each rank, "
                f"{human_bytes(abs(more))} {'more' if more >= 0 else 'less'} than with the defaults"
            )
        if not chosen.keeps_order:
            lines.append(
                "streams and window_shards change which records share a batch: begin a new run with them; "
                "--keep-order searches only what leaves every batch as it is"
            )
        if self.reshard is not None:
            lines.append(
                f"other shards are predicted to bring {self.reshard.gain:.2f} x more (not measured): "
                f"shard-dataset reshard {self.url} DST --shards {self.reshard.shards} "
                f"({human_bytes(self.reshard.shard_bytes)} each)"
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return asdict(self) | {"options": self.options, "gain": self.gain, "loader": self.loader_call()}

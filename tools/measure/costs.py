"""What a simulation is fed with: measured costs of the store, of each stage, of the step and of the collective.

Where a cost varies, its samples are kept, and the model draws from them: a mean hides the late request and the slow
step that all ranks wait for.
Tested in tests/tools/predict/test_simulator.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ringfeed.sharding.common.validation import fit
from ringfeed.sharding.errors import ConfigError

Samples = tuple[float, ...]


_MOST_SECONDS = 1e6  # one file, batch or step; a simulation adds up billions
_MOST_SAMPLES = 1_000_000


def _check(name: str, values: Samples) -> None:
    if not (1 <= len(values) <= _MOST_SAMPLES and all(0 <= value <= _MOST_SECONDS for value in values)):
        shown = f"{len(values)} numbers from {min(values)} to {max(values)}" if values else "none"
        raise ConfigError(f"{name} must be 1 to {_MOST_SAMPLES} numbers in [0, {_MOST_SECONDS:g}], got {shown}")


def _check_fields(costs: Any, group: str) -> None:
    """Check the types of a group's fields, and that numbers are such that a simulation ends.

    Rates lie above 0, and may be infinite; all other floats are seconds, or factors of the same range.
    """
    for spec in fields(costs):
        name, value = f"{group}{spec.name}", getattr(costs, spec.name)
        if spec.type == "Samples":
            _check(name, fit(name, value, Samples))
        elif spec.type == "int" and not 0 <= fit(name, value, int) < 1 << 53:
            raise ConfigError(f"{name} must be in [0, 2**53), got {value!r}")
        elif spec.type == "float" and spec.name.endswith("bytes_per_second"):
            if not fit(name, value, float) >= 1:
                raise ConfigError(f"{name} must be at least 1, got {value!r}")
        elif spec.type == "float" and not 0 <= fit(name, value, float) <= _MOST_SECONDS:
            raise ConfigError(f"{name} must be in [0, {_MOST_SECONDS:g}], got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCosts:
    """What a store gives to one host.

    Attributes:
        latency_seconds: samples of what a file takes without its bytes: all requests for it, one after the other.
        connection_bytes_per_second: rate of one fetch.
        bytes_per_second: rate of all fetches of a host together.
        is_local: whether it is a local disk, whose files loaders map.

    Raises:
        ConfigError: a figure is out of its range.

    >>> StoreCosts(latency_seconds=(0.02,)).connection_bytes_per_second
    inf
    """

    latency_seconds: Samples = (0.0,)
    connection_bytes_per_second: float = math.inf
    bytes_per_second: float = math.inf
    is_local: bool = False

    def __post_init__(self) -> None:
        _check_fields(self, "store.")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """A step of the model, on one rank's share of a batch.

    Attributes:
        seconds: samples of its time, with the machine to itself.
        core_seconds: processor time in that; the rest is a device's.
        samples: size of the share that was measured.
        fixed_share: share of the time that does not depend on its size, in [0, 1]; the rest is in proportion to it.

    Raises:
        ConfigError: a figure is out of its range.

    >>> StepCosts(seconds=(0.1,), core_seconds=0.1, samples=500).scale(250)
    0.5
    """

    seconds: Samples
    core_seconds: float
    samples: int
    fixed_share: float = 0.0

    def __post_init__(self) -> None:
        _check_fields(self, "step.")
        if self.samples < 1:
            raise ConfigError(f"step.samples must be at least 1, got {self.samples!r}")
        if not 0 <= self.fixed_share <= 1:
            raise ConfigError(f"step.fixed_share must lie in [0, 1], got {self.fixed_share!r}")

    def scale(self, samples: int) -> float:
        """Return the time of a share of this size, relative to what was measured.

        >>> StepCosts(seconds=(0.1,), core_seconds=0.0, samples=100, fixed_share=0.5).scale(50)
        0.75
        """
        return self.fixed_share + (1 - self.fixed_share) * samples / self.samples


@dataclass(frozen=True, slots=True, kw_only=True)
class RingCosts:
    """A ring all-reduce: ``t = 2 (n - 1) (alpha + S / (n B))`` seconds for n ranks and S bytes.

    (Patarasu and Yuan, JPDC 2009; Thakur et al. 2005, section 4.5.)

    Attributes:
        latency_seconds: alpha, of one of the 2 (n - 1) exchanges between neighbours.
        bytes_per_second: B, between two neighbours.
        gradient_bytes: S.
        core_seconds: processor time of each rank in one all-reduce, which is part of its time.

    >>> RingCosts(latency_seconds=0.001).seconds(ranks=2)
    0.002
    """

    latency_seconds: float = 0.0
    bytes_per_second: float = math.inf
    gradient_bytes: int = 0
    core_seconds: float = 0.0

    def __post_init__(self) -> None:
        _check_fields(self, "ring.")

    def seconds(self, ranks: int) -> float:
        """Return the seconds of an all-reduce.

        >>> round(RingCosts(latency_seconds=1e-3, bytes_per_second=1e6, gradient_bytes=4_000_000).seconds(4), 6)
        6.006
        """
        chunk = self.gradient_bytes / (ranks * self.bytes_per_second)
        return 2 * (ranks - 1) * (self.latency_seconds + chunk)


def fit_ring(seconds: Mapping[tuple[int, int], float], gradient_bytes: int) -> RingCosts:
    """Fit alpha and B to measured all-reduces, by least squares of the relative error.

    Args:
        seconds: measured seconds by ranks and bytes, of at least two sizes.
        gradient_bytes: bytes of the model's gradients.

    Raises:
        ConfigError: fewer than two sizes, or a single rank.

    >>> fit_ring({(2, 1 << 10): 0.001, (2, 1 << 20): 0.002}, gradient_bytes=4 << 20).gradient_bytes
    4194304
    """
    if len({size for _, size in seconds}) < 2 or min(ranks for ranks, _ in seconds) < 2:
        raise ConfigError(f"a ring is fitted to two sizes or more on 2 ranks or more, got {sorted(seconds)}")
    rows = np.array([[2 * (n - 1) / t, 2 * (n - 1) * size / n / t] for (n, size), t in seconds.items()])
    scale = rows.max(axis=0)
    alpha, per_byte = np.linalg.lstsq(rows / scale, np.ones(len(rows)), rcond=None)[0] / scale
    rate = 1 / per_byte if per_byte > 0 else math.inf
    return RingCosts(latency_seconds=max(float(alpha), 0.0), bytes_per_second=rate, gradient_bytes=gradient_bytes)


def ring_range(seconds: Mapping[tuple[int, int], float], ring: RingCosts) -> tuple[RingCosts, RingCosts]:
    """Return the fastest and the slowest ring that single measurements imply.

    A time implies one of alpha and B, whichever makes up more of it, if the other one is as fitted.

    Args:
        seconds: measured seconds by ranks and bytes.
        ring: what `fit_ring` has fitted to them.

    >>> times = {(2, 0): 0.002, (2, 8): 0.004, (2, 10**6): 1.0, (2, 2 * 10**6): 2.5}
    >>> fast, slow = ring_range(times, RingCosts(latency_seconds=0.001, bytes_per_second=1e6))
    >>> slow.latency_seconds, round(fast.bytes_per_second), round(slow.bytes_per_second)
    (0.001996, 1002004, 800641)
    """
    alphas, rates = [ring.latency_seconds], [ring.bytes_per_second]
    for (ranks, size), taken in seconds.items():
        exchange, chunk = taken / (2 * (ranks - 1)), size / ranks
        if ring.latency_seconds >= chunk / ring.bytes_per_second:
            alphas.append(max(exchange - chunk / ring.bytes_per_second, 0.0))
        elif exchange > ring.latency_seconds:
            rates.append(chunk / (exchange - ring.latency_seconds))
    return (
        replace(ring, latency_seconds=min(alphas), bytes_per_second=max(rates)),
        replace(ring, latency_seconds=max(alphas), bytes_per_second=min(rates)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Measured costs of one rank. Processor times are of one core, with nothing beside it.

    Attributes:
        store: latency and rates.
        file_seconds: processor time to fetch and open a file, apart from its bytes.
        byte_seconds: samples, one a shard, of the processor time to fetch, check and decode a byte of it.
        hit_byte_seconds: the same for a byte from the cache.
        fill_byte_seconds: processor time to put a byte into the cache.
        plan_seconds: processor time to plan, for each record.
        gather_seconds: processor time to gather and encode a sample, in the loader's thread.
        handover_seconds: processor time to take a batch, in the program's thread.
        start_seconds: from the request of an epoch to the first fetch, and from the first chunk to the first batch.
        transform_seconds: processor time to transform a sample.
        step: the model's step; None for the loader alone.
        ring: the collective.
        memory_per_byte: bytes in memory for each byte of a shard's file.

    >>> Costs(file_seconds=0.01).step is None
    True
    """

    store: StoreCosts = field(default_factory=StoreCosts)
    file_seconds: float = 0.0
    byte_seconds: Samples = (0.0,)
    hit_byte_seconds: float = 0.0
    fill_byte_seconds: float = 0.0
    plan_seconds: float = 0.0
    gather_seconds: float = 0.0
    handover_seconds: float = 0.0
    start_seconds: float = 0.0
    transform_seconds: float = 0.0
    step: StepCosts | None = None
    ring: RingCosts = field(default_factory=RingCosts)
    memory_per_byte: float = 1.0

    def __post_init__(self) -> None:
        _check_fields(self, "")

    def to_json(self) -> dict[str, Any]:
        """Return the costs as JSON has them; `from_json` reads them back. Infinite rates become null."""
        document = asdict(self)
        for rates in (document["store"], document["ring"]):
            rates.update({name: None for name, value in rates.items() if value == math.inf})
        return document

    @classmethod
    def from_json(cls, document: object) -> Costs:
        """Read what `to_json` wrote.

        Raises:
            ConfigError: this is no object, a key of it is unknown, or a value is out of its range.
        """
        if not isinstance(document, Mapping) or not document.keys() >= {"store", "ring"}:
            raise ConfigError("these are no costs as `ringfeed simulate --save-costs` writes them")
        values = {key: _with_rates(value) if key in ("store", "ring") else value for key, value in document.items()}
        costs: Costs = fit("", values, cls)
        return costs


def _with_rates(group: Any) -> Any:
    """A group whose infinite rates are null."""
    if not isinstance(group, Mapping):
        return group
    return {key: math.inf if each is None and key.endswith("bytes_per_second") else each for key, each in group.items()}


def draw(samples: Samples, random: np.random.Generator, size: int | tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Draw from measured samples, with replacement."""
    return np.asarray(samples, np.float64)[random.integers(0, len(samples), size)]

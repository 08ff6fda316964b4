"""A rank's program in the model: it transforms batches ahead of need, takes them, makes steps, and meets the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import simpy

from ringfeed.tools.measure.costs import Costs, draw

from .resources import Barrier, Buffer, Host, Process
from .setup import Setup

_TRANSFORMED_BATCHES = 4  # kept ready behind a transform


@dataclass(slots=True, kw_only=True)
class Waits:
    """What a rank has waited for, in seconds: input, and the first batch; and when it ended."""

    input: float = 0.0
    first: float = 0.0
    end: float = 0.0


class StepClock:
    """Times of the steps of all ranks, drawn block by block; each step lasts as long as its slowest rank.

    Args:
        costs: measured costs.
        ranks: number of ranks.
        local_batch: samples of a rank in a step.
        random: generator of the draws.
    """

    def __init__(self, costs: Costs, ranks: int, local_batch: int, random: np.random.Generator) -> None:
        self._costs, self._ranks, self._local_batch, self._random = costs, ranks, local_batch, random
        self._blocks: dict[int, tuple[npt.NDArray[np.float64], float, int]] = {}

    def block(self, first_step: int, steps: int, rank: int) -> tuple[float, float]:
        """Return the seconds of a rank's own steps, and how much longer all last than the slowest rank's sum."""
        step = self._costs.step
        assert step is not None
        if first_step not in self._blocks:
            drawn = draw(step.seconds, self._random, (self._ranks, steps)) * step.scale(self._local_batch)
            sums = drawn.sum(axis=1)
            self._blocks[first_step] = sums, float(drawn.max(axis=0).sum() - sums.max()), self._ranks
        sums, excess, left = self._blocks[first_step]
        if left == 1:
            del self._blocks[first_step]
        else:
            self._blocks[first_step] = sums, excess, left - 1
        return float(sums[rank]), excess


@dataclass(slots=True, kw_only=True)
class Program:
    """The program of one rank.

    Attributes:
        env: clock of the simulation.
        host: where it runs.
        setup: how many ranks there are, on how many hosts.
        rank: its rank.
        batches: what the loader has ready.
        steps: steps of the epoch.
        block: steps that are taken at once.
        local_batch: its samples in a step.
        costs: measured costs.
        clock: times of the steps of all ranks.
        barrier: where ranks meet.
        waits: what it has waited for.
    """

    env: simpy.Environment
    host: Host
    setup: Setup
    rank: int
    batches: Buffer
    steps: int
    block: int
    local_batch: int
    costs: Costs
    clock: StepClock
    barrier: Barrier
    waits: Waits = field(default_factory=Waits)

    def run(self) -> Process:
        """Take batches and make steps; without a step, discard them."""
        source = self.batches if not self.costs.transform_seconds else self._transformed()
        for first in range(0, self.steps, self.block):
            steps, start = min(self.block, self.steps - first), self.env.now
            yield from source.take(steps)
            self.waits.input += self.env.now - start
            self.waits.first = self.waits.first or self.env.now
            yield self.host.cores.work(self.costs.handover_seconds * steps)
            if self.costs.step is not None:
                yield from self._compute(first, steps)
        self.waits.end = self.env.now

    def _transformed(self) -> Buffer:
        """Batches that as many threads as there are cores transform ahead of need."""
        ready = Buffer(self.env, self.steps)
        blocks = iter(range(0, self.steps, self.block))
        for _ in range(self.setup.cores):
            self.env.process(self._transform(blocks, ready))
        return ready

    def _transform(self, blocks: Iterator[int], ready: Buffer) -> Process:
        for first in blocks:
            steps = min(self.block, self.steps - first)
            yield from self.batches.take(steps)
            yield self.host.cores.work(self.costs.transform_seconds * self.local_batch * steps)
            ready.put(steps)
            yield from ready.wait_for_room(max(_TRANSFORMED_BATCHES, self.block))

    def _compute(self, first: int, steps: int) -> Process:
        """Make steps: on the cores, then on the device, then with all other ranks."""
        step = self.costs.step
        assert step is not None
        own, excess = self.clock.block(first, steps, self.rank)
        core_share = min(step.core_seconds / max(float(np.mean(step.seconds)), 1e-12), self.setup.cores)
        threads = max(1, round(core_share))
        busy = own * min(core_share / threads, 1.0)
        yield self.host.cores.work(busy, threads)
        if own > busy:
            yield self.env.timeout(own - busy)
        if self.setup.ranks > 1:
            ring = self.costs.ring
            yield self.host.cores.work(ring.core_seconds * steps)
            alone = ring.core_seconds * max(
                1.0, self.setup.ranks_of_host / self.setup.cores
            )  # with idle cores, as it was fitted
            yield self.barrier.arrive(excess + max(ring.seconds(self.setup.ranks) - alone, 0.0) * steps)

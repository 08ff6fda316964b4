"""Find the records that hold up their batches: those that a transform takes much longer for than for others.

Batches come in order, so one slow record delays all that follow. The slowest batches of a trial are read again; each
record that is suspect takes the place of another one in a fast batch, half of the suspects at a time, so that a few
calls find it. A batch keeps its shape, which transforms may rely on.
Tested in tests/tools/profile/test_measure.py and tests/tools/verdict/test_verdict.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from ringfeed.pipeline.deliver.to_numpy import NumpyBatch

from .training_trials import Workload
from .trial import Trial

_SUSPECT = 4.0  # times the median gap: a batch that takes longer is looked into
_SLOW = 2.0  # times a fast batch
_LEAST_GAP = 0.004  # seconds
_LEAST_SHARE = 0.15  # of a trial's time in long gaps, from which on records are looked for
_MOST_BATCHES = 3
_MOST_RECORDS = 10
_RETRIES = 4  # calls with a single suspect, since a transform may be slow by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRecord:
    """A record, as the path of its shard and its number there, and the seconds that it adds to a batch."""

    shard: str
    record: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRecords:
    """Records that hold up their batches.

    Attributes:
        records: the slowest, slowest first; at most ten.
        batch_seconds: seconds that the transform takes for a batch without them.
        share: share of the input's time that passed in batches that took much longer than the others, as far as records
            in them are to blame.
    """

    records: tuple[SlowRecord, ...]
    batch_seconds: float
    share: float


def find_slow_records(workload: Workload, trials: Sequence[Trial], seconds: float) -> SlowRecords | None:
    """Look into the slowest batches of a trial of loader and transform; None where no record stands out.

    Args:
        workload: the workload.
        trials: its loader with the transform, without a step and with it; the one with more long gaps counts.
        seconds: time to spend, about; a search for a record that takes long may take five times as much.
    """
    trials = [trial for trial in trials if len(trial.gaps) > _MOST_BATCHES]
    if workload.transform is None or not trials:
        return None
    share, long, trial = max(((*_long_gaps(trial), trial) for trial in trials), key=lambda found: found[0])
    if share < _LEAST_SHARE:
        return None
    end = time.perf_counter() + seconds
    probe = _Probe(workload)
    fast, _ = workload.loader.batch_with_origins(*trial.gaps[-1][:2])
    if any(not isinstance(values, np.ndarray) for values in fast.values()):  # of variable length
        return None
    usual_seconds = min(probe.seconds(fast) for _ in range(3))  # the first call traces
    found: dict[tuple[str, int], float] = {}
    seen = set[int]()
    looked = guilty = 0.0  # seconds of the long gaps looked into, and of those that records explain
    for epoch, step, gap in long:
        if len(seen) == _MOST_BATCHES or time.perf_counter() > end:
            break
        seen.add(step)
        looked += gap
        batch, origins = workload.loader.batch_with_origins(epoch, step)
        taken = probe.least_seconds(batch, _SLOW * usual_seconds)
        if taken > _SLOW * usual_seconds:
            bound = usual_seconds + (taken - usual_seconds) / 4
            # A search that has begun may end late: two calls for each halving, the slower the record the longer.
            halvings = 2 * taken * (math.log2(len(origins)) + 4)
            late = max(end, time.perf_counter() + min(halvings, 4 * seconds))
            rows = list(_search(probe, fast, batch, range(len(origins)), bound, usual_seconds, late))
            guilty += gap * bool(rows)
            found |= {(origins[row].shard, origins[row].record): extra for row, extra in rows}
    records = [SlowRecord(shard=shard, record=record, seconds=extra) for (shard, record), extra in found.items()]
    records.sort(key=lambda record: -record.seconds)
    if not records:
        return None
    return SlowRecords(
        records=tuple(records[:_MOST_RECORDS]), batch_seconds=usual_seconds, share=share * guilty / looked
    )


def _long_gaps(trial: Trial) -> tuple[float, list[tuple[int, int, float]]]:
    """Share of a trial's time that passed in much longer gaps than usual, and these."""
    usual = median(gap for _, _, gap in trial.gaps)
    long = [gap for gap in trial.gaps if gap[2] > max(_SUSPECT * usual, _LEAST_GAP)]
    return sum(gap - usual for _, _, gap in long) / trial.seconds, long


def _search(
    probe: _Probe,
    fast: NumpyBatch,
    batch: NumpyBatch,
    suspects: range,
    bound: float,
    usual: float,
    end: float,
) -> Iterator[tuple[int, float]]:
    """Yield the rows among the suspects that make a fast batch take longer than a bound, with the time they add."""
    if time.perf_counter() > end:
        return
    taken = probe.least_seconds(_replaced(fast, batch, suspects), bound, _RETRIES if len(suspects) == 1 else 1)
    if taken <= bound:
        return
    if len(suspects) == 1:
        yield suspects[0], taken - usual
        return
    middle = suspects[len(suspects) // 2]
    yield from _search(probe, fast, batch, range(suspects.start, middle), bound, usual, end)
    yield from _search(probe, fast, batch, range(middle, suspects.stop), bound, usual, end)


def _replaced(fast: NumpyBatch, batch: NumpyBatch, rows: range) -> NumpyBatch:
    """A fast batch with some rows of another one."""
    taken = np.zeros(len(next(iter(fast.values()))), bool)
    taken[rows.start : rows.stop] = True
    return {
        name: np.where(taken.reshape(-1, *[1] * (np.ndim(values) - 1)), batch[name], values)
        for name, values in fast.items()
    }


class _Probe:
    """Times the transform of a workload on given batches, one at a time, without reading."""

    def __init__(self, workload: Workload) -> None:
        import tensorflow as tf

        assert workload.transform is not None
        self._given: NumpyBatch = {}
        self._spec = workload.loader.epoch(0).element_spec
        batches = tf.data.Dataset.from_generator(self._generate, output_signature=self._spec)
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.inject_prefetch = False  # which would take the next batch meanwhile
        self._results = iter(batches.map(workload.transform).with_options(options))

    def seconds(self, batch: NumpyBatch) -> float:
        """Seconds of one call."""
        self._given = batch
        start = time.perf_counter()
        next(self._results)
        return time.perf_counter() - start

    def least_seconds(self, batch: NumpyBatch, bound: float, most: int = 2) -> float:
        """The shortest of a few calls; they end with the first that is not longer than a bound."""
        least = math.inf
        for _ in range(most):
            least = min(least, self.seconds(batch))
            if least <= bound:
                break
        return least

    def _generate(self) -> Iterator[NumpyBatch]:
        while True:
            yield {name: self._given[name] for name in self._spec}

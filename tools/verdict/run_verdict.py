"""The verdict on a run: what its time went to, and which rank the others wait for.

A pure function of the records. The all-reduce ends on all ranks at about the same time, and the rank that enters it
last waits least. So the shortest time in it, over ranks, is the collective's own; what the others take longer is their
wait for the slowest. No clocks are compared. SPDL's rule says what a straggler means: one that stays the same is a
slow rank, one that moves is too slow an input, or ranks that disturb each other.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.pipeline import StageStats
from ringfeed.pipeline.metrics.stage_counters import STAGES
from ringfeed.sharding.messages import printable
from ringfeed.tools.measure.run_records import RunRecords

from .bottleneck import StageProfile, name_bottleneck

_LEAST_STEPS, _LEAST_SECONDS = 20, 1.0  # fewer are not judged
# The largest loss is named, from the share of the time on that TensorFlow's profiler (xprof) has, and for overhead and
# ranks that take turns from twice as much as jitter brings on busy hosts.
_LEAST = {
    "input": 0.05,
    "epoch_start": 0.05,
    "straggler": 0.05,
    "moving_straggler": 0.10,
    "collective": 0.05,
    "framework_overhead": 0.10,
}
_HIGHLY_BOUND = 0.20
# A straggler is fixed if the ranks' mean times explain this share of the lateness, and the slow ranks are last in this
# share of the steps.
_EXPLAINED, _LAST = 0.5, 0.75

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """Mean seconds of a step on one rank, and the share of steps that the others waited for it, in [0, 1]."""

    rank: int
    host: str
    input_seconds: float
    compute_seconds: float
    wait_seconds: float
    collective_seconds: float
    host_seconds: float
    last_share: float

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of each part of a step, by the name that a plot gives it."""
        return {
            "input": self.input_seconds, "computing": self.compute_seconds, "slowest rank": self.wait_seconds,
            "all-reduce": self.collective_seconds, "loop": self.host_seconds,
        }  # fmt: skip

    @property
    def own_seconds(self) -> float:
        """Seconds of a step until the rank enters the all-reduce."""
        return self.input_seconds + self.compute_seconds + self.host_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What the time of all steps went to, as shares that add up to 1.

    Attributes:
        input: waiting for input, on the ranks that are not the slowest of their step.
        epoch_start: the same for an epoch's first batch, which `input` leaves out.
        compute: forward and backward pass, and optimizer, on the same.
        straggler: waiting for the slowest rank.
        collective: the all-reduce itself.
        overhead: the training loop.
    """

    input: float
    epoch_start: float
    compute: float
    straggler: float
    collective: float
    overhead: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """What limits a run.

    Attributes:
        bottleneck: ``input``, ``epoch_start``, ``straggler`` (the same rank), ``moving_straggler``, ``collective``,
            ``framework_overhead``, ``none``, or ``unknown`` if too little was recorded.
        headline: the answer in one sentence.
        advice: what to do about it.
        stragglers: the slow ranks of ``straggler``.
        cause: what a slowest rank does for longer than the others: ``input``, ``compute`` or ``overhead``; None without
            a straggler.
        stage: the stage of the loader that is waited for; None if none is, or none was recorded.
        gain: predicted speed-up of the steps if the bottleneck goes; None if there is nothing to gain.
        shares: what the time went to; None for ``unknown``.
    """

    bottleneck: str
    headline: str
    advice: str
    stragglers: tuple[int, ...] = ()
    cause: str | None = None
    stage: str | None = None
    gain: float | None = None
    shares: Shares | None = None


def rank_times(records: RunRecords) -> tuple[RankTimes, ...]:
    """The mean times of each rank."""
    pure = records.collective_seconds.min(axis=0)
    late = records.collective_seconds.argmin(axis=0)
    weights = records.weights / records.weights.sum()
    own = {name: values @ weights for name, values in records.own_parts.items()}
    return tuple(
        RankTimes(
            rank=launch.rank, host=launch.host, input_seconds=float(own["input"][place]),
            compute_seconds=float(own["compute"][place]), host_seconds=float(own["overhead"][place]),
            wait_seconds=float((records.collective_seconds[place] - pure) @ weights),
            collective_seconds=float(pure @ weights), last_share=float((late == place) @ weights),
        )
        for place, launch in enumerate(records.launches)
    )  # fmt: skip


def judge_run(records: RunRecords) -> RunVerdict:
    """Judge the recorded steps of a run."""
    weights = records.weights.astype(np.float64)
    seconds = float((records.step_seconds.mean(axis=0) @ weights) if weights.size else 0.0)
    if records.steps.size < _LEAST_STEPS or seconds < _LEAST_SECONDS:
        return RunVerdict(
            bottleneck="unknown",
            headline=f"Too little to judge: {records.steps.size} steps in {seconds:.1f} s after the first.",
            advice="let it train for longer",
        )
    shares = _shares(records, weights)
    times = rank_times(records)
    slow = _fixed_stragglers(times, shares.straggler * seconds / weights.sum())
    straggler = "straggler" if slow else "moving_straggler"
    at_start = shares.epoch_start > shares.input
    candidates = {
        "epoch_start" if at_start else "input": shares.input + shares.epoch_start,
        straggler: shares.straggler,
        "collective": shares.collective,
        "framework_overhead": shares.overhead,
    }
    named = {name: share for name, share in candidates.items() if share >= _LEAST[name]}
    bottleneck = max(named, key=named.__getitem__) if named else "none"
    cause = _cause(records, weights) if bottleneck.endswith("straggler") else None
    waits = bottleneck in ("input", "epoch_start") or cause == "input"
    stage, text = _slowest_stage(records, slow if bottleneck == "straggler" else records.ranks) if waits else (None, "")
    return RunVerdict(
        bottleneck=bottleneck, headline=_headline(bottleneck, shares, slow),
        advice=_advice(bottleneck, cause, slow, times) + text, stragglers=slow if bottleneck == "straggler" else (),
        cause=cause, stage=stage, gain=1 / (1 - named[bottleneck]) if named else None, shares=shares,
    )  # fmt: skip


def _late(records: RunRecords) -> npt.NDArray[np.bool_]:
    """Whether a rank is the slowest of a step, bool [ranks, steps]; with one rank, no rank is."""
    ranks = len(records.launches)
    late: npt.NDArray[np.bool_] = np.arange(ranks)[:, None] == records.collective_seconds.argmin(axis=0)
    return late & (ranks > 1)


def step_parts(records: RunRecords) -> dict[str, Floats]:
    """Seconds of each part of `Shares` in each step, float64 [steps]: the mean of all ranks but the slowest.

    The slowest rank of a step makes the others wait.
    """
    others = ~_late(records) / max(len(records.launches) - 1, 1)
    pure = records.collective_seconds.min(axis=0)
    shared = {
        "straggler": records.collective_seconds - pure,
        "collective": np.broadcast_to(pure, records.collective_seconds.shape),
    }
    return {name: (values * others).sum(axis=0) for name, values in (records.own_parts | shared).items()}


def _shares(records: RunRecords, weights: Floats) -> Shares:
    parts = step_parts(records)
    parts["epoch_start"] = parts["input"] * records.is_epoch_start
    parts["input"] = parts["input"] - parts["epoch_start"]
    sums = {name: float(seconds @ weights) for name, seconds in parts.items()}
    return Shares(**{name: value / sum(sums.values()) for name, value in sums.items()})


def _fixed_stragglers(times: tuple[RankTimes, ...], lateness_seconds: float) -> tuple[int, ...]:
    """The ranks that are slow all the time, so that the ranks' mean times explain the mean lateness; else none."""
    if len(times) < 2:
        return ()
    own = np.array([each.own_seconds for each in times])
    slowest, others = own.max(), np.delete(own, own.argmax())
    middle = float(np.median(others))
    slow = [each for each in times if each.own_seconds - middle > (slowest - middle) / 2]
    explained = slowest - others.mean()
    are_last = sum(each.last_share for each in slow)
    if len(slow) == len(times) or explained < _EXPLAINED * lateness_seconds or are_last < _LAST:
        return ()
    return tuple(each.rank for each in slow)


def _cause(records: RunRecords, weights: Floats) -> str:
    """The part that the slowest rank of each step takes longer for than the others on average."""
    late, ranks = _late(records), len(records.launches)
    excess = {
        name: float(((values * late).sum(axis=0) - (values * ~late).sum(axis=0) / (ranks - 1)) @ weights)
        for name, values in records.own_parts.items()
    }
    return max(excess, key=excess.__getitem__)


def _slowest_stage(records: RunRecords, ranks: Collection[int]) -> tuple[str | None, str]:
    """The stage that holds back the loaders of some ranks, and a clause that names it; None if nothing was recorded."""
    tables = [table for rank, table in zip(records.ranks, records.stages, strict=True) if rank in ranks]
    if not any(table.num_rows for table in tables):
        return None, ""
    sums = pa.concat_tables(tables).group_by(["dataset", "stage"]).aggregate([(name, "sum") for name in _COUNTED])
    totals = {name: StageStats() for name in STAGES}
    of_datasets: dict[tuple[str, str], float] = {}
    for row in sums.to_pylist():
        dataset, stage = row.pop("dataset"), row.pop("stage")
        of_datasets[stage, dataset] = row["busy_seconds_sum"]
        totals[stage] = StageStats(**{name: getattr(totals[stage], name) + row[f"{name}_sum"] for name in _COUNTED})
    places = [place for place, rank in enumerate(records.ranks) if rank in ranks]
    seconds = float(records.step_seconds[places].mean(axis=0) @ records.weights)
    # While a step computes, the loader waits for it, and nobody for the loader.
    computing = (records.step_seconds - records.input_seconds)[places].sum(axis=0) @ records.weights
    own = {
        name: StageProfile.of(name, counted, seconds * len(places), from_disk=False) for name, counted in totals.items()
    }
    idle = max(own["deliver"].wait_seconds - float(computing), 0.0)
    own["deliver"] = replace(own["deliver"], wait_seconds=idle)
    stage = name_bottleneck(tuple(own.values()), parses=False)
    if stage == "none":
        return None, ""
    datasets = (name for at, name in of_datasets if at == stage)
    dataset = max(datasets, key=lambda name: of_datasets[stage, name], default="")
    busy = f", {own[stage].share:.2g} threads" if stage != "deliver" else ""
    which = f" of dataset {printable(dataset)}" if dataset and stage != "deliver" else ""
    return stage, f"; the loader's slowest stage is {stage}{which}: {_STAGES[stage]}{busy}"


def _headline(bottleneck: str, shares: Shares, slow: tuple[int, ...]) -> str:
    own, text = _HEADLINES[bottleneck]
    highly = "highly " if shares.input + shares.epoch_start >= _HIGHLY_BOUND else ""
    rest = ", ".join(
        f"{getattr(shares, part):.0%} {doing}"
        for part, doing in _DOING.items()
        if part != own and getattr(shares, part) >= 0.005
    )
    told = text.format(highly=highly, ranks=_names(slow))
    return f"{told} for {getattr(shares, own):.0%} of the time{rest and '; '}{rest}."


def _names(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


_DOING = {
    "compute": "computing",
    "input": "waiting for input",
    "epoch_start": "waiting for the first batches of epochs",
    "straggler": "waiting for the slowest rank",
    "collective": "in the all-reduce",
    "overhead": "in the loop",
}
# By bottleneck, the part of `Shares` that the headline is about, and its beginning.
_HEADLINES = {
    "none": ("compute", "Nothing holds the run back: ranks compute"),
    "input": ("input", "The run is {highly}input-bound: ranks wait for input"),
    "epoch_start": ("epoch_start", "The run is {highly}input-bound: ranks wait for the first batches of epochs"),
    "straggler": ("straggler", "The ranks wait for {ranks}"),
    "moving_straggler": ("straggler", "The ranks wait for each other"),
    "collective": ("collective", "The ranks are in the all-reduce"),
    "framework_overhead": ("overhead", "The ranks are in the loop around the steps"),
}


_COUNTED = ("items", "bytes", "busy_seconds", "cpu_seconds", "wait_seconds")
_STAGES = {
    "fetch": "reading shards from the store",
    "cache": "reading the cache",
    "fill": "filling the cache",
    "verify": "computing checksums",
    "open": "decompressing and decoding records",
    "plan": "choosing records for the class balance",
    "gather": "gathering records into batches",
    "deliver": "it waits for what follows, handing over and preprocessing",
}
_REMEDIES = {
    "input": "look at its disk, its cache and its link to the store",
    "compute": "look for other programs on its host, a slower or throttled device, or fewer cores",
    "overhead": "look for other programs on its host",
}
_PROFILE = "ringfeed profile --config FILE (of a mixture: ringfeed profile URL, for each dataset)"
_ADVICE = {
    "none": "the model's step sets the pace: only a faster step, or more ranks, makes it faster",
    "input": f"to learn which part of the input, and what helps: {_PROFILE}",
    "epoch_start": "fewer streams (data.streams) or smaller shards make an epoch's first batch wait for fewer bytes",
    "collective": "train larger batches on each rank, or give the ranks a faster network (horovodrun "
    "--network-interfaces)",
    "framework_overhead": "the loop between steps is slow: raise output.log_every, or give each rank more cores",
    "moving_straggler": "in each step another rank is late: their batches take unequal work, or programs share their "
    "cores",
}


def _advice(bottleneck: str, cause: str | None, slow: tuple[int, ...], times: tuple[RankTimes, ...]) -> str:
    if bottleneck == "moving_straggler" and cause == "input":
        return f"in each step another rank waits for its input: loading is too slow; {_PROFILE}"
    if bottleneck != "straggler":
        return _ADVICE[bottleneck]
    mine = [each for each in times if each.rank in slow]
    others = [each for each in times if each.rank not in slow]
    excess = np.mean([each.own_seconds for each in mine]) - np.mean([each.own_seconds for each in others])
    hosts = ", ".join(sorted({each.host for each in mine}))
    doing = "in the training loop" if cause == "overhead" else _DOING[cause or "compute"]
    late = f"{_names(slow)} on {hosts}: {1000 * excess:,.1f} ms a step later than the others, mostly {doing}"
    return f"{late}; {_REMEDIES[cause or 'compute']}"

"""The verdict on a run: what its time went to, and which rank the others wait for.

A pure function of the records. The all-reduce ends on all ranks at about the same time, and the rank that enters it
last waits least. So the shortest time in it, over ranks, is the collective's own; what the others take longer is their
wait for the slowest. No clocks are compared. SPDL's rule says what a straggler means: one that stays the same is a
slow rank, one that moves is too slow an input, or ranks that disturb each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringfeed.tools.measure.run_records import RunRecords

_LEAST_STEPS, _LEAST_SECONDS = 20, 1.0  # fewer are not judged
# The largest loss is named, from the share of the time on that TensorFlow's profiler (xprof) has, and for overhead and
# ranks that take turns from twice as much as jitter brings on busy hosts.
_LEAST = {"input": 0.05, "straggler": 0.05, "moving_straggler": 0.10, "collective": 0.05, "framework_overhead": 0.10}
_HIGHLY_BOUND = 0.20
# A straggler is fixed if the ranks' mean times explain this share of the lateness, and the slow ranks are last in this
# share of the steps.
_EXPLAINED, _LAST = 0.5, 0.75

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """Mean seconds of a step on one rank, and in which share of the steps the others waited for it, in [0, 1]."""

    rank: int
    host: str
    input_seconds: float
    compute_seconds: float
    wait_seconds: float
    collective_seconds: float
    host_seconds: float
    last_share: float

    @property
    def own_seconds(self) -> float:
        """Seconds of a step until the rank enters the all-reduce."""
        return self.input_seconds + self.compute_seconds + self.host_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What the time of all steps went to, as shares that add up to 1.

    Attributes:
        input: waiting for input, on the ranks that are not the slowest of their step.
        compute: forward and backward pass, and optimizer, on the same.
        straggler: waiting for the slowest rank.
        collective: the all-reduce itself.
        overhead: the training loop.
    """

    input: float
    compute: float
    straggler: float
    collective: float
    overhead: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """What limits a run.

    Attributes:
        bottleneck: ``input``, ``straggler`` (the same rank), ``moving_straggler``, ``collective``,
            ``framework_overhead``, ``none``, or ``unknown`` if too little was recorded.
        headline: the answer in one sentence.
        advice: what to do about it.
        stragglers: the slow ranks of ``straggler``.
        cause: what a slowest rank does for longer than the others: ``input``, ``compute`` or ``overhead``; None without
            a straggler.
        gain: predicted speed-up of the steps if the bottleneck goes; None if there is nothing to gain.
        shares: what the time went to; None for ``unknown``.
    """

    bottleneck: str
    headline: str
    advice: str
    stragglers: tuple[int, ...] = ()
    cause: str | None = None
    gain: float | None = None
    shares: Shares | None = None


def rank_times(records: RunRecords) -> tuple[RankTimes, ...]:
    """The mean times of each rank."""
    pure = records.collective_seconds.min(axis=0)
    late = records.collective_seconds.argmin(axis=0)
    weights = records.weights / records.weights.sum()
    means = {
        "input_seconds": records.input_seconds,
        "compute_seconds": records.gradient_seconds + records.update_seconds,
        "wait_seconds": records.collective_seconds - pure,
        "host_seconds": records.host_seconds,
    }
    return tuple(
        RankTimes(
            rank=launch.rank,
            host=launch.host,
            collective_seconds=float(pure @ weights),
            last_share=float((late == place) @ weights),
            **{name: float(values[place] @ weights) for name, values in means.items()},
        )
        for place, launch in enumerate(records.launches)
    )


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
    candidates = {
        "input": shares.input,
        straggler: shares.straggler,
        "collective": shares.collective,
        "framework_overhead": shares.overhead,
    }
    named = {name: share for name, share in candidates.items() if share >= _LEAST[name]}
    bottleneck = max(named, key=named.__getitem__) if named else "none"
    cause = _cause(records, weights) if bottleneck.endswith("straggler") else None
    return RunVerdict(
        bottleneck=bottleneck,
        headline=_headline(bottleneck, shares, slow),
        advice=_advice(bottleneck, cause, slow, times),
        stragglers=slow if bottleneck == "straggler" else (),
        cause=cause,
        gain=1 / (1 - named[bottleneck]) if named else None,
        shares=shares,
    )


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
    parts = {
        "input": records.input_seconds,
        "compute": records.gradient_seconds + records.update_seconds,
        "straggler": records.collective_seconds - pure,
        "collective": np.broadcast_to(pure, records.collective_seconds.shape),
        "overhead": records.host_seconds,
    }
    return {name: (values * others).sum(axis=0) for name, values in parts.items()}


def _shares(records: RunRecords, weights: Floats) -> Shares:
    sums = {name: float(seconds @ weights) for name, seconds in step_parts(records).items()}
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
    parts = {
        "input": records.input_seconds,
        "compute": records.gradient_seconds + records.update_seconds,
        "overhead": records.host_seconds,
    }
    excess = {
        name: float(((values * late).sum(axis=0) - (values * ~late).sum(axis=0) / (ranks - 1)) @ weights)
        for name, values in parts.items()
    }
    return max(excess, key=excess.__getitem__)


def _headline(bottleneck: str, shares: Shares, slow: tuple[int, ...]) -> str:
    names = f"rank{'s' * (len(slow) > 1)} {', '.join(map(str, slow))}"
    highly = "highly " if shares.input >= _HIGHLY_BOUND else ""
    told = {
        "none": ("Nothing holds the run back: ranks compute", "compute"),
        "input": (f"The run is {highly}input-bound: ranks wait for input", "input"),
        "straggler": (f"The ranks wait for {names}", "straggler"),
        "moving_straggler": ("The ranks wait for each other", "straggler"),
        "collective": ("The ranks are in the all-reduce", "collective"),
        "framework_overhead": ("The ranks are in the loop around the steps", "overhead"),
    }
    text, own = told[bottleneck]
    names_of_shares = {
        "compute": "computing",
        "input": "waiting for input",
        "straggler": "waiting for the slowest rank",
        "collective": "in the all-reduce",
        "overhead": "in the loop",
    }
    rest = ", ".join(
        f"{getattr(shares, part):.0%} {name}"
        for part, name in names_of_shares.items()
        if part != own and getattr(shares, part) >= 0.005
    )
    return f"{text} for {getattr(shares, own):.0%} of the time{rest and '; '}{rest}."


_REMEDIES = {
    "input": "look at its disk, its cache and its link to the store",
    "compute": "look for other programs on its host, a slower or throttled device, or fewer cores",
    "overhead": "look for other programs on its host",
}
_PROFILE = "ringfeed profile --config FILE (of a mixture: ringfeed profile URL, for each dataset)"
_DOES = {"input": "waiting for input", "compute": "computing", "overhead": "in the training loop"}


def _advice(bottleneck: str, cause: str | None, slow: tuple[int, ...], times: tuple[RankTimes, ...]) -> str:
    if bottleneck == "none":
        return "the model's step sets the pace: only a faster step, or more ranks, makes it faster"
    if bottleneck == "input":
        return f"to learn which part of the input, and what helps: {_PROFILE}"
    if bottleneck == "collective":
        return "train larger batches on each rank, or give the ranks a faster network (horovodrun --network-interfaces)"
    if bottleneck == "framework_overhead":
        return "the loop between steps is slow: raise output.log_every, or give each rank more cores"
    if bottleneck == "moving_straggler":
        if cause == "input":
            return f"in each step another rank waits for its input: loading is too slow; {_PROFILE}"
        return "in each step another rank is late: their batches take unequal work, or programs share their cores"
    mine = [each for each in times if each.rank in slow]
    others = [each for each in times if each.rank not in slow]
    excess = np.mean([each.own_seconds for each in mine]) - np.mean([each.own_seconds for each in others])
    hosts = ", ".join(sorted({each.host for each in mine}))
    names = f"rank{'s' * (len(slow) > 1)} {', '.join(map(str, slow))} on {hosts}"
    late = f"{names}: {1000 * excess:,.1f} ms a step later than the others, mostly {_DOES[cause or 'compute']}"
    return f"{late}; {_REMEDIES[cause or 'compute']}"

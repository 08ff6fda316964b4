"""The verdict on a measured loader or training: what limits it, the figures that show it, and what comes next.

The rule: training is limited by its step if this waits for less than 5 % of an epoch; else by the part of the input
that is slowest alone, or by the first batch, whichever explains at least half of the wait. A wait that neither
explains is put down to the cores or to Python's lock if they were measured to be taken, and else to nothing.

A pure function of the measurements. The thresholds of 5 % and 20 % are those of TensorFlow's profiler (xprof,
`op_stats_to_input_pipeline_analysis.cc`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ringfeed.tools.measure.estimates import Estimate, around, predicted, ratio
from ringfeed.tools.measure.slow_records import SlowRecords
from ringfeed.tools.predict.gains import ExpectedGain, MeasuredEpoch

LIMITS = {
    "store_latency": "high latency and small requests: the store is waited for, not its bandwidth",
    "store_bandwidth": "the store, the link to it, or the disk gives no more bytes",
    "too_few_fetches": "the store would give more to more fetches at once",
    "cache": "reading or filling the cache on disk",
    "verification": "computing checksums",
    "decode": "decompressing or decoding records",
    "planning": "choosing records for the class balance",
    "hand_over": "gathering records into batches, and handing these to TensorFlow",
    "transform": "the user's function of a batch",
    "slow_records": "a few records that the transform takes much longer for, and all others wait",
    "shuffle_fill": "an epoch's first batch, which waits for a window of each stream",
    "cores": "loader, transform and step share the cores",
    "framework_overhead": "loader, transform and step wait for Python's lock, though cores are free",
    "step": "the model's step: input is fast enough",
    "none": "no part alone: input and step are about as fast",
    "unknown": "too short a measurement, one that other programs disturbed, or a wait that nothing measured explains",
}
"""What may limit an epoch: stable identifiers, and what they mean."""

_BOUND, _HIGHLY_BOUND = 0.05, 0.20  # shares of an epoch spent waiting for input
_LEAST_SECONDS = 0.2  # a shorter measurement is not judged
_TAKEN = 0.3  # share of the time that this program waited for cores others held, from which on nothing is judged
_BALANCED = 1.25  # times the step's rate: input no faster than that leaves little to a faster step
_FULL_CORES = 0.85  # share of the cores which other programs leave that training uses: they are what the parts share
_FEW_CORES = 0.2  # share of all cores: a training that uses less does not need those that others take
_SOME_CORES = 0.3  # share of all cores that it uses at least then
_LOCKED = 0.3  # share of the looks at Python's lock that found it held, from which on the parts wait for it
_UNEXPLAINED_WAIT = (
    "each part alone is fast enough, and neither the cores nor Python's lock explain the wait: measure for longer "
    "(--seconds), on a quiet machine"
)
_UNEXPLAINED = ("cores", "framework_overhead", "unknown")
_MOST_LOST = 1.6  # factor by which losses that may vanish widen an interval at most
_HELD_UP = 0.3  # share of the input's time in few batches, from which on slow records are to blame


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A figure that a verdict rests on."""

    name: str
    value: float
    unit: str

    def __str__(self) -> str:
        shown = {
            "samples/s": f"{self.value:,.0f} samples/s", "share": f"{self.value:.0%}",
            "bytes/s": f"{self.value / 1e6:,.1f} MB/s",
            "s": f"{self.value * 1000:,.1f} ms" if self.value < 1 else f"{self.value:,.2f} s",
        }  # fmt: skip
        return f"{self.name} {shown[self.unit]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What limits an epoch.

    Attributes:
        bottleneck: one of `LIMITS`.
        headline: the answer in one sentence; empty without a step.
        input_bound: share of an epoch that the step waits for input, in [0, 1]; 0 without a step.
        headroom: the input's rate over an epoch / the step's rate; None without a step.
        evidence: the two figures that show it.
        next_limit: the part that limits next.
        next_samples_per_second: its rate, which an epoch cannot exceed without more changes.
        gain: speed-up of an epoch if the bottleneck goes, up to the next one; None if nothing is to gain.
        advice: what to do about it.
        knob: the one option, or change of the dataset, that is expected to gain most; None if none gains 5 %.
    """

    bottleneck: str
    headline: str = ""
    input_bound: float = 0.0
    headroom: float | None = None
    evidence: tuple[Evidence, ...] = ()
    next_limit: str = ""
    next_samples_per_second: float | None = None
    gain: Estimate | None = None
    advice: str = ""
    knob: ExpectedGain | None = None


def judge(
    figures: MeasuredEpoch,
    *,
    loader_limit: str,
    seconds: float,
    cpu_share: float = 0.0,
    other_load: float = 0.0,
    lock_held: float = 0.0,
    slow: SlowRecords | None = None,
    decodes: bool = False,
) -> Verdict:
    """Judge an epoch.

    Training would take as long as its slowest part, if the parts overlapped. What it takes longer is lost by the wait
    for the first batch, by slow records, or because the parts share the cores.

    Args:
        figures: the measured parts.
        loader_limit: what limits the loader alone.
        seconds: time of the shortest measurement that counts.
        cpu_share: share of the cores that training used.
        other_load: share of the cores that other programs used.
        lock_held: share of the looks at Python's lock, while training, that found it held.
        slow: the records that held up their batches.
        decodes: whether the transform is ringfeed's own decoding of images.
    """
    if figures.disturbed > _TAKEN and not _waits_for_no_core(figures, cpu_share):
        return _unknown("Other programs took the cores; this says nothing about training.", figures)
    if seconds < _LEAST_SECONDS:
        return _unknown("The measurement was too short to judge.", figures)
    if figures.step is None or figures.together is None:
        return Verdict(bottleneck=loader_limit)
    parts, training, stall, headroom = figures.parts, figures.seconds, figures.stall, figures.headroom
    full = cpu_share > max(_FULL_CORES * (1 - other_load), _SOME_CORES)
    shared = "cores" if full else "framework_overhead" if lock_held > _LOCKED else "unknown"
    if stall < _BOUND and (shared == "unknown" or figures.seconds - max(parts.values()) < _BOUND * training):
        bottleneck, limits, lost = "step" if headroom >= _BALANCED else "none", dict(parts), 0.0
    else:
        bottleneck, limits, lost = _limit_of_input(figures, shared, loader_limit, decodes=decodes)
    if slow is not None and slow.share > _HELD_UP and _may_be_slow_records(bottleneck, figures, slow.share):
        slowest = max(parts, key=parts.__getitem__)
        bottleneck, limits, lost = "slow_records", {slowest: max(training * (1 - slow.share), parts["step"])}, 0.0
    waiting = Verdict(bottleneck=bottleneck, headline=_headline(stall, headroom), input_bound=stall, headroom=headroom)
    if bottleneck == "unknown":
        return replace(waiting, advice=_UNEXPLAINED_WAIT)
    if bottleneck in ("step", "none"):
        limits = {name: seconds for name, seconds in parts.items() if name != "step"}
    following = max(limits, key=limits.__getitem__)
    is_input = bottleneck not in ("step", "none")
    return replace(
        waiting,
        next_limit=loader_limit if following == "loader" else following,
        next_samples_per_second=figures.samples / limits[following],
        gain=_gain(figures, following, limits[following], lost) if is_input else None,
    )


def _may_be_slow_records(bottleneck: str, figures: MeasuredEpoch, share: float) -> bool:
    """Whether records that hold up this share of the batches after the first explain more than the bottleneck does."""
    if bottleneck == "shuffle_fill":
        return share * (figures.seconds - figures.first_batch_seconds) > figures.first_batch_seconds
    return bottleneck in ("transform", *_UNEXPLAINED)


def _gain(figures: MeasuredEpoch, following: str, seconds: float, lost: float) -> Estimate | None:
    """What an epoch gains if its bottleneck goes, so that another part limits it, which takes so many seconds.

    What is lost beside the slowest part may vanish with it, or not.
    """
    assert figures.together is not None
    rates = {"step": figures.step, "transform": figures.transform, "loader": figures.loader} | dict(figures.rest)
    most, middle, least = (figures.samples / min(seconds + share * lost, figures.seconds) for share in (0.0, 0.5, 1.0))
    like = around(1.0, rates.get(following) or figures.together)
    low, high = max(least, middle / _MOST_LOST), min(most, middle * _MOST_LOST)
    reached = ratio(Estimate(value=middle, low=low, high=high), like)
    now = around(figures.samples / figures.seconds, figures.together)
    return predicted(ratio(reached, now), figures.disturbed)


def _waits_for_no_core(figures: MeasuredEpoch, cpu_share: float) -> bool:
    """Whether the step alone is the limit, by far, and takes hardly any core: others cannot have made it slow."""
    if figures.step is None or cpu_share > _FEW_CORES:
        return False
    return figures.stall < _BOUND and figures.headroom > 2 * _BALANCED


def _limit_of_input(
    figures: MeasuredEpoch, shared: str, loader_limit: str, *, decodes: bool
) -> tuple[str, dict[str, float], float]:
    """Name what an epoch waits for beside its step.

    Args:
        figures, loader_limit, decodes: see `judge`.
        shared: what the parts share, if that holds them up.

    Returns:
        The bottleneck; seconds that an epoch takes at least without it, by what limits it then; seconds that are lost
        all the same.
    """
    parts = figures.parts
    slowest = max(parts, key=parts.__getitem__)
    lost = figures.seconds - parts[slowest]
    waits_for_first = figures.first_batch_seconds > lost / 2
    others = {name: seconds for name, seconds in parts.items() if name != slowest}
    if slowest == "loader" and (waits_for_first or parts["loader"] - parts["step"] >= lost):
        # The shards come before any batch. A part of the loader cannot be slower than all of it: something disturbed
        # that while it ran alone.
        rest = {name: figures.samples / rate.value for name, rate in figures.rest.items()}
        others |= {name: min(seconds, parts["loader"]) for name, seconds in rest.items()}
        return loader_limit, others, max(lost - figures.first_batch_seconds, 0.0) if waits_for_first else lost
    if slowest == "transform" and parts[slowest] - parts["step"] >= lost:
        return "decode" if decodes else "transform", others, lost
    return "shuffle_fill" if waits_for_first else shared, dict(parts), 0.0


def _unknown(headline: str, figures: MeasuredEpoch) -> Verdict:
    return Verdict(bottleneck="unknown", headline=headline if figures.step is not None else "", advice=headline)


def _headline(stall: float, headroom: float) -> str:
    rate = f"over an epoch, the input alone has {headroom:,.2g} x the step's rate"
    if stall < _BOUND:
        return f"Training is not input-bound: {rate}, and {stall:.1%} of the time is spent waiting."
    highly = "highly " if stall >= _HIGHLY_BOUND else ""
    return f"Training would be {highly}input-bound: {stall:.0%} of an epoch is spent waiting; {rate}."

"""The verdict on a measured training: whether it would wait for input, for which part of it, and what to try.

A pure function of the measurements. The thresholds of 5 % and 20 % are those of TensorFlow's profiler (xprof,
`op_stats_to_input_pipeline_analysis.cc`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .training_trials import TrainingTrials

__all__ = ["FirstBatchTrial", "LoaderEpoch", "Verdict", "judge"]

_BOUND, _HIGHLY_BOUND = 0.05, 0.20  # shares of an epoch spent waiting for input
_LEAST_SECONDS = 0.2  # a shorter measurement is not judged
_TAKEN = 0.5  # other programs' share of the cores from which nothing is judged
_BETTER = 0.8  # times the wait for the first batch: from here on fewer streams are worth it


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderEpoch:
    """An epoch of the loader alone, on one rank.

    Attributes:
        samples: samples of the epoch.
        first_batch_seconds: seconds until the first batch.
        samples_per_second: rate after the first batch.
        streams: streams that batches are drawn from; the first batch waits for a window of each.
    """

    samples: int
    first_batch_seconds: float
    samples_per_second: float
    streams: int

    @property
    def seconds(self) -> float:
        """Seconds of the epoch."""
        return self.first_batch_seconds + self.samples / self.samples_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What limits training.

    Attributes:
        bottleneck: ``step`` if input is fast enough; ``first_batch`` if an epoch begins with a long wait;
            ``transform``; ``loader``; ``cores`` if each part is fast enough alone, but they share the cores;
            ``unknown`` if the measurement was too short, or disturbed by other programs.
        headline: the answer in one sentence.
        advice: what to do about it.
        input_bound: share of an epoch that the step waits for input, in [0, 1].
        gain: predicted speed-up of an epoch if the bottleneck goes, up to the next one; None if nothing is to gain.
    """

    bottleneck: str
    headline: str
    advice: str
    input_bound: float
    gain: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBatchTrial:
    """The wait for an epoch's first batch with another number of streams."""

    streams: int
    seconds: float


def judge(
    trials: TrainingTrials, loader: LoaderEpoch, knob: str, *, fewer: FirstBatchTrial | None, other_load: float
) -> Verdict:
    """Judge the trials of a workload.

    An epoch of training would take as long as its slowest part, if the parts overlapped. What it takes longer is lost
    by the wait for the first batch, or because the parts share the cores.

    Args:
        trials: the measured parts of training.
        loader: an epoch of the loader alone.
        knob: what to do if the loader is the bottleneck.
        fewer: what was tried to get the first batch sooner.
        other_load: share of the cores that other programs took meanwhile, in [0, 1].
    """
    if other_load > _TAKEN:
        return _unknown(
            "Other programs took the cores; this says nothing about training.", "stop them, and profile again"
        )
    if trials.step.seconds < _LEAST_SECONDS:
        return _unknown("The measurement was too short to judge.", "measure for longer, such as --seconds 30")
    computing = loader.samples / trials.step.samples_per_second
    parts = {
        "step": computing,
        "transform": loader.samples / trials.transform.samples_per_second if trials.transform else 0.0,
        "loader": loader.seconds,
    }
    *_, second, slowest = sorted(parts, key=parts.__getitem__)
    training = max(loader.first_batch_seconds + loader.samples / trials.together.samples_per_second, parts[slowest])
    lost = training - parts[slowest]
    stall = 1 - computing / training
    gain: float | None
    if stall < _BOUND:
        bottleneck, gain = "step", None
    elif parts[slowest] - computing >= lost:
        bottleneck, gain = slowest, training / (parts[second] + lost)
    else:
        is_first = slowest != "loader" and loader.first_batch_seconds > lost / 2
        bottleneck, gain = "first_batch" if is_first else "cores", training / parts[slowest]
        if is_first and fewer is not None and fewer.seconds < loader.first_batch_seconds * _BETTER:
            gain = training / (training - loader.first_batch_seconds + fewer.seconds)
    return Verdict(
        bottleneck=bottleneck,
        headline=_headline(stall, computing / max(parts["transform"], parts["loader"])),
        advice=_advice(bottleneck, trials, loader, knob, fewer),
        input_bound=stall,
        gain=gain,
    )


def _advice(
    bottleneck: str, trials: TrainingTrials, loader: LoaderEpoch, knob: str, fewer: FirstBatchTrial | None
) -> str:
    if bottleneck == "loader":
        return knob
    if bottleneck == "transform":
        rate = trials.transform.samples_per_second if trials.transform else math.inf
        return (
            f"{trials.transform_name} takes {rate:,.0f} samples/s: make it faster, or apply its fixed part once, with "
            "shard-dataset build --map"
        )
    if bottleneck == "first_batch":
        wait = f"an epoch's first batch, which draws on {loader.streams} streams, comes after "
        wait += f"{loader.first_batch_seconds:.2f} s"
        if fewer is not None and fewer.seconds < loader.first_batch_seconds * _BETTER:
            return (
                f"{wait}; with --streams {fewer.streams} (Loader(streams={fewer.streams})) it came after "
                f"{fewer.seconds:.2f} s, and batches draw on fewer shards"
            )
        return f"{wait}; write smaller shards (shard-dataset reshard SRC DST --shard-size 32MB), or train longer epochs"
    if bottleneck == "cores":
        return "input and step are each fast enough alone, but share the cores: give each rank more of them"
    return "a faster model or more ranks; faster input gains nothing"


def _unknown(headline: str, advice: str) -> Verdict:
    return Verdict(bottleneck="unknown", headline=headline, advice=advice, input_bound=0.0, gain=None)


def _headline(stall: float, headroom: float) -> str:
    rate = f"over an epoch, the input alone has {headroom:,.2g} x the step's rate"
    if stall < _BOUND:
        return f"Training is not input-bound: {rate}, and {stall:.1%} of the time is spent waiting."
    highly = "highly " if stall >= _HIGHLY_BOUND else ""
    return f"Training would be {highly}input-bound: {stall:.0%} of an epoch is spent waiting; {rate}."

"""The conclusion from all measurements of a profile: its verdict, with figures, advice and the option to try.

A pure function of what was measured.
Tested in tests/tools/verdict/test_conclusion.py and tests/tools/verdict/test_verdict.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from ringfeed.tools.measure.estimates import Estimate, around, exactly
from ringfeed.tools.measure.slow_records import SlowRecords
from ringfeed.tools.measure.store_trial import PIECE_BYTES
from ringfeed.tools.measure.training_trials import TrainingTrials
from ringfeed.tools.predict.gains import ExpectedGain, MeasuredEpoch
from ringfeed.tools.predict.settings import LoaderFacts, LoaderSimulation, LoaderTrials, candidate_settings

from .bottleneck import Knob
from .verdict import Evidence, Verdict, judge

_STORE_LIMITS = ("store_latency", "store_bandwidth", "too_few_fetches")
_FAST_ENOUGH = 4  # times the loader's rate over an epoch: such a part is no limit
_ON_CORES = 0.1  # of one core: a step that uses less does not wait for it
_CONTRADICTED = 1.15  # times the step's rate alone: training cannot be so fast
_LEAST_GAIN = 1.05  # an option that brings less is not named


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All that was measured.

    Attributes:
        figures: the epoch.
        facts: sizes of the loader.
        parts: the loader's parts alone.
        simulation: what the simulator is told of the loader.
        training: transform and step; None without a step.
        slow: records that held up their batches.
        knob: what limits the loader by its stages, and what to do about it.
        seconds: time of the shortest measurement that counts.
        disturbed: share of the time that this program waited for cores that others held, in [0, 1].
        other_load: share of the cores that other programs used, in [0, 1].
        decodes: whether the transform is ringfeed's own decoding of images.
    """

    figures: MeasuredEpoch
    facts: LoaderFacts
    parts: LoaderTrials
    simulation: LoaderSimulation
    training: TrainingTrials | None
    slow: SlowRecords | None
    knob: Knob
    seconds: float
    disturbed: float
    other_load: float
    decodes: bool


def conclude(measured: Measured) -> tuple[MeasuredEpoch, Verdict]:
    """The verdict, and the figures of the epoch with what would limit the loader next."""
    facts, parts, training, slow = measured.facts, measured.parts, measured.training, measured.slow
    limit = confirmed_limit(measured.knob.limit, measured.figures, facts, parts)
    rest = rest_of_loader(limit, measured.figures, facts, parts)
    disturbed, cpu_share = measured.disturbed, 0.0
    if training is not None:
        together, step = training.together, training.step
        needs_core = step.cpu_seconds > _ON_CORES * step.seconds
        if needs_core and together.samples_per_second > _CONTRADICTED * step.samples_per_second:
            disturbed = 1.0  # others held the cores of the step while it ran alone
        cpu_share = min(together.cpu_seconds / together.seconds / (os.cpu_count() or 1), 1.0)
    figures = replace(measured.figures, rest=rest, disturbed=disturbed)
    verdict = judge(
        figures, loader_limit=limit, seconds=measured.seconds, cpu_share=cpu_share,
        other_load=measured.other_load, lock_held=training.lock_held if training else 0.0, slow=slow,
        decodes=measured.decodes,
    )  # fmt: skip
    predictions = _predictions(verdict, measured, figures)
    best = next((each for each in predictions if each.gain is None or each.gain.value >= _LEAST_GAIN), None)
    return figures, replace(
        verdict,
        evidence=_evidence(verdict.bottleneck, figures, facts, parts, slow, cpu_share),
        knob=best,
        advice=verdict.advice or _advice(verdict, measured, predictions if best is None else []),
    )


def _predictions(verdict: Verdict, measured: Measured, figures: MeasuredEpoch) -> list[ExpectedGain]:
    """What the settings that may help are expected to bring, the nearest remedy first."""
    if verdict.bottleneck in ("step", "none", "unknown"):
        return []
    options = measured.knob.options if verdict.bottleneck == measured.knob.limit else {}
    return candidate_settings(verdict.bottleneck, options, measured.facts, figures, measured.parts, measured.simulation)


def _advice(verdict: Verdict, measured: Measured, weak: list[ExpectedGain]) -> str:
    """What to do about a bottleneck.

    Args:
        verdict: what limits.
        measured: what was measured.
        weak: options that bring too little to try.
    """
    name, training, slow, facts = verdict.bottleneck, measured.training, measured.slow, measured.facts
    is_transform = name == "transform" or (name == "decode" and measured.decodes)
    if training is not None and training.transform is not None and is_transform:
        return (
            f"{training.transform_name} takes {training.transform.samples_per_second:,.0f} samples/s: make it faster, "
            "or apply its fixed part once, with shard-dataset build --map"
        )
    if name == "slow_records" and slow is not None and training is not None:
        worst = ", ".join(f"record {each.record} of {each.shard} ({each.seconds:.2f} s)" for each in slow.records)
        return (
            f"{training.transform_name} holds up all other records for {worst}: fix or shrink these, once, with "
            "shard-dataset build --map, or leave them out"
        )
    if name == "shuffle_fill":
        shards = min(facts.streams * max(round(facts.window_bytes / facts.shard_bytes), 1), facts.shards)
        seconds = measured.figures.first_batch_seconds
        return (
            f"the first batch waits for {shards} of {facts.shards} shards, {seconds:.2f} s: fewer streams wait for "
            "fewer, and mix fewer into a batch; or write smaller shards"
        )
    text = {
        "cores": "input and step are each fast enough alone, but share the cores: give each rank more of them",
        "framework_overhead": "input and step are each fast enough alone, but wait for Python's lock: write the "
        "transform and the step in TensorFlow operations (no py_function), under tf.function",
        "step": "a faster model (--trace FILE.json shows its longest operations) or more ranks; faster input gains "
        "nothing",
        "none": "input and step are about as fast: only both together can become faster",
    }.get(name, measured.knob.text)
    if text == measured.knob.text and any(each.options == measured.knob.options for each in weak):
        return text.partition(":")[0]  # without the option, which brings too little
    return text


def _evidence(
    bottleneck: str,
    figures: MeasuredEpoch,
    facts: LoaderFacts,
    trials: LoaderTrials,
    slow: SlowRecords | None,
    cpu_share: float,
) -> tuple[Evidence, ...]:
    """The figures that show a bottleneck."""

    def rate(name: str, value: float) -> Evidence:
        return Evidence(name=name, value=value, unit="samples/s")

    def seconds(name: str, value: float) -> Evidence:
        return Evidence(name=name, value=value, unit="s")

    loader = rate("the loader", figures.samples / figures.loader_seconds)
    epoch = rate("an epoch", figures.samples / figures.seconds)
    if bottleneck in _STORE_LIMITS:
        return _of_store(bottleneck, facts, trials) or (loader,)
    if bottleneck == "shuffle_fill":
        return seconds("the first batch", figures.first_batch_seconds), seconds("an epoch", figures.seconds)
    if bottleneck == "slow_records" and slow is not None:
        slowest = seconds("the slowest record", slow.records[0].seconds)
        return slowest, seconds("a batch without such", slow.batch_seconds)
    if bottleneck == "cores":
        return Evidence(name="training uses of the cores", value=cpu_share, unit="share"), epoch
    if bottleneck == "framework_overhead":
        return rate("the slowest part alone", figures.samples / max(figures.parts.values())), epoch
    if bottleneck in ("step", "none") and figures.step is not None:
        return rate("the step alone", figures.step.value), loader
    alone = _rates_alone(trials)
    if figures.transform is not None:
        alone["transform"] = figures.transform.value
        if bottleneck == "decode" and figures.transform.value < loader.value:
            alone["decode"] = figures.transform.value
    if value := alone.get(bottleneck):
        is_transform = bottleneck == "transform" and figures.step is not None
        return rate(f"{bottleneck.replace('_', ' ')} alone", value), epoch if is_transform else loader
    return (loader,)


def confirmed_limit(limit: str, figures: MeasuredEpoch, facts: LoaderFacts, trials: LoaderTrials) -> str:
    """Return what limits the loader: a part, or the first batch, if that takes most of the epoch and the part does not.

    In an epoch of a few small shards some stage is the busiest, though all of them are fast enough. At any rate of a
    stage, the first batch takes that share of an epoch which its windows are of the epoch's bytes. So if they are less
    than half, it did not wait for them: other programs, or the start, delayed it.

    Args:
        limit: the part, as the loader's stages tell it.
        figures: the epoch as measured.
        facts: the loader's sizes.
        trials: the loader's parts as measured.
    """
    if facts.first_batch_bytes(facts.local_streams) < facts.epoch_bytes / 2:
        return limit
    alone = _rates_alone(trials).get(limit)
    needed = figures.samples / figures.loader_seconds
    waits = figures.first_batch_seconds > figures.loader_seconds / 2
    fast = limit == "unknown" or (facts.is_local and limit == "store_latency")  # nothing, or opening files in memory
    return "shuffle_fill" if waits and (fast or (alone or 0.0) > _FAST_ENOUGH * needed) else limit


def rest_of_loader(limit: str, figures: MeasuredEpoch, facts: LoaderFacts, trials: LoaderTrials) -> dict[str, Estimate]:
    """The rate of the loader's epoch without what limits it, by the part that would limit it then; empty if unknown.

    Args:
        limit: what limits the loader.
        figures: the epoch as measured.
        facts: the loader's sizes.
        trials: its parts as measured.
    """
    if limit == "shuffle_fill":
        return {"hand_over": figures.loader}
    alone = {name: exactly(rate) for name, rate in _rates_alone(trials).items()}
    if trials.hand_over is not None:
        alone["hand_over"] = trials.hand_over.estimate
    if limit in _STORE_LIMITS:
        following = min(alone, key=lambda name: alone[name].value, default="hand_over")
        if (warm := trials.warm) is None:
            return {following: alone[following]} if alone else {}
        seconds = min(warm.first_batch_seconds, figures.first_batch_seconds) + figures.samples / warm.rate.value
        return {following: around(figures.samples / seconds, warm.rate)}
    if trials.store is not None:
        alone["store_bandwidth"] = exactly(trials.store.best_bytes_per_second / facts.record_bytes)
    alone.pop(limit, None)
    return dict(sorted(alone.items(), key=lambda item: item[1].value)[:1])


def _rates_alone(trials: LoaderTrials) -> dict[str, float]:
    """Samples per second of each part that was measured alone."""
    rates = {} if trials.hand_over is None else {"hand_over": trials.hand_over.samples_per_second}
    if trials.opening is not None:
        rates |= {"verification": trials.opening.verify, "decode": trials.opening.decode}
    return rates


def _of_store(bottleneck: str, facts: LoaderFacts, trials: LoaderTrials) -> tuple[Evidence, ...]:
    store = trials.store
    if store is None:
        return ()
    fetched = Evidence(name="the loader fetches", value=facts.fetch_bytes_per_second, unit="bytes/s")
    if bottleneck == "store_latency":
        size = min(facts.shard_bytes, PIECE_BYTES)
        each = size / store.best_bytes_per_second
        return (
            Evidence(name="a request takes", value=store.latency_seconds, unit="s"),
            Evidence(name="the bytes of a shard take", value=each, unit="s"),
        )
    return Evidence(name="the store gives", value=store.best_bytes_per_second, unit="bytes/s"), fetched

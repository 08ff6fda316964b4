"""The conclusion from all measurements of a profile: its verdict, with figures, advice and the option to try.

A pure function of what was measured.
Tested in tests/tools/verdict/test_conclusion.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from ringfeed.tools.measure.slow_records import SlowRecords
from ringfeed.tools.measure.training_trials import TrainingTrials
from ringfeed.tools.predict.gains import ExpectedGain, MeasuredEpoch, predict_gain
from ringfeed.tools.predict.settings import LoaderFacts, LoaderTrials, candidate_settings

from .bottleneck import Knob
from .evidence import confirmed_limit, find_evidence, rest_of_loader
from .verdict import Verdict, judge

__all__ = ["Measured", "conclude"]

_LEAST_GAIN = 1.05  # an option that brings less is not named


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All that was measured.

    Attributes:
        figures: the epoch.
        facts: sizes of the loader.
        parts: the loader's parts alone.
        training: transform and step; None without a step.
        slow: records that held up their batches.
        knob: what limits the loader by its stages, and what to do about it.
        seconds: time of the shortest measurement that counts.
        disturbed: share of the time in which this program waited for cores that others held, in [0, 1].
        other_load: share of the cores that other programs used, in [0, 1].
        decodes: whether the transform is ringfeed's own decoding of images.
    """

    figures: MeasuredEpoch
    facts: LoaderFacts
    parts: LoaderTrials
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
    limit = confirmed_limit(measured.knob.limit, measured.figures, parts, is_local=facts.is_local)
    figures = replace(measured.figures, rest=rest_of_loader(limit, measured.figures, facts, parts))
    cpu_share = 0.0
    if training is not None:
        together = training.together
        cpu_share = min(together.cpu_seconds / together.seconds / (os.cpu_count() or 1), 1.0)
    verdict = judge(
        figures, loader_limit=limit, seconds=measured.seconds, disturbed=measured.disturbed, cpu_share=cpu_share,
        other_load=measured.other_load, lock_held=training.lock_held if training else 0.0, slow=slow,
        decodes=measured.decodes,
    )  # fmt: skip
    predictions = _predictions(verdict, measured, figures)
    best = next((each for each in predictions if each.gain is None or each.gain.value >= _LEAST_GAIN), None)
    return figures, replace(
        verdict,
        evidence=find_evidence(verdict.bottleneck, figures, facts, parts, slow, cpu_share),
        knob=best,
        advice=verdict.advice or _advice(verdict, measured, predictions if best is None else []),
    )


def _predictions(verdict: Verdict, measured: Measured, figures: MeasuredEpoch) -> list[ExpectedGain]:
    """What the settings that may help are expected to bring, the nearest remedy first."""
    if verdict.bottleneck in ("step", "none", "unknown"):
        return []
    settings = candidate_settings(verdict.bottleneck, measured.facts, figures, measured.parts)
    predictions = [predict_gain(setting, figures) for setting in settings]
    options = measured.knob.options
    if verdict.bottleneck == measured.knob.limit and options and all(each.options != options for each in predictions):
        first = figures.first_batch_seconds
        text = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
        predictions.append(
            ExpectedGain(
                options=options, text=text, gain=None, first_batch_seconds=(first, first), memory_bytes=0, disk_bytes=0,
                later=False,
            )
        )  # fmt: skip
    return predictions


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
        wait = (
            f"the first batch waits for {shards} of {facts.shards} shards, {measured.figures.first_batch_seconds:.2f} s"
        )
        return f"{wait}: fewer streams wait for fewer, and mix fewer into a batch; or write smaller shards"
    text = {
        "cores": "input and step are each fast enough alone, but share the cores: give each rank more of them",
        "framework_overhead": "input and step are each fast enough alone, but wait for Python's lock: write the "
        "transform and the step in TensorFlow operations (no py_function), under tf.function",
        "step": "a faster model or more ranks; faster input gains nothing",
        "none": "input and step are about as fast: only both together can become faster",
    }.get(name, measured.knob.text)
    if text == measured.knob.text and any(each.options == measured.knob.options for each in weak):
        return text.partition(":")[0]  # without the option, which brings too little
    return text

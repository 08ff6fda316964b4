"""Runs the trials of a profile within its time, and draws the conclusions.

Tested in tests/tools/profile/test_measure.py and tests/tools/profile/test_procedure.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from ringfeed.pipeline import Cache, Loader, StageStats
from ringfeed.pipeline.metrics.stage_counters import CACHE_STAGES, FAULT_STAGES
from ringfeed.sharding.dataset.dataset import open_dataset
from ringfeed.sharding.errors import RangesError
from ringfeed.sharding.storage.temporary_folder import temporary_folder
from ringfeed.tools.console import print_stderr
from ringfeed.tools.measure.estimates import around, estimate, ratio
from ringfeed.tools.measure.loader_trial import LoaderTrial, try_loader
from ringfeed.tools.measure.other_load import LoadClock
from ringfeed.tools.measure.part_trials import expect_warm, try_hand_over, try_opening, try_warm
from ringfeed.tools.measure.slow_records import SlowRecords, find_slow_records
from ringfeed.tools.measure.store_trial import StoreTrial, try_store
from ringfeed.tools.measure.training_trials import TrainingTrials, Workload, try_together, try_training
from ringfeed.tools.predict.gains import ExpectedGain, MeasuredEpoch
from ringfeed.tools.predict.settings import LoaderFacts, LoaderTrials
from ringfeed.tools.report.profile_result import TriedKnob
from ringfeed.tools.verdict.bottleneck import Knob, StageProfile, name_bottleneck, name_knob
from ringfeed.tools.verdict.conclusion import Measured, conclude
from ringfeed.tools.verdict.verdict import Verdict

__all__ = ["Budget", "Findings", "Request", "investigate"]

_LEAST_SHARE = 0.2  # of a part's time, whatever the parts before took
_LEAST_SEARCH = 4.0  # seconds for single records, where some batches are slow
_LARGER = 2  # times the batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the caller asked for; see `profile`."""

    seconds: float
    steps: int | None
    try_knob: bool
    progress: bool
    cache_bytes: int | None

    def report(self, part: str) -> None:
        """Say what is measured next."""
        if self.progress:
            print_stderr(f"measuring {part}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that was measured, and what follows; see `Profile`."""

    loader: LoaderTrial
    figures: MeasuredEpoch
    stored_bytes: float
    stages: tuple[StageProfile, ...]
    slowest_stage: str
    advice: str
    parts: LoaderTrials
    training: TrainingTrials | None
    slow: SlowRecords | None
    verdict: Verdict
    tried: TriedKnob | None
    other_load: float


def investigate(loader: Loader, workload: Workload | None, request: Request) -> Findings:
    """Measure a loader, and the training that it is part of, if there is one.

    Raises:
        RingfeedError: the dataset cannot be read, or a function of the user fails.
    """
    clock, budget, begun = LoadClock(), _budget(loader, workload, request), time.perf_counter()
    is_remote = loader.arguments["url"].local_path is None
    store = _try_store(loader, budget.share("store"), request) if is_remote else None
    budget.spend("store", time.perf_counter() - begun)
    request.report("the loader")
    trial = try_loader(loader, budget.share("loader"), steps=request.steps, progress=request.progress)
    budget.spend("loader", trial.first_batch_seconds + trial.seconds)
    stages = _stages(loader.stats(), trial.first_batch_seconds + trial.seconds)
    stage = name_bottleneck(stages, parses=loader.undecoded and not loader.locates_features)
    knob = name_knob(stage, stages, loader, trial.disk_bytes, store)
    fetch = next(each for each in stages if each.name == "fetch")
    fetch_rate = fetch.bytes / (trial.first_batch_seconds + trial.seconds)
    facts = LoaderFacts.of(loader, fetch.share, fetch_rate)
    begun = time.perf_counter()
    parts = _try_parts(loader, store, knob, facts, trial, budget.share("parts"), request)
    budget.spend("parts", time.perf_counter() - begun)
    training = (
        None
        if workload is None
        else try_training(workload, trial.first_batch, budget.share("training"), request.report)
    )
    epoch_seconds = _epoch_seconds(loader, trial, facts.epoch_bytes / max(fetch_rate, 1.0), stage)
    figures = _figures(loader, trial, training, epoch_seconds, is_fetching=stage == "fetch")
    if stage == "fetch" and len(trial.fetch_rates) > 1:
        figures = replace(figures, loader=around(figures.loader.value, estimate(1.0, trial.fetch_rates)))
    slow = None
    if workload is not None and training is not None and training.input is not None:
        request.report("single records")
        seconds = max(budget.share("records"), min(_LEAST_SEARCH, request.seconds))
        slow = find_slow_records(workload, training.input, seconds)
    figures, verdict = conclude(
        Measured(
            figures=figures, facts=facts, parts=parts, training=training, slow=slow, knob=knob,
            seconds=_shortest(trial, training), disturbed=clock.disturbed(), other_load=clock.other_load(),
            decodes=workload is not None and workload.decodes,
        )
    )  # fmt: skip
    tried = None
    if request.try_knob and verdict.knob is not None and verdict.knob.options:
        tried = _try_knob(loader, workload, verdict.knob, figures, budget.share("tried"), request)
    return Findings(
        loader=trial,
        figures=figures,
        stored_bytes=facts.record_bytes,
        stages=stages,
        slowest_stage=stage,
        advice=knob.text,
        parts=parts,
        training=None if training is None else training.without_gaps(),
        slow=slow,
        verdict=verdict,
        tried=tried,
        other_load=clock.other_load(),
    )


def _epoch_seconds(loader: Loader, trial: LoaderTrial, fetch_seconds: float, stage: str) -> float:
    """Seconds of an epoch of the loader; while it fetches, no more than its bytes take to come."""
    seconds = trial.epoch_seconds(loader)
    if stage == "fetch" and 1 < trial.steps < loader.steps_per_epoch:
        # Shards come ahead of need, and batches in bursts: what has come by now says more than batches.
        seconds = max(min(fetch_seconds, seconds), trial.first_batch_seconds + trial.seconds)
    return seconds


class Budget:
    """Shares time out to the parts of a profile; what one takes longer, the later ones have less.

    Args:
        seconds: time for all parts.
        weights: of each part, in the order of the parts.

    >>> budget = Budget(10.0, {"loader": 2.0, "training": 3.0})
    >>> budget.share("loader")
    4.0
    >>> budget.spend("loader", 7.0)
    >>> budget.share("training")
    3.0
    """

    def __init__(self, seconds: float, weights: Mapping[str, float]) -> None:
        self._left, self._weights, self._total = seconds, dict(weights), seconds
        self._sum = sum(weights.values())

    def share(self, part: str) -> float:
        """Seconds for a part, at least a fifth of what it has if all others keep to theirs."""
        weight = self._weights[part]
        fair = self._left * weight / max(sum(self._weights.values()), weight, 1e-9)
        return max(fair, _LEAST_SHARE * self._total * weight / self._sum)

    def spend(self, part: str, seconds: float) -> None:
        """Note what a part took."""
        self._left -= seconds
        del self._weights[part]


def _budget(loader: Loader, workload: Workload | None, request: Request) -> Budget:
    is_remote = loader.arguments["url"].local_path is None
    weights = {
        "store": 2 if is_remote else 0,
        "loader": 4,
        "parts": 4 if is_remote else 2,
        "training": 0 if workload is None else 8,
        "records": 0 if workload is None or workload.transform is None else 2,
        "tried": 4 if request.try_knob else 0,
    }
    return Budget(request.seconds, weights)


def _try_store(loader: Loader, seconds: float, request: Request) -> StoreTrial | None:
    """Measure the store alone; None if it does not read parts of files."""
    request.report("the store")
    dataset = open_dataset(loader.arguments["url"])
    try:
        return try_store(dataset.storage, dataset.split_shards(loader.arguments["split"]), seconds)
    except RangesError:
        return None


def _try_parts(
    loader: Loader,
    store: StoreTrial | None,
    knob: Knob,
    facts: LoaderFacts,
    trial: LoaderTrial,
    seconds: float,
    request: Request,
) -> LoaderTrials:
    """Measure the loader's parts alone."""
    is_remote = not facts.is_local
    warm_share = 0.6 if is_remote else 0.3
    request.report("the loader's parts")
    begin, hand_over, larger = 0.0, None, None
    is_quick = trial.first_batch_seconds < seconds  # each of these trials waits for a first batch
    if is_quick:
        begin, hand_over = try_hand_over(loader, seconds * (1 - warm_share) / 4)
    size = loader.arguments["batch_size"] * _LARGER
    if is_quick and "batch_size" in knob.options and size <= loader.records:
        _, larger = try_hand_over(
            Loader(**dict(loader.arguments) | {"batch_size": size}), seconds * (1 - warm_share) / 4
        )
    rate = store.rate_of(1) if store is not None else None
    opening = None
    if not is_remote or rate is not None:
        opening = try_opening(loader, seconds * (1 - warm_share) / 4, rate)
    request.report("the loader with its shards at hand")
    if is_remote and trial.first_batch_seconds > seconds * warm_share / 3:  # a cache takes as long to fill
        warm = (
            None
            if hand_over is None
            else expect_warm(hand_over, opening, begin, facts.window_bytes * facts.local_streams / facts.record_bytes)
        )
    else:
        warm = try_warm(loader, seconds * warm_share)
    return LoaderTrials(store=store, warm=warm, hand_over=hand_over, larger=larger, opening=opening)


def _figures(
    loader: Loader, trial: LoaderTrial, training: TrainingTrials | None, epoch_seconds: float, *, is_fetching: bool
) -> MeasuredEpoch:
    samples, rate = _epoch_samples(loader), trial.estimate(loader)
    together = training.together if training else None
    if together is not None and not is_fetching and together.samples_per_second > rate.value:
        # Training cannot be faster than its loader: something disturbed that while it ran alone.
        rate = together.estimate
        epoch_seconds = min(epoch_seconds, trial.first_batch_seconds + samples / rate.value)
    return MeasuredEpoch(
        samples=samples,
        first_batch_seconds=trial.first_batch_seconds,
        loader=rate,
        loader_seconds=epoch_seconds,
        transform=training.transform_estimate if training else None,
        step=training.step.estimate if training else None,
        together=together.estimate if together else None,
        waiting=together.wait_seconds / together.seconds if together else 0.0,
    )


def _shortest(trial: LoaderTrial, training: TrainingTrials | None) -> float:
    """Seconds of the shortest measurement that the verdict rests on."""
    return trial.first_batch_seconds + trial.seconds if training is None else training.step.seconds


def _try_knob(
    loader: Loader,
    workload: Workload | None,
    knob: ExpectedGain,
    figures: MeasuredEpoch,
    seconds: float,
    request: Request,
) -> TriedKnob:
    """Measure an epoch with a knob turned."""
    request.report(f"with {knob.text}")
    with ExitStack() as stack:
        options: dict[str, Any] = dict(knob.options)
        if "cache" in options:
            options["cache"] = Cache(str(stack.enter_context(temporary_folder())))
        other, steps = Loader(**dict(loader.arguments) | options), None
        if "cache" in options:
            steps = try_loader(other, seconds / 2, steps=None).steps  # fills it
        if workload is not None and figures.together is not None:
            waited, together = try_together(replace(workload, loader=other), seconds, steps)
            after = replace(
                figures, samples=_epoch_samples(other), first_batch_seconds=waited, together=together.estimate,
                loader_seconds=0.0,
            )  # fmt: skip
        else:
            trial = _middle_trial(other, seconds, steps)
            after = _figures(other, trial, None, trial.epoch_seconds(other), is_fetching=False)
    epochs = after.samples / figures.samples  # with larger batches a few records more may be left out
    rate = after.loader if after.together is None else after.together
    before = figures.loader if figures.together is None else figures.together
    gain = figures.seconds * epochs / after.seconds
    return TriedKnob(
        options=knob.options,
        epoch_samples_per_second=after.samples / after.seconds,
        first_batch_seconds=after.first_batch_seconds,
        gain=around(gain, ratio(rate, before)),
    )


def _middle_trial(loader: Loader, seconds: float, steps: int | None) -> LoaderTrial:
    """The trial of the median epoch of as many as there is time for."""
    begun, trials = time.perf_counter(), [try_loader(loader, seconds, steps=steps)]
    while (time.perf_counter() - begun) * (1 + 1 / len(trials)) < seconds:
        trials.append(try_loader(loader, seconds, steps=steps))
    trials.sort(key=lambda trial: trial.epoch_seconds(loader))
    return trials[len(trials) // 2]


def _epoch_samples(loader: Loader) -> int:
    return loader.steps_per_epoch * loader.local_batch_size


def _stages(stats: Mapping[str, StageStats], seconds: float) -> tuple[StageProfile, ...]:
    return tuple(
        StageProfile(
            name=name,
            items=entry.items,
            bytes=entry.bytes,
            busy_seconds=entry.busy_seconds,
            wait_seconds=entry.wait_seconds,
            share=entry.busy_seconds / seconds,
        )
        for name, entry in stats.items()
        if entry.items or name not in CACHE_STAGES + FAULT_STAGES
    )

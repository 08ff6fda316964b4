"""Runs the trials of a profile within its time, and draws the conclusions.

Tested in tests/tools/profile/test_measure.py and tests/tools/profile/test_procedure.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from ringfeed.pipeline import Loader, MemoryCache, StageStats
from ringfeed.pipeline.fetch.shard_cache import Cache, ShardCache
from ringfeed.pipeline.metrics.stage_counters import CACHE_STAGES, FAULT_STAGES
from ringfeed.sharding.storage.temporary_folder import temporary_folder
from ringfeed.sharding.url_secrets import public_url
from ringfeed.tools.console import print_stderr
from ringfeed.tools.measure.epochs_in_turn import in_turn, read_epoch
from ringfeed.tools.measure.estimates import around, estimate
from ringfeed.tools.measure.loader_costs import loader_costs
from ringfeed.tools.measure.loader_trial import LoaderTrial, try_loader
from ringfeed.tools.measure.other_load import LoadClock
from ringfeed.tools.measure.part_trials import opening_rates, try_hand_over, try_warm
from ringfeed.tools.measure.slow_records import SlowRecords, find_slow_records
from ringfeed.tools.measure.step_trace import StepInside, trace_step
from ringfeed.tools.measure.store_trial import StoreTrial, try_store_of
from ringfeed.tools.measure.training_trials import TrainingTrials, Workload, try_training
from ringfeed.tools.predict.gains import ExpectedGain, MeasuredEpoch
from ringfeed.tools.predict.settings import LoaderFacts, LoaderSimulation, LoaderTrials
from ringfeed.tools.report.profile_result import Profile, TriedKnob
from ringfeed.tools.report.trace import write_step_trace
from ringfeed.tools.verdict.bottleneck import StageProfile, name_bottleneck, name_knob
from ringfeed.tools.verdict.conclusion import Measured, conclude

_LEAST_SHARE = 0.2  # of a part's time, whatever the parts before took
_LEAST_SEARCH = 4.0  # seconds for single records, where some batches are slow
_TRIED_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the caller asked for; see `profile`."""

    seconds: float
    steps: int | None
    try_knob: bool
    trace: str | None
    progress: bool
    cache_bytes: int | None

    def report(self, part: str) -> None:
        """Say what is measured next."""
        if self.progress:
            print_stderr(f"measuring {part}")


def investigate(loader: Loader, workload: Workload | None, url: str, request: Request) -> Profile:
    """Measure a loader, and the training that it is part of, if there is one.

    Raises:
        RingfeedError: the dataset cannot be read, or a function of the user fails.
    """
    import tensorflow  # noqa: F401  # before the clock starts

    clock, budget = LoadClock(), _budget(loader, workload, request)
    store = _try_store(loader, budget, request)
    request.report("the loader")
    with budget.part("loader") as seconds:
        trial = try_loader(loader, seconds, steps=request.steps, progress=request.progress)
    reading_seconds = trial.first_batch_seconds + trial.seconds
    stats = loader.stats()
    stages = _stages(stats, reading_seconds, trial.disk_bytes, store)
    stage = name_bottleneck(stages, parses=loader.undecoded and not loader.locates_features)
    knob = name_knob(stage, stages, loader, trial.disk_bytes, store)
    fetch = next(each for each in stages if each.name == "fetch")
    facts = LoaderFacts.of(loader, fetch.bytes / reading_seconds)
    with budget.part("parts") as seconds:
        parts, simulation = _try_parts(loader, stats, store, facts, trial, seconds, request)
    training, slow = (None, None) if workload is None else _try_workload(workload, trial, budget, request)
    epoch_seconds = _epoch_seconds(loader, trial, facts, stage)
    figures = _figures(loader, trial, training, epoch_seconds, is_fetching=stage == "fetch")
    figures, verdict = conclude(
        Measured(
            figures=figures, facts=facts, parts=parts, training=training, slow=slow, knob=knob,
            simulation=simulation,
            seconds=reading_seconds if training is None else training.step.seconds,
            disturbed=clock.disturbed(), other_load=clock.other_load(),
            decodes=workload is not None and workload.decodes,
        )
    )  # fmt: skip
    tried = _try_knob(loader, workload, verdict.knob, budget, request)
    inside = None if workload is None else _look_inside(workload, request)
    options = loader.arguments
    return Profile(
        url=public_url(url), **{name: options[name] for name in _NAMED_OPTIONS},
        steps=trial.steps, samples=trial.steps * loader.local_batch_size, seconds=trial.seconds,
        first_batch_seconds=trial.first_batch_seconds, samples_per_second=trial.samples_per_second(loader),
        epoch_seconds=figures.loader_seconds, epoch_samples_per_second=figures.samples / figures.loader_seconds,
        bytes_per_second=trial.decoded_bytes / trial.seconds, stored_bytes=facts.record_bytes,
        stages=stages, slowest_stage=stage, loader_advice=knob.text, options=_other_options(loader, request),
        verdict=verdict, parts=parts, training=None if training is None else training.without_gaps(), slow=slow,
        tried=tried, inside=inside, queue_depths=trial.depths, other_load=clock.other_load(),
        own_share=trial.own_seconds / reading_seconds, loader_rate=figures.loader,
    )  # fmt: skip


def _try_store(loader: Loader, budget: Budget, request: Request) -> StoreTrial | None:
    """What a remote store gives without the loader; None of a local one, or where it reads no parts of files."""
    if loader.arguments["url"].local_path is not None:
        return None
    request.report("the store")
    with budget.part("store") as seconds:
        return try_store_of(loader, seconds)


def _look_inside(workload: Workload, request: Request) -> StepInside | None:
    """Record some steps and write their trace, if one was asked for."""
    if request.trace is None:
        return None
    request.report("the step from inside")
    inside, spans = trace_step(workload)
    write_step_trace(spans, request.trace)
    return inside


def _try_workload(
    workload: Workload, trial: LoaderTrial, budget: Budget, request: Request
) -> tuple[TrainingTrials, SlowRecords | None]:
    """Measure transform and step, and look for records that hold up their batches."""
    with budget.part("training") as seconds:
        training = try_training(workload, trial.first_batch, seconds, request.report)
    if training.input is None:
        return training, None
    request.report("single records")
    with budget.part("records") as seconds:
        most = max(seconds, min(_LEAST_SEARCH, request.seconds))
        return training, find_slow_records(workload, (training.input, training.together), most)


_NAMED_OPTIONS = ("split", "batch_size", "balance", "rank", "world_size")
_SHOWN_OPTIONS = ("columns", "where", "streams", "window_shards", "fetch_threads", "prefetch_bytes", "cache")
_AS_JSON: dict[str, Any] = {"columns": list, "where": str, "cache": lambda cache: _name_cache(cache)}


def _other_options(loader: Loader, request: Request) -> dict[str, Any]:
    """The options that the headline does not show yet, if they differ from their defaults, in JSON's types."""
    options = {name: loader.arguments[name] for name in _SHOWN_OPTIONS} | {"cache_bytes": request.cache_bytes}
    if options["window_shards"] == 1:
        del options["window_shards"]
    return {name: _AS_JSON.get(name, int)(value) for name, value in options.items() if value is not None}


def _name_cache(cache: ShardCache) -> str:
    if isinstance(cache, MemoryCache):
        return "memory"
    return str(cache.path) if isinstance(cache, Cache) else type(cache).__name__


def _epoch_seconds(loader: Loader, trial: LoaderTrial, facts: LoaderFacts, stage: str) -> float:
    """Seconds of an epoch of the loader; while it fetches, no more than its bytes take to come."""
    seconds = trial.epoch_seconds(loader)
    if stage == "fetch" and 1 < trial.steps < loader.steps_per_epoch:
        # Shards come ahead of need, and batches in bursts: what has come by now says more than batches.
        fetch_seconds = facts.epoch_bytes / max(facts.fetch_bytes_per_second, 1.0)
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

    @contextmanager
    def part(self, part: str) -> Iterator[float]:
        """Yield the seconds of a part, and note what it takes."""
        begun = time.perf_counter()
        yield self.share(part)
        self.spend(part, time.perf_counter() - begun)

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


def _try_parts(
    loader: Loader,
    stats: Mapping[str, StageStats],
    store: StoreTrial | None,
    facts: LoaderFacts,
    trial: LoaderTrial,
    seconds: float,
    request: Request,
) -> tuple[LoaderTrials, LoaderSimulation]:
    """Measure the loader's parts alone, and tell the simulator what they cost."""
    is_remote = not facts.is_local
    warm_share = 0.6 if is_remote else 0.3
    request.report("the loader's parts")
    handed = None
    if trial.first_batch_seconds < seconds:  # each of these trials waits for a first batch
        handed = try_hand_over(loader, seconds * (1 - warm_share) / 2)
    measured = loader_costs(loader, stats, trial, store, handed)
    simulation = LoaderSimulation.of(loader, measured)
    request.report("the loader with its shards at hand")
    if is_remote and trial.first_batch_seconds > seconds * warm_share / 3:  # a cache takes as long to fill
        warm = None if handed is None else simulation.at_hand()
    else:
        warm = try_warm(loader, seconds * warm_share)
    opening = opening_rates(stats, measured.shape.bytes / float(measured.shape.records.sum()))
    hand_over = None if handed is None else handed[1]
    return LoaderTrials(store=store, warm=warm, hand_over=hand_over, opening=opening), simulation


def _figures(
    loader: Loader, trial: LoaderTrial, training: TrainingTrials | None, epoch_seconds: float, *, is_fetching: bool
) -> MeasuredEpoch:
    samples, rate = loader.steps_per_epoch * loader.local_batch_size, trial.estimate(loader)
    together = training.together if training else None
    if together is not None and not is_fetching and together.samples_per_second > rate.value:
        # Training cannot be faster than its loader: something disturbed that while it ran alone.
        rate = together.estimate
        epoch_seconds = min(epoch_seconds, trial.first_batch_seconds + samples / rate.value)
    if is_fetching and len(trial.fetch_rates) > 1:
        rate = around(rate.value, estimate(1.0, trial.fetch_rates))
    step = None  # neither can training be faster than its step
    if training is not None:
        step = max(training.step.estimate, training.together.estimate, key=lambda each: each.value)
    return MeasuredEpoch(
        samples=samples, first_batch_seconds=trial.first_batch_seconds, loader=rate, loader_seconds=epoch_seconds,
        transform=training.transform_estimate if training else None, step=step,
        together=together.estimate if together else None,
        waiting=together.wait_seconds / together.seconds if together else 0.0,
    )  # fmt: skip


def _try_knob(
    loader: Loader, workload: Workload | None, knob: ExpectedGain | None, budget: Budget, request: Request
) -> TriedKnob | None:
    """Measure epochs with and without a knob turned, in turn, if asked for; a cache is filled before."""
    if not request.try_knob or knob is None or not knob.options:
        return None
    request.report(f"with {knob.text}")
    options = dict(knob.options)
    with budget.part("tried") as seconds, ExitStack() as stack:
        each = seconds / (2 * _TRIED_ROUNDS)
        if "cache" in options:
            options["cache"] = Cache(str(stack.enter_context(temporary_folder())))
        warmed = read_epoch(loader, workload, each * (2 if "cache" in options else 1), options)
        steps = warmed.steps if "cache" in options else None  # what it holds by now
        before, after = in_turn(
            [
                lambda _: read_epoch(loader, workload, each),
                lambda _: read_epoch(loader, workload, each, options, steps=steps),
            ],
            _TRIED_ROUNDS,
        )
        other = Loader(**dict(loader.arguments) | options)
    samples = other.steps_per_epoch * other.local_batch_size
    more = samples / (loader.steps_per_epoch * loader.local_batch_size)  # larger batches may leave a few records out
    gains = [more * own.total / changed.total for own, changed in zip(before, after, strict=True)]
    return TriedKnob(
        options=knob.options,
        epoch_samples_per_second=samples / median(epoch.total for epoch in after),
        first_batch_seconds=median(epoch.first for epoch in after),
        gain=estimate(median(gains), gains),
    )


def _stages(
    stats: Mapping[str, StageStats], seconds: float, disk_bytes: int, store: StoreTrial | None
) -> tuple[StageProfile, ...]:
    from_disk = disk_bytes >= max(stats["fetch"].bytes + stats["cache"].bytes, 1) / 2
    return tuple(
        StageProfile.of(name, entry, seconds, from_disk=from_disk, store=store)
        for name, entry in stats.items()
        if entry.items or name not in CACHE_STAGES + FAULT_STAGES
    )

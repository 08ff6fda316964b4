"""Runs a learning-rate range test: a few steps of a configured run, which leave nothing behind but a plot."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.checkpoint.snapshot import set_rank_seeds
from ringfeed.training.config.outputs import CheckpointConfig, OutputConfig
from ringfeed.training.config.track import TrackConfig
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.optimizers.build import build_schedule
from ringfeed.training.reports.console import Console
from ringfeed.training.reports.events import RunBegan, RunEnded, StepDone
from ringfeed.training.reports.reports import Reports
from ringfeed.training.ring.ring import Ring
from ringfeed.training.schedules.range_test import ExponentialRise, RangeTest, has_diverged, judge_rates, smoothed

from .assembly import Assembly, assemble
from .state.outputs import write_file

__all__ = ["find_learning_rate", "write_range_test"]

_STEPS = 100
_BELOW, _ABOVE = 1e-4, 1e2  # multiples of the configured peak: most models diverge within them


def find_learning_rate(config: TrainConfig, ring: Ring, check: Callable[[], bool] = lambda: False) -> RangeTest:
    """Train for up to 100 steps with a rate that rises from 1e-4 to 100 times the configured one (a collective).

    Neither checkpoints nor outputs are read or written. `check`, called before each step, returns true to end the test.
    A RingfeedError says that the run cannot start, or that its loss is never finite.
    """
    config = replace(config, checkpoint=CheckpointConfig(), output=OutputConfig(), track=TrackConfig())
    peak = build_schedule(config, 2**20).peak_value
    rise = ExponentialRise(peak * _BELOW, peak * _ABOVE, _STEPS)
    assembly = assemble(config, ring, schedule=rise)
    ring.broadcast(list(assembly.parts.variables().values()))
    set_rank_seeds(assembly.parts.network, ring.rank)
    reports = Reports([] if ring.rank else [Console()])
    losses: list[float] = []
    try:
        reports.emit(RunBegan(ranks=ring.size, total_steps=_STEPS, batch_size=config.data.batch_size))
        for step, batch in zip(range(_STEPS), _batches(assembly), strict=False):
            if check():
                break
            losses.append(float(assembly.train_step(*batch, 0.0).loss))
            reports.emit(StepDone(step + 1, epoch=0))
            if has_diverged(smoothed(losses)):
                break
    finally:
        reports.emit(RunEnded(len(losses), epoch=0, is_finished=False))
    if not losses or not math.isfinite(losses[0]):
        raise TrainingError(
            f"the loss is not finite at a learning rate of {rise.least:g}: check the data and the model, or lower "
            "optimizer.learning_rate, around which the test searches"
        )
    scale = config.optimizer.learning_rate / peak  # base_batch_size
    return judge_rates([float(rise(step)) * scale for step in range(_STEPS)], losses)


def _batches(assembly: Assembly) -> Iterator[Any]:
    loader, factor, epoch = assembly.shares.loader, assembly.shares.sample_factor, 0
    while True:
        for inputs, target, weight in loader.batches(epoch, transform=assembly.augment):
            yield inputs, target, weight * factor
        epoch += 1


def write_range_test(url: str, found: RangeTest) -> None:
    """Write a range test: its figures if the name ends in .json, else a plot, in the format that its suffix names."""
    if url.endswith(".json"):
        write_file(url, (json.dumps(asdict(found)) + "\n").encode())
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.semilogx(found.rates, found.losses, color="#0072B2")
    axes.set_xlabel("optimizer.learning_rate")
    axes.set_ylabel("loss, smoothed")
    title = "The loss never falls"
    if found.suggestion is not None:
        axes.axvline(found.suggestion, color="#D55E00", linestyle="--")
        title = f"The loss falls most steeply at {found.suggestion:.3g}"
    axes.set_title(title)
    axes.grid(alpha=0.3)
    picture = BytesIO()
    figure.savefig(picture, format=PurePosixPath(url).suffix.lstrip("."), dpi=150)
    write_file(url, picture.getvalue())

"""The learning-rate range test: a few steps of a run whose rate rises until the loss does, which leave only a plot.

Smith, arXiv 1506.01186, section 3.3.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any

import keras
import numpy as np

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

from .assembly import Assembly, assemble
from .state.outputs import write_file

_DIVERGED = 4.0  # fastai, too, ends the test at this multiple of the lowest loss so far
_DECAY = 0.9  # the moving average then covers about ten steps
_WINDOW = 5  # a slope is fitted over so many steps to either side: between two steps it is noise
_STEPS = 100
_BELOW, _ABOVE = 1e-4, 1e2  # multiples of the configured peak: most models diverge within them
_SKIPPED = 0.1  # the averages of this share of the steps, at the start, cover too few losses


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTest:
    rates: tuple[float, ...]  # `optimizer.learning_rate` of each step
    losses: tuple[float, ...]  # loss of each step, smoothed, up to where it diverged
    suggestion: float | None  # the rate at which the loss falls most steeply; None if it never falls
    lowest: float  # the rate of the lowest loss


def smoothed(losses: Sequence[float]) -> list[float]:
    """Return the bias-corrected moving average of losses.

    >>> smoothed([2.0, 2.0, 2.0])
    [2.0, 2.0, 2.0]
    """
    average, result = 0.0, []
    for count, loss in enumerate(losses, 1):
        average = _DECAY * average + (1 - _DECAY) * loss
        result.append(round(average / (1 - _DECAY**count), 12))
    return result


def has_diverged(losses: Sequence[float]) -> bool:
    """Whether the last of the smoothed losses is far above the lowest, or not finite."""
    return not math.isfinite(losses[-1]) or losses[-1] > _DIVERGED * min(losses)


def judge_rates(rates: Sequence[float], losses: Sequence[float]) -> RangeTest:
    """Find the steepest fall of a loss, not smoothed, over the logarithm of the rising rates, before it is lowest."""
    means = smoothed(losses)
    diverged = next((count for count in range(1, len(means)) if has_diverged(means[:count])), len(means))
    finite = [mean for mean in means[:diverged] if math.isfinite(mean)]
    best = finite.index(min(finite)) if finite else 0
    first = min(int(len(finite) * _SKIPPED), best)
    width = min(_WINDOW, (best - first) // 2)
    logs = np.log(rates[: best + 1])
    falls = {
        i: float(np.polyfit(logs[i - width : i + width + 1], finite[i - width : i + width + 1], 1)[0])
        for i in range(first + width, best - width + 1)
        if width
    }
    steepest = min(falls, key=falls.__getitem__, default=None)
    return RangeTest(
        rates=tuple(rates[: len(finite)]),
        losses=tuple(finite),
        suggestion=rates[steepest] if steepest is not None and falls[steepest] < 0 else None,
        lowest=rates[best],
    )


def find_learning_rate(config: TrainConfig, ring: Ring, check: Callable[[], bool] = lambda: False) -> RangeTest:
    """Train for up to 100 steps with a rate that rises from 1e-4 to 100 times the configured one (a collective).

    Neither checkpoints nor outputs are read or written. `check`, called before each step, returns true to end the test.
    A RingfeedError says that the run cannot start, or that its loss is never finite.
    """
    config = replace(config, checkpoint=CheckpointConfig(), output=OutputConfig(), track=TrackConfig())
    peak = build_schedule(config, 2**20).peak_value
    rise = keras.optimizers.schedules.ExponentialDecay(peak * _BELOW, _STEPS - 1, _ABOVE / _BELOW)
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
            f"the loss is not finite at a learning rate of {peak * _BELOW:g}: check the data and the model, or lower "
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

"""Plots of datasets, loaders and profiles for notebooks. Each title says what there is to see."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from ringfeed.pipeline import Loader
from ringfeed.sharding.dataset.dataset import open_dataset
from ringfeed.sharding.errors import ConfigError
from ringfeed.tools.charts.bars import Bars
from ringfeed.tools.charts.drawing import COLOURS, HATCHES, MUTED, Drawing, Plot, histogram, stack
from ringfeed.tools.measure.store_trial import StoreTrial

from .profile_result import UNKNOWN_GAIN, Profile

T = TypeVar("T")
_FEWEST_LOOKS = 5  # fewest samples of the queues that are worth plotting


def or_why_not(plot: Callable[[T], Plot], of: T) -> Plot | str:
    """A plot; or, of what was not measured or does not hold what it shows, the reason as text."""
    try:
        return plot(of)
    except ConfigError as error:
        return str(error)


def plot_shards(url: str, split: str = "train") -> Plot:
    """The records of each shard, by class."""
    dataset = open_dataset(url)
    shards = dataset.split_shards(split)
    names = [str(name) for name in dataset.manifest.classes] or ["records"]
    counts = np.array([tuple(shard.class_counts) or (shard.records,) for shard in shards], dtype=np.int64)
    title = (
        f"Balance: {len(shards)} shards differ by at most {int(np.ptp(counts.sum(1)))} records, and by "
        f"{int(np.ptp(counts, 0).max())} in any class"
    )
    if len(names) > len(COLOURS):
        order = np.argsort(-counts.sum(0))
        names, counts = [names[i] for i in order], counts[:, order]
    drawing = Drawing()
    stack(drawing.axes, names, counts, width=1.0 if len(shards) > 60 else 0.8)
    drawing.legend()
    return drawing.finish(title, "shard", "records")


def plot_epoch(result: Profile) -> Plot:
    """An epoch of the loader in time: the wait for the first batch, then the steady rate."""
    first, total = result.first_batch_seconds, result.epoch_seconds
    drawing = Drawing(1.9)
    drawing.axes.grid(visible=False)
    for left, width, label, i in ((0.0, first, "until the first batch", 3), (first, total - first, "all others", 0)):
        drawing.axes.barh(0, width, left=left, color=COLOURS[i], hatch=HATCHES[i], label=label)
    drawing.axes.set_yticks([])
    drawing.legend()
    return drawing.finish(
        f"An epoch takes {total:.2f} s; {first / total:.0%} of it passes before the first batch", "seconds", ""
    )


def plot_stages(result: Profile) -> Plot:
    """How long each stage of the loader worked, over all threads."""
    busy = {stage.name: stage.busy_seconds for stage in result.stages if stage.busy_seconds > 0}
    if result.slowest_stage in ("parse", "deliver"):  # after the last stage, which waits for it
        busy[result.slowest_stage] = sum(stage.wait_seconds for stage in result.stages if stage.name == "deliver")
    total = result.first_batch_seconds + result.seconds
    return Bars(
        title=f"The loader alone: {'no stage' if result.slowest_stage == 'none' else result.slowest_stage} limits it",
        values=busy, texts=[f"{seconds / total:.2f} threads" for seconds in busy.values()],
        highlighted=result.slowest_stage, x_label="busy seconds, over all threads",
    ).draw()  # fmt: skip


def plot_training(result: Profile) -> Plot:
    """The rates of loader, transform and step alone, and of training.

    Raises:
        ConfigError: the profile has no step.
    """
    if result.training is None:
        raise ConfigError("plot_training needs a profile with a step: profile(url, step=...)")
    trials = result.training
    rates = {"loader alone": result.samples_per_second}
    if trials.transform is not None:
        rates |= {"transform alone": trials.transform.samples_per_second}
    if trials.input is not None:
        rates |= {"loader and transform": trials.input.samples_per_second}
    rates |= {"step alone": trials.step.samples_per_second, "training": trials.together.samples_per_second}
    share = f"Training has {trials.utilisation:.0%} of the step's own rate"  # where nothing is judged
    return Bars(
        title=result.verdict.headline or share, values=rates, texts=[f"{rate:,.0f}" for rate in rates.values()],
        highlighted="training", x_label="samples a second", marked=trials.step.samples_per_second,
    ).draw()  # fmt: skip


def plot_shuffle(loader: Loader) -> Plot:
    """The order of an epoch, compared with a full shuffle, which has 1 in each."""
    quality = loader.shuffle_quality()
    values = {
        "distance from the dataset's order": quality.displacement,
        "distance of neighbours in a shard": quality.separation,
        "shards in a batch": quality.batch_shards / quality.full_batch_shards,
    }
    return Bars(
        title=f"The shuffle: a batch mixes {quality.batch_shards:.1f} shards, a full shuffle "
        f"{quality.full_batch_shards:.1f}",
        values=values, texts=[f"{value:.2f}" for value in values.values()], x_label="relative to a full shuffle",
        marked=1,
    ).draw()  # fmt: skip


def plot_queues(result: Profile) -> Plot:
    """The shards that the loader was fetching or waiting to fetch, over time.

    Raises:
        ConfigError: the epoch was too short to look.
    """
    if len(result.queue_depths) < _FEWEST_LOOKS:
        raise ConfigError("the epoch was too short to look at its queues")
    seconds, depths = zip(*result.queue_depths, strict=True)
    drawing = Drawing(2.0)
    drawing.axes.step(seconds, depths, where="post", color=COLOURS[0])
    drawing.axes.axvline(result.first_batch_seconds, color=MUTED, linestyle="--", linewidth=1)
    drawing.axes.set_ylim(bottom=0)
    empty = sum(depth == 0 for depth in depths) / len(depths)
    title = f"Shards being fetched: none in {empty:.0%} of the time; dashed: the first batch"
    return drawing.finish(title, "seconds", "shards")


def plot_latencies(result: Profile) -> Plot:
    """A histogram of the times of reads from the store.

    Raises:
        ConfigError: the dataset is on a local disk.
    """
    times = [1000 * seconds for seconds in _store(result).read_seconds]
    middle, high = np.percentile(times, [50, 99])
    title = f"Reads of the store: half take {middle:,.1f} ms or less, one in a hundred over {high:,.1f} ms"
    return histogram(times, title, "milliseconds", "reads")


def _store(result: Profile) -> StoreTrial:
    if result.parts.store is None:
        raise ConfigError("the store of a local dataset is not measured")
    return result.parts.store


def plot_tried(result: Profile) -> Plot:
    """The gain of the verdict's knob: predicted, with its interval, and measured if it was tried.

    Raises:
        ConfigError: the verdict names no knob.
    """
    knob = result.verdict.knob
    if knob is None:
        raise ConfigError("the verdict names no option that gains")
    gains = {} if knob.gain is None else {"predicted": knob.gain}
    gains |= {} if result.tried is None else {"measured": result.tried.gain}
    if not gains:
        raise ConfigError(f"{knob.text}: {UNKNOWN_GAIN}")
    told = ", ".join(f"{gain.value:.2f} x {name}" for name, gain in gains.items())
    return Bars(
        title=f"{knob.text}: {told}", values={name: gain.value for name, gain in gains.items()},
        texts=[f"  {gain}" for gain in gains.values()], x_label="times as fast", marked=1,
        intervals={name: (gain.low, gain.high) for name, gain in gains.items()},
    ).draw()  # fmt: skip


def plot_store(result: Profile) -> Plot:
    """The rate of a remote store by the number of reads at once.

    Raises:
        ConfigError: the dataset is on a local disk.
    """
    store = _store(result)
    rates = store.bytes_per_second
    drawing = Drawing()
    drawing.axes.plot(list(rates), [rate / 1e6 for rate in rates.values()], "o-", color=COLOURS[0])
    drawing.axes.set_ylim(bottom=0)
    drawing.axes.set_xticks(list(rates))
    return drawing.finish(
        f"The store gives {store.best_bytes_per_second / 1e6:,.0f} MB/s to {store.best_threads} reads at "
        f"once; a request takes {store.latency_seconds * 1000:.1f} ms",
        "reads at once", "MB/s",
    )  # fmt: skip


def plot_waits(loader: Loader, batches: int = 300) -> Plot:
    """A histogram of the waits for the batches after the first one, read as fast as they come."""
    waits = []
    before = time.perf_counter()
    for _, _ in zip(range(batches), loader.epoch(0), strict=False):
        now = time.perf_counter()
        waits.append((now - before) * 1000)
        before = now
    later = waits[1:] or waits
    middle, high = np.percentile(later, [50, 99])
    title = f"Waits for a batch: half take {middle:.2f} ms or less, one in a hundred over {high:.2f} ms"
    return histogram(later, title, "milliseconds", "batches")


def plot_ranks(url: str, batch_size: int, split: str = "train", ranks: Sequence[int] = (1, 2, 4, 8)) -> Plot:
    """What each rank reads in an epoch, by the number of ranks, as planned."""
    sizes = {
        n: Loader(url, split=split, batch_size=batch_size, rank=0, world_size=n).plan().bytes_per_rank
        for n in ranks
        if n <= batch_size
    }
    drawing = Drawing()
    means = [sum(read) / len(read) / 1e6 for read in sizes.values()]
    places = range(len(sizes))
    drawing.axes.bar(places, means, 0.6, color=COLOURS[2])
    drawing.axes.set_xticks(places, [str(n) for n in sizes])
    most = max(sizes)
    extra = sum(sizes[most]) / sum(sizes[min(sizes)])
    return drawing.finish(
        f"Ranks share the reading: {most} ranks together read {extra:.2f} x what one would", "ranks", "MB for each rank"
    )

"""Plots of datasets, loaders and profiles for notebooks. Each title says what there is to see."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ringfeed.pipeline import Loader
from ringfeed.sharding.dataset.dataset import open_dataset
from ringfeed.sharding.errors import ConfigError
from ringfeed.tools.charts.drawing import COLOURS, HATCHES, MUTED, Drawing, Plot, draw_bars, named_bars

from .profile_result import UNKNOWN_GAIN, Profile

__all__ = [
    "Plot",
    "plot_epoch",
    "plot_latencies",
    "plot_queues",
    "plot_ranks",
    "plot_shards",
    "plot_shuffle",
    "plot_stages",
    "plot_store",
    "plot_training",
    "plot_tried",
    "plot_waits",
    "plot_waterfall",
]

_FEWEST_LOOKS = 5  # fewest samples of the queues that are worth plotting
_MOST_CLASSES = 8  # of different colours; the rest is drawn together


def plot_shards(url: str, split: str = "train") -> Plot:
    """The records of each shard, by class."""
    dataset = open_dataset(url)
    shards = dataset.split_shards(split)
    names = [str(name) for name in dataset.manifest.classes] or ["records"]
    counts = np.array([tuple(shard.class_counts) or (shard.records,) for shard in shards], dtype=np.int64)
    if len(names) > _MOST_CLASSES:
        order = np.argsort(-counts.sum(0))
        kept, rest = order[: _MOST_CLASSES - 1], order[_MOST_CLASSES - 1 :]
        names = [*(names[i] for i in kept), f"{len(rest)} other classes"]
        counts = np.column_stack([counts[:, kept], counts[:, rest].sum(1)])
    drawing = Drawing()
    below = np.zeros(len(shards))
    for i, name in enumerate(names):
        drawing.axes.bar(
            range(len(shards)), counts[:, i], 1.0 if len(shards) > 60 else 0.8, bottom=below, label=name,
            color=COLOURS[i], hatch=HATCHES[i],
        )  # fmt: skip
        below += counts[:, i]
    drawing.count_along_x()
    drawing.legend()
    spread = int(np.ptp(counts.sum(1)))
    return drawing.finish(
        f"Balance: {len(shards)} shards differ by at most {spread} records, and by {int(np.ptp(counts, 0).max())} in "
        "any class",
        "shard", "records",
    )  # fmt: skip


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
    return named_bars(
        busy,
        [f"{seconds / total:.2f} threads" for seconds in busy.values()],
        result.slowest_stage,
        f"The loader alone: {'no stage' if result.slowest_stage == 'none' else result.slowest_stage} limits it",
        "busy seconds, over all threads",
    )


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
    drawing = Drawing(0.36 * len(rates) + 1.1)
    draw_bars(drawing, rates, [f"{rate:,.0f}" for rate in rates.values()], "training")
    drawing.axes.axvline(trials.step.samples_per_second, color=MUTED, linestyle="--", linewidth=1)
    share = f"Training has {trials.utilisation:.0%} of the step's own rate"  # where nothing is judged
    return drawing.finish(result.verdict.headline or share, "samples a second", "")


def plot_shuffle(loader: Loader) -> Plot:
    """The order of an epoch, compared with a full shuffle, which has 1 in each."""
    quality = loader.shuffle_quality()
    values = {
        "distance from the dataset's order": quality.displacement,
        "distance of neighbours in a shard": quality.separation,
        "shards in a batch": quality.batch_shards / quality.full_batch_shards,
    }
    drawing = Drawing(2.1)
    draw_bars(drawing, values, [f"{value:.2f}" for value in values.values()])
    drawing.axes.axvline(1, color=MUTED, linestyle="--", linewidth=1)
    return drawing.finish(
        f"The shuffle: a batch mixes {quality.batch_shards:.1f} shards, a full shuffle "
        f"{quality.full_batch_shards:.1f}",
        "relative to a full shuffle", "",
    )  # fmt: skip


def plot_waterfall(result: Profile) -> Plot:
    """The rate of each part alone, in the order in which samples pass them, against the step's."""
    return result.chart.draw()


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
    if result.parts.store is None:
        raise ConfigError("the store of a local dataset is not measured")
    times = np.array(result.parts.store.read_seconds) * 1000
    middle, high = np.percentile(times, [50, 99])
    drawing = Drawing()
    drawing.axes.hist(times, bins=np.geomspace(times.min(), times.max() * 1.001, 30).tolist(), color=COLOURS[0])
    drawing.axes.set_xscale("log")
    for value, style in ((middle, "-"), (high, "--")):
        drawing.axes.axvline(value, color=COLOURS[3], linestyle=style)
    title = f"Reads of the store: half take {middle:,.1f} ms or less, one in a hundred over {high:,.1f} ms"
    return drawing.finish(title, "milliseconds", "reads")


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
    drawing = Drawing(0.36 * len(gains) + 1.0)
    draw_bars(drawing, {name: gain.value for name, gain in gains.items()}, [f"  {gain}" for gain in gains.values()])
    for place, gain in enumerate(gains.values()):
        drawing.axes.plot([gain.low, gain.high], [place, place], color=COLOURS[3], linewidth=2)
    drawing.axes.set_xlim(0, max(gain.high for gain in gains.values()) * 1.6)
    drawing.axes.axvline(1, color=MUTED, linestyle="--", linewidth=1)
    told = ", ".join(f"{gain.value:.2f} x {name}" for name, gain in gains.items())
    return drawing.finish(f"{knob.text}: {told}", "times as fast", "")


def plot_store(result: Profile) -> Plot:
    """The rate of a remote store by the number of reads at once.

    Raises:
        ConfigError: the dataset is on a local disk.
    """
    if result.parts.store is None:
        raise ConfigError("the store of a local dataset is not measured")
    store = result.parts.store
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
    later = np.array(waits[1:] or waits)
    middle, high = np.percentile(later, [50, 99])
    drawing = Drawing()
    edges = np.geomspace(max(later.min(), 1e-3), later.max() * 1.001 + 1e-3, 40)
    drawing.axes.hist(later, bins=edges.tolist(), color=COLOURS[0])
    drawing.axes.set_xscale("log")
    for value, style in ((middle, "-"), (high, "--")):
        drawing.axes.axvline(value, color=COLOURS[3], linestyle=style)
    return drawing.finish(
        f"Waits for a batch: half take {middle:.2f} ms or less, one in a hundred over {high:.2f} ms",
        "milliseconds", "batches",
    )  # fmt: skip


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

"""Plots of datasets, loaders and profiles for notebooks. Each title says what there is to see.

The palette is that of Okabe and Ito, which colour-blind readers can tell apart; series also differ in hatching.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...pipeline import Loader
from ...sharding.dataset.dataset import open_dataset
from ...sharding.errors import ConfigError
from .result import Profile

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ConfigError("plots need matplotlib; install it with: pip install 'ringfeed[report]'") from error

__all__ = [
    "Plot",
    "plot_class_shares",
    "plot_epoch",
    "plot_ranks",
    "plot_rates",
    "plot_shards",
    "plot_shuffle",
    "plot_stages",
    "plot_store",
    "plot_training",
    "plot_tried",
    "plot_waits",
]

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442", "#999999")
_HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo")
_MUTED = "#999999"
_MOST_CLASSES = 8  # of different colours; the rest is drawn together
_SETTINGS: Any = {
    "svg.fonttype": "none", "font.size": 10, "axes.titlesize": 11, "axes.titlelocation": "left", "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y",
    "grid.color": "#dddddd", "legend.frameon": False, "hatch.color": "white", "figure.constrained_layout.use": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawn plot, which a notebook shows."""

    title: str
    svg: str

    def __repr__(self) -> str:
        return f"Plot: {self.title}"

    def _repr_svg_(self) -> str:
        return self.svg


class _Drawing:
    """A figure with one pair of axes, in the style of all plots."""

    def __init__(self, height_inches: float = 2.8) -> None:
        with rc_context(_SETTINGS):
            self._figure = Figure((7.2, height_inches))
            self.axes: Axes = self._figure.add_subplot()

    def legend(self) -> None:
        with rc_context(_SETTINGS):
            self._figure.legend(loc="outside lower left", ncols=4)

    def finish(self, title: str, x_label: str, y_label: str) -> Plot:
        with rc_context(_SETTINGS):
            self.axes.set(xlabel=x_label, ylabel=y_label)
            self.axes.set_title(title, wrap=True)
            written = io.StringIO()
            self._figure.savefig(written, format="svg", metadata={"Date": None})
        return Plot(title, written.getvalue())


def _bars(drawing: _Drawing, values: Mapping[str, float], texts: Sequence[str], highlighted: str | None = None) -> None:
    """Draw horizontal bars from top to bottom, each with its name and a text at its end."""
    axes = drawing.axes
    axes.grid(visible=False)
    places, lengths = range(len(values)), list(values.values())
    bars = axes.barh(
        places,
        lengths,
        color=[_COLOURS[3 if name == highlighted else 0] for name in values],
        hatch=[_HATCHES[1 if name == highlighted else 0] for name in values],
    )
    axes.bar_label(bars, texts, padding=4)
    axes.set_yticks(places, list(values))
    axes.invert_yaxis()
    axes.set_xlim(0, max(lengths) * 1.25 or 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if max(lengths) > 10 else f"{value:.3g}")


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
    drawing = _Drawing()
    below = np.zeros(len(shards))
    for i, name in enumerate(names):
        drawing.axes.bar(
            range(len(shards)), counts[:, i], 1.0 if len(shards) > 60 else 0.8, bottom=below, label=name,
            color=_COLOURS[i], hatch=_HATCHES[i],
        )  # fmt: skip
        below += counts[:, i]
    drawing.axes.xaxis.set_major_locator(MaxNLocator(integer=True))
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
    drawing = _Drawing(1.9)
    drawing.axes.grid(visible=False)
    for left, width, label, i in ((0.0, first, "until the first batch", 3), (first, total - first, "all others", 0)):
        drawing.axes.barh(0, width, left=left, color=_COLOURS[i], hatch=_HATCHES[i], label=label)
    drawing.axes.set_yticks([])
    drawing.legend()
    return drawing.finish(
        f"An epoch takes {total:.2f} s; {first / total:.0%} of it passes before the first batch", "seconds", ""
    )


def plot_stages(result: Profile) -> Plot:
    """How long each stage of the loader worked, over all threads."""
    busy = {stage.name: stage.busy_seconds for stage in result.stages if stage.busy_seconds > 0}
    if result.bottleneck in ("parse", "deliver"):  # after the last stage, which waits for it
        busy[result.bottleneck] = sum(stage.wait_seconds for stage in result.stages if stage.name == "deliver")
    drawing = _Drawing(0.36 * len(busy) + 1)
    total = result.first_batch_seconds + result.seconds
    _bars(drawing, busy, [f"{seconds / total:.0%} of the time" for seconds in busy.values()], result.bottleneck)
    return drawing.finish(f"The loader alone: {result.bottleneck} limits it", "busy seconds, over all threads", "")


def plot_training(result: Profile) -> Plot:
    """The rates of loader, transform and step alone, and of training.

    Raises:
        ConfigError: the profile has no step.
    """
    if result.training is None or result.verdict is None:
        raise ConfigError("plot_training needs a profile with a step: profile(url, step=...)")
    trials = result.training
    rates = {"loader alone": result.samples_per_second}
    if trials.transform is not None:
        rates |= {"transform alone": trials.transform.samples_per_second}
        rates |= {"loader and transform": trials.input.samples_per_second}
    rates |= {"step alone": trials.step.samples_per_second, "training": trials.together.samples_per_second}
    drawing = _Drawing(0.36 * len(rates) + 1.1)
    _bars(drawing, rates, [f"{rate:,.0f}" for rate in rates.values()], "training")
    drawing.axes.axvline(trials.step.samples_per_second, color=_MUTED, linestyle="--", linewidth=1)
    return drawing.finish(result.verdict.headline, "samples a second", "")


def plot_class_shares(loaders: Mapping[str, Loader], batches: int = 100) -> Plot:
    """The share of the rarest class in each of the first batches, by the name of the loader.

    Raises:
        ConfigError: a dataset has no classes.
    """
    drawing = _Drawing()
    spreads, rarest = [], ""
    for i, (name, loader) in enumerate(loaders.items()):
        mix = loader.plan().class_mix
        if not mix:
            raise ConfigError("plot_class_shares needs a dataset with a label")
        rare = min(mix, key=lambda value: mix[value].records)
        rarest, number = str(rare), list(loader.manifest.classes).index(rare)
        shares = []
        for _, batch in zip(range(batches), loader.numpy_epoch(0), strict=False):
            shares.append(float(np.mean(batch["class_id"] == number)))
        drawing.axes.plot(shares, ("-", "--", ":")[i % 3], color=_COLOURS[i], label=name, linewidth=1.6)
        spreads.append(f"{np.mean(shares):.1%} {name}")
    drawing.axes.set_ylim(bottom=0)
    drawing.axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    drawing.legend()
    return drawing.finish(f"The rarest class, {rarest!r}, in each batch: {', '.join(spreads)}", "batch", "share")


def plot_shuffle(loader: Loader) -> Plot:
    """The order of an epoch, compared with a full shuffle, which has 1 in each."""
    quality = loader.shuffle_quality()
    values = {
        "distance from the dataset's order": quality.displacement,
        "distance of neighbours in a shard": quality.separation,
        "shards in a batch": quality.batch_shards / quality.full_batch_shards,
    }
    drawing = _Drawing(2.1)
    _bars(drawing, values, [f"{value:.2f}" for value in values.values()])
    drawing.axes.axvline(1, color=_MUTED, linestyle="--", linewidth=1)
    return drawing.finish(
        f"The shuffle: a batch mixes {quality.batch_shards:.1f} shards, a full shuffle "
        f"{quality.full_batch_shards:.1f}",
        "relative to a full shuffle", "",
    )  # fmt: skip


def plot_rates(results: Mapping[Any, Profile], what: str) -> Plot:
    """The rates of an epoch and after its first batch, by some option or state of the loader.

    Args:
        results: profiles by the option's value.
        what: the option.
    """
    names = [str(name) for name in results]
    epochs = [result.epoch_samples_per_second for result in results.values()]
    steady = [result.samples_per_second for result in results.values()]
    drawing = _Drawing()
    places = np.arange(len(names))
    for shift, values, label, i in ((-0.2, epochs, "whole epoch", 0), (0.2, steady, "after the first batch", 1)):
        drawing.axes.bar(places + shift, values, 0.38, label=label, color=_COLOURS[i], hatch=_HATCHES[i])
    drawing.axes.set_xticks(places, names)
    drawing.axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    drawing.legend()
    best = int(np.argmax(epochs))
    return drawing.finish(
        f"By {what}: {names[best]} is the fastest, {epochs[best] / min(epochs):.2f} x the slowest", what,
        "samples a second",
    )  # fmt: skip


def plot_tried(result: Profile) -> Plot:
    """The rate of an epoch without and with the option that a profile suggests.

    Raises:
        ConfigError: nothing was tried.
    """
    if result.tried is None:
        raise ConfigError("nothing was tried: profile(url, try_knob=True), where the bottleneck has an option to try")
    options = ", ".join(f"{name}={value!r}" for name, value in result.tried.options.items())
    rates = {"as it is": result.epoch_samples_per_second, options: result.tried.epoch_samples_per_second}
    drawing = _Drawing(1.7)
    _bars(drawing, rates, [f"{rate:,.0f}" for rate in rates.values()], options)
    return drawing.finish(f"What {options} brings: {result.tried.gain:.2f} x the rate", "samples a second", "")


def plot_store(result: Profile) -> Plot:
    """The rate of a remote store by the number of reads at once.

    Raises:
        ConfigError: the dataset is on a local disk.
    """
    if result.store is None:
        raise ConfigError("the store of a local dataset is not measured")
    rates = result.store.bytes_per_second
    drawing = _Drawing()
    drawing.axes.plot(list(rates), [rate / 1e6 for rate in rates.values()], "o-", color=_COLOURS[0])
    drawing.axes.set_ylim(bottom=0)
    drawing.axes.set_xticks(list(rates))
    return drawing.finish(
        f"The store gives {result.store.best_bytes_per_second / 1e6:,.0f} MB/s to {result.store.best_threads} reads at "
        f"once; a request takes {result.store.latency_seconds * 1000:.1f} ms",
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
    drawing = _Drawing()
    edges = np.geomspace(max(later.min(), 1e-3), later.max() * 1.001 + 1e-3, 40)
    drawing.axes.hist(later, bins=edges.tolist(), color=_COLOURS[0])
    drawing.axes.set_xscale("log")
    for value, style in ((middle, "-"), (high, "--")):
        drawing.axes.axvline(value, color=_COLOURS[3], linestyle=style)
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
    drawing = _Drawing()
    means = [sum(read) / len(read) / 1e6 for read in sizes.values()]
    places = range(len(sizes))
    drawing.axes.bar(places, means, 0.6, color=_COLOURS[2])
    drawing.axes.set_xticks(places, [str(n) for n in sizes])
    most = max(sizes)
    extra = sum(sizes[most]) / sum(sizes[min(sizes)])
    return drawing.finish(
        f"Ranks share the reading: {most} ranks together read {extra:.2f} x what one would", "ranks", "MB for each rank"
    )

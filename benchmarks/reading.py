"""Reading shuffled, decoded, in batches of 1024: the loader against the tuned tf.data pipeline.

Balanced to uniform against natural order, and against what tf.data has for it; Parquet against TFRecord. Per second of
processor time also against a gather in memory, of as many rows in random order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from parts.tables import ROWS, SHARES, WIDTH

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, build

BATCH = 1024
_RESAMPLED = 6  # batches: most of what is read is rejected, so an epoch of as many would take minutes
_EPOCHS = 5  # read in one reading, to set against as many gathers
_TURNS = 4  # of ours in a round, two epochs each: one takes less than the machine needs to change its pace


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of samples per second; page cache warm, after one round that is not counted.

    A round is an epoch of each rival, then several of natural, balanced, Parquet, Parquet, balanced, natural: what
    drifts weighs on all.
    """
    urls = {shard_format: str(folder / f"read-{shard_format}") for shard_format in ("tfrecord", "parquet")}
    for shard_format, url in urls.items():
        options = {"label": "label", "shards": 16, "shard_format": shard_format}
        build(BuildOptions(source=str(folder / "source.parquet"), destination=url, **options))
    natural = Loader(urls["tfrecord"], batch_size=BATCH, seed=1)
    balanced = Loader(urls["tfrecord"], batch_size=BATCH, seed=1, balance="uniform")
    parquet = Loader(urls["parquet"], batch_size=BATCH, seed=1)
    files = sorted(map(str, Path(urls["tfrecord"]).glob("*.tfrecord")))
    over_tuned, over_natural, over_resampled, over_tfrecord = [], [], [], []
    features = np.random.default_rng(0).random((ROWS, WIDTH), np.float32)  # zeros would lie in one page
    labels = np.ones(ROWS, np.int64)
    over_gather: dict[str, list[float]] = {
        "batches, epochs in one reading": [],
        "epoch, each alone": [],
        "numpy_epoch": [],
    }
    for number in range(rounds + 1):
        tuned, resampled = _rate(_tuned(files)), _rate(_resampled(files).take(_RESAMPLED))
        plain, even, columns = _rates((natural, balanced, parquet), number)
        if number:
            over_tuned.append(plain / tuned)
            over_natural.append(even / plain)
            over_resampled.append(even / resampled)
            over_tfrecord.append(columns / plain)
            gathered = _processor_seconds(_gather(features, labels, epoch) for epoch in range(_EPOCHS))
            for name, epochs in {
                "batches, epochs in one reading": [natural.batches(0, epochs=_EPOCHS)],
                "epoch, each alone": map(natural.epoch, range(_EPOCHS)),
                "numpy_epoch": [natural.numpy_epoch(0, epochs=_EPOCHS)],
            }.items():
                over_gather[name].append(gathered / _processor_seconds(epochs))
            print(
                f"  samples/s: tuned tf.data {tuned:,.0f}, natural {plain:,.0f}, rejection_resample {resampled:,.0f}, "
                f"balanced {even:,.0f}, Parquet {columns:,.0f}"
            )
    return [
        ("500k rows from 16 TFRecord shards, against tuned tf.data", over_tuned, 10),
        ("the same balanced to uniform, against natural order", over_natural, 0.95),
        ("the same balanced to uniform, against tf.data's rejection_resample", over_resampled, 1),
        ("the same from 16 Parquet shards, against TFRecord", over_tfrecord, 1),
        *[(f"{name}, per CPU second, against a gather in memory", values, 0.8) for name, values in over_gather.items()],
    ]


def _gather(features: npt.NDArray[Any], labels: npt.NDArray[Any], epoch: int) -> Iterator[tuple[Any, Any]]:
    order = np.random.default_rng(epoch).permutation(ROWS)
    for first in range(0, ROWS - BATCH + 1, BATCH):
        rows = order[first : first + BATCH]
        yield features[rows], labels[rows]


def _processor_seconds(epochs: Iterable[Iterable[Any]]) -> float:
    began = time.process_time()
    for epoch in epochs:
        deque(epoch, maxlen=0)
    return time.process_time() - began


def _rates(loaders: Sequence[Loader], epoch: int) -> list[float]:
    """Samples per second of each, over a few epochs there and back."""
    turns = _TURNS * [*range(len(loaders)), *reversed(range(len(loaders)))]
    rates: list[list[float]] = [[] for _ in loaders]
    for which in turns:
        rates[which].append(_rate(loaders[which].epoch(epoch)))
    return [harmonic_mean(each) for each in rates]


def _rate(dataset: tf.data.Dataset) -> float:
    start = time.perf_counter()
    batches = sum(1 for _ in dataset)
    return batches * BATCH / (time.perf_counter() - start)


def _tuned(files: list[str]) -> tf.data.Dataset:
    return _parsed(files).prefetch(tf.data.AUTOTUNE)


def _resampled(files: list[str]) -> tf.data.Dataset:
    """Balanced by dropping what there is too much of; the shares of the classes are known, so none are estimated."""
    uniform = [1 / len(SHARES)] * len(SHARES)
    single = _parsed(files).unbatch()
    kept = single.rejection_resample(lambda example: tf.cast(example["label"], tf.int32), uniform, list(SHARES))
    return kept.map(lambda _, example: example).batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _parsed(files: list[str]) -> tf.data.Dataset:
    spec = {
        "features": tf.io.FixedLenFeature([WIDTH], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    return (
        tf.data.Dataset.from_tensor_slices(files)
        .shuffle(len(files))
        .interleave(tf.data.TFRecordDataset, cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
        .shuffle(10_000)
        .batch(BATCH, drop_remainder=True)
        .map(lambda examples: tf.io.parse_example(examples, spec), num_parallel_calls=tf.data.AUTOTUNE)
    )

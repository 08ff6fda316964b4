"""Reading TFRecord shuffled, decoded, in batches of 1024: the loader against the tuned tf.data pipeline."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import harmonic_mean

import tensorflow as tf
from tables import WIDTH

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, build

BATCH = 1024


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of samples per second; page cache warm, after one round that is not counted.

    A round is one epoch of the rival, then natural, balanced, balanced, natural: what drifts weighs on both alike.
    """
    url = str(folder / "read")
    build(BuildOptions(source=str(folder / "source.parquet"), destination=url, label="label", shards=16))
    natural = Loader(url, batch_size=BATCH, seed=1)
    balanced = Loader(url, batch_size=BATCH, seed=1, balance="uniform")
    files = sorted(map(str, (folder / "read").glob("*.tfrecord")))
    over_tuned, over_natural = [], []
    for epoch in range(rounds + 1):
        tuned = _rate(_tuned(files))
        first, second, third, fourth = (_rate(one.epoch(epoch)) for one in (natural, balanced, balanced, natural))
        plain, even = harmonic_mean((first, fourth)), harmonic_mean((second, third))
        if epoch:
            over_tuned.append(plain / tuned)
            over_natural.append(even / plain)
            print(f"  samples/s: tuned tf.data {tuned:,.0f}, natural {plain:,.0f}, balanced {even:,.0f}")
    return [
        ("500k rows from 16 TFRecord shards, against tuned tf.data", over_tuned, 4),
        ("the same balanced to uniform, against natural order", over_natural, 0.9),
    ]


def _rate(dataset: tf.data.Dataset) -> float:
    start = time.perf_counter()
    batches = sum(1 for _ in dataset)
    return batches * BATCH / (time.perf_counter() - start)


def _tuned(files: list[str]) -> tf.data.Dataset:
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
        .prefetch(tf.data.AUTOTUNE)
    )

"""Reading JPEGs from TFRecord shards in batches of 64: raw against tuned tf.data, and against handing as many bytes to
TensorFlow; and decoded with a random crop against the same operations on bytes that lie in memory.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import images
import numpy as np
import pyarrow as pa
import tensorflow as tf

from ringfeed.pipeline import ImageTransform, Loader, RandomCrop
from ringfeed.pipeline.transforms.apply import apply_transform
from ringfeed.sharding import BuildOptions, build

BATCH = 64
_ALONE_STEPS = 48  # whose images lie in memory
_SPEC = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "height": tf.io.FixedLenFeature([], tf.int64),
    "width": tf.io.FixedLenFeature([], tf.int64),
    "label": tf.io.FixedLenFeature([], tf.string),
    "path": tf.io.FixedLenFeature([], tf.string),
}


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of images per second; page cache warm, after one round that is not counted."""
    source, url = folder / "photos", str(folder / "photo-shards")
    if not Path(url).exists():
        images.write_photos(source, images.IMAGES)
        build(BuildOptions(source=str(source), destination=url, shards=images.SHARDS))
    loader = Loader(url, batch_size=BATCH, seed=1)
    files = sorted(map(str, Path(url).glob("*.tfrecord")))
    over_tuned, over_handing = [], []
    for epoch in range(rounds + 1):
        first = _rate(loader.epoch(epoch))
        tuned = _rate(_tuned(files))
        handing = _rate(_handed(Path(url)))
        raw = 2 / (1 / first + 1 / _rate(loader.epoch(epoch)))
        if epoch:
            over_tuned.append(raw / tuned)
            over_handing.append(raw / handing)
            print(f"  images/s, raw: tuned tf.data {tuned:,.0f}, handing over {handing:,.0f}, ringfeed {raw:,.0f}")
    return [
        (f"{images.IMAGES:,} raw JPEGs, batches of {BATCH}, against tuned tf.data", over_tuned, 1.5),
        ("the same, against handing the bytes of as many records to TensorFlow", over_handing, 1),
        ("decoded with a random crop, against these operations alone", _decoded(url, rounds), 0.95),
    ]


def _decoded(url: str, rounds: int) -> list[float]:
    """Ratios of a whole epoch's rate, with its start, to that of the operations on some of its batches."""
    loader = Loader(url, batch_size=BATCH, seed=1, sample_keys=True)
    transform = ImageTransform.for_dataset(loader.manifest, "image", size=(224, 224), crop=RandomCrop())
    steps = min(_ALONE_STEPS, loader.steps_per_epoch)
    ratios = []
    for epoch in range(rounds + 1):
        held = _held(loader, epoch, steps)
        before = _rate(_alone(held, transform))
        ours = _rate(loader.epoch(epoch, transform=transform))
        alone = 2 / (1 / before + 1 / _rate(_alone(held, transform)))
        if epoch:
            ratios.append(ours / alone)
            print(f"  images/s, decoded: operations alone {alone:,.0f}, ringfeed {ours:,.0f}")
    return ratios


def _held(loader: Loader, epoch: int, steps: int) -> dict[str, Any]:
    """The first batches of an epoch in memory: what is decoded is the same on both sides."""
    batches = list(loader.epoch(epoch).take(steps))
    return {name: tf.stack([batch[name] for batch in batches]) for name in ("image", "sample_key")}


def _alone(held: dict[str, Any], transform: ImageTransform) -> tf.data.Dataset:
    numbers = tf.data.Dataset.range(len(held["image"]))
    batches = numbers.map(lambda step: {name: values[step] for name, values in held.items()})
    options = tf.data.Options()
    options.autotune.enabled = False
    transformed, _ = apply_transform(batches, transform, None)
    return transformed.prefetch(2).with_options(options)


def _rate(dataset: tf.data.Dataset) -> float:
    start = time.perf_counter()
    batches = sum(1 for _ in dataset)
    return batches * BATCH / (time.perf_counter() - start)


def _handed(folder: Path) -> tf.data.Dataset:
    """The records of the shards from one end to the other, in batches: no order, no checksum, no parsing, no label."""

    def batches() -> Iterator[Any]:
        for path in sorted(folder.glob("*.tfrecord")):
            index = pa.ipc.open_file(path.with_suffix(".index.arrow")).read_all()
            bounds = [0, *np.cumsum(index.column("length").to_numpy()).tolist()]
            with open(path, "rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            for first in range(0, len(bounds) - BATCH, BATCH):
                batch = np.empty(BATCH, object)
                for row in range(BATCH):
                    batch[row] = data[bounds[first + row] : bounds[first + row + 1]]
                yield batch

    return tf.data.Dataset.from_generator(batches, tf.string, [BATCH]).prefetch(1)


def _tuned(files: list[str]) -> tf.data.Dataset:
    return (
        tf.data.Dataset.from_tensor_slices(files)
        .shuffle(len(files))
        .interleave(tf.data.TFRecordDataset, cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
        .shuffle(1024)
        .batch(BATCH, drop_remainder=True)
        .map(lambda examples: tf.io.parse_example(examples, _SPEC), num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )

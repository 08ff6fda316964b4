"""Bottlenecks made on purpose, one for each class that can be provoked on one rank."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf
from PIL import Image

from ringfeed.pipeline import ImageTransform
from ringfeed.sharding import BuildOptions, build
from ringfeed.tools.profile import Profile, profile
from tests.servers.web import Behaviour, served

BLOBS, BLOB_BYTES = 4000, 4000
ROWS = 60_000
VECTORS, VECTOR = 1000, 32_768
SLOW_VALUE = 777.0
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A bottleneck.

    Attributes:
        expected: the class that the profile must name.
        dataset: name of the dataset; see `make_dataset`.
        options: of `profile`.
        store: behaviour of the store; None for a local dataset.
        seconds: time of a profile that tells it.
    """

    expected: str
    dataset: str
    options: Mapping[str, Any] = field(default_factory=dict)
    store: Mapping[str, float] | None = None
    seconds: float = 4.0

    def profile(self, folder: Path, **options: Any) -> Profile:
        """Profile it, for `seconds` unless told otherwise; the dataset is made in a folder."""
        make_dataset(folder, self.dataset)
        path = folder / self.dataset
        where = nullcontext(str(path)) if self.store is None else served(path, behaviour=Behaviour(**self.store))  # type: ignore[arg-type]
        given: dict[str, Any] = {"seconds": self.seconds} | dict(self.options) | options
        with where as url:
            return profile(url, **given)


def make_dataset(folder: Path, name: str) -> None:
    """Make one of the datasets of the cases in a folder, unless it is there."""
    if (folder / name).exists():
        return
    random = np.random.default_rng(0)
    table, shards, compression = {
        "blobs": lambda: (_blobs(random), 32, "none"),
        "vectors": lambda: (_vectors(random), 16, "none"),
        "rows": lambda: (_labelled({"x": np.arange(ROWS, dtype=np.float64)}), 16, "none"),
        "gzip": lambda: (_words(), 16, "gzip"),
        "images": lambda: (_labelled({"image": _photos(random, 96)}), 8, "none"),
    }[name]()
    pq.write_table(table, folder / f"{name}.parquet")
    source, destination = str(folder / f"{name}.parquet"), str(folder / name)
    build(BuildOptions(source=source, destination=destination, label="y", shards=shards, compression=compression))


def _labelled(columns: dict[str, Any]) -> pa.Table:
    count = len(next(iter(columns.values())))
    return pa.table(columns | {"y": [i % 2 for i in range(count)]})


def _blobs(random: np.random.Generator) -> pa.Table:
    return _labelled({"x": pa.array([random.bytes(BLOB_BYTES) for _ in range(BLOBS)])})


def _vectors(random: np.random.Generator) -> pa.Table:
    values = pa.array(random.random(VECTORS * VECTOR, np.float32))
    return _labelled(
        {"x": pa.FixedSizeListArray.from_arrays(values, VECTOR), "z": np.arange(VECTORS, dtype=np.float64)}
    )


def _words() -> pa.Table:
    return _labelled({f"w{j}": [f"{i * j % 9973:04d}" * 16 for i in range(ROWS)] for j in range(6)})


def _photos(random: np.random.Generator, count: int) -> pa.Array:
    files = []
    for _ in range(count):
        pixels = np.repeat(np.repeat(random.integers(0, 256, (60, 80, 3), np.uint8), 8, 0), 8, 1)
        content = io.BytesIO()
        Image.fromarray(pixels).save(content, "png")
        files.append(content.getvalue())
    return pa.array(files)


def sleeping_step(seconds: float) -> Callable[[Any], None]:
    """A step that takes so long, and no core."""

    def step(batch: Any) -> None:
        time.sleep(seconds)

    return step


def python_step(seconds: float) -> Callable[[Any], None]:
    """A step that holds Python's lock so long."""

    def step(batch: Any) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    return step


def computing_step(size: int, times: int) -> Callable[[Any], None]:
    """A step of matrix products in TensorFlow, which take all cores."""
    matrix = tf.random.stateless_normal([size, size], [0, 0])

    @tf.function
    def compute() -> tf.Tensor:
        product = matrix
        for _ in range(times):
            product = tf.linalg.matmul(product, matrix) / size
        return tf.reduce_sum(product)

    def step(batch: Any) -> None:
        float(compute())

    return step


def slow_transform(batch: dict[str, Any]) -> dict[str, Any]:
    """A transform that takes 20 ms for a batch, one batch at a time."""

    def slow(values: Any) -> Any:
        with _one_at_a_time:
            time.sleep(0.02)
        return values

    x = tf.py_function(slow, [batch["x"]], batch["x"].dtype)
    return batch | {"x": tf.ensure_shape(x, batch["x"].shape)}


def one_slow_record(batch: dict[str, Any]) -> dict[str, Any]:
    """A transform that takes 0.3 s for one record of the dataset."""

    def slow(values: Any) -> Any:
        if SLOW_VALUE in values.numpy():
            time.sleep(0.3)
        return values

    x = tf.py_function(slow, [batch["x"]], batch["x"].dtype)
    return batch | {"x": tf.ensure_shape(x, batch["x"].shape)}


def python_transform(batch: dict[str, Any]) -> dict[str, Any]:
    """A transform that holds Python's lock for 4 ms."""

    def spin(values: Any) -> Any:
        end = time.thread_time() + 0.004
        while time.thread_time() < end:
            pass
        return values

    x = tf.py_function(spin, [batch["x"]], batch["x"].dtype)
    return batch | {"x": tf.ensure_shape(x, batch["x"].shape)}


def computing_transform(batch: dict[str, Any]) -> dict[str, Any]:
    """A transform of as much computing as `computing_step(1024, 3)`."""
    matrix = tf.fill([1024, 1024], tf.cast(batch["y"][0], tf.float32))
    for _ in range(2):
        matrix = tf.linalg.matmul(matrix, matrix) / 1024
    return batch | {"z": tf.reduce_sum(matrix)}


def images() -> ImageTransform:
    """Decode and shrink photographs."""
    return ImageTransform(feature="image", size=(32, 32))


CASES = {
    "throttled link": Case(expected="store_bandwidth", dataset="blobs", store={"bytes_per_second": 8e6},
                           options={"batch_size": 50, "streams": 10}),
    "throttled link before a fast step": Case(
        expected="store_bandwidth", dataset="blobs", store={"bytes_per_second": 16e6},
        options={"batch_size": 50, "streams": 10, "step": sleeping_step(0.001)}),
    "latency": Case(expected="store_latency", dataset="blobs", store={"latency_seconds": 0.15},
                    options={"batch_size": 50, "fetch_threads": 32, "streams": 10}),
    "one fetch at a time": Case(expected="too_few_fetches", dataset="blobs", store={"latency_seconds": 0.04},
                                options={"batch_size": 50, "fetch_threads": 1, "streams": 10}),
    "no prefetch": Case(expected="too_few_fetches", dataset="blobs", store={"latency_seconds": 0.06},
                        options={"batch_size": 50, "fetch_threads": 8, "streams": 1, "prefetch_bytes": 0}),
    "checksums of large records": Case(expected="verification", dataset="vectors",
                                       options={"batch_size": 50, "columns": ["z"], "steps": 800}),
    "gzip": Case(expected="decode", dataset="gzip", options={"batch_size": 1000, "steps": 300, "streams": 4}),
    "large photographs": Case(expected="decode", dataset="images", options={
        "batch_size": 8, "transform": images(), "step": sleeping_step(0.001)}),
    "slow transform": Case(expected="transform", dataset="rows", options={
        "batch_size": 50, "transform": slow_transform, "step": sleeping_step(0.001)}),
    "one slow record": Case(expected="slow_records", dataset="rows", options={
        "batch_size": 500, "transform": one_slow_record, "step": sleeping_step(0.0005)}),
    "small batches": Case(expected="hand_over", dataset="rows", options={"batch_size": 4, "streams": 4}),
    "small batches before a fast step": Case(expected="hand_over", dataset="rows", options={
        "batch_size": 4, "streams": 4, "step": lambda batch: None}),
    "a long first batch": Case(expected="shuffle_fill", dataset="blobs", store={"bytes_per_second": 8e6}, options={
        "batch_size": 50, "streams": 25, "step": sleeping_step(0.05)}),
    "slow step": Case(expected="step", dataset="rows", options={"batch_size": 50, "step": sleeping_step(0.05)}),
    "python's lock": Case(expected="framework_overhead", dataset="rows", options={
        "batch_size": 50, "transform": python_transform, "step": python_step(0.005)}),
    "shared cores": Case(expected="cores", dataset="rows", options={
        "batch_size": 50, "transform": computing_transform, "step": computing_step(1024, 3)}),
    "balanced": Case(expected="none", dataset="rows", options={
        "batch_size": 50, "transform": slow_transform, "step": sleeping_step(0.024)}),
    "too short": Case(expected="unknown", dataset="rows", options={
        "batch_size": 100, "streams": 1, "steps": 2}),
}  # fmt: skip
"""By name, what makes the bottleneck, and its class."""

"""Bottlenecks made on purpose, one for each class that can be provoked on one rank."""

from __future__ import annotations

import functools
import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf
from PIL import Image

from ringfeed.pipeline import ImageTransform, Loader
from ringfeed.sharding import BuildOptions, build
from ringfeed.tools.measure.epochs_in_turn import in_turn, read_epoch
from ringfeed.tools.measure.training_trials import Workload
from ringfeed.tools.measure.workloads import function_workload
from ringfeed.tools.profile import Profile, profile
from tests.servers.web import Behaviour, served

BLOBS, BLOB_BYTES = 4000, 4000
ROWS = 60_000
VECTORS, VECTOR = 256, 262_144
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
        remedy: the case without its bottleneck, all else the same; None where nothing is left to gain.
    """

    expected: str
    dataset: str
    options: Mapping[str, Any] = field(default_factory=dict)
    store: Mapping[str, float] | None = None
    seconds: float = 4.0
    remedy: Callable[[Case, Profile], Case] | None = None

    @contextmanager
    def opened(self, folder: Path) -> Iterator[str]:
        """The URL of the dataset, which is made in a folder."""
        make_dataset(folder, self.dataset)
        if self.store is None:
            yield str(folder / self.dataset)
            return
        with served(folder / self.dataset, behaviour=Behaviour(**self.store)) as url:  # type: ignore[arg-type]
            yield url

    def profile(self, folder: Path, **options: Any) -> Profile:
        """Profile it, for `seconds` unless told otherwise; the dataset is made in a folder."""
        given: dict[str, Any] = {"seconds": self.seconds} | dict(self.options) | options
        with self.opened(folder) as url:
            return profile(url, **given)

    def workload(self, url: str) -> tuple[Loader, Workload | None]:
        """Its loader, with its transform and step if it has a step."""
        given = dict(self.options)
        step, transform, _ = (given.pop(name, None) for name in ("step", "transform", "steps"))
        loader = Loader(url, **given)
        return loader, None if step is None else function_workload(loader, step, transform)

    def changed(self, store: Mapping[str, float] | None = None, **options: Any) -> Case:
        """The same with another store, or other options; an option that is None is left out."""
        given = {name: value for name, value in (dict(self.options) | options).items() if value is not None}
        return replace(self, options=given, store=self.store if store is None else store)


def measured_gains(before: Case, after: Case, folder: Path, seconds: float = 3.0, rounds: int = 3) -> list[float]:
    """Seconds of an epoch before / after, measured in turn; of local datasets each for so many seconds at most."""
    with before.opened(folder) as url, after.opened(folder) as other_url:
        works = [case.workload(place) for case, place in ((before, url), (after, other_url))]
        for loader, workload in works:  # TensorFlow traces, a cache is filled
            read_epoch(loader, workload, 0.1 if loader.arguments["cache"] is None else 30.0)
        most = seconds if before.store is None else 60.0  # shards come from a store in bursts
        times = in_turn([lambda _, each=each: read_epoch(*each, most).total for each in works], rounds)
    samples = [loader.steps_per_epoch * loader.local_batch_size for loader, _ in works]
    return [samples[1] / samples[0] * own / other for own, other in zip(*times, strict=True)]


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
        "words": lambda: (_words(), 16, "none"),
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

    @functools.cache
    def matrix() -> tf.Tensor:
        return tf.random.stateless_normal([size, size], [0, 0])

    @tf.function
    def compute(matrix: tf.Tensor) -> tf.Tensor:
        product = matrix
        for _ in range(times):
            product = tf.linalg.matmul(product, matrix) / size
        return tf.reduce_sum(product)

    def step(batch: Any) -> None:
        float(compute(matrix()))

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


def sleeping_transform(seconds: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A transform that takes so long, and neither a core nor Python's lock."""

    def transform(batch: dict[str, Any]) -> dict[str, Any]:
        def slow(values: Any) -> Any:
            time.sleep(seconds)
            return values

        x = tf.py_function(slow, [batch["x"]], batch["x"].dtype)
        return batch | {"x": tf.ensure_shape(x, batch["x"].shape)}

    return transform


def without_sharing(case: Case, result: Profile) -> Case:
    """Transform and step take as long as each did alone, and share neither cores nor Python's lock."""
    training, batch = result.training, case.options["batch_size"]
    assert training is not None
    assert training.transform is not None
    return case.changed(
        step=sleeping_step(batch / training.step.samples_per_second),
        transform=sleeping_transform(batch / training.transform.samples_per_second),
    )


def with_fast_store(case: Case, _: Profile) -> Case:
    """The store answers at once, with all bytes."""
    return case.changed(store={})


def without_transform(case: Case, _: Profile) -> Case:
    """Nothing is done to batches."""
    return case.changed(transform=None)


def images() -> ImageTransform:
    """Decode and shrink photographs."""
    return ImageTransform(feature="image", size=(32, 32))


CASES = {
    "throttled link": Case(expected="store_bandwidth", dataset="blobs", store={"bytes_per_second": 8e6},
                           options={"batch_size": 50, "streams": 10}),
    "throttled link before a fast step": Case(
        expected="store_bandwidth", dataset="blobs", store={"bytes_per_second": 16e6}, remedy=with_fast_store,
        options={"batch_size": 50, "streams": 10, "step": sleeping_step(0.001)}),
    "latency": Case(expected="store_latency", dataset="blobs", store={"latency_seconds": 0.15},
                    options={"batch_size": 50, "fetch_threads": 32, "streams": 10}),
    "latency before a fast step": Case(
        expected="store_latency", dataset="blobs", store={"latency_seconds": 0.15}, remedy=with_fast_store,
        options={"batch_size": 50, "fetch_threads": 32, "streams": 10, "step": sleeping_step(0.001)}),
    "one fetch at a time": Case(expected="too_few_fetches", dataset="blobs", store={"latency_seconds": 0.04},
                                options={"batch_size": 50, "fetch_threads": 1, "streams": 10}),
    "no prefetch": Case(expected="too_few_fetches", dataset="blobs", store={"latency_seconds": 0.06},
                        options={"batch_size": 50, "fetch_threads": 8, "streams": 1, "prefetch_bytes": 0}),
    "checksums of large records": Case(expected="verification", dataset="vectors",
                                       options={"batch_size": 16, "columns": ["z"], "steps": 400, "streams": 2}),
    "gzip": Case(expected="decode", dataset="gzip", options={"batch_size": 1000, "steps": 300, "streams": 4}),
    "gzip before a fast step": Case(
        expected="decode", dataset="gzip", remedy=lambda case, _: replace(case, dataset="words"),
        options={"batch_size": 1000, "streams": 4, "step": sleeping_step(0.001)}),
    "large photographs": Case(expected="decode", dataset="images", remedy=without_transform, options={
        "batch_size": 8, "transform": images(), "step": sleeping_step(0.001)}),
    "slow transform": Case(expected="transform", dataset="rows", remedy=without_transform, options={
        "batch_size": 50, "transform": slow_transform, "step": sleeping_step(0.001)}),
    "one slow record": Case(
        expected="slow_records", dataset="rows", remedy=lambda case, _: case.changed(where=f"x != {SLOW_VALUE}"),
        options={"batch_size": 500, "transform": one_slow_record, "step": sleeping_step(0.0005)}),
    "small batches": Case(expected="hand_over", dataset="rows", options={"batch_size": 4, "streams": 4}),
    "small batches before a fast step": Case(expected="hand_over", dataset="rows", options={
        "batch_size": 4, "streams": 4, "step": lambda batch: None}),
    "a long first batch": Case(expected="shuffle_fill", dataset="blobs", store={"bytes_per_second": 8e6}, options={
        "batch_size": 50, "streams": 25, "step": sleeping_step(0.05)}),
    "slow step": Case(expected="step", dataset="rows", options={"batch_size": 50, "step": sleeping_step(0.05)}),
    "python's lock": Case(expected="framework_overhead", dataset="rows", remedy=without_sharing, options={
        "batch_size": 50, "transform": python_transform, "step": python_step(0.005)}),
    "shared cores": Case(expected="cores", dataset="rows", remedy=without_sharing, options={
        "batch_size": 50, "transform": computing_transform, "step": computing_step(1024, 3)}),
    "balanced": Case(expected="none", dataset="rows", options={
        "batch_size": 50, "transform": slow_transform, "step": sleeping_step(0.022)}),
    "too short": Case(expected="unknown", dataset="rows", options={
        "batch_size": 100, "streams": 1, "steps": 2}),
}  # fmt: skip
"""By name, what makes the bottleneck, and its class."""

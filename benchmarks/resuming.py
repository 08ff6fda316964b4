"""Time to the first batch, at the start of a long epoch and deep in it: 10^9 records of 1,000 classes, 100,000 shards.

The manifest and its table are of full size; its shards are four real files under 25,000 names each, so that every
window can be opened. Each measurement is a process of its own; files are in the page cache.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from planner import apart

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, build, open_dataset
from ringfeed.sharding.compute.class_counts import ClassCounts
from ringfeed.sharding.dataset.shard_table import seal

FILES, COPIES, FILE_RECORDS, CLASSES = 4, 25_000, 10_000, 1000
BATCH, DEEP_STEP = 512, 1_000_000
REPEATS = 9  # of both first batches, in turn, in each process; the least counts, for others keep the cores busy
ALLOWED_SECONDS, ALLOWED_MIB = 2, 500


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of seconds at step 0 to seconds deep in the epoch; and of what is allowed to what was needed."""
    url = str(folder / "resuming")
    _write(folder)
    lines = []
    for measure in (first_batches_natural, first_batches_balanced):
        name = measure.__name__.replace("first_batches_", "")
        found = []
        for _ in range(rounds):
            _, mib, said = apart(measure, url)
            start, deep = map(float, said.split(";")[0].split())
            print(f"  {name}: {start:.3f} s at step 0, {deep:.3f} s at step {DEEP_STEP:,}; {mib:,.0f} MiB", flush=True)
            found.append(start / deep)
        lines.append((f"first batch, {name}, step 0 over step {DEEP_STEP:,}", found, 1 / 1.2))
    for open_and in (open_and_begin, open_and_plan, open_and_plan_balanced):
        found = [apart(open_and, url) for _ in range(rounds)]
        name = open_and.__name__.replace("_", " ")
        for seconds, mib, said in found:
            print(f"  {name}: {seconds:.2f} s, {mib:,.0f} MiB; {said}", flush=True)
        seconds_ratios = [ALLOWED_SECONDS / seconds for seconds, *_ in found]
        lines += [
            (f"{name}, {ALLOWED_SECONDS} s over the seconds", seconds_ratios, 1.0),
            (f"{name}, {ALLOWED_MIB} MiB over the memory", [ALLOWED_MIB / mib for _, mib, _ in found], 1.0),
        ]
    return lines


def first_batches_natural(url: str) -> Iterator[str]:
    """Seconds to the first batch of an opened loader, at step 0 and deep in the epoch."""
    yield from _first_batches(Loader(url, batch_size=BATCH))


def first_batches_balanced(url: str) -> Iterator[str]:
    """The same, every batch balanced to uniform."""
    yield from _first_batches(Loader(url, batch_size=BATCH, balance="uniform"))


def _first_batches(loader: Loader) -> Iterator[str]:
    _first_batch(loader, 0)  # imports, and the page cache
    yield ""
    seconds: dict[int, list[float]] = {0: [], DEEP_STEP: []}
    for _ in range(REPEATS):
        for step, found in seconds.items():
            found.append(_first_batch(loader, step))
    yield " ".join(f"{min(found):.6f}" for found in seconds.values())


def _first_batch(loader: Loader, step: int) -> float:
    started = time.perf_counter()
    chunks = loader.chunks(0, step)
    next(chunks)
    return time.perf_counter() - started


def open_and_begin(url: str) -> Iterator[str]:
    """Open the dataset, and go to a step deep in the epoch: what a rank does when it resumes."""
    yield ""
    loader = Loader(url, batch_size=BATCH, rank=3, world_size=8)
    next(loader.chunks(0, DEEP_STEP))
    yield f"step {DEEP_STEP:,}"


def open_and_plan(url: str) -> Iterator[str]:
    """Open the dataset, and plan an epoch."""
    yield ""
    plan = Loader(url, batch_size=BATCH, world_size=8).plan()
    yield f"{plan.steps:,} steps"


def open_and_plan_balanced(url: str) -> Iterator[str]:
    """The same, every batch balanced to uniform: the class counts of all shards are looked at."""
    yield ""
    plan = Loader(url, batch_size=BATCH, world_size=8, balance="uniform").plan()
    yield f"{len(plan.missing):,} windows lack a class"


def _write(folder: Path) -> None:
    """A dataset of four shards, each of which then has many names."""
    target = folder / "resuming"
    if target.exists():
        return
    ids = np.arange(FILES * FILE_RECORDS)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, 4).astype(np.float32)), 4)
    pq.write_table(pa.table({"x": vectors, "y": pa.array(ids % CLASSES)}), folder / "resuming.parquet")
    source, splits = str(folder / "resuming.parquet"), {"train": Fraction(1)}
    build(BuildOptions(source=source, destination=str(target), label="y", shards=FILES, splits=splits))
    dataset = open_dataset(str(target))
    info = dataset.manifest.split("train")
    shards = []
    for copy in range(COPIES):
        for shard in dataset.shards:
            data, index = (str(Path(path).with_name(f"{copy}-{Path(path).name}")) for path in shard.files)
            os.link(target / shard.path, target / data)
            os.link(target / shard.index_path, target / index)
            counts = ClassCounts(shard.class_counts)
            shards.append(replace(shard, path=data, index_path=index, class_counts=counts))
    counts = tuple(count * COPIES for count in info.class_counts)
    info = replace(info, records=info.records * COPIES, shards=len(shards), class_counts=counts)
    manifest, table = seal(replace(dataset.manifest, splits={"train": info}), shards)
    (target / manifest.shards_path).write_bytes(table)
    (target / manifest.names.manifest).write_bytes(manifest.encode())

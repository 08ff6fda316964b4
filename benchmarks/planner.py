"""Plans of a size that no machine here can build: 10^9 records of 1,000 classes in 100,000 shards.

Each measurement is a process of its own: its seconds, and how much of its memory came with it (the peak of its resident
set, `VmHWM`, less what it held before). The build's planner has the counts of 3,815 parts to begin with, as the first
pass gives them; what it decides, the manifest and its table, opening them, and `inspect` are all of full size. No
record and no shard is there. The loader's plan of such a dataset is measured by `first-batch`.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np

from ringfeed.sharding import BuildOptions, Manifest, ShardInfo, SplitInfo, open_dataset
from ringfeed.sharding.assignment.assignment import Assignment
from ringfeed.sharding.building.partitioning import Bucketing
from ringfeed.sharding.building.shard_plan import plan_assignment, plan_split_counts
from ringfeed.sharding.common.checksums import PREFIX
from ringfeed.sharding.compute.class_counts import ClassCounts
from ringfeed.sharding.dataset.file_names import NAMES
from ringfeed.sharding.dataset.shard_table import seal
from ringfeed.sharding.dataset.statistics import FeatureStatistics
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.tools.shard_dataset.inspection import inspection_text

RECORDS, CLASSES, SHARDS = 10**9, 1000, 100_000
PART_RECORDS = 1 << 18
RECORD_BYTES = 200.0
SPLITS = {"train": Fraction(9, 10), "test": Fraction(1, 10)}


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of what is allowed to what was needed, of seconds and of MiB."""
    target = folder / "planner"
    target.mkdir(exist_ok=True)
    lines = []
    for measure, allowed_seconds, allowed_mib in (
        (plan, 10, 100),
        (locate, 1, 100),
        (divide_buckets, 1, 100),
        (write_table, 60, 1500),
        (open_table, 10, 1000),
        (inspect, 30, 1500),
    ):
        found = [apart(measure, str(target)) for _ in range(rounds)]
        name = measure.__name__.replace("_", " ")
        for seconds, mib, said in found:
            print(f"  {name}: {seconds:.2f} s, {mib:,.0f} MiB; {said}", flush=True)
        lines += [
            (f"{name}, {allowed_seconds} s over the seconds", [allowed_seconds / entry[0] for entry in found], 1.0),
            (f"{name}, {allowed_mib} MiB over the memory", [allowed_mib / max(entry[1], 1) for entry in found], 1.0),
        ]
    return lines


def plan(_: str) -> Iterator[str]:
    """Decide on everything, from the counts of all parts."""
    options = _options()
    per_part = np.random.default_rng(0).multinomial(PART_RECORDS, _shares(), -(-RECORDS // PART_RECORDS))
    yield ""
    totals = per_part.sum(axis=0).tolist()
    assignment = plan_assignment(options, plan_split_counts(range(CLASSES), totals, SPLITS), RECORD_BYTES)
    firsts = np.cumsum(per_part, axis=0) - per_part
    yield f"{len(firsts):,} parts, {sum(totals):,} records, to {assignment.shards:,} shards"


def locate(_: str) -> Iterator[str]:
    """Find the places of a batch of records, drawn from all."""
    assignment = _assignment()
    rng = np.random.default_rng(0)
    class_ids = rng.choice(CLASSES, 1 << 16, p=_shares()).astype(np.int32)
    ordinals = (rng.random(len(class_ids)) * np.array(_class_counts())[class_ids]).astype(np.int64)
    yield ""
    shards, _slots = assignment.locate(class_ids, ordinals)
    yield f"{len(class_ids):,} records, to {len(np.unique(shards)):,} shards"


def divide_buckets(_: str) -> Iterator[str]:
    """What each task computes of the shards."""
    assignment = _assignment()
    yield ""
    bucketing = Bucketing(assignment=assignment, shards_per_bucket=64)
    yield f"{bucketing.buckets:,} buckets, the last place of any is {bucketing.first_places().max():,}"


def write_table(folder: str) -> Iterator[str]:
    """Seal and encode the manifest and the table."""
    assignment = _assignment()
    shards = [
        _shard(split.name, number, split.shards, ClassCounts(counts))
        for split in assignment.splits
        for number, counts in enumerate(split.all_shard_class_counts())
    ]
    statistics = {"x": FeatureStatistics(count=RECORDS, nulls=0)}
    manifest = Manifest(
        shard_format="tfrecord",
        compression="none",
        schema=Schema(
            features=(Feature(name="x", dtype="float32", shape=(32,)), Feature(name="y", dtype="int64")), label="y"
        ),
        classes=tuple(range(CLASSES)),
        splits={
            split.name: SplitInfo(
                records=split.records,
                shards=split.shards,
                class_counts=split.class_counts,
                statistics=statistics | {"y": statistics["x"]},
            )
            for split in assignment.splits
        },
        layout=None,
        seed=0,
        source={"url": "none", "fingerprint": "none"},
        options=_options().recorded(),
        writer="benchmark",
    )
    yield ""
    sealed, table = seal(manifest, shards)
    document = sealed.encode()
    for path, data in ((sealed.names.manifest, document), (sealed.shards_path, table)):
        Path(folder, path).parent.mkdir(exist_ok=True)
        Path(folder, path).write_bytes(data)
    yield f"dataset.json {len(document):,} bytes, shard table {len(table):,} bytes"


def open_table(folder: str) -> Iterator[str]:
    """Open the dataset, and list the shards of a split."""
    yield ""
    shards = open_dataset(folder).split_shards("train")
    yield f"{len(shards):,} shards of a split, counts in {np.asarray(shards[0].class_counts).dtype}"


def inspect(folder: str) -> Iterator[str]:
    """What `shard-dataset inspect` shows."""
    yield ""
    lines = inspection_text(open_dataset(folder))
    yield f"{len(lines)} lines"


def _options() -> BuildOptions:
    return BuildOptions(source="s", destination="d", label="y", shards=SHARDS, splits=SPLITS)


def _shares() -> np.ndarray:
    """Of the classes: a long tail, Zipf's."""
    weights = 1 / np.arange(1, CLASSES + 1)
    return weights / weights.sum()


def _class_counts() -> list[int]:
    counts = np.floor(_shares() * RECORDS).astype(np.int64)
    counts[0] += RECORDS - counts.sum()
    return [int(count) for count in counts]


def _assignment() -> Assignment:
    return plan_assignment(_options(), plan_split_counts(range(CLASSES), _class_counts(), SPLITS), RECORD_BYTES)


def _shard(split: str, number: int, shards: int, counts: ClassCounts) -> ShardInfo:
    path, records = NAMES.shard(0, split, number, shards, "tfrecord"), sum(counts)
    digits = np.random.default_rng(number).bytes(32).hex()
    return ShardInfo(
        split=split,
        path=path,
        bytes=int(records * RECORD_BYTES),
        records=records,
        checksum=PREFIX + digits[:32],
        class_counts=counts,
        index_path=NAMES.index(path),
        index_bytes=records * 20,
        index_checksum=PREFIX + digits[32:],
    )


def apart(measure: Callable[[str], Iterator[str]], folder: str) -> tuple[float, float, str]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result: tuple[float, float, str] = pool.apply(_measured, (measure, folder))
    return result


def _measured(measure: Callable[[str], Iterator[str]], folder: str) -> tuple[float, float, str]:
    """Seconds from the first `yield` to the second, and MiB that the process grew by meanwhile at most."""
    steps = measure(folder)
    next(steps)
    before, started, cpu_started = _resident_mib("VmRSS"), time.perf_counter(), time.process_time()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    said = f"{next(steps)}; {time.process_time() - cpu_started:.2f} s of CPU time"
    return time.perf_counter() - started, _resident_mib("VmHWM") - before, said


def _resident_mib(name: str) -> float:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[name].split()[0]) / 1024

"""Memory of a build that is told how much it may take, with one worker and with two, and of an epoch of the loader: of
1 x, 4 x and 16 x of data.

What is measured is the proportional set size (PSS) of the command and all processes that it starts, together, every 20
ms, from `/proc/PID/smaps_rollup`: a page that several of them hold counts once, mapped files count as far as they are
in memory. Beside it stands what of that is anonymous, which the system cannot take back.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from parts import process_tree

from ringfeed.sharding import BuildOptions, build, open_dataset

BOUND_MIB = 512
SHARD_MIB = 32  # each is put together in memory; so many of them as there is data
FACTORS = (1, 4, 16)
_GROUP_ROWS, _GROUPS = 1 << 16, 16  # of 1 x: 1 M rows of 32 float32, 136 MiB
_WIDTH, _CLASSES = 32, 10
LOADER_SHARD_MIB, STREAMS, PREFETCH_MIB = 8, 4, 16  # `Loader.numpy_epoch` prefetches 16 MiB by default
_READ = """
import sys
from ringfeed.pipeline import Loader
how, url = sys.argv[1:]
loader = Loader(url, batch_size=256, streams=4, prefetch_bytes=4 * 10 << 20)
for _ in loader.numpy_epoch(0) if how == "read" else ():
    pass
"""


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of the bound to the most that was taken, of each size of data: at least 1, and alike."""
    lines = []
    for factor in FACTORS:
        source = folder / f"memory-{factor}.parquet"
        write(source, factor)
        for workers in (1, 2):
            peaks = [_build(source, folder / "memory", workers) for _ in range(rounds)]
            label = f"{source.stat().st_size >> 20:,} MiB, {workers} worker{'s' * (workers > 1)}"
            lines.append(
                (f"{label}: {BOUND_MIB} MiB allowed, over the most taken", [BOUND_MIB / peak for peak in peaks], 1)
            )
        source.unlink()
    return lines


def write(path: Path, factor: int) -> None:
    """Write a table of so many times 1 M rows."""
    random = np.random.default_rng(0)
    kind = pa.schema([("features", pa.list_(pa.float32(), _WIDTH)), ("label", pa.int64())])
    with pq.ParquetWriter(path, kind, compression="none", use_dictionary=False) as writer:
        for _ in range(_GROUPS * factor):
            values = pa.array(random.random(_GROUP_ROWS * _WIDTH, dtype=np.float32))
            features = pa.FixedSizeListArray.from_arrays(values, _WIDTH)
            labels = pa.array(random.integers(0, _CLASSES, _GROUP_ROWS))
            writer.write_batch(pa.record_batch([features, labels], schema=kind))


def _build(source: Path, target: Path, workers: int) -> float:
    """MiB of a build at its peak."""
    program = Path(sys.executable).with_name("shard-dataset")
    sizes = ["--memory", f"{BOUND_MIB}MiB", "--shard-size", f"{SHARD_MIB}MiB"]
    options = ["--label", "label", "--workers", str(workers), *sizes, "--json"]
    started = time.perf_counter()
    peak, anonymous = peak_mib([program, "build", source, target, *options])
    seconds = time.perf_counter() - started
    shutil.rmtree(target)
    print(
        f"  {source.stat().st_size >> 20:,} MiB, {workers} workers: {peak:,.0f} MiB at most, "
        f"{anonymous:,.0f} of it anonymous; {seconds:.0f} s"
    )
    return peak


def peak_mib(command: Sequence[str | Path]) -> tuple[float, float]:
    """MiB that a command and all that it starts take together at most, and what of that is anonymous at most."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process, process_tree.peak_mib(process.pid) as peak:
        process.wait()
    if process.returncode:
        raise SystemExit(f"{Path(command[0]).name} ended with {process.returncode}")
    return peak[0], peak[1]


def run_loader(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of allowed to peak memory: at least 1, and alike for each size of data.

    A process may take what it takes after opening the dataset, before it reads. Beyond that, each stream may hold three
    windows (one open, one ahead, one being let go) as file and as columns, and the prefetched batches count twice.
    """
    lines = []
    for factor in FACTORS:
        source = folder / f"memory-{factor}.parquet"
        write(source, factor)
        for shard_format in ("tfrecord", "parquet"):
            url = str(folder / "loader-memory")
            options = BuildOptions(
                source=str(source),
                destination=url,
                label="label",
                shard_format=shard_format,
                shard_bytes=LOADER_SHARD_MIB << 20,
            )
            build(options)
            shard_mib = max(shard.bytes for shard in open_dataset(url).shards) / (1 << 20)
            windows = STREAMS * 3 * 2 * shard_mib
            base, _ = peak_mib([sys.executable, "-c", _READ, "open", url])
            ratios = []
            for _ in range(rounds):
                peak, anonymous = peak_mib([sys.executable, "-c", _READ, "read", url])
                ratios.append((base + windows + 2 * PREFETCH_MIB) / peak)
                print(
                    f"  {shard_format}, {source.stat().st_size >> 20:,} MiB: {peak:,.0f} MiB at most, "
                    f"{anonymous:,.0f} of it anonymous; before reading {base:,.0f}"
                )
            lines.append((f"{shard_format}, {factor} x: allowed, over the most taken", ratios, 1.0))
            shutil.rmtree(url)
        source.unlink()
    return lines

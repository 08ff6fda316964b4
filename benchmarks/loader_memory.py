"""Memory of the loader: an epoch of 1 x, 4 x and 16 x of data, with shards of one size.

What is allowed is what a process takes that has opened the dataset and read nothing, and for each stream three windows
(one open, one ahead, one being let go), as file and as columns, and what is prefetched twice. What is measured is the
resident set of a process that does nothing but read, mapped files included, every 20 ms (see `memory.py`).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import memory

from ringfeed.sharding import BuildOptions, build, open_dataset

SHARD_MIB = 8
STREAMS = 4
PREFETCH_MIB = 16  # `Loader.numpy_epoch`
_READ = """
import sys
from ringfeed.pipeline import Loader
how, url = sys.argv[1:]
loader = Loader(url, batch_size=256, streams=4, prefetch_bytes=4 * 10 << 20)
for _ in loader.numpy_epoch(0) if how == "read" else ():
    pass
"""


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of what is allowed to the most that was taken: at least 1, and alike for each size of data."""
    lines = []
    for factor in memory.FACTORS:
        source = folder / f"memory-{factor}.parquet"
        memory.write(source, factor)
        for shard_format in ("tfrecord", "parquet"):
            url = str(folder / "loader-memory")
            options = BuildOptions(
                source=str(source),
                destination=url,
                label="label",
                shard_format=shard_format,
                shard_bytes=SHARD_MIB << 20,
            )
            build(options)
            shard_mib = max(shard.bytes for shard in open_dataset(url).shards) / (1 << 20)
            windows = STREAMS * 3 * 2 * shard_mib
            base, _ = memory.peak_mib([sys.executable, "-c", _READ, "open", url])
            ratios = []
            for _ in range(rounds):
                peak, anonymous = memory.peak_mib([sys.executable, "-c", _READ, "read", url])
                ratios.append((base + windows + 2 * PREFETCH_MIB) / peak)
                print(
                    f"  {shard_format}, {source.stat().st_size >> 20:,} MiB: {peak:,.0f} MiB at most, "
                    f"{anonymous:,.0f} of it anonymous; before reading {base:,.0f}"
                )
            lines.append((f"{shard_format}, {factor} x: allowed, over the most taken", ratios, 1.0))
            shutil.rmtree(url)
        source.unlink()
    return lines

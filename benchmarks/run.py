"""The benchmarks: each prints a ratio against a rival or a limit, both measured in the same run, in turn.

make bench                     all but those that run only when named
make bench BENCH_ARGS=read     one
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from ringfeed.pipeline.deliver.quiet_tensorflow import quiet_tensorflow

with quiet_tensorflow():
    import tensorflow  # noqa: F401

import dlio
import image_decoding
import image_reading
import images
import large_records
import loader_memory
import memory
import planner
import projection
import reading
import remote
import resuming
import rivals
import simulation
import writing
from parts.tables import write_source
from train import asynchronous, embedding_tables, optimizers, start, step_cost, synchronisation

BENCHMARKS: dict[str, Callable[[Path, int], list[tuple[str, list[float], float]]]] = {
    "write": writing.run,
    "read": reading.run,
    "parquet": writing.run_parquet,
    "workers": writing.run_workers,
    "s3": writing.run_s3,
    "remote": remote.run,
    "images": images.run,
    "read-images": image_reading.run,
    "decode-images": image_decoding.run,
    "large-records": large_records.run,
    "memory": memory.run,
    "loader-memory": loader_memory.run,
    "optimizers": optimizers.run,
    "planner": planner.run,
    "first-batch": resuming.run,
    "projection": projection.run,
    "rivals": rivals.run,
    "simulation": simulation.run,
    "dlio": dlio.run,
    "synchronisation": synchronisation.run,
    "asynchronous": asynchronous.run,
    "embedding-tables": embedding_tables.run,
    "step-cost": step_cost.run,
    "start": start.run,
}
# They download gigabytes, need Horovod or write gigabytes: they run only when named.
OPTIONAL = {
    "rivals",
    "simulation",
    "dlio",
    "synchronisation",
    "asynchronous",
    "embedding-tables",
    "step-cost",
    "start",
}


def main() -> int:
    """Run the benchmarks named, or all but the optional, and print a line for each ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each (default: 5)")
    parser.add_argument(
        "--images",
        type=int,
        default=images.IMAGES,
        metavar="N",
        help="JPEGs to generate for images and read-images (default: %(default)s)",
    )
    args = parser.parse_args()
    images.IMAGES = args.images
    versions = ", ".join(f"{name} {version(name)}" for name in ("tensorflow-cpu", "pyarrow", "numpy"))
    print(f"{datetime.now().astimezone():%Y-%m-%d}, {os.cpu_count()} cores, {versions}")
    with tempfile.TemporaryDirectory(prefix="ringfeed-bench-") as folder:
        write_source(Path(folder) / "source.parquet")
        for name in args.names or [name for name in BENCHMARKS if name not in OPTIONAL]:
            for label, ratios, goal in BENCHMARKS[name](Path(folder), args.rounds):
                low, median, high = min(ratios), statistics.median(ratios), max(ratios)
                print(f"{name}: {label}: {median:.2f} x (of {len(ratios)}: {low:.2f} to {high:.2f}; goal {goal:g})")
    return 0


if __name__ == "__main__":
    sys.exit(main())

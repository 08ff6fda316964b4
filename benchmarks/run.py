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
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple, TypeAlias

sys.path.insert(0, str(Path(__file__).parent))

Run: TypeAlias = Callable[[Path, int], list[tuple[str, list[float], float]]]
"""Takes a scratch folder, which holds `source.parquet`, and a number of rounds; returns labels, ratios and goals."""


class Benchmark(NamedTuple):
    """One benchmark.

    Attributes:
        function: its function, as `module:name`; the module is imported when it runs.
        about: what it measures.
        needs: why it runs only when named; empty: it runs by default.
    """

    function: str
    about: str
    needs: str = ""

    def run(self) -> Run:
        """Import the function."""
        module, name = self.function.split(":")
        run: Run = getattr(import_module(module), name)
        return run


BENCHMARKS = {
    "write": Benchmark("writing:run", "rows to TFRecord shards"),
    "read": Benchmark("reading:run", "shuffled and balanced batches"),
    "parquet": Benchmark("writing:run_parquet", "rows to Parquet shards"),
    "workers": Benchmark("writing:run_workers", "a build by two workers"),
    "s3": Benchmark("writing:run_s3", "builds to S3"),
    "remote": Benchmark("remote:run", "epochs from S3, cold and cached"),
    "large-remote": Benchmark("large_remote:run", "large records from S3, over links"),
    "images": Benchmark("images:run", "JPEGs to TFRecord shards"),
    "read-images": Benchmark("image_reading:run", "batches of JPEGs"),
    "decode-images": Benchmark("image_decoding:run", "random crops of JPEGs"),
    "large-records": Benchmark("large_records:run", "batches of large records"),
    "next-epoch": Benchmark("epoch_start:run", "the first batch of the next epoch"),
    "long-epochs": Benchmark("large_records:run_long", "cold epochs of 11 GB", "writes 11 GB"),
    "geometries": Benchmark("large_records:run_geometries", "cold shards and records of many sizes"),
    "memory": Benchmark("memory:run", "peak memory of a build"),
    "loader-memory": Benchmark("memory:run_loader", "peak memory of an epoch"),
    "optimizers": Benchmark("train.optimizers:run", "updates of many small variables"),
    "planner": Benchmark("planner:run", "plans for 10^9 records"),
    "first-batch": Benchmark("resuming:run", "the first batch of 10^9 records"),
    "projection": Benchmark("projection:run", "some columns or records of all"),
    "rivals": Benchmark("rivals:run", "the loaders of other projects", "downloads gigabytes"),
    "simulation": Benchmark("simulation:run", "predicted beside measured epochs", "needs Horovod"),
    "dlio": Benchmark("dlio:run", "MLPerf Storage by DLIO", "writes gigabytes"),
    "step-cost": Benchmark("train.step_cost:run", "CPU time of a training step", "needs Horovod"),
    "start": Benchmark("train.step_cost:run_start", "CPU time to the end of the first step", "takes minutes"),
    "gpu": Benchmark("gpu:run", "ResNet-50 in PyTorch on a GPU", "needs PyTorch and a CUDA device"),
}


def versions() -> str:
    """The versions of the libraries that are installed."""
    texts = []
    for name in ("tensorflow-cpu", "torch", "pyarrow", "numpy"):
        with suppress(PackageNotFoundError):
            texts.append(f"{name} {version(name)}")
    return ", ".join(texts)


def main() -> int:
    """Run the benchmarks named, or all that run by default, and print a line for each ratio."""
    from parts.tables import write_source

    names = "\n".join(
        f"  {name:<16} {one.about}{f' (only when named: {one.needs})' if one.needs else ''}"
        for name, one in BENCHMARKS.items()
    )
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{names}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], metavar="NAME", help="see above")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each (default: 5)")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    print(f"{datetime.now().astimezone():%Y-%m-%d}, {os.cpu_count()} cores, {versions()}")
    with tempfile.TemporaryDirectory(prefix="ringfeed-bench-") as folder:
        write_source(Path(folder) / "source.parquet")
        for name in args.names or [name for name, one in BENCHMARKS.items() if not one.needs]:
            for label, ratios, goal in BENCHMARKS[name].run()(Path(folder), args.rounds):
                low, median, high = min(ratios), statistics.median(ratios), max(ratios)
                print(f"{name}: {label}: {median:.2f} x (of {len(ratios)}: {low:.2f} to {high:.2f}; goal {goal:g})")
    return 0


if __name__ == "__main__":
    sys.exit(main())

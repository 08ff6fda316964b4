"""One column of ten, and a tenth of the records, read with no TensorFlow: against reading all of them.

Of a local disk, and one column of Parquet on S3 over a link of 1 Gbit/s, too, where bytes that are not fetched count.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from parts.link import GIGABIT, link

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, build

ROWS, COLUMNS, WIDTH = 250_000, 10, 8
BATCH = 1024


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of the time of all to the time of some, page cache warm; a round is an epoch of each, in turn."""
    source = folder / "projection.parquet"
    _write(source)
    return _local(source, folder, rounds) + _far(source, folder, rounds)


def _local(source: Path, folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    lines = []
    for shard_format in ("tfrecord", "parquet"):
        url = str(folder / f"projection-{shard_format}")
        build(BuildOptions(source=str(source), destination=url, label="label", shards=16, shard_format=shard_format))
        some: dict[str, dict[str, Any]] = {
            "one column of ten": {"columns": ["f0"]},
            "a tenth of the records, by the label": {"where": "label == 3"},
            "a tenth of the records, by a number": {"where": "x < 0.1"},
        }
        ratios: dict[str, list[float]] = {name: [] for name in some}
        for epoch in range(rounds + 1):
            whole = _seconds(url, epoch, {})
            for name, options in some.items():
                ratio = whole / _seconds(url, epoch, options)
                if epoch:  # the first warms up
                    ratios[name].append(ratio)
        lines += [(f"{shard_format}: {name}, against all", values, 1.0) for name, values in ratios.items()]
    return lines


def _far(source: Path, folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.servers.seaweedfs import seaweedfs

    with seaweedfs(folder / "s3") as server, link(server.endpoint_url, GIGABIT) as far:
        os.environ.update(server.env)
        server.make_bucket("bench")
        options = BuildOptions(source=str(source), destination="s3://bench/wide", label="label", shards=16)
        build(replace(options, shard_format="parquet"))
        os.environ["AWS_ENDPOINT_URL_S3"] = far
        ratios = []
        for epoch in range(rounds + 1):
            whole, part = (_seconds("s3://bench/wide", epoch, some) for some in ({}, {"columns": ["f0"]}))
            if epoch:  # the first warms up
                ratios.append(whole / part)
    return [("parquet on S3 over 1 Gbit/s: one column of ten, against all", ratios, 1.0)]


def _seconds(url: str, epoch: int, options: dict[str, Any]) -> float:
    """To open the loader, which counts what a filter lets through, and read an epoch."""
    start = time.perf_counter()
    for _ in Loader(url, batch_size=BATCH, seed=1, **options).numpy_epoch(epoch):
        pass
    return time.perf_counter() - start


def _write(path: Path) -> None:
    random = np.random.default_rng(0)
    columns: dict[str, Any] = {"x": random.random(ROWS), "label": random.integers(0, 10, ROWS)}
    for number in range(COLUMNS):
        values = pa.array(random.random(ROWS * WIDTH, dtype=np.float32))
        columns[f"f{number}"] = pa.FixedSizeListArray.from_arrays(values, WIDTH)
    pq.write_table(pa.table(columns), path)

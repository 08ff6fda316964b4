"""Large embedding tables on parameter servers: samples per second with whole tables and with split ones.

Two workers train `wide_deep` with tables of 1,000,000 x 64 and of 2,000,000 x 2 on made-up ids, by `ringfeed launch`:
with whole tables on two servers, and with tables split by rows on one server and over two.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ringfeed.sharding import build

RECORDS, BATCH, BUCKETS, WIDTH, WORKERS = 102_400, 512, 1_000_000, 64, 2
SPLIT_BYTES = 1 << 20
GOALS = {"split tables over whole ones, two servers": 5.0, "split tables, two servers over one": 1.0}


def _dataset(folder: Path) -> str:
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(0, 10 * BUCKETS, RECORDS) for name in ("user", "item")}
    table = pa.table({**columns, "label": rng.integers(0, 2, RECORDS)})
    target = str(folder / "ids")
    build(source=table, destination=target, label="label", shards=8)
    return target


def train(folder: Path, url: str, servers: int, shard_bytes: int | None) -> float:
    """Train for some steps, and return the samples per second after the first entry of the log."""
    steps = 12 if shard_bytes is None else RECORDS // BATCH
    tree: dict[str, Any] = {
        "data": {"url": url, "batch_size": BATCH, "categorical": ["user", "item"], "eval_split": None},
        "model": {"name": "wide_deep", "hash_buckets": BUCKETS, "embedding_dim": WIDTH, "shared": [["user", "item"]]},
        "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.0},
        "backend": "parameter_server",
        "parameter_server": {"shard_bytes": shard_bytes},
        "epochs": 1,
        "max_steps": steps,
        "output": {"metrics": "metrics.json", "log_every": steps // 4},
    }
    (folder / "run.yaml").write_text(json.dumps(tree))
    launch = ["launch", "--ps", str(servers), "--workers", str(WORKERS), "train", "--config", "run.yaml", "--quiet"]
    subprocess.run([sys.executable, "-m", "ringfeed.tools.cli", *launch], cwd=folder, check=True)
    entries = json.loads((folder / "metrics.json").read_text())["history"]["steps"][1:]  # the first has compilations
    seconds = sum(entry["seconds"] for entry in entries)
    return float(sum(entry["samples_per_second"] * entry["seconds"] for entry in entries) / seconds)


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """The throughput of split tables over that of whole ones, and that of two servers over that of one."""
    url = _dataset(folder)
    ratios: dict[str, list[float]] = {name: [] for name in GOALS}
    for _ in range(rounds):
        whole, one, two = (train(folder, url, *how) for how in ((2, None), (1, SPLIT_BYTES), (2, SPLIT_BYTES)))
        print(f"  samples/s: {whole:,.0f} whole, {one:,.0f} split on one server, {two:,.0f} over two", flush=True)
        for name, ratio in zip(GOALS, (two / whole, two / one), strict=True):
            ratios[name].append(ratio)
    return [(name, found, GOALS[name]) for name, found in ratios.items()]


__all__ = ["run", "train"]

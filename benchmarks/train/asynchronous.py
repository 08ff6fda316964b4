"""Ways to synchronise beside one slow worker, on Fashion-MNIST: accuracy, and throughput with and without it.

It reads the dataset from the Debian package `dataset-fashion-mnist`, and trains by `ringfeed launch`. The slow worker
is stopped and continued in turn (SIGSTOP), so that it gets a quarter of the time.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ringfeed.sharding import BuildOptions, build

FOLDER = Path("/usr/share/datasets/fashion-mnist")
WORKERS, EPOCHS, SEEDS, RECORDS = 2, 2, int(os.environ.get("SEEDS", "3")), 20_000
STOPPED_SECONDS, RUNNING_SECONDS = 0.15, 0.05
SERVER = {"backend": "parameter_server"}
METHODS: dict[str, dict[str, Any]] = {
    "BSP": {},
    "BSP, on servers": {**SERVER, "parameter_server": {"mode": "sync"}},
    "BSP, 1 backup": {**SERVER, "parameter_server": {"mode": "sync", "backup_workers": 1}},
    "SSP, 4 steps": {**SERVER, "parameter_server": {"mode": "ssp", "staleness": 4}},
    "ASP, 1 %": {**SERVER, "parameter_server": {"mode": "asp", "threshold": 0.01}},
    "BAP": {**SERVER, "parameter_server": {"mode": "async"}},
    "local SGD, 8 steps": {"sync": {"method": "local_sgd"}},
    "FedAvg, 8 steps": {"sync": {"method": "fedavg"}},
}


def _dataset(folder: Path) -> str:
    from parts.synchronisation_ranks import images  # imports TensorFlow

    rng = np.random.default_rng(0)
    pixels, classes = images(FOLDER, "train")
    chosen = rng.permutation(len(pixels))[: RECORDS * 5 // 4]
    flat = np.asarray(pixels, np.float32).reshape(len(pixels), -1)[chosen]
    columns = {
        "pixels": pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1]),
        "label": pa.array(np.asarray(classes)[chosen]),
    }
    pq.write_table(pa.table(columns), folder / "fashion.parquet")
    target = str(folder / "fashion")
    splits = {"train": Fraction(4, 5), "test": Fraction(1, 5)}
    build(BuildOptions(source=str(folder / "fashion.parquet"), destination=target, label="label", splits=splits))
    return target


def _is_slow(process: psutil.Process) -> bool:
    environ = process.environ()
    if "HOROVOD_RANK" in environ:
        return environ["HOROVOD_RANK"] == "1"
    task = json.loads(environ.get("TF_CONFIG", '{"task": {"type": "", "index": 0}}'))["task"]
    return bool(task == {"type": "worker", "index": 1})


def _slow_workers(launcher: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the workers to throttle; without any, end the run and this benchmark, which would measure nothing."""
    slow = []
    for child in psutil.Process(launcher.pid).children():
        with suppress(psutil.Error):
            slow += [child] if _is_slow(child) else []
    if not slow:
        launcher.terminate()
        raise SystemExit(f"process {launcher.pid} has no worker to throttle: _is_slow knows none of its children")
    return slow


def _throttle(slow: list[psutil.Process], has_ended: threading.Event) -> None:
    while not has_ended.is_set():
        for number, seconds in ((signal.SIGSTOP, STOPPED_SECONDS), (signal.SIGCONT, RUNNING_SECONDS)):
            for child in slow:
                with suppress(psutil.Error):
                    child.send_signal(number)
            time.sleep(seconds)


def train(folder: Path, url: str, options: dict[str, Any], seed: int, *, is_throttled: bool) -> dict[str, float]:
    """Train by one method, and return accuracy, samples per second, and staleness."""
    tree = {
        "data": {"url": url, "batch_size": 128},
        "model": {"hidden": [128]},
        "optimizer": {"name": "sgd", "learning_rate": 0.2, "momentum": 0.0},
        "epochs": EPOCHS,
        "seed": seed,
        "output": {"metrics": "metrics.json", "log_every": 20},
        **options,
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(tree))
    flags = ["--workers", str(WORKERS)] if "backend" in options else ["-n", str(WORKERS)]
    command = [sys.executable, "-m", "ringfeed.tools.cli", "launch", *flags, "train", "--config", "run.yaml"]
    has_ended = threading.Event()
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        thread, lines = None, []
        for line in process.stderr or []:
            lines.append(line)
            if is_throttled and thread is None and line.startswith("epoch 0  step"):
                thread = threading.Thread(target=_throttle, args=(_slow_workers(process), has_ended))
                thread.start()
        has_ended.set()
        if thread is not None:
            thread.join()
    if process.returncode:
        raise SystemExit("".join(lines))
    if is_throttled and thread is None:
        raise SystemExit("the run logged no step, so no worker was throttled")
    metrics = json.loads((folder / "metrics.json").read_text())
    entries = metrics["history"]["steps"][1:]  # the first has compilations
    samples = sum(entry["samples_per_second"] * entry["seconds"] for entry in entries)
    return {
        "accuracy": metrics["final"]["accuracy"],
        "rate": samples / sum(entry["seconds"] for entry in entries),
        "staleness": metrics.get("staleness", {}).get("mean", 0.0),
    }


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """The throughput beside a slow worker, over that without one, of each method."""
    if not FOLDER.exists():
        raise SystemExit(f"{FOLDER} is missing: apt-get install dataset-fashion-mnist")
    url = _dataset(folder)
    lines: list[tuple[str, list[float], float]] = []
    print("  method: accuracy, samples/s, both with one slow worker and without, staleness with it", flush=True)
    for name, options in METHODS.items():
        slow = [train(folder, url, options, seed, is_throttled=True) for seed in range(SEEDS)]
        fast = [train(folder, url, options, seed, is_throttled=False) for seed in range(SEEDS)]
        means = [
            statistics.fmean(found[key] for found in runs) for runs in (slow, fast) for key in ("accuracy", "rate")
        ]
        staleness = statistics.fmean(found["staleness"] for found in slow)
        shown = f"{100 * means[0]:.2f} % {means[1]:,.0f}/s; {100 * means[2]:.2f} % {means[3]:,.0f}/s; {staleness:.2f}"
        print(f"  {name}: {shown}", flush=True)
        lines.append((f"{name}: throughput beside a slow worker", [means[1] / means[3]], 0.25))
    return lines

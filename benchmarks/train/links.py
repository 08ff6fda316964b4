"""What training costs over links of 100 and 10 Mbit/s, by method: hosts in namespaces of this machine.

`run` measures steps: the network of the benchmark `synchronisation`, but random inputs, since only time counts. The
second half of the steps is measured: the bytes that a rank receives, and the mean time over whole rounds. `tc`'s token
bucket limits a link. `run_to_accuracy` trains on Fashion-MNIST until an accuracy is reached.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from ringfeed.sharding import build
from train.synchronisation import EPOCHS, FOLDER, METHODS, NESTEROV

LINKS = (None, "100mbit", "10mbit")
STEPS, BATCH, SERVER_STEPS = 32, 512, 16
ONE_RANK = ("none", "fp16", "powersgd 2", "top_k 1 %", "qsgd", "local_sgd, 8", "diloco, 8")
TWO_RANKS: dict[str, dict[str, Any]] = {
    "none, 2 ranks a host": {},
    "hierarchical, 2 ranks a host": {"sync": {"hierarchical": True}},
}
SERVERS = {f"server on a third host, {mode}": mode for mode in ("sync", "async")}
GOAL = 0.85  # accuracy, of the 0.87 that dense training reaches
TO_ACCURACY: dict[str, dict[str, Any]] = {
    "none": NESTEROV,
    "fp16": {"compression": {"method": "fp16"}, **NESTEROV},
    "top_k 1 %": {"compression": {"method": "top_k"}, **NESTEROV},
    "powersgd 2": {"compression": {"method": "powersgd", "rank": 2}, **NESTEROV},
    "powersgd 2, from the first step": {"compression": {"method": "powersgd", "rank": 2, "start_step": 0}, **NESTEROV},
    "local_sgd, 8": {"sync": {"method": "local_sgd"}, **NESTEROV},
    "diloco, 8, momentum 0.5": METHODS["diloco, 8, momentum 0.5"],
}
_PROGRAM = Path(__file__).parents[1] / "parts" / "synchronisation_ranks.py"
_CLI = [sys.executable, "-m", "ringfeed.tools.cli"]


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """How many times faster than dense steps each method's are, over each link."""
    found: dict[str | None, dict[str, dict[str, Any]]] = {}
    with hosts(folder, 3) as running:
        pixels, classes = _write_images(running.shared)
        table = pa.table({"pixels": pa.FixedSizeListArray.from_arrays(pa.array(pixels.ravel()), 784), "label": classes})
        build(source=table, destination=str(running.shared / "data"), label="label")
        first = running.hosts[0]
        one_rank = {name: _from_the_start(METHODS[name]) for name in ONE_RANK}
        for rate in LINKS:
            for host in running.hosts if rate else []:
                host.limit(str(rate))
            found[rate] = trained(first, "h1:1,h2:1", one_rank, "/mnt", 1, 1)
            for name, options in TWO_RANKS.items():
                found[rate] |= trained(first, "h1:2,h2:2", {name: options}, "/mnt", 1, 1)
            found[rate] |= {name: _on_servers(running, mode) for name, mode in SERVERS.items()}
    lines: list[tuple[str, list[float], float]] = []
    print("  method: bytes per step, the same on the link, ms without a limit, over 100 and 10 Mbit/s", flush=True)
    for name in found[None]:
        times = [found[rate][name]["mean_milliseconds"] for rate in LINKS]
        sent, on_link = (found[LINKS[-1]][name][key] for key in ("bytes", "link_bytes"))
        print(f"  {name}: {sent:,.0f} B, {on_link:,.0f} B, {', '.join(f'{time:.1f}' for time in times)}", flush=True)
        dense = "none, 2 ranks a host" if name in TWO_RANKS else "none"
        for rate, time in zip(LINKS[1:], times[1:], strict=True):
            if name != dense:
                lines.append((f"{name} over {rate}: steps", [found[rate][dense]["mean_milliseconds"] / time], 1.0))
    return lines


def run_to_accuracy(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """How many times sooner than dense training each method reaches an accuracy over 100 Mbit/s."""
    if not FOLDER.exists():
        raise SystemExit(f"{FOLDER} is missing: apt-get install dataset-fashion-mnist")
    with hosts(folder, 2) as running:
        for host in running.hosts:
            host.limit("100mbit")
        found = trained(running.hosts[0], "h1:1,h2:1", TO_ACCURACY, str(FOLDER), 1, EPOCHS, GOAL)
    lines = []
    print(f"  method: steps and seconds to an accuracy of {GOAL}, or to the end; the accuracy then", flush=True)
    for name, result in found.items():
        print(f"  {name}: {result['steps']}, {result['seconds']:.1f} s, {result['accuracy']:.4f}", flush=True)
        if name != "none":
            lines.append((f"{name}: sooner than dense", [found["none"]["seconds"] / result["seconds"]], 1.0))
    return lines


@contextmanager
def hosts(folder: Path, count: int) -> Iterator[Any]:
    """A lab of hosts."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.servers.lab import lab, missing

    if reason := missing():
        raise SystemExit(reason)
    with lab(folder / "lab", count) as running:
        yield running


def _from_the_start(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a method without its dense steps at the start."""
    compression = options.get("compression")
    starts = compression is not None and compression["method"] in ("top_k", "powersgd")
    return {**options, "compression": {**compression, "start_step": 0}} if starts and compression else options


def _write_images(folder: Path) -> tuple[Any, Any]:
    """Write random images as files of Fashion-MNIST; return the training pixels, float32 in [0, 1], and classes."""
    random = np.random.default_rng(0)
    for part, count in (("t10k", BATCH), ("train", STEPS * BATCH)):
        pixels, classes = (random.integers(0, high, (count, width)) for high, width in ((256, 784), (10, 1)))
        for name, head, values in (("images-idx3", 16, pixels), ("labels-idx1", 8, classes)):
            data = bytes(head) + values.astype(np.uint8).tobytes()
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(data, 1))
    return pixels.astype(np.float32) / 255, classes[:, 0]


def trained(host: Any, places: str, methods: Mapping[str, Any], *plan: Any) -> dict[str, dict[str, Any]]:
    """What `parts/synchronisation_ranks.py` prints of each method, on ranks that a host starts on others."""
    path = Path(host.folder) / "shared" / "methods.json"
    path.write_text(json.dumps([methods, *plan]))
    count = sum(int(place.split(":")[1]) for place in places.split(","))
    launcher = str(Path(sys.executable).parent / "horovodrun")
    words = [launcher, "-np", str(count), "-H", places, "--gloo", sys.executable, str(_PROGRAM), path.name]
    output = output_of(host.start(words, environment()))
    results = [json.loads(line[line.index("{") :]) for line in output.splitlines() if "{" in line]
    return {result["method"]: result for result in results}


def _on_servers(running: Any, mode: str) -> dict[str, Any]:
    """What the steps of two workers take, whose server and chief are on a third host."""
    first, second, third = running.hosts
    tasks = {"chief": ["h3:2222"], "ps": ["h3:2223"], "worker": ["h1:2222", "h2:2222"]}
    tree = {
        "data": {"url": "data", "batch_size": BATCH, "eval_split": None},
        "model": {"name": "tabular", "hidden": [512, 256]},
        "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9},
        "backend": "parameter_server",
        "parameter_server": {"mode": mode},
        "max_steps": SERVER_STEPS,
        "output": {"metrics": "metrics.json", "log_every": SERVER_STEPS // 4},
    }
    (running.shared / "run.yaml").write_text(yaml.safe_dump(tree))
    before, started = first.received_bytes(), []
    for kind, index, host in (("ps", 0, third), ("worker", 0, first), ("worker", 1, second), ("chief", 0, third)):
        place = {"TF_CONFIG": json.dumps({"cluster": tasks, "task": {"type": kind, "index": index}})}
        started.append(host.start([*_CLI, "train", "--config", "run.yaml", "--quiet"], environment() | place))
    for process in reversed(started):
        output_of(process)
    steps = json.loads((running.shared / "metrics.json").read_text())["history"]["steps"][1:]
    received = (first.received_bytes() - before) / SERVER_STEPS
    seconds = sum(each["seconds"] for each in steps)
    samples = sum(each["samples_per_second"] * each["seconds"] for each in steps)
    return {"mean_milliseconds": 1000 * seconds * BATCH / samples, "bytes": received, "link_bytes": received}


def environment() -> dict[str, str]:
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}


def output_of(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args} ended with status {process.returncode}: {errors[-2000:]}")
    return output

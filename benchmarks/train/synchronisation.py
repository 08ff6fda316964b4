"""Methods of synchronisation on Fashion-MNIST: bytes on the wire, time of a step, accuracy beside the dense run.

It reads the dataset from the Debian package `dataset-fashion-mnist`. Bytes, which a rank receives, and times are
those of the second half of the steps, after warm-ups. The time of a step, without the slowest tenth, is that of an idle
machine only; the time of the CPU is that of rank 0, and counts on a busy one, too.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path("/usr/share/datasets/fashion-mnist")
SEEDS, EPOCHS = 3, 4
ADAM = {"optimizer": {"name": "adam", "learning_rate": 0.001}}
ADAMW = {"optimizer": {"name": "adamw", "learning_rate": 0.001}}
LONG = {"epochs": 12}
HALF = {"optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9}}
PLAIN = {"optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.0}}  # a tenth of the effective rate
NESTEROV = {"optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "nesterov": True}}
FAST = {"optimizer": {"name": "sgd", "learning_rate": 0.2, "momentum": 0.9, "nesterov": True}}
METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "fp16": {"compression": {"method": "fp16"}},
    "bf16": {"compression": {"method": "bf16"}},
    "top_k 1 %": {"compression": {"method": "top_k"}},
    "dgc 1 %": {"compression": {"method": "dgc", "ratio": 0.01}},
    "dgc 0.1 %": {"compression": {"method": "dgc"}},
    "powersgd 2": {"compression": {"method": "powersgd", "rank": 2}},
    "qsgd": {"compression": {"method": "qsgd"}},
    "terngrad": {"compression": {"method": "terngrad"}},
    "onebit": {"compression": {"method": "onebit"}},
    "local_sgd, 8": {"sync": {"method": "local_sgd"}},
    "gossip, 8": {"sync": {"method": "gossip"}},
    "diloco, 8": {"sync": {"method": "diloco"}},
    "diloco, 8, momentum 0.5": {"sync": {"method": "diloco", "outer_momentum": 0.5}},
    "none, rate 0.05": HALF,
    "onebit, rate 0.05": {"compression": {"method": "onebit"}, **HALF},
    "none, nesterov": NESTEROV,
    "top_k 1 %, nesterov": {"compression": {"method": "top_k"}, **NESTEROV},
    "powersgd 2, nesterov": {"compression": {"method": "powersgd", "rank": 2}, **NESTEROV},
    "onebit, nesterov": {"compression": {"method": "onebit"}, **NESTEROV},
    "none, nesterov, rate 0.2": FAST,
    "dgc 0.1 %, nesterov, rate 0.2": {"compression": {"method": "dgc"}, **FAST},
    "none, no momentum": PLAIN,
    "powersgd 2, no momentum": {"compression": {"method": "powersgd", "rank": 2}, **PLAIN},
    "onebit, no momentum": {"compression": {"method": "onebit"}, **PLAIN},
    "none, adamw": ADAMW,
    "diloco, 8, adamw": {"sync": {"method": "diloco"}, **ADAMW},
    "none, adam": ADAM,
    "onebit, adam": {"compression": {"method": "onebit"}, **ADAM},
    "none, 12 epochs": LONG,
    "top_k 1 %, 12 epochs": {"compression": {"method": "top_k"}, **LONG},
    "dgc 1 %, 12 epochs": {"compression": {"method": "dgc", "ratio": 0.01}, **LONG},
    "dgc 0.1 %, 12 epochs": {"compression": {"method": "dgc"}, **LONG},
    "powersgd 2, 12 epochs": {"compression": {"method": "powersgd", "rank": 2}, **LONG},
    "onebit, 12 epochs": {"compression": {"method": "onebit"}, **LONG},
}
_FEWER = {"powersgd 2, nesterov": 50, "dgc 0.1 %, nesterov, rate 0.2": 200, "local_sgd, 8": 8}
_POINTS = 0.5


def dense_run(name: str) -> str:
    """The name of the run that differs from one in nothing but its synchronisation."""
    others = {key: value for key, value in METHODS[name].items() if key not in ("compression", "sync")}
    return next(dense for dense, options in METHODS.items() if options == others)


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """How many times fewer bytes a method needs than the dense ring, and 0.5 points over the accuracy that it loses."""
    if not FOLDER.exists():
        raise SystemExit(f"{FOLDER} is missing: apt-get install dataset-fashion-mnist")
    results = measure(folder, ranks=2)
    lines: list[tuple[str, list[float], float]] = []
    print("  method: accuracy, points beside dense, bytes per step, times fewer, ms per step, of the CPU", flush=True)
    for name, found in results.items():
        dense = results[dense_run(name)]
        accuracy = 100 * statistics.fmean(r["accuracy"] for r in found)
        points = [100 * (a["accuracy"] - b["accuracy"]) for a, b in zip(found, dense, strict=True)]
        fewer = dense[0]["bytes"] / found[0]["bytes"]
        step, cpu = (statistics.median(r[key] for r in found) for key in ("milliseconds", "cpu_milliseconds"))
        shown = f"{accuracy:.2f} %, {statistics.fmean(points):+.2f}, {found[0]['bytes']:,.0f} B, {fewer:.1f} x"
        print(f"  {name}: {shown}, {step:.1f} ms, {cpu:.1f} ms", flush=True)
        if name in _FEWER:
            lines.append((f"{name}: bytes of the dense ring over its own", [fewer], _FEWER[name]))
            lines.append((f"{name}: points of accuracy beside dense", [statistics.fmean(points)], -_POINTS))
    return lines


def measure(folder: Path, ranks: int) -> dict[str, list[dict[str, Any]]]:
    """The results of all methods, a list over seeds for each."""
    plan = folder / "methods.json"
    plan.write_text(json.dumps([METHODS, str(FOLDER), SEEDS, EPOCHS]))
    launcher = str(Path(sys.executable).parent / "horovodrun")
    program = str(Path(__file__).parents[1] / "parts" / "synchronisation_ranks.py")
    command = [launcher, "-np", str(ranks), "--gloo", sys.executable, program, str(plan)]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        for line in process.stdout or []:
            if "{" in line:
                result = json.loads(line[line.index("{") :])
                results[result["method"]].append(result)
                print(f"  {result}", flush=True)
    if process.returncode:
        raise SystemExit(f"the ranks ended with status {process.returncode}")
    return results

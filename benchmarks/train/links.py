"""What a step costs over links of 100 and 10 Mbit/s, by method: two hosts in namespaces of this machine, one rank each.

The benchmark `synchronisation` trains the same network; here its inputs are random, since only time counts. The second
half of the steps is measured: the bytes that a rank receives, and the mean time over whole rounds. `tc`'s token bucket
limits a link.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from train.synchronisation import METHODS

LINKS = (None, "100mbit", "10mbit")
STEPS, BATCH = 32, 512
NAMES = ("none", "fp16", "powersgd 2", "top_k 1 %", "qsgd", "local_sgd, 8", "diloco, 8")
_PROGRAM = Path(__file__).parents[1] / "parts" / "synchronisation_ranks.py"


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """How many times faster than dense steps each method's are, over each link."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.servers.lab import lab, missing

    if reason := missing():
        raise SystemExit(reason)
    with lab(folder / "lab", 2) as running:
        _write_images(running.shared)
        plan = {name: _from_the_start(METHODS[name]) for name in NAMES}
        (running.shared / "methods.json").write_text(json.dumps([plan, "/mnt", 1, 1]))
        found: dict[str | None, dict[str, dict[str, Any]]] = {}
        for rate in LINKS:
            for host in running.hosts if rate else []:
                host.limit(str(rate))
            found[rate] = _steps(running.hosts[0])
    lines: list[tuple[str, list[float], float]] = []
    print("  method: bytes per step, the same on the link, ms without a limit, over 100 and 10 Mbit/s", flush=True)
    for name in NAMES:
        times = [found[rate][name]["mean_milliseconds"] for rate in LINKS]
        sent, on_link = (found[LINKS[-1]][name][key] for key in ("bytes", "link_bytes"))
        print(f"  {name}: {sent:,.0f} B, {on_link:,.0f} B, {', '.join(f'{time:.1f}' for time in times)}", flush=True)
        for rate, time in zip(LINKS[1:], times[1:], strict=True):
            if name != "none":
                lines.append((f"{name} over {rate}: steps", [found[rate]["none"]["mean_milliseconds"] / time], 1.0))
    return lines


def _from_the_start(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a method without its dense steps at the start."""
    compression = options.get("compression")
    starts = compression is not None and compression["method"] in ("top_k", "powersgd")
    return {**options, "compression": {**compression, "start_step": 0}} if starts and compression else options


def _write_images(folder: Path) -> None:
    random = np.random.default_rng(0)
    for part, count in (("train", STEPS * BATCH), ("t10k", BATCH)):
        pixels, classes = (random.integers(0, high, (count, width)) for high, width in ((256, 784), (10, 1)))
        for name, head, values in (("images-idx3", 16, pixels), ("labels-idx1", 8, classes)):
            data = bytes(head) + values.astype(np.uint8).tobytes()
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(data, 1))


def _steps(host: Any) -> dict[str, dict[str, Any]]:
    """What the steps of each method took, by two ranks on two hosts."""
    launcher = str(Path(sys.executable).parent / "horovodrun")
    words = [launcher, "-np", "2", "-H", "h1:1,h2:1", "--gloo", sys.executable, str(_PROGRAM), "methods.json"]
    process = host.start(words, {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    output, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"the ranks ended with status {process.returncode}: {errors[-2000:]}")
    results = [json.loads(line[line.index("{") :]) for line in output.splitlines() if "{" in line]
    return {result["method"]: result for result in results}

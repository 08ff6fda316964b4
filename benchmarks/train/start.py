"""The CPU time from the start of `ringfeed train` to the end of its first step, beside `import tensorflow` alone.

The whole process counts, with its end. The data and the network are those of `step-cost`.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from ringfeed.training.config.config_file import to_tree

from .step_cost import HIDDEN, configuration, write_dataset


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """The CPU time of the import over that of a run of one step, measured in turn."""
    config = replace(configuration(write_dataset(folder), "adam", HIDDEN["two layers"]), max_steps=1)
    file = folder / "start.yaml"
    file.write_text(json.dumps(to_tree(config)))
    commands = {
        "import tensorflow": [sys.executable, "-c", "import tensorflow"],
        "ringfeed train": [str(Path(sys.executable).parent / "ringfeed"), "train", "--config", str(file)],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            seconds[name].append(_cpu_seconds(command))
    for name, found in seconds.items():
        print(f"  {name}: {np.median(found):.2f} s of CPU", flush=True)
    ratios = [alone / start for alone, start in zip(*seconds.values(), strict=True)]
    return [("import tensorflow / start of ringfeed train and its first step", ratios, 0.0)]


def _cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

"""Runs on the hosts of a lab: their dataset and configuration, and what each rank has seen in each step."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ringfeed.sharding import BuildOptions, build
from ringfeed.training.checkpoint.store import CheckpointStore
from tests.helpers.lean import lean_environment
from tests.helpers.noting_network import NETWORK
from tests.servers.lab import Lab, lab

RECORDS, BATCH, EPOCHS = 240, 12, 3
STEPS = EPOCHS * RECORDS // BATCH
LOST_SECONDS = 6.0
CLI = [sys.executable, "-m", "ringfeed.tools.cli"]

NOTE = """
import os, time, keras, tensorflow as tf

def note(step, ids):
    with open(f"seen-{os.uname().nodename}-{os.getpid()}", "a") as file:
        words = [time.monotonic(), os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"], step, ids.tolist()]
        print(*words, file=file)
    time.sleep(float(os.environ.get("PAUSE", 0)) / 100)
    return ids
"""


@contextmanager
def training_lab(directory: Path, count: int) -> Iterator[Lab]:
    """Run hosts whose shared folder has a dataset, and a configuration of a network that notes what it sees."""
    with lab(directory, count) as running:
        folder = running.shared
        values = [row / RECORDS for row in range(RECORDS)]
        table = pa.table({"id": range(RECORDS), "value": values, "label": ["a", "b"] * (RECORDS // 2)})
        pq.write_table(table, folder / "source.parquet")
        build(BuildOptions(source=str(folder / "source.parquet"), destination=str(folder / "data"), label="label"))
        (folder / "networks.py").write_text(NOTE + NETWORK)
        tree = {
            "data": {"url": "data", "batch_size": BATCH, "eval_split": None},
            "model": {"name": "networks:network"},
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "checkpoint": {"every_steps": 5, "keep": 1000},
            "epochs": EPOCHS,
            "lost_seconds": LOST_SECONDS,
        }
        (folder / "run.yaml").write_text(yaml.safe_dump(tree))
        yield running


class Seen(NamedTuple):
    """What one rank has seen in one step."""

    when: float
    host: str
    rank: int
    size: int
    step: int
    ids: list[int]


class HostRun:
    """A run that the first host launches, by `ringfeed launch` unless another command is given."""

    def __init__(self, running: Lab, name: str, *flags: str, command: Sequence[str] = (), **environ: str) -> None:
        self.lab, self.name = running, name
        for seen in running.shared.glob("seen-*"):
            seen.unlink()
        command = command or [*CLI, "launch", *flags, "train", "--config", "run.yaml"]
        words = [*command, "--set", f"checkpoint.url={name}"]
        self.process = running.hosts[0].start(words, lean_environment(environ))

    def seen(self) -> list[Seen]:
        """Return what ranks have seen in steps, in the order of time, which the hosts share."""
        found = []
        for path in self.lab.shared.glob("seen-*"):
            for line in path.read_text().splitlines():
                when, rank, size, step, ids = line.split(" ", 4)
                host = path.name.split("-")[1]
                found.append(Seen(float(when), host, int(rank), int(size), int(step), json.loads(ids)))
        return sorted(found)

    def wait_for(self, is_there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 280
        while not is_there():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "it still runs"
            time.sleep(0.05)

    def wait_for_step(self, step: int) -> None:
        self.wait_for(lambda: any(seen.step >= step for seen in self.seen()))

    def launcher(self) -> psutil.Process:
        """Return the launcher, which is a child of what has entered the host."""
        child, *_ = psutil.Process(self.process.pid).children()
        return child

    def end(self) -> tuple[int, str]:
        _, stderr = self.process.communicate(timeout=280)
        assert "Traceback" not in stderr
        return self.process.returncode, stderr

    def assert_whole(self) -> None:
        """Check that each sample counts once an epoch: in the last attempt at each step."""
        attempts = [[seen for seen in self.seen() if seen.step == step] for step in range(STEPS)]
        kept = [seen[-seen[-1].size :] for seen in attempts]
        assert all(sorted(seen.rank for seen in last) == list(range(last[0].size)) for last in kept)
        for start in range(0, STEPS, RECORDS // BATCH):
            last = [seen for step in kept[start : start + RECORDS // BATCH] for seen in step]
            assert Counter(number for seen in last for number in seen.ids) == Counter(range(RECORDS))

    def weights(self) -> dict[str, Any]:
        """Return what the newest checkpoint holds, which must be that of the last step."""
        newest = CheckpointStore(str(self.lab.shared / self.name)).newest()
        assert newest is not None
        assert newest.step == STEPS
        return {name: np.asarray(array) for name, array in newest.arrays.items() if name.startswith("weights")}

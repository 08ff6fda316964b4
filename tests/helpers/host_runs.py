"""Runs on the hosts of a lab: their dataset and configuration, and what each rank has seen in each step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
from tests.servers.lab import Host, Lab, lab

RECORDS, BATCH, EPOCHS = 240, 12, 3
EPOCH_STEPS = RECORDS // BATCH
STEPS = EPOCHS * EPOCH_STEPS
LOST_SECONDS = 6.0
CLI = [sys.executable, "-m", "ringfeed.tools.cli"]
SHARD_DATASET = str(Path(sys.executable).with_name("shard-dataset"))
PATHS = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]))

STORE = """
import sys, signal, pathlib, json
from tests.servers.seaweedfs import seaweedfs
with seaweedfs(pathlib.Path("/mnt/store"), sys.argv[1]) as server:
    server.make_bucket("bucket")
    print(json.dumps(server.env), flush=True)
    signal.pause()
"""

NOTE = """
import os, time, keras, tensorflow as tf

def note(step, ids):
    with open(f"seen-{os.uname().nodename}-{os.getpid()}", "a") as file:
        place = [os.environ[f"HOROVOD_{name}"] for name in ("RANK", "SIZE", "GLOO_RENDEZVOUS_PORT")]
        print(time.monotonic(), *place, step, ids.tolist(), file=file)
    time.sleep(float(open("pause").read()))
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


def run_on(host: Host, *words: str, **environ: str) -> str:
    """Return what a command on a host prints; the tests' own modules can be imported there."""
    process = host.start(words, lean_environment({"PYTHONPATH": PATHS, **environ}))
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return output


@contextmanager
def background(host: Host, words: Sequence[str], **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command on a host during the body."""
    with host.start(words, lean_environment({"PYTHONPATH": PATHS, **environ})) as entered:
        try:
            yield entered
        finally:
            for process in psutil.Process(entered.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    process.kill()


@contextmanager
def store_on(host: Host) -> Iterator[dict[str, str]]:
    """Run an S3 server with `s3://bucket` on a host; yield the environment to reach it."""
    with background(host, [sys.executable, "-c", STORE, host.address]) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line, server.communicate()
        yield json.loads(line)


class Seen(NamedTuple):
    """What one rank has seen in one step; each ring has a port of its own."""

    when: float
    host: str
    rank: int
    size: int
    ring: int
    step: int
    ids: list[int]


class HostRun:
    """A run that a host launches, the first by default, by `ringfeed launch` unless another command is given.

    Args:
        resumes: whether it goes on with an earlier one, to whose samples it adds its own.
        pause_seconds: time that each rank waits in each step.
    """

    def __init__(
        self,
        running: Lab,
        name: str,
        *flags: str,
        command: Sequence[str] = (),
        launcher: int = 0,
        resumes: bool = False,
        pause_seconds: float = 0.0,
        **environ: str,
    ) -> None:
        self.lab, self.name = running, name
        for seen in [] if resumes else running.shared.glob("seen-*"):
            seen.unlink()
        self.pause(pause_seconds)
        command = command or [*CLI, "launch", *flags, "train", "--config", "run.yaml"]
        words = [*command, "--set", f"checkpoint.url={name}"]
        self.process = running.hosts[launcher].start(words, lean_environment(environ))
        self._seen: list[Seen] = []
        self._read: Counter[Path] = Counter()  # bytes of each file

    def pause(self, seconds: float) -> None:
        """Let ranks wait that long in each step from now on."""
        (self.lab.shared / "pause-next").write_text(str(seconds))
        (self.lab.shared / "pause-next").rename(self.lab.shared / "pause")

    def seen(self) -> list[Seen]:
        """Return what ranks have seen in steps, in the order of time, which the hosts share."""
        for path in self.lab.shared.glob("seen-*"):
            with path.open("rb") as file:
                file.seek(self._read[path])
                lines = [line for line in file if line.endswith(b"\n")]
            self._read[path] += sum(map(len, lines))
            for line in lines:
                when, *numbers, ids = line.split(b" ", 5)
                rank, size, ring, step = map(int, numbers)
                self._seen.append(Seen(float(when), path.name.split("-")[1], rank, size, ring, step, json.loads(ids)))
        self._seen.sort()
        return self._seen

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

    def assert_whole(self, steps: int = STEPS) -> None:
        """Check that each sample counts once an epoch: in the last ring that has tried each step."""
        attempts: dict[int, dict[int, list[Seen]]] = {step: {} for step in range(steps)}
        seen = [seen for seen in self.seen() if seen.step < steps]
        rings = list(dict.fromkeys(each.ring for each in seen))
        for each in seen:
            attempts[each.step].setdefault(each.ring, []).append(each)
        kept = [tried[max(tried, key=rings.index)] for _, tried in sorted(attempts.items())]
        assert all(sorted(each.rank for each in last) == list(range(last[0].size)) for last in kept)
        for start in range(0, steps - EPOCH_STEPS + 1, EPOCH_STEPS):
            last = [each for step in kept[start : start + EPOCH_STEPS] for each in step]
            assert Counter(number for each in last for number in each.ids) == Counter(range(RECORDS))

    def weights(self) -> dict[str, Any]:
        """Return what the newest checkpoint holds, which must be that of the last step."""
        newest = CheckpointStore(str(self.lab.shared / self.name)).newest()
        assert newest is not None
        assert newest.step == STEPS
        return {name: np.asarray(array) for name, array in newest.arrays.items() if name.startswith("weights")}

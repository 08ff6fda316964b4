"""`ringfeed launch -H` on hosts that can be lost: real ssh, real ranks, one line that names host, rank and cause."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ringfeed.sharding import BuildOptions, build
from ringfeed.training.checkpoint.store import CheckpointStore
from tests.helpers.lean import lean_environment
from tests.servers.lab import Host, Lab, lab, missing

pytest.importorskip("horovod", reason="Horovod is built by: make setup")
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "")

RECORDS, BATCH, EPOCHS = 240, 12, 3
STEPS = EPOCHS * RECORDS // BATCH
LOST_SECONDS = 6.0
CLI = [sys.executable, "-m", "ringfeed.tools.cli"]

NETWORK = """
import os, time, keras, tensorflow as tf

def note(step, ids):
    with open(f"seen-{os.uname().nodename}-{os.getpid()}", "a") as file:
        words = [time.monotonic(), os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"], step, ids.tolist()]
        print(*words, file=file)
    time.sleep(float(os.environ.get("PAUSE", 0)) / 100)
    return ids

class Note(keras.layers.Layer):
    def build(self, shape):
        self.steps = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False)
    def call(self, ids, training=False):
        seen = tf.numpy_function(note, [self.steps.value, ids], tf.int64)
        with tf.control_dependencies([seen]):
            self.steps.assign_add(1)
        return tf.cast(tf.ensure_shape(seen, [None]), tf.float32) * 0.0
    def compute_output_spec(self, ids, training=False): return keras.KerasTensor((None,))

def network(manifest, config):
    ids, value = keras.Input((), dtype="int64", name="id"), keras.Input((), dtype="float32", name="value")
    both = keras.ops.expand_dims(value + Note()(ids), 1)
    return keras.Model({"id": ids, "value": value}, keras.layers.Dense(2)(both))
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("lab"), 3) as running:
        folder = running.shared
        values = [row / RECORDS for row in range(RECORDS)]
        table = pa.table({"id": range(RECORDS), "value": values, "label": ["a", "b"] * (RECORDS // 2)})
        pq.write_table(table, folder / "source.parquet")
        build(BuildOptions(source=str(folder / "source.parquet"), destination=str(folder / "data"), label="label"))
        (folder / "networks.py").write_text(NETWORK)
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


class Run:
    """A run that the first host launches."""

    def __init__(self, running: Lab, name: str, *flags: str, **environ: str) -> None:
        self.lab, self.name = running, name
        for seen in running.shared.glob("seen-*"):
            seen.unlink()
        words = [*CLI, "launch", *flags, "train", "--config", "run.yaml", "--set", f"checkpoint.url={name}"]
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


@pytest.fixture(scope="module")
def undisturbed(hosts: Lab) -> dict[str, Any]:
    """The weights of a run to which nothing happens."""
    run = Run(hosts, "undisturbed", "-H", "h1:1,h2:2", SECRET="planted")
    run.wait_for_step(1)
    for host in hosts.hosts:
        assert "planted" not in " ".join(host.processes().values())
    assert {(seen.host, seen.rank) for seen in run.seen()} == {("h1", 0), ("h2", 1), ("h2", 2)}
    status, stderr = run.end()
    assert status == 0, stderr
    run.assert_whole()
    return run.weights()


LOSSES: dict[str, Callable[[Host], None]] = {
    "cut": Host.cut,
    "stopped": Host.pause,
    "deaf": Host.drop_sent,
    "off": Host.power_off,
}


@pytest.mark.parametrize(
    "loss", [pytest.param(name, marks=() if name == "cut" else pytest.mark.campaign) for name in LOSSES]
)
def test_the_others_go_on_from_the_last_commit_without_a_host_that_says_nothing(
    hosts: Lab, undisturbed: dict[str, Any], loss: str
) -> None:
    run = Run(hosts, loss, "-H", "h1:1,h2:1,h3:1", "--elastic", PAUSE="20")
    run.wait_for_step(7)
    LOSSES[loss](hosts.hosts[2])
    start = time.monotonic()
    run.wait_for(lambda: any(seen.size == 2 for seen in run.seen()))
    assert time.monotonic() - start < LOST_SECONDS + 10
    if loss != "off":
        hosts.hosts[2].heal()
        hosts.hosts[2].limit("1gbit")
        hosts.hosts[2].proceed()
    status, stderr = run.end()
    assert status == 0, stderr
    assert re.search("ringfeed launch: rank 2 on h3(:| does not).* answer.*; starting none instead\n", stderr)
    run.assert_whole()
    for name, array in undisturbed.items():
        np.testing.assert_allclose(run.weights()[name], array, rtol=1e-5, atol=1e-7)


@pytest.mark.campaign
def test_a_rank_that_dies_is_named_with_its_host_and_all_end(hosts: Lab) -> None:
    run = Run(hosts, "killed", "-H", "h1:1,h2:1", PAUSE="20")
    run.wait_for_step(1)
    (rank,) = [pid for pid, line in hosts.hosts[1].processes().items() if "tools.cli train" in line]
    os.kill(rank, signal.SIGKILL)
    line = "rank 1 on h2 was killed by SIGKILL (as the kernel does when memory runs out)"
    status, stderr = run.end()
    assert (status, stderr.splitlines()[-1]) == (1, f"ringfeed launch: error: {line}")
    _wait_until_no_rank_runs(hosts)


def test_the_ranks_end_with_a_launcher_that_is_killed_and_save_when_it_is_asked_to_end(hosts: Lab) -> None:
    run = Run(hosts, "asked", "-H", "h1:1,h2:1", PAUSE="20")
    run.wait_for_step(6)
    run.launcher().terminate()
    status, stderr = run.end()
    assert status == 75, stderr
    assert "stopped by SIGTERM; the checkpoint of step " in stderr.splitlines()[-1]
    again = Run(hosts, "asked", "-H", "h1:1,h2:1", PAUSE="20")
    again.wait_for_step(8)
    assert min(seen.step for seen in again.seen()) > 5
    again.launcher().kill()
    again.process.communicate(timeout=60)
    _wait_until_no_rank_runs(hosts)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ("h1:1,10.78.0.1:1", "host 10.78.0.1: Network is unreachable"),
        ("h1:1,root@h2:1", "rank 1 on root@h2: /tmp/only-here: No such file or directory"),
        ("h1:1:2", "-H: needs each host once, as HOST or HOST:RANKS, got 'h1:1:2'"),
    ],
)
def test_what_cannot_start_is_one_line(hosts: Lab, names: str, line: str) -> None:
    words = [*CLI, "launch", "-H", names, "bench-ring"]
    command = f"mkdir -p /tmp/only-here && cd /tmp/only-here && exec {' '.join(words)}"
    process = hosts.hosts[0].start(["sh", "-c", command], lean_environment())
    _, stderr = process.communicate(timeout=120)
    assert (process.returncode, stderr.count("\n")) == (1, 1)
    assert stderr.endswith(f"error: {line}\n")


def _wait_until_no_rank_runs(hosts: Lab) -> None:
    deadline = time.monotonic() + 60
    while any("ringfeed" in line for host in hosts.hosts for line in host.processes().values()):
        assert time.monotonic() < deadline
        time.sleep(0.1)

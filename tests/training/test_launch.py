"""`ringfeed launch` as users run it: real ranks, real deaths, one line at the end, and no sample lost or repeated."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ringfeed.sharding import BuildOptions, build
from ringfeed.tools.cli import main
from tests.helpers.checkpoints import saved_steps
from tests.helpers.lean import lean_environment

pytest.importorskip("horovod", reason="Horovod is built by: make setup")

RECORDS, BATCH, EVERY = 240, 12, 5
STEPS = RECORDS // BATCH

NETWORK = """
import os, time, keras, numpy as np, tensorflow as tf

def note(ids):
    with open(f"seen-{os.getpid()}", "a") as file:
        file.write(" ".join(map(str, ids.tolist())) + "\\n")
    if os.environ["HOROVOD_RANK"] == os.environ.get("STALLS") and os.path.exists("stall"):
        time.sleep(1000)  # line 8
    return ids

class Note(keras.layers.Layer):
    def call(self, ids, training=False):
        return tf.cast(tf.ensure_shape(tf.numpy_function(note, [ids], tf.int64), [None]), tf.float32) * 0.0
    def compute_output_spec(self, ids, training=False): return keras.KerasTensor((None,))

def network(manifest, config):
    ids, value = keras.Input((), dtype="int64", name="id"), keras.Input((), dtype="float32", name="value")
    both = keras.ops.expand_dims(value + Note()(ids), 1)
    return keras.Model({"id": ids, "value": value}, keras.layers.Dense(2)(both))
"""


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A folder with a configuration whose network logs the ids of the samples that each process has seen."""
    table = pa.table(
        {"id": range(RECORDS), "value": [row / RECORDS for row in range(RECORDS)], "label": ["a", "b"] * 120}
    )
    pq.write_table(table, tmp_path / "source.parquet")
    build(BuildOptions(source=str(tmp_path / "source.parquet"), destination=str(tmp_path / "data"), label="label"))
    (tmp_path / "networks.py").write_text(NETWORK)
    tree = {
        "data": {"url": "data", "batch_size": BATCH, "eval_split": None},
        "model": {"name": "networks:network"},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "checkpoint": {"url": "run", "every_steps": EVERY, "keep": 1000},
        "epochs": 100,
        "watchdog_seconds": 20.0,
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    return tmp_path


def _launch(folder: Path, *flags: str, **environ: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ringfeed.tools.cli", "launch", *flags, "train", "--config", "run.yaml"]
    return subprocess.Popen(command, cwd=folder, env=lean_environment(environ), stderr=subprocess.PIPE, text=True)


def _wait_for_step(folder: Path, step: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 280
    while max(saved_steps(folder / "run"), default=-1) < step:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _ranks(process: subprocess.Popen[str]) -> dict[int, psutil.Process]:
    """The ranks by number; a child may just begin, with its parent's environment, or have ended."""
    found = {}
    for child in psutil.Process(process.pid).children():
        with suppress(psutil.Error):
            found[child.environ().get("HOROVOD_RANK")] = child
    return {int(rank): child for rank, child in found.items() if rank is not None}


def _seen(folder: Path, pid: int) -> list[list[int]]:
    return [[int(word) for word in line.split()] for line in (folder / f"seen-{pid}").read_text().splitlines()]


def test_an_elastic_run_survives_a_kill_and_sees_each_sample_once_an_epoch(run_folder: Path) -> None:
    process = _launch(run_folder, "-n", "2", "--elastic")
    _wait_for_step(run_folder, 5, process)
    first = _ranks(process)
    os.kill(first[1].pid, signal.SIGKILL)
    while {rank.pid for rank in _ranks(process).values()} <= {rank.pid for rank in first.values()}:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    newest = max(saved_steps(run_folder / "run"))
    _wait_for_step(run_folder, newest + STEPS, process)
    second = _ranks(process)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == 75, stderr
    assert "rank 1 was killed by SIGKILL" in stderr
    assert "starting 2 ranks again" in stderr
    assert "Traceback" not in stderr
    last = stderr.splitlines()[-1]
    assert last.startswith("ringfeed launch: stopped by SIGTERM; the checkpoint of step ")
    stopped = int(re.search(r"of step (\d+)", last)[1])  # type: ignore[index]  # checked above
    seen = {rank: _seen(run_folder, p.pid) for rank, p in first.items()}
    assert len(seen[0]) - newest <= EVERY + 1  # what was lost: since the newest checkpoint, and the step of the kill
    again = {rank: _seen(run_folder, p.pid) for rank, p in second.items()}
    kept = [seen[0][step] + seen[1][step] for step in range(newest)]
    kept += [again[0][step] + again[1][step] for step in range(stopped - newest)]
    for epoch in range(stopped // STEPS):
        ids = Counter(number for batch in kept[epoch * STEPS : (epoch + 1) * STEPS] for number in batch)
        assert ids == Counter(range(RECORDS)), epoch


def test_a_rank_that_stalls_is_named_with_its_place_and_all_end(run_folder: Path) -> None:
    process = _launch(run_folder, "-n", "2", STALLS="1")
    _wait_for_step(run_folder, 5, process)
    ranks = _ranks(process)
    (run_folder / "stall").touch()
    _, stderr = process.communicate(timeout=280)
    assert process.returncode == 1
    line = stderr.splitlines()[-1]
    assert line.startswith("ringfeed launch: error: rank 1 has stalled in ")
    assert "networks.py:8 in note: the others wait for it" in line
    assert not [p for p in ranks.values() if p.is_running()]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-n", "0", "train", "--config", "run.yaml"], "1 <= --min-ranks <= -n must hold, got -n 0"),
        (["-n", "2", "doctor"], "the ranks run train or bench-ring: ringfeed launch -n 2 train --config FILE.yaml"),
        (["-n", "2", "train", "--config", "nowhere.yaml"], "cannot read nowhere.yaml"),
        (
            ["-n", "2", "--elastic", "train", "--config", "run.yaml", "--set", "checkpoint.every_steps=null"],
            "--elastic goes on from checkpoints: set checkpoint.url and checkpoint.every_steps",
        ),
        (["-n", "2", "--ranks-file", "x", "train", "--config", "run.yaml"], "--ranks-file needs --elastic"),
    ],
)
def test_a_mistake_is_one_line_before_any_rank_starts(
    flags: list[str],
    message: str,
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(run_folder)
    assert main(["launch", *flags]) == 1
    output = capfd.readouterr().err
    assert message in output
    assert output.count("\n") == 1


@pytest.mark.parametrize("name", ["HOROVOD_AUTOTUNE", "HOROVOD_HIERARCHICAL_ALLREDUCE"])
def test_settings_of_horovod_that_change_bits_are_refused_by_name(
    name: str, run_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, "1")
    assert main(["launch", "-n", "2", "train", "--config", str(run_folder / "run.yaml")]) == 1
    assert f"{name} is set, which is not supported" in capfd.readouterr().err

"""Training on parameter servers: the workers' loop in this process, and a whole cluster as users start it."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from safetensors.numpy import load_file

from ringfeed.sharding import BuildOptions, build
from ringfeed.sharding.errors import ConfigError
from ringfeed.tools.cli import main
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.models.model_file import decode_model
from tests.helpers.checkpoints import saved_steps
from tests.helpers.lean import lean_environment
from tests.helpers.warm import WarmProcess, WarmServer

RECORDS, BATCH, EPOCHS = 240, 12, 40
NETWORK = """
import keras, tensorflow as tf

class Count(keras.layers.Layer):
    def build(self, shape):
        self.counts = self.add_weight(shape=(240,), initializer="zeros", trainable=False, name="counts")
    def call(self, ids, training=False):
        if training:
            self.counts.value.scatter_add(tf.IndexedSlices(tf.ones_like(ids, tf.float32), ids))
        return tf.cast(ids, tf.float32) * 0.0
    def compute_output_spec(self, ids, training=False): return keras.KerasTensor((None,))

def network(manifest, config):
    ids, value = keras.Input((), dtype="int64", name="id"), keras.Input((), dtype="float32", name="value")
    table = keras.layers.Embedding(240, 2, embeddings_initializer="zeros")  # split, a half on each server
    both = keras.layers.Concatenate()([keras.ops.expand_dims(value + Count()(ids), 1), table(ids)])
    return keras.Model({"id": ids, "value": value}, keras.layers.Dense(2)(both))

class Failing(keras.layers.Layer):
    def call(self, x):
        def fail(x):
            raise ValueError("a value of your own")  # line 22
        return tf.ensure_shape(tf.py_function(fail, [x], tf.float32), [None, 1])
    def compute_output_spec(self, x): return keras.KerasTensor((x.shape[0], 1))

def failing(manifest, config):
    value = keras.Input((), dtype="float32", name="value")
    return keras.Model({"value": value}, keras.layers.Dense(2)(Failing()(keras.ops.expand_dims(value, 1))))
"""


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A folder with a configuration whose network counts, on the servers, how often it has seen each sample."""
    values = [row / RECORDS for row in range(RECORDS)]
    labels = ["ab"[row * 2 // RECORDS] for row in range(RECORDS)]
    pq.write_table(pa.table({"id": range(RECORDS), "value": values, "label": labels}), tmp_path / "source.parquet")
    build(BuildOptions(source=str(tmp_path / "source.parquet"), destination=str(tmp_path / "data"), label="label"))
    (tmp_path / "networks.py").write_text(NETWORK)
    tree = {
        "backend": "parameter_server",
        "data": {"url": "data", "batch_size": BATCH, "eval_split": "train"},
        "model": {"name": "networks:network"},
        "optimizer": {"name": "sgd", "learning_rate": 0.5},
        "checkpoint": {"url": "run", "keep": 1000, "best": 1, "metric": "auc"},
        "epochs": EPOCHS + 10,
        "eval_every_epochs": 10,
        "early_stopping": {"metric": "auc", "patience": 3},  # is 1 from the first evaluation on
        "output": {"metrics": "metrics.json", "model": "model.keras", "weights": "best"},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    return tmp_path


def _launched(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ringfeed.tools.cli", "launch", *words]
    return subprocess.Popen(command, cwd=folder, env=lean_environment(), stderr=subprocess.PIPE, text=True)


def _counts(folder: Path, step: int) -> np.ndarray:
    (path,) = (path for path in (folder / "run").glob("step-*") if int(path.name.split("-")[1]) == step)
    (counts,) = (array for name, array in load_file(path).items() if name.endswith("counts"))
    return counts


def _tables(folder: Path) -> list[np.ndarray]:
    path = max((folder / "run").glob("step-*"))
    return [array for name, array in load_file(path).items() if name.startswith("model/") and "embedding" in name]


def _wait_for_step(folder: Path, step: int, process: WarmProcess) -> None:
    deadline = time.monotonic() + 280
    while max(saved_steps(folder / "run"), default=-1) < step:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_survives_sigterm_and_a_workers_death_and_reads_each_sample_once_an_epoch(
    run_folder: Path, warm: WarmServer
) -> None:
    split = ["--set", "parameter_server.shard_bytes=1"]
    words = ["launch", "--ps", "2", "--workers", "2", "train", "--config", "run.yaml", *split]
    words = ["ringfeed.tools.cli", *words]
    process = warm.start(words, folder=run_folder, output=run_folder / "first.txt")
    _wait_for_step(run_folder, 1, process)
    for task in psutil.Process(process.pid).children():  # as schedulers do
        task.terminate()
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 75, output
    assert "Traceback" not in output
    stopped = re.search(r"\nringfeed launch: stopped by SIGTERM; the checkpoint of step (\d+) is in ", output)
    assert stopped is not None, output
    assert max(saved_steps(run_folder / "run")) == int(stopped[1])

    process = warm.start(words, folder=run_folder, output=run_folder / "second.txt")
    _wait_for_step(run_folder, int(stopped[1]) + 1, process)
    started_last = max(psutil.Process(process.pid).children(), key=lambda child: child.create_time())  # is worker 1
    os.kill(started_last.pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    assert "ringfeed launch: worker 1 was killed by SIGKILL" in output
    assert "Traceback" not in output

    metrics = json.loads((run_folder / "metrics.json").read_text())
    steps, (table,) = RECORDS // BATCH, _tables(run_folder)
    assert table.shape == (RECORDS, 2)
    assert (table != 0).any(axis=1).all()  # all rows, of both servers
    assert metrics["total_steps"] == steps * EPOCHS
    assert metrics["final"]["accuracy"] > 0.9
    assert metrics["history"]["steps"][-1]["step"] == steps * EPOCHS
    assert (metrics["stopped_early"], metrics["best"]["step"]) == (True, steps * 10)
    model = decode_model((run_folder / "model.keras").read_bytes(), "model.keras")
    assert model.step == steps * 10
    with h5py.File(io.BytesIO(model.weights)) as file:
        arrays: list[Any] = []
        file.visititems(lambda _, item: arrays.append(item[()]) if isinstance(item, h5py.Dataset) else None)
    assert _counts(run_folder, steps * 10).tolist() in [array.tolist() for array in arrays]
    before = [step for step in saved_steps(run_folder / "run") if _counts(run_folder, step).sum() == step * BATCH]
    for step in before:  # of the first epoch, and as long as no worker had died
        whole, more = divmod(step, steps)
        assert set(_counts(run_folder, step)) == ({whole, whole + 1} if more else {whole})
    assert steps in before
    counts = _counts(run_folder, steps * EPOCHS)
    assert counts.min() == EPOCHS
    assert counts.sum() <= RECORDS * EPOCHS + metrics["deaths"] * BATCH // 2


@pytest.mark.parametrize(
    ("flags", "settings", "message"),
    [
        (["--workers", "0"], [], "--workers and --ps are at least 1"),
        (["--ps", "1"], [], "--ps needs --workers"),
        (["--workers", "2", "--elastic"], [], "go without -n and --elastic"),
        (["-n", "2"], [], "backend=parameter_server is started by: ringfeed launch --ps 1 --workers 2"),
        (["--workers", "2"], ["backend=horovod"], "backend=horovod is started by: ringfeed launch -n 2 train"),
        (["--workers", "2"], ["backend=ring"], "backend must be one of horovod, none, mirrored, multi_worker"),
        (["--workers", "2"], ["compression.method=qsgd"], "compression.method=qsgd does not go with backend=param"),
        (["--workers", "2"], ["sync.method=local_sgd"], "use sync.method=every_step"),
        (["--workers", "2"], ["optimizer.accumulate=2"], "optimizer.accumulate=2 does not go with"),
        (["--workers", "2"], ["precision=float16"], "use precision=bfloat16"),
        (["--workers", "2"], ["output.records=x"], "use output.records=null"),
        (["--workers", "2"], ["parameter_server.mode=bsp"], "parameter_server.mode must be one of async, ssp, asp"),
        (["--workers", "2"], ["parameter_server.backup_workers=1"], "does not go with parameter_server.mode=async"),
        (
            ["--workers", "2"],
            ["parameter_server.mode=asp", "optimizer.name=lars"],
            "parameter_server.mode=asp does not go with optimizer.name=lars",
        ),
    ],
)
def test_what_a_backend_does_not_support_is_refused_by_name(
    flags: list[str],
    settings: list[str],
    message: str,
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(run_folder)
    overrides = [part for item in settings for part in ("--set", item)]
    assert main(["launch", *flags, "train", "--config", "run.yaml", *overrides]) == 1
    output = capfd.readouterr().err
    assert message in output
    assert output.count("\n") == 1


def test_an_error_in_a_network_is_one_line(run_folder: Path) -> None:
    changes = ["--set", "model.name=networks:failing", "--quiet"]
    process = _launched(run_folder, "--workers", "1", "train", "--config", "run.yaml", *changes)
    _, stderr = process.communicate(timeout=280)
    assert process.returncode == 1
    assert stderr.startswith("ringfeed launch: error: model.name networks:failing: ")
    assert stderr.endswith("networks.py:22: ValueError: a value of your own\n")
    assert stderr.count("\n") == 1


def test_without_a_cluster_one_line_says_how_to_start_one(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run_folder)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert main(["train", "--config", "run.yaml"]) == 1
    output = capfd.readouterr().err
    assert "ringfeed launch --ps 1 --workers 2 train --config FILE on one machine, or TF_CONFIG" in output
    assert output.count("\n") == 1


def test_backup_workers_leave_none_until_they_are_fewer_or_workers_more() -> None:
    from ringfeed.training.servers.parameter_server import ServerTrainer

    def needed(backup: int, workers: int) -> int:
        tree = {"data": {"url": "x"}, "backend": "parameter_server"}
        config = parse_config({**tree, "parameter_server": {"mode": "sync", "backup_workers": backup}}, "a test")
        return ServerTrainer._needed(SimpleNamespace(config=config, _workers=workers))  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="leaves none of 2 workers; lower it, or start more workers"):
        needed(2, 2)
    assert (needed(1, 2), needed(2, 3)) == (1, 1)

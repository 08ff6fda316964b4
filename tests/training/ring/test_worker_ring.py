"""Backends without Horovod: the workers of TensorFlow's own collectives, on real processes, and one process alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from ringfeed.tools.cli import main
from ringfeed.training.ring.tf_config import local_rank_of_worker, worker_world
from ringfeed.training.ring.world import World
from tests.helpers.checkpoints import saved_steps, sigterm_after_a_checkpoint
from tests.helpers.lean import lean_environment

Written = Callable[..., Path]


def _trained(path: Path, *command: str) -> tuple[list[np.ndarray[Any, Any]], dict[str, Any]]:
    """The weights and the metrics of a run."""
    model, metrics = path.parent / "model.keras", path.parent / "metrics.json"
    words = ["train", "--config", str(path), "--set", f"output.model={model}", "--set", f"output.metrics={metrics}"]
    assert main([*command, *words, "--quiet"]) == 0
    return keras.saving.load_model(model).get_weights(), json.loads(metrics.read_text())


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Horovod, whose scheduler calls the only process rank 0 of 1."""
    for name, value in lean_environment({"PMI_RANK": "0", "PMI_SIZE": "1"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "horovod", None)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
@pytest.mark.usefixtures("alone")
def test_workers_end_with_the_weights_of_one_process_on_the_same_global_batches(write_config: Written) -> None:
    options = {
        "model": {"hidden": [8], "norm": "none", "dropout": 0.0},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "data": {"batch_size": 61},
        "max_steps": 20,
    }
    one, alone = _trained(write_config(backend="none", **options))
    two, together = _trained(write_config(backend="multi_worker", **options), "launch", "-n", "2")
    assert together["shares"] == [30, 31]
    for mine, other in zip(one, two, strict=True):
        np.testing.assert_allclose(other, mine, rtol=1e-4, atol=1e-5)
    assert together["final"]["loss"] == pytest.approx(alone["final"]["loss"], rel=1e-5)


@pytest.mark.usefixtures("alone")
def test_sigterm_ends_workers_with_a_checkpoint(
    write_config: Written, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_config(
        backend="multi_worker", checkpoint={"url": str(tmp_path / "run"), "every_steps": 5}, epochs=100_000
    )
    with sigterm_after_a_checkpoint(tmp_path / "run"):
        assert main(["launch", "-n", "2", "train", "--config", str(path), "--quiet"]) == 75
    step = max(saved_steps(tmp_path / "run"))
    assert f"stopped by SIGTERM; the checkpoint of step {step} is in" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("command", "environ", "settings", "message"),
    [
        (["launch", "-n", "2"], {}, ["backend=none"], "backend=none is one process, without a launcher: ringfeed"),
        ([], {}, ["backend=multi_worker"], "TF_CONFIG is not set: ringfeed launch -n 2 train"),
        ([], {"TF_CONFIG": "{}"}, ["backend=multi_worker"], "TF_CONFIG has no cluster of workers with a task"),
        (
            ["launch", "-n", "2", "--elastic"],
            {},
            ["backend=multi_worker"],
            "--elastic does not go with backend=multi",
        ),
        ([], {}, ["backend=multi_worker", "compression.method=qsgd"], "use compression.method=none"),
        ([], {}, ["backend=multi_worker", "sync.method=fedavg"], "use sync.method=every_step"),
    ],
)
def test_what_a_backend_cannot_do_is_refused_in_one_line(
    command: list[str],
    environ: dict[str, str],
    settings: list[str],
    message: str,
    write_config: Written,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    overrides = [part for item in settings for part in ("--set", item)]
    assert main([*command, "train", "--config", str(write_config()), *overrides]) == 1
    output = capfd.readouterr().err
    assert message in output
    assert output.count("\n") == 1


def test_the_backend_none_is_refused_in_one_line_among_several_ranks(
    write_config: Written, train: Callable[..., tuple[int, str]]
) -> None:
    status, output = train(write_config(), "backend=none", environ={"PMI_RANK": "0", "PMI_SIZE": "2"}, is_cold=True)
    assert status == 1  # of a process of its own, which a rank ends at once
    assert "a launcher started 2, each of which would train" in output
    assert output.count("\n") == 1


def test_a_worker_knows_its_place_on_its_host() -> None:
    cluster = {"cluster": {"worker": ["a:1", "b:1", "b:2"]}, "task": {"type": "worker", "index": 2}}
    environ = {"TF_CONFIG": json.dumps(cluster)}
    assert worker_world(environ) == World(rank=2, size=3, local_size=2)
    assert local_rank_of_worker(environ) == 1
    assert worker_world({"TF_CONFIG": json.dumps({**cluster, "task": {"type": "worker", "index": 3}})}) is None

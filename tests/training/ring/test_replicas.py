"""Replicas on logical devices of the CPU, in a process as users start it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from ringfeed.tools.cli import main
from ringfeed.training.config.config_file import changed_keys, load_config, to_tree

Written = Callable[..., Path]


def _weights(folder: Path) -> list[np.ndarray]:
    (path,) = folder.glob("step-*")
    return [array for name, array in load_file(path).items() if name.startswith(("model/", "average/"))]


def test_replicas_end_with_the_weights_of_one_device(
    write_config: Written, train: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    path = write_config(
        model={"hidden": [8], "norm": "none", "dropout": 0.0},
        optimizer={"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "accumulate": 2, "clip_norm": 1.0},
        data={"batch_size": 61},
        ema={"decay": 0.9},
        max_steps=20,
    )
    alone = [f"checkpoint.url={tmp_path / 'alone'}", "backend=none"]
    assert main(["train", "--config", str(path), "--quiet", *(w for item in alone for w in ("--set", item))]) == 0
    one = json.loads((tmp_path / "metrics.json").read_text())
    status, output = train(path, f"checkpoint.url={tmp_path / 'mirrored'}", "backend=mirrored", "mirrored.devices=2")
    assert status == 0, output
    two = json.loads((tmp_path / "metrics.json").read_text())
    assert two["bytes_per_step"] > one["bytes_per_step"] == 0
    assert two["final"]["loss"] == pytest.approx(one["final"]["loss"], rel=1e-5)
    for mine, other in zip(_weights(tmp_path / "alone"), _weights(tmp_path / "mirrored"), strict=True):
        np.testing.assert_allclose(other, mine, rtol=1e-4, atol=1e-5)


def test_synchronous_backends_resume_each_others_checkpoints_and_servers_do_not(write_config: Written) -> None:
    path = str(write_config())
    mirrored = load_config(path, ["backend=mirrored", "mirrored.devices=2"])
    assert changed_keys(mirrored, to_tree(load_config(path, ["backend=multi_worker"]))) == []
    assert changed_keys(mirrored, to_tree(load_config(path, ["backend=parameter_server"]))) == ["backend"]


@pytest.mark.parametrize(
    ("command", "settings", "message"),
    [
        ([], [], "there are none: set mirrored.devices=2"),
        ([], ["mirrored.devices=1"], "mirrored.devices must be at least 2, got 1"),
        ([], ["backend=none", "mirrored.devices=2"], "mirrored.devices=2 does not go with backend=none"),
        ([], ["sync.batch_norm=true"], "use sync.batch_norm=false"),
        (["launch", "-n", "2"], [], "backend=mirrored is one process, without a launcher"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    command: list[str], settings: list[str], message: str, write_config: Written, capfd: pytest.CaptureFixture[str]
) -> None:
    overrides = [part for item in settings for part in ("--set", item)]
    assert main([*command, "train", "--config", str(write_config(backend="mirrored")), *overrides]) == 1
    output = capfd.readouterr().err
    assert message in output
    assert output.count("\n") == 1

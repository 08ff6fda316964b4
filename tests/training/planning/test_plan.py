"""Dry runs: the plan is what the run then does, and nothing is left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringfeed.tools import cli
from ringfeed.training.config.config_file import load_config
from ringfeed.training.planning.plan import plan_run, plan_text
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.run.trainer import Trainer

WriteConfig = Callable[..., Path]


def _plan(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main([*words, "--dry-run", "--json"]) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plan


def test_says_what_the_run_then_does(
    tmp_path: Path, write_config: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_config(
        checkpoint={"url": str(tmp_path / "checkpoints")}, optimizer={"name": "adam", "weight_decay": 0}
    )
    plan = _plan(capsys, "train", "--config", str(path), "--set", f"data.cache={tmp_path / 'cache'}")
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]
    assert plan["resumes_from"] is None
    assert (plan["total_steps"], plan["steps_per_epoch"], plan["warmup_steps"]) == (100, 50, 25)

    trainer = Trainer(load_config(str(path), ["max_steps=3"]), SoloRing())
    metrics = trainer.run()
    network, optimizer = trainer.parts.network, trainer.parts.optimizer
    assert plan["parameters"] == metrics["parameters"]
    assert plan["trained_parameters"] == sum(v.value.numpy().size for v in network.trainable_variables)
    assert plan["memory_bytes"]["weights"] == sum(v.numpy().nbytes for v in network.weights)
    assert plan["memory_bytes"]["optimizer"] == sum(v.value.numpy().nbytes for v in optimizer.variables)
    inputs, *_ = next(trainer.batches(0, 0))
    assert plan["memory_bytes"]["batch"] == sum(tensor.numpy().nbytes for tensor in inputs.values())
    assert plan["records"] == {"train": 3000, "test": 1000}

    text = plan_text(plan_run(load_config(str(path)), 1))
    assert "the run resumes from step 3\n" in text
    assert "steps              50 an epoch, 100 in all\n" in text


def test_bytes_on_the_wire_are_those_of_the_methods_formulas(
    write_config: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_config(model={"hidden": [512], "norm": "none"})
    plan = _plan(capsys, "launch", "-n", "4", "train", "--config", str(path))
    assert (plan["ranks"], plan["local_batch_size"]) == (4, 15)
    found = plan["wire_bytes"]["4"]
    numbers = plan["trained_parameters"] + 3  # and scalars
    assert found["none"] == 8 * numbers * 3 / 4
    assert found["bf16"] == pytest.approx(found["none"] / 2, rel=0.01)
    assert found["qsgd"] == pytest.approx(numbers * 3, rel=0.15)  # biases travel dense
    assert found["terngrad"] < found["qsgd"] / 2.5
    assert found["dgc"] is None  # not with LARS
    rounds = _plan(capsys, "launch", "-n", "4", "train", "--config", str(path), "--set", "sync.method=local_sgd")
    assert rounds["wire_bytes"]["4"] == {"local_sgd": pytest.approx(found["none"] / 8, rel=0.01)}


def test_refuses_what_the_run_would_refuse(write_config: WriteConfig, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_config(data={"batch_size": 5000})
    assert cli.main(["train", "--config", str(path), "--dry-run"]) == 1
    assert capsys.readouterr().err == (
        "ringfeed train: error: data.batch_size=5000 is more than the 3000 records of 'train'; use at most 3000\n"
    )
    words = ["train", "--config", str(path), "--dry-run", "--set", "backend=parameter_server"]
    assert cli.main(words) == 1
    assert "--dry-run does not go with backend=parameter_server" in capsys.readouterr().err

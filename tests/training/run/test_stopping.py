"""Runs that are asked to stop: all ranks stop after the same step, with a checkpoint, and go on from it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringfeed.training.config.config_file import load_config
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.run.stopping import RESUMABLE, TERMINATED, Stopped
from ringfeed.training.run.trainer import Trainer
from ringfeed.training.train import main
from tests.helpers.checkpoints import saved_steps
from tests.helpers.lean import lean_environment

WriteConfig = Callable[..., Path]
UNEVALUATED = {"eval_split": None, "test_split": None}


def _stop_at(call: int) -> Callable[[], bool]:
    """A check that asks to stop when it is called for the `call`th time and later."""
    calls = iter(range(10**6))
    return lambda: next(calls) + 1 >= call


def _train(config: Path, check: Callable[[], bool] = lambda: False, **overrides: Any) -> dict[str, Any]:
    items = ["deterministic=false", *(f"{key}={value}" for key, value in overrides.items())]
    return Trainer(load_config(str(config), items), SoloRing(), check).run()


def test_a_stopped_run_saves_its_last_step_and_ends_as_if_it_had_not_been_stopped(
    tmp_path: Path, write_config: WriteConfig
) -> None:
    config = write_config(checkpoint={"url": str(tmp_path / "run")}, data=UNEVALUATED, max_steps=12)
    with pytest.raises(Stopped, match=r"the checkpoint of step 6 is in .*run: the same") as stopped:
        _train(config, _stop_at(5))  # before step 5; agreed in it, and seen after the next
    assert (stopped.value.status, saved_steps(tmp_path / "run")) == (RESUMABLE, [6])
    resumed = _train(config)
    assert resumed["resumed_from_step"] == 6
    config = write_config(checkpoint={"url": None}, data=UNEVALUATED, max_steps=12)
    assert resumed["weights_digest"] == _train(config)["weights_digest"]


def test_an_evaluation_that_was_cut_short_is_made_by_the_resumed_run(tmp_path: Path, write_config: WriteConfig) -> None:
    config = write_config(checkpoint={"url": str(tmp_path / "run")}, data={"batch_size": 600}, epochs=2)
    with pytest.raises(Stopped):
        _train(config, _stop_at(7))  # five steps, then the second batch of the evaluation
    assert saved_steps(tmp_path / "run") == [5]
    evaluations = _train(config)["history"]["evaluations"]
    assert [(entry["step"], entry["samples"]) for entry in evaluations] == [(5, 1000), (10, 1000)]


def test_a_run_whose_time_is_over_saves_and_succeeds(
    tmp_path: Path, write_config: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(checkpoint={"url": str(tmp_path / "run")}, data=UNEVALUATED)
    assert main(["--config", str(config), "--max-time", "0.001", "--set", "deterministic=false"]) == 0
    assert capsys.readouterr().err.endswith(
        f"ringfeed train: stopped after max_time=0.001; the checkpoint of step 2 is in {tmp_path / 'run'}: the same "
        "command resumes\n"
    )
    assert saved_steps(tmp_path / "run") == [2]
    assert main(["--config", str(config), "--max-time", "1h30x"]) == 1
    assert "max_time must be a time such as 90s, 30m or 1h30m, or null, got '1h30x'" in capsys.readouterr().err
    assert main(["--config", str(config), "--max-time", "1h", "--set", "checkpoint.url=null"]) == 1
    assert "does not go with checkpoint.url=null" in capsys.readouterr().err


def test_the_same_batches_in_each_epoch(write_config: WriteConfig) -> None:
    path = write_config(overfit_batches=2, epochs=3)
    trainer = Trainer(load_config(str(path)), SoloRing())
    assert (trainer.epoch_plan.steps, trainer._progress.total_steps) == (2, 6)
    first, later = ([target.numpy().tolist() for _, target, _ in trainer.batches(epoch, 0)] for epoch in (0, 2))
    assert first == later
    assert first[0] != first[1]
    (last,) = (target.numpy().tolist() for _, target, _ in trainer.batches(2, 1))
    assert last == first[1]
    assert trainer.epoch_plan.batch_at(5) == (0, 1)


def test_without_checkpoints_it_says_what_is_lost(write_config: WriteConfig) -> None:
    config = write_config(data=UNEVALUATED)
    with pytest.raises(Stopped, match=r"after step 3; the 3 steps of this run are lost, since checkpoint\.url is null"):
        _train(config, _stop_at(2))


def test_sigterm_ends_the_command_with_a_checkpoint_one_line_and_status_75(
    tmp_path: Path, write_config: WriteConfig
) -> None:
    """Also in the background of a shell script, which lets its processes ignore Ctrl-C."""
    config = write_config(checkpoint={"url": str(tmp_path / "run"), "every_steps": 2}, epochs=10**6)
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    program = str(Path(sys.executable).with_name("ringfeed"))
    process = subprocess.Popen(
        [sys.executable, "-c", ignoring, program, "train", "--config", str(config), "-q"],
        stderr=subprocess.PIPE, text=True, env=lean_environment(),
    )  # fmt: skip
    while not saved_steps(tmp_path / "run"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == RESUMABLE != TERMINATED, stderr
    line = stderr.splitlines()[-1]
    assert line.startswith("ringfeed train: stopped by SIGTERM; the checkpoint of step ")
    step = re.search(r"of step (\d+) is in", line)
    assert step is not None
    assert int(step[1]) == max(saved_steps(tmp_path / "run"))

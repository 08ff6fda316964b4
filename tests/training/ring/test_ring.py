"""The ring and the environment of its launcher: refusals, the death of a rank.

Its collectives are tested in tests/training/sync/compression/test_methods.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow as tf

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.ring.connect import connect
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.ring.same_weights import assert_same_weights
from ringfeed.training.ring.world import World, world_from_environment
from tests.helpers.checkpoints import saved_steps
from tests.helpers.thread_ring import on_ranks

pytest.importorskip("horovod", reason="Horovod is built by: make setup")

BROKEN = "raise ImportError('libhorovod.so: undefined symbol')\n"


def test_one_process_reduces_nothing_and_needs_no_horovod() -> None:
    ring = connect({})
    assert isinstance(ring, SoloRing)
    assert ring.allreduce_mean([tf.constant(3.0)])[0].numpy() == 3.0
    assert ring.allgather_object([1]) == [[1]]
    assert len(assert_same_weights(ring, [tf.Variable(1.0)])) == 32


def test_different_weights_are_an_error_that_names_rank_and_variable() -> None:
    with pytest.raises(TrainingError, match=r"rank 1 of 2 ended with different weights than rank 0 .*kernel"):
        on_ranks(2, lambda ring: assert_same_weights(ring, [tf.Variable(np.full(2, ring.rank), name="kernel")]))


@pytest.mark.parametrize(
    ("environ", "world"),
    [
        ({}, None),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_SIZE": "2"}, World(rank=1, size=2, local_size=2)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, World(rank=0, size=1, local_size=1)),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, World(rank=3, size=4, local_size=1)),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, World(rank=1, size=2, local_size=1)),
    ],
)
def test_recognises_the_launcher_of_the_process(environ: dict[str, str], world: World | None) -> None:
    assert world_from_environment(environ) == world


def test_refuses_to_be_a_rank_without_a_working_horovod(
    tmp_path: Path, write_config: Callable[..., Path], train: Callable[..., tuple[int, str]]
) -> None:
    """Even as the only rank: its launcher was meant to start a ring."""
    (tmp_path / "shim" / "horovod").mkdir(parents=True)
    (tmp_path / "shim" / "horovod" / "__init__.py").write_text(BROKEN)
    environ = {"PYTHONPATH": str(tmp_path / "shim"), "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    status, output = train(write_config(), environ=environ, is_cold=True)
    assert status == 1
    assert "started as one of 1 ranks, but Horovod does not work here (ImportError: libhorovod.so" in output
    assert output.strip().count("\n") == 0, output
    assert not (tmp_path / "metrics.json").exists()


def test_refuses_when_horovod_sees_another_number_of_ranks(
    write_config: Callable[..., Path], train: Callable[..., tuple[int, str]]
) -> None:
    """As under an mpirun whose MPI Horovod was not built with: each of N processes would be alone."""
    environ = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "HOROVOD_CONTROLLER": "gloo"}
    status, output = train(write_config(), environ=environ)
    assert status == 1
    assert "ringfeed train: error: " in output
    assert "2 ranks" in output


def _ranks(launcher: int) -> dict[int, psutil.Process]:
    found = {}
    for child in psutil.Process(launcher).children(recursive=True):
        try:
            command, environ = child.cmdline(), child.environ()
        except psutil.Error:
            continue
        if "ringfeed.tools.cli" in command and command[0] == sys.executable and "HOROVOD_RANK" in environ:
            found[int(environ["HOROVOD_RANK"])] = child
    return found


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):  # it may go between the two looks
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def test_the_death_of_a_rank_ends_all_and_the_run_resumes_bit_identical_or_on_another_number_of_ranks(
    tmp_path: Path,
    write_config: Callable[..., Path],
    start: Callable[..., subprocess.Popen[str]],
    train_in_turn: Callable[..., tuple[str, list[dict[str, Any]]]],
) -> None:
    checkpoints = tmp_path / "checkpoints"
    keep = {"url": str(checkpoints), "every_steps": 5, "keep": 50}
    config = write_config(precision="float16", checkpoint=keep, ema={"decay": 0.9})
    process = start(config, ranks=2)
    deadline = time.monotonic() + 280
    while 10 not in saved_steps(checkpoints):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ranks = _ranks(process.pid)
    assert set(ranks) == {0, 1}
    os.kill(ranks[1].pid, signal.SIGKILL)
    killed = time.monotonic()
    output, _ = process.communicate(timeout=280)
    assert process.returncode != 0, output
    assert time.monotonic() - killed < 120  # for the launcher sees it; the ring would wait for twice as long
    while any(map(_runs, ranks.values())):
        assert time.monotonic() - killed < 120
        time.sleep(0.01)
    assert not (tmp_path / "metrics.json").exists()
    shutil.copytree(checkpoints, tmp_path / "copy")

    elsewhere, copied = (f"checkpoint.url={tmp_path / name}" for name in ("others", "copy"))
    _, (resumed, whole, alone) = train_in_turn(config, [], [elsewhere], ["backend=none", copied], ranks=2)
    assert resumed["resumed_from_step"] >= 10
    assert (resumed["ranks"], resumed["total_steps"]) == (2, 100)
    assert whole["resumed_from_step"] is None
    assert resumed["weights_digest"] == whole["weights_digest"]
    assert resumed["final"] == whole["final"]
    assert resumed["history"]["steps"][-1]["loss"] == whole["history"]["steps"][-1]["loss"]
    assert (alone["ranks"], alone["resumed_from_step"]) == (1, resumed["resumed_from_step"])
    assert alone["history"]["steps"][-1]["step"] == 100
    assert alone["final"]["samples"] == 1000
    assert alone["final"]["auc"] > 0.85

"""Processes forked from one that has imported TensorFlow: each is as fresh as one that was started."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.helpers.warm import WarmServer

PROGRAM = """
import os, sys, json, random, signal, tensorflow as tf
from tensorflow.python.eager import context
print(json.dumps([
    os.getcwd(), sys.argv[1:], os.environ.get("OWN"), context.context()._context_handle is None,
    sorted(name for name in os.listdir("/proc/self/fd"))[:3], signal.getsignal(signal.SIGINT).__name__,
]))
os.environ["OWN"] = "changed"
tf.config.experimental.enable_op_determinism()
float(tf.constant(1.0) + 1.0)
if sys.argv[1:] == ["stay"]:
    print("stays", flush=True)
    signal.pause()
sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "warm_program.py").write_text(PROGRAM)
    return tmp_path


def test_each_has_its_own_folder_environment_and_tensorflow(folder: Path, warm: WarmServer) -> None:
    for turn in ("first", "second"):
        process = warm.start(
            ["warm_program", turn], folder=folder, output=folder / turn, environ={"OWN": f"of the {turn}"}
        )
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 3
        expected = f'["{folder}", ["{turn}"], "of the {turn}", true, ["0", "1", "2"], "default_int_handler"]'
        assert output.splitlines()[0] == expected


def test_it_is_signalled_and_killed_as_any_process(folder: Path, warm: WarmServer) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = warm.start(["warm_program", "stay"], folder=folder, output=folder / f"{number}")
        assert process.poll() is None
        os.kill(process.pid, number)
        process.communicate(timeout=240)
        assert process.returncode == -number


def test_it_ends_with_the_test_that_waits_too_long(folder: Path, warm: WarmServer) -> None:
    process = warm.start(["warm_program", "stay"], folder=folder, output=folder / "output")
    running = psutil.Process(process.pid)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.1)
    running.wait(timeout=240)

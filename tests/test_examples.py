"""The programs of examples/, as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ringfeed.sharding import build

ROOT = Path(__file__).resolve().parent.parent


def test_weights_are_split_over_four_devices_of_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    points = rng.uniform(-1, 1, (2000, 2)).astype(np.float32)
    rows = {"x": points[:, 0], "y": points[:, 1], "inside": (np.square(points).sum(axis=1) < 0.5).astype(np.int64)}
    build(source=pa.table(rows), destination=str(tmp_path / "data"), label="inside")
    command = [
        sys.executable,
        str(ROOT / "examples/model_parallel_jax.py"),
        str(tmp_path / "data"),
        "--batch-size",
        "64",
    ]
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    *epochs, where = done.stdout.splitlines()
    losses = [float(line.rpartition(" ")[2]) for line in epochs]
    assert losses[-1] < 0.6 * losses[0]
    assert where == "the hidden kernel, (2, 256), is on 4 devices, (2, 64) on each"

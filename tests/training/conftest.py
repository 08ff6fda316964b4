"""Small real datasets, and real processes: `ringfeed train` alone and under `horovodrun`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ringfeed.sharding import BuildOptions, build
from tests.helpers import runs_in_turn
from tests.helpers.lean import lean_environment

TIMEOUT_SECONDS = 240
SPLITS = {"train": Fraction(3, 4), "test": Fraction(1, 4)}


def _flights(records: int) -> pa.Table:
    """Records whose label follows from numbers, a code, a text and noise; with missing values of each kind."""
    rng = np.random.default_rng(5)
    delay = rng.normal(3, 2, records).astype(np.float32)
    distance = rng.integers(100, 3000, records)
    hour = rng.integers(5, 24, records)
    carrier = rng.choice(["AA", "B6", "UA"], records)
    risk = delay + (hour == 17) * 3 + (carrier == "B6") * 2 + rng.normal(0, 1, records)
    label = np.where(risk > np.quantile(risk, 0.8), "late", "on time")
    delay[::13] = np.nan
    is_missing = np.arange(records) % 11 == 0
    columns = {
        "delay": pa.array(delay),
        "distance": pa.array(distance, mask=is_missing),
        "hour": pa.array(hour.astype(np.int32)),
        "carrier": pa.array(carrier, mask=is_missing[::-1]),
        "late": pa.array(label),
    }
    return pa.table(columns)


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tabular dataset of 4,000 records, 20 % of them late: 3,000 to train on, 1,000 to evaluate."""
    folder = tmp_path_factory.mktemp("flights")
    pq.write_table(_flights(4000), folder / "source.parquet")
    target = str(folder / "dataset")
    build(
        BuildOptions(source=str(folder / "source.parquet"), destination=target, label="late", shards=4, splits=SPLITS)
    )
    return target


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    """320 PNGs of 8 x 8 pixels in four classes: which quadrant is bright."""
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(6)
    for index in range(320):
        quadrant = index % 4
        pixels = rng.integers(0, 90, (8, 8, 1))
        row, column = 4 * (quadrant // 2), 4 * (quadrant % 2)
        pixels[row : row + 4, column : column + 4] += 120
        path = folder / "source" / f"q{quadrant}" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_png(pixels.astype(np.uint8)).numpy())
    target = str(folder / "dataset")
    build(BuildOptions(source=str(folder / "source"), destination=target, label="label", shards=2, splits=SPLITS))
    return target


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def write_config(tmp_path: Path, flights: str) -> Callable[..., Path]:
    """A function that writes a small run's configuration, with groups of keys put over it."""

    def write(**groups: Any) -> Path:
        tree: dict[str, Any] = {
            "data": {"url": flights, "batch_size": 60, "categorical": ["hour"]},
            "model": {"hidden": [16, 8], "dropout": 0.2},
            "optimizer": {"name": "lars", "learning_rate": 0.2, "trust_coefficient": 0.02, "weight_decay": 1e-4},
            "schedule": {"warmup_epochs": 0.5},
            "epochs": 2,
            "output": {"metrics": str(tmp_path / "metrics.json"), "log_every": 20},
        }
        for name, value in groups.items():
            tree[name] = {**tree.get(name, {}), **value} if isinstance(value, Mapping) else value
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(tree))
        return path

    return write


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """A function that starts a training process: `ranks=0` alone, else that many under `horovodrun --gloo`."""

    def launch(
        config: Path, *overrides: str, ranks: int = 0, environ: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ringfeed.tools.cli", "train", "--config", str(config)]
        command += [part for item in overrides for part in ("--set", item)]
        return _launch(command, ranks, cwd=tmp_path, env=lean_environment(environ))

    return launch


def _launch(command: list[str], ranks: int, **options: Any) -> subprocess.Popen[str]:
    if ranks:
        command = [str(Path(sys.executable).parent / "horovodrun"), "-np", str(ranks), "--gloo", *command]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, **options
    )


@pytest.fixture
def train(start: Start) -> Callable[..., tuple[int, str]]:
    """A function that trains to the end, and returns exit status and output."""

    def run(config: Path, *overrides: str, ranks: int = 0, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
        process = start(config, *overrides, ranks=ranks, environ=environ)
        output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        return process.returncode, output

    return run


@pytest.fixture
def train_in_turn(tmp_path: Path) -> Callable[..., tuple[str, list[dict[str, Any]]]]:
    """A function that trains by each list of overrides, in one process of each rank; returns output and metrics."""

    def run(config: Path, *runs: list[str], ranks: int = 0, status: int = 0) -> tuple[str, list[dict[str, Any]]]:
        paths = [tmp_path / f"metrics-{number}.json" for number in range(len(runs))]
        words = [json.dumps([*each, f"output.metrics={path}"]) for each, path in zip(runs, paths, strict=True)]
        command = [sys.executable, runs_in_turn.__file__, str(config), *words]
        process = _launch(command, ranks, cwd=tmp_path, env=lean_environment())
        output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == status, output
        return output, [json.loads(path.read_text()) for path in paths if path.exists()]

    return run


@pytest.fixture
def metrics(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """A function that reads the metrics file of the last run."""

    def read() -> dict[str, Any]:
        content: dict[str, Any] = json.loads((tmp_path / "metrics.json").read_text())
        return content

    return read

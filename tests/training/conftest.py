"""Small real datasets, and real processes: `ringfeed train` alone, as a rank, and under `horovodrun`."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ringfeed.sharding import BuildOptions, build
from ringfeed.training.ring.horovod import ranks_on
from tests.helpers.lean import lean_environment
from tests.helpers.warm import WarmProcess, WarmServer, warm_server
from tests.servers.sharing import shared

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


Start = Callable[..., "subprocess.Popen[str] | WarmProcess"]


@pytest.fixture(scope="session")
def warm(servers_root: Path) -> Iterator[WarmServer]:
    """What starts processes that need not import TensorFlow; shared with the other workers."""
    with shared("warm", servers_root, warm_server) as server:
        yield server


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
        if groups.get("optimizer", {}).get("name", "lars") != "lars":
            del tree["optimizer"]["trust_coefficient"]
        for name, value in groups.items():
            tree[name] = {**tree.get(name, {}), **value} if isinstance(value, Mapping) else value
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(tree))
        return path

    return write


@pytest.fixture
def start(tmp_path: Path, warm: WarmServer) -> Start:
    """A function that starts a training process: `ranks=0` alone, else that many under `horovodrun --gloo`.

    A process alone has TensorFlow imported, unless it `is_cold`.
    """

    def launch(
        config: Path, *overrides: str, ranks: int = 0, environ: Mapping[str, str] | None = None, is_cold: bool = False
    ) -> subprocess.Popen[str] | WarmProcess:
        words = _words(config, overrides)
        if not ranks and not is_cold:
            return warm.start(words, folder=tmp_path, output=_new_file(tmp_path), environ=environ)
        command = [sys.executable, "-m", *words]
        if ranks:
            command = [str(Path(sys.executable).parent / "horovodrun"), "-np", str(ranks), "--gloo", *command]
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env=lean_environment(environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return launch


def _words(config: Path, overrides: Sequence[str]) -> list[str]:
    settings = [part for item in overrides for part in ("--set", item)]
    return ["ringfeed.tools.cli", "train", "--config", str(config), *settings]


def _new_file(folder: Path) -> Path:
    """A place for the output of a process, beside the folder that a test looks at."""
    return folder.parent / f"{folder.name}-{uuid.uuid4().hex}.txt"


@pytest.fixture
def train(start: Start) -> Callable[..., tuple[int, str]]:
    """A function that trains to the end, and returns exit status and output."""

    def run(config: Path, *overrides: str, **options: Any) -> tuple[int, str]:
        process = start(config, *overrides, **options)
        output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode is not None
        return process.returncode, output

    return run


@pytest.fixture(scope="session")
def run_on_ranks(warm: WarmServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[int, str]]:
    """A function that runs ``python -m`` on Horovod's ranks, which have TensorFlow imported, until all have ended.

    It returns the highest exit status, and the output of all.
    """

    def run(
        words: Sequence[str], ranks: int, folder: Path, environ: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        output = tmp_path_factory.mktemp("ranks") / "output.txt"
        with ranks_on(["localhost"] * ranks) as environments:
            processes = [
                warm.start(words, folder=folder, output=output, environ={**(environ or {}), **each})
                for each in environments
            ]
            statuses = [process.wait(TIMEOUT_SECONDS) for process in processes]
        found = [abs(status) for status in statuses if status is not None]
        assert len(found) == ranks, output.read_text()
        return max(found), output.read_text()

    return run


@pytest.fixture
def train_on_ranks(tmp_path: Path, run_on_ranks: Callable[..., tuple[int, str]]) -> Callable[..., tuple[int, str]]:
    """A function that trains on ranks which have TensorFlow imported; returns exit status and output."""

    def run(config: Path, *overrides: str, ranks: int, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
        return run_on_ranks(_words(config, overrides), ranks, tmp_path, environ)

    return run


@pytest.fixture
def train_in_turn(
    tmp_path: Path, train: Callable[..., tuple[int, str]], train_on_ranks: Callable[..., tuple[int, str]]
) -> Callable[..., tuple[str, list[dict[str, Any]]]]:
    """A function that trains by each list of overrides, one after the other; returns output and metrics.

    With ``backend=none`` among them one process trains without the others.
    """

    def run(config: Path, *runs: list[str], ranks: int = 0, status: int = 0) -> tuple[str, list[dict[str, Any]]]:
        paths = [tmp_path / f"metrics-{number}.json" for number in range(len(runs))]
        outputs = []
        for each, path in zip(runs, paths, strict=True):
            overrides = [*each, f"output.metrics={path}"]
            is_alone = not ranks or "backend=none" in each
            found, output = train(config, *overrides) if is_alone else train_on_ranks(config, *overrides, ranks=ranks)
            assert found == status, output
            outputs.append(output)
        return "".join(outputs), [json.loads(path.read_text()) for path in paths if path.exists()]

    return run


@pytest.fixture
def metrics(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """A function that reads the metrics file of the last run."""

    def read() -> dict[str, Any]:
        content: dict[str, Any] = json.loads((tmp_path / "metrics.json").read_text())
        return content

    return read

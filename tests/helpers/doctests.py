"""Runs doctests; as a plugin of pytest, gives those that name ``flights`` a folder with that dataset and its source.

``python -m tests.helpers.doctests [MODULE ...]``; without names, those of all modules.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import build

LINKS = Path(sys.prefix) / "src"  # pytest names a module by its path: only below these links that is its own name


def run_doctests(modules: Sequence[str]) -> int:
    """Run the doctests of modules, or of packages with all that they hold; return pytest's exit status."""
    paths = [LINKS / module.replace(".", "/") for module in modules]
    files = [str(path if path.is_dir() else path.with_suffix(".py")) for path in paths]
    plugins = ["-p", "tests.helpers.doctests", "-p", "tests.helpers.collector"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "--doctest-modules", *files]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": str(LINKS)}, check=False).returncode


@pytest.fixture(scope="session")
def flights_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctests")
    write_flights(folder)
    return folder


@pytest.fixture(autouse=True)
def in_a_folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each doctest has its own folder, so that examples may write."""
    examples = getattr(getattr(request.node, "dtest", None), "examples", ())
    if any("flights" in example.source for example in examples):
        shutil.copytree(request.getfixturevalue("flights_folder"), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def write_flights(folder: Path) -> None:
    """Write 400 flights as ``flights.parquet``, and as the dataset ``flights``."""
    table = pa.table(
        {
            "hours": pa.array([i % 20 / 3 for i in range(400)], pa.float32()),
            "miles": pa.array([float(i * 7 % 2500) for i in range(400)], pa.float32()),
            "hour": pa.array([i % 24 for i in range(400)], pa.int64()),
            "carrier": ["AA", "B6", "UA", "DL"] * 100,
            "arrival": ["on time" if i % 8 else "late" for i in range(400)],
        }
    )
    pq.write_table(table, folder / "flights.parquet")
    splits = {"train": "0.8", "test": "0.2"}
    build(
        source=str(folder / "flights.parquet"),
        destination=str(folder / "flights"),
        label="arrival",
        shards=4,
        split=splits,
    )


if __name__ == "__main__":
    sys.exit(
        run_doctests(sys.argv[1:] or [f"ringfeed.{layer}" for layer in ("sharding", "pipeline", "training", "tools")])
    )

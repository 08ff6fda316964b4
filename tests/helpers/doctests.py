"""A plugin of pytest: doctests that name ``flights`` run in a folder of their own, with that dataset and its source."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import build

__all__ = ["in_a_folder", "write_flights"]


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
        splits=splits,
    )

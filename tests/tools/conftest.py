"""Fixtures of the commands: a source and a dataset built from it."""

from pathlib import Path

import pytest

from ringfeed.tools.shard_dataset.program import main
from tests.helpers.commands import ROWS


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "flights.csv"
    lines = [f"{i},{'AA' if i % 3 else 'ü'},{i / 8},{'late' if i % 10 == 0 else 'on time'}" for i in range(ROWS)]
    path.write_text("\n".join(["id,carrier,hours,status", *lines]) + "\n")
    return str(path)


@pytest.fixture
def dataset(source: str, tmp_path: Path) -> Path:
    out = tmp_path / "shards"
    assert (
        main(
            ["build", source, str(out), "--label", "status", "--split", "train=0.9,test=0.1", "--shards", "3", "--json"]
        )
        == 0
    )
    return out

"""What the commands are tried on, and how their errors look."""

import subprocess
from pathlib import Path

import pytest

from ringfeed.tools.shard_dataset import main

ROWS = 400


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


def assert_one_line(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    """The error is one line that holds the words; before it may stand lines of progress."""
    errors = [line for line in done.stderr.splitlines() if not line.startswith(("count labels:", "read records:"))]
    assert done.returncode == 1, done
    assert len(errors) == 1, done.stderr
    assert errors[0].startswith("shard-dataset: error: ")
    for word in words:
        assert word in errors[0]

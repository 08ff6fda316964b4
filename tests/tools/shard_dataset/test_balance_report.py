"""Reports of grouped and column-defined splits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ringfeed.tools.shard_dataset.program import main

GROUPED = ["--label", "kind", "--group-by", "patient", "--split", "train=0.8,test=0.2"]


@pytest.fixture
def source(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    table = {
        "id": np.arange(1000),
        "patient": rng.integers(0, 100, 1000),
        "fold": rng.choice(["a", "b"], 1000),
        "kind": rng.choice(["x", "y"], 1000),
        "text": ["-" * int(length) for length in rng.lognormal(5, 1, 1000)],
    }
    pq.write_table(pa.table(table), tmp_path / "cells.parquet")
    return str(tmp_path / "cells.parquet")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(run(capsys, *words, "--json"))


def test_the_plan_the_build_and_inspect_agree_on_the_shares_reached(
    capsys: pytest.CaptureFixture[str], source: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    planned = document(capsys, "build", source, out, *GROUPED, "--workers", "1", "--dry-run")["groups"]
    counts = [split.pop("groups") for split in planned["splits"].values()]
    assert sum(counts) == 100
    assert counts[0] > 3 * counts[1] > 0
    assert planned["column"] == "patient"
    assert planned["splits"]["train"]["asked"] == 0.8
    assert abs(planned["splits"]["train"]["reached"] - 0.8) < 0.01
    assert 0 < planned["furthest_class"] < 0.05
    assert document(capsys, "build", source, out, *GROUPED, "--workers", "1")["groups"] == planned
    assert document(capsys, "inspect", out)["groups"] == planned


def test_text_shows_the_shares_in_one_line(capsys: pytest.CaptureFixture[str], source: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    lines = [
        run(capsys, "build", source, out, *GROUPED, "--workers", "1", "--dry-run"),
        run(capsys, "build", source, out, *GROUPED, "--workers", "1"),
        run(capsys, "inspect", out),
    ]
    told = [next(line for line in text.splitlines() if line.startswith("grouped by patient: train ")) for text in lines]
    assert "% (asked 80.00%, " in told[0]
    assert " groups); each class within 0." in told[0]
    assert "% (asked 80.00%), test " in told[1]
    assert told[1] == told[2]


def test_the_shares_of_an_append_leave_out_classes_that_it_lacks(
    capsys: pytest.CaptureFixture[str], source: str, tmp_path: Path
) -> None:
    out, more = str(tmp_path / "out"), str(tmp_path / "more.parquet")
    run(capsys, "build", source, out, *GROUPED, "--workers", "1")
    table = pq.read_table(source)
    pq.write_table(table.filter(pc.equal(table["kind"], "x")), more)
    planned = document(capsys, "append", more, out, "--workers", "1", "--dry-run")["groups"]
    told = document(capsys, "append", more, out, "--workers", "1")["groups"]
    assert 0 < told["furthest_class"] == planned["furthest_class"] < 0.1
    assert "nan" not in run(capsys, "append", more, out, "--workers", "1", "--again")


def test_without_groups_no_shares_are_shown(capsys: pytest.CaptureFixture[str], source: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    how = ["--workers", "1", "--split-column", "fold", "--drop-columns", "fold"]
    assert document(capsys, "build", source, out, *how)["groups"] is None
    assert "grouped by" not in run(capsys, "inspect", out)
    assert list(document(capsys, "inspect", out)["splits"]) == ["a", "b"]


def test_the_reported_balance_of_bytes_is_that_of_the_shards(
    capsys: pytest.CaptureFixture[str], source: str, tmp_path: Path
) -> None:
    apart = {}
    for balance in ("records", "bytes"):
        how = ["--workers", "1", "--label", "kind", "--shards", "4", "--balance", balance]
        text = run(capsys, "build", source, str(tmp_path / balance), *how)
        line = next(line for line in text.splitlines() if line.startswith("largest difference"))
        apart[balance] = float(line.rpartition(", ")[2].removesuffix("% in bytes"))
        least, most = document(capsys, "inspect", str(tmp_path / balance))["splits"]["train"]["bytes_per_shard"]
        assert apart[balance] == pytest.approx(100 * (most - least) / least, abs=0.01)
    assert apart["bytes"] < 0.1 < 1 < apart["records"]
    planned = document(capsys, "build", source, str(tmp_path / "new"), *how, "--dry-run")["splits"]["train"]
    least, most = planned["bytes_per_shard"]
    assert most <= 1.001 * least


def test_reshard_splits_by_a_column(capsys: pytest.CaptureFixture[str], source: str, tmp_path: Path) -> None:
    run(capsys, "build", source, str(tmp_path / "a"), "--workers", "1", "--split", "train=0.5,test=0.5")
    run(capsys, "reshard", str(tmp_path / "a"), str(tmp_path / "b"), "--workers", "1", "--split-column", "fold")
    splits = document(capsys, "inspect", str(tmp_path / "b"))["splits"]
    assert {name: split["records"] > 400 for name, split in splits.items()} == {"a": True, "b": True}


def test_shares_and_a_column_exclude_each_other(
    capsys: pytest.CaptureFixture[str], source: str, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["build", source, str(tmp_path / "out"), "--split", "train=1", "--split-column", "fold"])
    assert stop.value.code == 2
    assert "not allowed with argument" in capsys.readouterr().err

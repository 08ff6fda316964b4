"""Predictions for files and for rows in memory: those for the same records in a dataset, in the order of the file."""

from __future__ import annotations

import csv
import io
import json
import sys
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.tools.cli import main
from ringfeed.tools.shard_dataset import main as shard_dataset
from ringfeed.training.serving.trained import open_trained

from .conftest import trained

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of Keras, as it saves

ROWS = 120
KINDS = ("apple", "pear", "plum")


def fruit(row: int) -> dict[str, Any]:
    """A record as its source holds it: an identifier, a missing number now and then, a text, a date, the label."""
    return {
        "id": f"F{row:03}",
        "weight": None if row % 11 == 3 else 100 + 20 * (row % 3) + row % 7,
        "length": 8.1 + row % 5,
        "hue": ("red", "green", "")[row % 3],
        "picked": str(date(2024, 1, 1) + timedelta(row)),
        "fruit": KINDS[row % 3],
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A model of fruits, the CSV file of its dataset, and what it predicts for that dataset by the identifier."""
    folder = tmp_path_factory.mktemp("fruit")
    rows = [fruit(row) for row in range(ROWS)]
    write_csv(folder / "fruit.csv", rows)
    prepare = ["--rename", "hue=colour", "--cast", "length=float32", "--filter", "picked > '2023-01-01'"]
    build = ["build", str(folder / "fruit.csv"), str(folder / "data"), "--label", "fruit", "--shards", "2", *prepare]
    assert shard_dataset([*build, "--split", "train=0.7,test=0.3", "--quiet"]) == 0
    tree = {
        "data": {"url": str(folder / "data"), "batch_size": 12, "exclude": ["id"]},
        "model": {"hidden": [8]},
        "optimizer": {"learning_rate": 0.1},
        "epochs": 2,
    }
    run = trained(folder, tree)
    known = {}
    for split in ("train", "test"):
        out = str(folder / split)
        command = ["predict", run.model, str(folder / "data"), "--split", split, "--out", out, "--keep", "id"]
        assert main([*command, "--quiet"]) == 0
        known |= {row["id"]: row for row in pq.read_table(out).to_pylist()}
    return SimpleNamespace(path=run.model, data=str(folder / "data"), csv=folder / "fruit.csv", known=known, rows=rows)


def write_csv(path: Path, rows: list[dict[str, Any]], delimiter: str = ",", encoding: str = "utf-8") -> None:
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def without(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def check_scores(found: list[dict[str, Any]], model: SimpleNamespace, ids: list[str]) -> None:
    assert [row["record"] for row in found] == list(range(len(ids)))
    assert [row["predicted"] for row in found] == [model.known[one]["predicted"] for one in ids]
    wanted = [model.known[one]["scores"] for one in ids]
    np.testing.assert_allclose([row["scores"] for row in found], wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_file_is_scored_in_its_order_with_columns_of_the_user(
    tmp_path: Path, model: SimpleNamespace, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"scored.{ending}"
    rows = without(model.rows[::-1], "fruit")  # no label
    write_csv(tmp_path / "new.csv", rows)
    command = ["predict", model.path, str(tmp_path / "new.csv"), "--out", str(out), "--keep", "id,hue"]
    assert main([*command, "--batch-size", "32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == ROWS
    if ending == "parquet":
        found = pq.read_table(out).to_pylist()
        assert json.loads(pq.read_schema(out).metadata[b"classes"]) == list(KINDS)
    elif ending == "jsonl":
        found = [json.loads(line) for line in out.read_text().splitlines()]
        found = [{**row, "scores": list(row["scores"].values())} for row in found]
    else:
        table = list(csv.DictReader(out.read_text().splitlines()))
        scores = [[float(row[f"score_{name}"]) for name in KINDS] for row in table]
        found = [{**row, "record": int(row["record"]), "scores": one} for row, one in zip(table, scores, strict=True)]
    check_scores(found, model, [row["id"] for row in rows])
    assert [(row["id"], row["hue"]) for row in found] == [(row["id"], row["hue"]) for row in rows]


def test_other_files_than_the_model_was_trained_on(tmp_path: Path, model: SimpleNamespace) -> None:
    """Another delimiter and encoding, another kind of file, a split of a dataset."""
    write_csv(tmp_path / "wide.csv", without(model.rows, "fruit"), delimiter=";", encoding="utf-16")
    pq.write_table(pa.Table.from_pylist(without(model.rows, "fruit")), tmp_path / "new.parquet")
    ids = [row["id"] for row in model.rows]
    for source, more in [("wide.csv", ["--delimiter", ";", "--encoding", "utf-16"]), ("new.parquet", [])]:
        out = tmp_path / f"{source}.scores.parquet"
        assert main(["predict", model.path, str(tmp_path / source), "--out", str(out), "--quiet", *more]) == 0
        check_scores(pq.read_table(out).to_pylist(), model, ids)
    out = tmp_path / "test.parquet"
    command = ["predict", model.path, model.data, "--split", "test", "--keep", "*", "--quiet"]
    assert main([*command, "--out", str(out)]) == 0
    found = pq.read_table(out)
    check_scores(found.to_pylist(), model, found["id"].to_pylist())
    assert found.schema.field("picked").type == pa.date32()


def test_rows_in_memory_and_on_standard_input(
    model: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = open_trained(model.path)
    rows = without(model.rows[:30], "fruit", "id")
    ids = [row["id"] for row in model.rows[:30]]
    check_scores(opened(rows).to_pylist(), model, ids)
    check_scores(opened(pa.Table.from_pylist(rows)).to_pylist(), model, ids)
    check_scores(opened(rows[4]).to_pylist(), model, ids[4:5])
    lines = "\n".join(map(json.dumps, rows)).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(lines)))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=(out := io.BytesIO()), flush=lambda: None))
    assert main(["predict", model.path, "-", "--keep", "weight"]) == 0
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [row["weight"] for row in found] == [row["weight"] for row in rows]
    check_scores([{**row, "scores": list(row["scores"].values())} for row in found], model, ids)


@pytest.mark.parametrize(
    ("source", "more", "error"),
    [
        ("few.csv", [], "few.csv lacks columns that the model takes: weight, colour; the columns are: "),
        ("new.csv", ["--keep", "hew"], "--keep: FOLDER/new.csv has no column 'hew'; did you mean 'hue'?"),
        ("heavy.csv", [], "heavy.csv: line 5: column 'weight': 'heavy' is no int64; fix or remove it"),
        ("new.csv", ["--split", "test"], "new.csv is no dataset, so it has no splits; leave it out"),
        ("new.csv", ["--out", "folder"], "new.csv go to one file; name it, such as --out scored.csv"),
        ("new.csv", ["--out", "absent/"], "new.csv go to one file; name it"),
        ("none.csv", [], "none.csv"),
        ("semicolons.csv", [], "the fields seem to be separated by ';'; if so, add --delimiter ';'"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_one_line(
    tmp_path: Path,
    model: SimpleNamespace,
    source: str,
    more: list[str],
    error: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = without(model.rows[:9], "fruit")
    write_csv(tmp_path / "new.csv", rows)
    write_csv(tmp_path / "few.csv", without(rows, "weight", "hue"))
    write_csv(tmp_path / "heavy.csv", [{**row, "weight": "heavy"} if row["id"] == "F003" else row for row in rows])
    write_csv(tmp_path / "semicolons.csv", rows, delimiter=";")
    out = tmp_path / "scored.csv"
    command = ["predict", model.path, str(tmp_path / source), "--out", str(out), "--quiet", *more]
    assert main(command) == 1
    line = capsys.readouterr().err
    assert error.replace("FOLDER", str(tmp_path)) in line
    assert line.count("\n") == 1
    assert "--on-bad-record" not in line
    assert not out.exists()

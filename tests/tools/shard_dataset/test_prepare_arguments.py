"""The flags that prepare records: their parsing, and runs of the command."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ringfeed.sharding.prepare import (
    Cast,
    Drop,
    DropNulls,
    Encoding,
    FillNulls,
    Filter,
    ImageOptions,
    MapBatches,
    PrepareOptions,
    Rename,
    Select,
    Size,
)
from ringfeed.tools.shard_dataset.parser import build_parser
from ringfeed.tools.shard_dataset.prepare_arguments import prepare_options
from ringfeed.tools.shard_dataset.program import main
from tests.helpers.commands import Cli


def parsed(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["build", *words])


def test_without_flags_nothing_is_prepared() -> None:
    assert prepare_options(parsed("a", "b")) == PrepareOptions()


def test_steps_keep_the_order_of_the_command_line() -> None:
    words = ["--drop-nulls", "--cast", "x=int8,y=string", "--filter", "x > 1", "a", "b", "--map", "m:f"]
    words += ["--filter", "z > 2", "--rename", "x=z", "--select", 'z,"a,b"', "--drop-columns", "q", "--fill-nulls"]
    words += ['v=1,"w=x, y=z"', "--drop-nulls", "p,q", "--resize", "256x128", "--encode", "webp:70"]
    with pytest.raises(SystemExit):  # the columns of --drop-nulls may be left out, but not right before SRC
        parsed("--drop-nulls", "a", "b")
    assert prepare_options(parsed(*words)) == PrepareOptions(
        steps=(
            DropNulls(),
            Cast((("x", "int8"), ("y", "string"))),
            Filter("x > 1"),
            MapBatches(function="m:f", folder=os.getcwd()),
            Filter("z > 2"),
            Rename((("x", "z"),)),
            Select(("z", "a,b")),
            Drop(("q",)),
            FillNulls((("v", "1"), ("w", "x, y=z"))),
            DropNulls(("p", "q")),
        ),
        images=ImageOptions(size=Size(width=256, height=128), encoding=Encoding(form="webp", quality=70)),
    )


@pytest.mark.parametrize(
    ("words", "dedup"),
    [
        (["a", "b", "--dedup"], ()),
        (["--dedup", "*", "a", "b"], ()),
        (["a", "b", "--dedup", "x, y"], ("x", "y")),
        (["--dedup", "--json", "a", "b"], ()),
    ],
)
def test_dedup_takes_all_columns_or_some(words: list[str], dedup: Any) -> None:
    assert prepare_options(parsed(*words)).dedup == dedup


@pytest.mark.parametrize("text", ["", '""'])
def test_a_column_without_a_name_is_dropped(text: str) -> None:
    assert prepare_options(parsed("a", "b", "--drop-columns", text)).steps == (Drop(("",)),)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--select", ""], "expected NAME,NAME"),
        (["--select", "a,,b"], "expected NAME,NAME"),
        (["--rename", "a"], "expected NAME=VALUE"),
        (["--cast", "=int8"], "expected NAME=VALUE"),
        (["--fill-nulls", '"a=b'], "double quotes around"),
        (["--resize", "big"], "a size must be the shorter side"),
        (["--encode", "gif"], "an encoding must be"),
    ],
)
def test_invalid_values_are_wrong_usage(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    with pytest.raises(SystemExit) as stop:
        parsed("a", "b", *words)
    assert stop.value.code == 2
    assert told in capsys.readouterr().err


@pytest.fixture
def flights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lines = [f"{i % 70:05d},{i / 8 if i % 7 else ''},{'late' if i % 10 == 0 else 'on time'}" for i in range(400)]
    (tmp_path / "flights.csv").write_text("\n".join(["zip,hours,status", *lines]) + "\n")
    (tmp_path / "flight_functions.py").write_text(
        "import pyarrow.compute as pc\n\ndef minutes(batch):\n"
        "    return batch.append_column('minutes', pc.multiply(batch['hours'], 60.0))\n"
    )
    (tmp_path / "types.yaml").write_text("features: {zip: string}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_dry_run_shows_the_prepared_schema(capsys: pytest.CaptureFixture[str], flights: Path) -> None:
    words = ["build", "flights.csv", "out", "--label", "state", "--schema", "types.yaml", "--drop-nulls", "--rename"]
    words += ["status=state", "--map", "flight_functions:minutes", "--cast", "minutes=float32", "--drop-columns"]
    assert main([*words, "hours", "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(feature["name"], feature["dtype"]) for feature in document["features"]] == [
        ("zip", "string"),
        ("state", "string"),
        ("minutes", "float32"),
    ]
    assert document["splits"]["train"]["records"] == 342
    assert not (flights / "out").exists()


def test_a_function_of_this_folder_runs_in_workers(installed: Cli, flights: Path) -> None:
    done = installed(
        "shard-dataset", "build", "flights.csv", "out", "--label", "zip", "--schema", "types.yaml", "--map",
        "flight_functions:minutes", "--select", "zip,status", "--dedup", "--workers", "2", "--shards", "2",
        "--min-class-records", "1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "wrote 70 records" in done.stdout
    assert "compare records: 2 of 2" in done.stderr
    assert installed("shard-dataset", "verify", f"{flights}/out").returncode == 0


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str], flights: Path) -> None:
    assert main(["build", "flights.csv", "out", "--filter", "hour > 1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "--filter 'hour > 1': there is no column 'hour'; did you mean 'hours'?" in line

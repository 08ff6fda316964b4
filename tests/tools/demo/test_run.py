"""The demo's sources (tools/demo/data.py), which must not leak the label, and its steps on a part of the data."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from PIL import Image

from ringfeed.tools.demo import data as demo_data
from ringfeed.tools.demo import run as demo
from ringfeed.tools.demo.data import FLIGHT_FEATURES, FLIGHT_LABEL, flights_table, write_digits
from tests.helpers.lean import lean_environment

pytest.importorskip("sklearn", reason="the extra `demo` is not installed")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return flights_table()


def test_all_flights_are_kept_and_labelled_late_after_an_hour(flights: pa.Table) -> None:
    assert flights.num_rows == 336_776
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(flights[FLIGHT_LABEL]).to_pylist()}
    assert counts == {"late": 27_789, "on time": 308_987}


def test_no_column_is_known_only_after_take_off(flights: pa.Table) -> None:
    assert flights.column_names == [*FLIGHT_FEATURES, FLIGHT_LABEL]
    after = {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time", "tailnum", "flight", "year", "seats"}
    assert not after & set(FLIGHT_FEATURES)


def test_missing_values_do_not_reveal_cancelled_flights(flights: pa.Table) -> None:
    cancelled = demo_data._read("flights.csv.zip")["arr_delay"].is_null().to_numpy(zero_copy_only=False)
    for name in FLIGHT_FEATURES:
        missing = flights[name].is_null().to_numpy(zero_copy_only=False)
        if missing.any():
            assert cancelled[missing].mean() < 0.1, name  # 0.028 of all; of those without a tail number, all


def test_the_weather_is_of_the_hour_before_in_the_same_time_zone(flights: pa.Table) -> None:
    weather = demo_data._read("weather.csv")
    # 2013-07-01 17:00 in New York (UTC-4) is 21:00 UTC; the hour before is 16:00, 20:00 UTC.
    day = (pc.field("origin") == "JFK") & (pc.field("month") == 7) & (pc.field("day") == 1)
    noted = weather.filter(day & (pc.field("hour") == 16))
    joined = flights.filter(day & (pc.field("dep_hour") == 17))
    assert joined.num_rows > 20
    for name in ("temp", "humid", "visib"):
        assert set(joined[name].to_pylist()) == {noted[name].cast(pa.float32())[0].as_py()}, name


def test_the_weekday_is_that_of_the_calendar(flights: pa.Table) -> None:
    first = flights.slice(0, 1).to_pylist()[0]
    assert (first["month"], first["day"], first["weekday"]) == (1, 1, 2)  # Tuesday 2013-01-01
    assert set(flights["weekday"].unique().to_pylist()) == set(range(1, 8))


def test_the_digits_are_a_folder_of_small_grey_pngs_for_each_class(tmp_path: Path) -> None:
    assert write_digits(tmp_path) == 1_797
    assert sorted(folder.name for folder in tmp_path.iterdir()) == [str(digit) for digit in range(10)]
    files = sorted(tmp_path.rglob("*.png"))
    assert len(files) == 1_797
    with Image.open(files[0]) as image:
        assert (image.size, image.mode) == ((8, 8), "L")
        assert np.asarray(image).max() > 200


def test_a_failed_command_is_explained_by_its_first_error() -> None:
    output = "[0]<stderr>:loading\n[0]<stderr>:ringfeed train: error: data.batch_size=7\nTraceback\nRuntimeError: x\n"
    assert demo._last_words(output) == "ringfeed train: error: data.batch_size=7"


def run_demo(*arguments: str, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ringfeed.tools.demo", *arguments]
    env = lean_environment()
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=600)


def test_outside_of_the_repository_the_demo_fails_in_one_line(tmp_path: Path) -> None:
    done = run_demo(cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("demo: error: examples/flights.yaml does not exist")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_failed_step_ends_the_demo_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", lean_environment()["PYTHONPATH"])
    examples = tmp_path / "examples"
    examples.mkdir()
    (examples / "flights.yaml").write_text("data: {url: x, batch_size: 64, balanec: uniform}\n")
    here = demo.Demo(tmp_path, examples, True, demo.SafeConsole(), [])
    with pytest.raises(demo.DemoFailed, match=r"^Training: ringfeed train: error: .*balanec.*\(all of its output: "):
        demo.train(here, "Training", "flights-natural", {})


def test_every_step_works_on_a_part_of_the_data(tmp_path: Path) -> None:
    output = tmp_path / "demo"
    done = run_demo("--quick", "--output", str(output))
    assert done.returncode == 0, done.stderr
    page = (output / "report.html").read_text()
    assert done.stdout.rstrip().endswith("report.html")
    assert "A quick run on a part of the data" in page
    commands = re.findall(r"^\$ (\S+ \S+)", done.stdout, re.MULTILINE)
    assert commands == ["shard-dataset build"] * 2 + ["ringfeed profile"] * 2 + ["horovodrun -np"] * 3 + [
        "ringfeed predict"
    ]
    for run in ("flights-natural", "flights-uniform", "digits"):
        metrics = json.loads((output / "runs" / f"{run}.json").read_text())
        assert metrics["ranks"] == demo.RANKS
        assert metrics["config"]["precision"] == "bfloat16"
        assert metrics["config"]["optimizer"]["name"] == "lars"
    digits = json.loads((output / "runs" / "digits.json").read_text())["final"]
    right, of_all = map(int, re.findall(r"^  (\d+) of (\d+) right$", done.stdout, re.MULTILINE)[0])
    assert (right / of_all, of_all) == (pytest.approx(digits["accuracy"]), digits["samples"])
    assert page.count('<img src="data:image/png;base64,iVBORw') > 10
    assert json.loads((output / "runs" / "flights-uniform.json").read_text())["config"]["data"]["balance"] == "uniform"

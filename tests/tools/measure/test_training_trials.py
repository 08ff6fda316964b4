"""`ringfeed profile` with a step: bottlenecks made on purpose are named, and mistakes are one line."""

import html
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from ringfeed.sharding import BuildOptions, ConfigError, build
from ringfeed.tools.cli import main
from ringfeed.tools.measure.other_load import LoadClock
from ringfeed.tools.profile import profile
from ringfeed.tools.verdict.verdict import LIMITS
from tests.helpers.commands import Cli
from tests.servers.web import Behaviour, served

BATCH = 50
STEPS = 120


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("training-trials")
    rows = range(BATCH * STEPS)
    pq.write_table(pa.table({"x": [float(i) for i in rows], "y": [i % 2 for i in rows]}), folder / "s.parquet")
    build(BuildOptions(source=str(folder / "s.parquet"), destination=str(folder / "d"), label="y", shards=16))
    return str(folder / "d")


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge, though other tests take cores: the bottlenecks here are sleeps, which need none."""
    monkeypatch.setattr(LoadClock, "disturbed", lambda _: 0.0)


def step_of(seconds: float) -> Callable[[Any], None]:
    def step(batch: Any) -> None:
        assert len(batch["x"]) == BATCH
        time.sleep(seconds)

    return step


def slow_transform(batch: dict[str, Any]) -> dict[str, Any]:
    def slow(values: Any) -> Any:
        time.sleep(0.05)
        return values

    return batch | {"x": tf.ensure_shape(tf.py_function(slow, [batch["x"]], tf.float64), [BATCH])}


def test_a_slow_step_is_no_fault_of_the_input(dataset: str, tmp_path: Path) -> None:
    result = profile(dataset, batch_size=BATCH, step=step_of(0.1), seconds=4.0, trace=str(tmp_path / "step.json"))
    assert result.training is not None
    assert result.verdict.bottleneck in ("step", "cores")  # which other tests share
    assert result.training.step.samples_per_second <= BATCH / 0.1
    assert result.samples_per_second > 2 * result.training.step.samples_per_second
    assert str(result).startswith(result.verdict.headline)
    assert str(result).splitlines()[-1].startswith(f"bottleneck: {result.verdict.bottleneck} (")
    assert f"<p>{html.escape(result.verdict.headline)}</p>" in result._repr_html_()
    assert result.inside is not None  # seen from inside, it sleeps
    assert result.inside.longest == ()
    assert 0.1 < result.inside.gaps.seconds == result.inside.seconds
    shown = f"{result.inside.gaps.seconds * 1000:,.3f}"
    assert f" {shown} 100%" in " ".join(str(result).split())
    assert f"<td>{shown}</td><td>100%</td>" in result.html().replace("\n", "")
    assert asdict(result)["inside"]["gaps"]["share"] == 1.0
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["ringfeed step"] * 5


def test_a_slow_transform_is_named(dataset: str) -> None:
    result = profile(dataset, batch_size=BATCH, step=step_of(0.005), transform=slow_transform, seconds=3.0)
    assert result.training is not None
    assert result.verdict.bottleneck == "transform"
    assert result.training.transform is not None
    assert "test_training_trials:slow_transform takes" in result.verdict.advice
    assert result.verdict.gain is not None
    assert result.verdict.gain.value > 3


@pytest.fixture(scope="module")
def slow_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """16 MB behind a link of 16 MB/s."""
    folder: Path = tmp_path_factory.mktemp("slow-store")
    random = np.random.default_rng(0)
    blobs = pa.array([random.bytes(8000) for _ in range(2000)])
    pq.write_table(pa.table({"x": blobs, "y": [i % 2 for i in range(2000)]}), folder / "s.parquet")
    build(BuildOptions(source=str(folder / "s.parquet"), destination=str(folder / "d"), label="y", shards=16))
    with served(folder / "d", behaviour=Behaviour(bytes_per_second=16e6)) as url:
        yield url


@pytest.mark.parametrize(("step_seconds", "bottleneck"), [(0.05, "shuffle_fill"), (0.001, "store_bandwidth")])
def test_a_slow_store_holds_up_the_first_batch_or_all(slow_store: str, step_seconds: float, bottleneck: str) -> None:
    result = profile(slow_store, batch_size=BATCH, streams=10, step=step_of(step_seconds), seconds=3.0)
    assert result.verdict.bottleneck == bottleneck, str(result)
    assert ("the first batch waits for 10 of 16 shards" in str(result)) is (step_seconds == 0.05)
    assert ("the store's bandwidth is the limit" in str(result)) is (step_seconds == 0.001)


def test_the_time_bounds_the_measurement_of_a_long_epoch(slow_store: str) -> None:
    result = profile(slow_store, batch_size=BATCH, streams=2, seconds=0.5)
    assert 2 <= result.steps < 40
    assert result.epoch_seconds > result.seconds
    assert result.epoch_samples_per_second == pytest.approx(2000 / result.epoch_seconds)


def test_mistakes_are_one_line(dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    (tmp_path / "mine.py").write_text(
        "def bad_step(batch):\n    raise ValueError('no such layer')\n\n"
        "def bad_transform(batch):\n    return batch['no']\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ["profile", dataset, "--batch-size", str(BATCH), "--seconds", "0.5"]
    for words, message in (
        (["--step", "mine:bad_step"], f"{tmp_path}/mine.py:2: ValueError: no such layer (in mine:bad_step)"),
        (
            ["--step", "mine:bad_step", "--transform", "mine:bad_transform"],
            f"{tmp_path}/mine.py:5: KeyError: 'no' (in mine:bad_transform)",
        ),
        (["--step", "mine:absent"], f"--step mine:absent: {tmp_path}/mine.py has no function 'absent'"),
        (["--step", "absent"], "--step takes module:function"),
        (["--transform", "mine:bad_transform"], "transform is measured with a step"),
        (["--config", "train.yaml"], "URL is not for --config"),
        (["--set", "epochs=1"], "--set overrides keys of a configuration"),
        (["--seconds", "0"], "seconds must be positive, got 0.0"),
    ):
        assert main([*command, *words]) == 1
        error = capfd.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("ringfeed: error: ")
        assert message in error
    assert main(["simulate", *command[1:], "--step", "mine:bad_step"]) == 1
    assert f"{tmp_path}/mine.py:2: ValueError: no such layer (in mine:bad_step)" in capfd.readouterr().err
    with pytest.raises(ConfigError, match="transform is measured with a step"):
        profile(dataset, batch_size=BATCH, transform=slow_transform)


def test_a_configured_run_is_profiled_without_resuming_or_writing(dataset: str, tmp_path: Path, installed: Cli) -> None:
    config = {
        "data": {"url": dataset, "batch_size": BATCH, "eval_split": None},
        "model": {"name": "tabular", "hidden": [8]},
        "epochs": 1,
        "checkpoint": {"url": str(tmp_path / "checkpoints")},
        "output": {"metrics": str(tmp_path / "metrics.json")},
    }
    (tmp_path / "train.yaml").write_text(json.dumps(config))
    words = ["--config", str(tmp_path / "train.yaml"), "--set", "data.batch_size=100", "--seconds", "2", "--json"]
    done = installed("ringfeed", "profile", *words)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["batch_size"] == 100
    assert document["training"]["step_name"] == "the step of tabular"
    assert min(document["training"][part]["samples"] for part in ("transform", "input", "step", "together")) > 0
    assert document["verdict"]["bottleneck"] in LIMITS
    assert len(done.stdout) < 100_000
    assert {path.name for path in tmp_path.iterdir()} == {"train.yaml"}

"""What is measured for a simulation, against what is known of the store and the step; and `ringfeed simulate`."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, ConfigError, build, open_dataset
from ringfeed.tools.cli import main
from ringfeed.tools.measure.training_trials import Workload
from ringfeed.tools.simulation import Costs, StepCosts, StoreCosts, measure_costs
from ringfeed.tools.simulation.command import _parse_counts, _parse_seconds, _range_of
from tests.servers.web import Behaviour, served

LATENCY = 0.03


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("simulation")
    pq.write_table(pa.table({"x": np.arange(800.0), "y": np.arange(800) % 2}), folder / "s.parquet")
    build(BuildOptions(source=str(folder / "s.parquet"), destination=str(folder / "d"), label="y", shards=8))
    return folder / "d"


@pytest.fixture
def late(dataset: Path) -> Iterator[str]:
    with served(dataset.parent, behaviour=Behaviour(latency_seconds=LATENCY)) as url:
        yield f"{url}/d"


def test_costs_are_those_of_the_store_the_loader_and_the_step(late: str, dataset: Path, tmp_path: Path) -> None:
    loader = Loader(late, batch_size=40, streams=4)
    workload = Workload(
        loader=loader, transform=lambda batch: batch, step=lambda batch: time.sleep(0.02),
        transform_name="transform", step_name="step",
    )  # fmt: skip
    told: list[str] = []
    measured = measure_costs(loader, 1, workload=workload, cache_folder=str(tmp_path / "cache"), report=told.append)
    costs, shape = measured.costs, measured.shape
    assert median(costs.store.latency_seconds) >= LATENCY
    assert not costs.store.is_local
    files = open_dataset(str(dataset)).split_shards("train")
    assert shape.bytes == sum(shard.bytes + shard.index_bytes for shard in files)
    assert shape.records.tolist() == [shard.records for shard in files]
    assert costs.step is not None
    assert min(costs.step.seconds) >= 0.02
    assert costs.step.core_seconds < 0.02
    assert costs.step.fixed_share > 0.8  # whatever the batch
    for name in ("gather_seconds", "handover_seconds", "hit_byte_seconds", "file_seconds", "transform_seconds"):
        assert getattr(costs, name) > 0, name
    assert told == ["the store", "the loader", "the cache", "transform alone", "step alone"]
    assert list(tmp_path.iterdir()) == []  # the trial's cache is gone
    assert measure_costs(Loader(dataset, batch_size=40), 0.2).costs.store.is_local


@pytest.fixture
def costs_file(tmp_path: Path) -> str:
    costs = Costs(
        store=StoreCosts(latency_seconds=(0.1,), bytes_per_second=1e6),
        gather_seconds=1e-5,
        step=StepCosts(seconds=(0.1,), core_seconds=0.0, samples=40),
    )
    (tmp_path / "costs.json").write_text(json.dumps(costs.to_json()))
    return str(tmp_path / "costs.json")


def simulated(capsys: pytest.CaptureFixture[str], *command: str) -> dict[str, Any]:
    assert main(["simulate", *command, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_the_command_simulates_what_its_options_say(
    dataset: Path, costs_file: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = [str(dataset), "--costs", costs_file, "--batch-size", "40"]
    (plain,) = simulated(capsys, *command)["simulations"]
    assert plain["epochs"][0]["steps"] == 20
    assert plain["epochs"][0]["seconds"] == pytest.approx(20 * 0.1 + plain["epochs"][0]["first_batch_seconds"])
    more = simulated(
        capsys, *command, "--ranks", "1,2,4", "--ranks-per-host", "2", "--latency", "0", "--gradients", "1MB",
        "--ring-latency", "10ms", "--ring-bandwidth", "1GB", "--price-per-host-hour", "1",
    )["simulations"]  # fmt: skip
    assert [each["setup"]["hosts"] for each in more] == [1, 1, 2]
    of_two = more[1]["epochs"][0]
    steps = of_two["seconds"] - of_two["first_batch_seconds"]
    assert steps == pytest.approx(20 * (0.05 + 2 * (0.01 + 0.0005)), rel=0.02)
    assert more[2]["cost"] == pytest.approx(2 * more[2]["epochs"][0]["seconds"] / 3600)
    assert of_two["seconds_between"] is None
    (ranged,) = simulated(
        capsys, *command, "--ranks", "2", "--latency", "0", "--gradients", "1MB", "--step-seconds", "0.1..0.3",
        "--ring-latency", "10ms..20ms", "--ring-bandwidth", "1GB..2GB",
    )["simulations"]  # fmt: skip
    (epoch,) = ranged["epochs"]
    ends = [20 * (0.1 / 2 + 2 * (0.01 + 0.00025)), 20 * (0.3 / 2 + 2 * (0.02 + 0.0005))]
    between = [seconds - epoch["first_batch_seconds"] for seconds in epoch["seconds_between"]]
    assert between == pytest.approx(ends, rel=0.02)
    assert epoch["seconds"] - epoch["first_batch_seconds"] == pytest.approx(sum(ends) / 2, rel=0.02)
    cached = simulated(capsys, *command, "--cache", "1GB", "--epochs", "2", "--streams", "4", "--records", "1600")
    first, second = cached["simulations"][0]["epochs"]
    assert (first["cache_hits"], second["hit_share"], second["fetched_bytes"], first["steps"]) == (0, 1.0, 0, 40)
    page = tmp_path / "page.html"
    shown = ["--ranks", "1,8", "--streams", "4", "--ring-latency", "10ms..20ms", "--html", str(page)]
    assert main(["simulate", *command, *shown]) == 0
    told = capsys.readouterr().out
    assert "  between  " in told.splitlines()[0]
    assert "8 ranks read the dataset 2.0 times: with --streams 8, or a multiple, each reads its own records" in told
    assert page.read_text().count("<svg") == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--step-seconds", "1", "--step", "model:step"], "--step measures a step, and --step-seconds gives its time"),
        (["--transform", "model:prepare"], "--transform is measured with a step; give --step, too"),
        (["--costs", "nowhere.json"], "--costs: there is no file at nowhere.json; check the path"),
        (["--streams", "7"], "streams must divide the global batch of 40, got 7"),
    ],
)
def test_mistakes_are_one_line(
    dataset: Path, costs_file: str, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["simulate", str(dataset), "--costs", costs_file, "--batch-size", "40", *options]) == 1
    assert message in capsys.readouterr().err


def test_times_and_numbers_of_ranks_are_parsed() -> None:
    parsed = [_parse_seconds(text) for text in ("30ms", "50us", "0.2s", "1", "1e-3")]
    assert parsed == pytest.approx([0.03, 5e-5, 0.2, 1.0, 1e-3])
    assert _parse_counts("1, 2,4") == (1, 2, 4)
    for text in ("fast", "-1", "1h", "..s"):
        with pytest.raises(ConfigError, match="a time such as 30ms"):
            _parse_seconds(text)
    with pytest.raises(ConfigError, match=r"a range begins with its lower end, as in 1ms\.\.2ms, got '2ms\.\.1ms'"):
        _range_of(_parse_seconds)("2ms..1ms")
    for text in ("0", "a", "1,,2", "-2"):
        with pytest.raises(ConfigError, match="--ranks takes numbers such as"):
            _parse_counts(text)

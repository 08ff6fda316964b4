"""The loaders of a run: which numbers of the configuration reach them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import BuildOptions, ConfigError, build
from ringfeed.training.config.config_file import load_config, parse_config
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.run.inputs import open_evaluations, open_loader, open_manifests
from ringfeed.training.run.trainer import Trainer

NUMBERS = {"streams": 4, "window_shards": 2, "fetch_threads": 3, "prefetch_bytes": 0}


def test_the_numbers_of_the_loader_are_those_of_the_configuration(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(80), "y": [i % 2 for i in range(80)]}), tmp_path / "s.parquet")
    build(BuildOptions(source=str(tmp_path / "s.parquet"), destination=str(tmp_path / "d"), label="y", shards=4))
    data = {"url": str(tmp_path / "d"), "batch_size": 8, "eval_split": "train"}
    config = parse_config({"data": data | NUMBERS}, "a.yaml")
    arguments = open_loader(config, SoloRing()).arguments
    assert {name: arguments[name] for name in NUMBERS} == NUMBERS
    evaluated = open_evaluations(config, SoloRing(), open_manifests(config.data))[""].loader
    own = {name: evaluated.arguments[name] for name in NUMBERS}  # in the order that it has without them
    assert own == NUMBERS | {"streams": None, "window_shards": 1}


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("streams", 0, "in [1, 2**31)"),
        ("window_shards", 0, "in [1, 2**31)"),
        ("prefetch_bytes", -1, "at least 0"),
    ],
)
def test_numbers_that_no_loader_takes_are_refused(key: str, value: int, allowed: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"a.yaml: data.{key} must be {allowed}, got {value}")):
        parse_config({"data": {"url": "d", key: value}}, "a.yaml")


def test_a_run_reads_its_epochs_in_one_reading(write_config: Callable[..., Path]) -> None:
    path = write_config(epochs=3, data={"eval_split": None, "batch_size": 600})
    trainer = Trainer(load_config(str(path), ["deterministic=false", "max_steps=12"]), SoloRing())
    read, readings = trainer.loader.batches, []

    def batches(epoch: int, start_step: int, *, epochs: int, transform: Any) -> Any:
        readings.append((epoch, start_step, epochs))
        return read(epoch, start_step, epochs=epochs, transform=transform)

    trainer.loader.batches = batches
    assert trainer.run()["total_steps"] == 12
    assert (trainer.epoch_plan.steps, readings) == (5, [(0, 0, 3)])
    assert trainer._ahead._reading is None

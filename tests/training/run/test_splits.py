"""What is trained on, evaluated on, and tested on: the choice of splits, and the test at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pyarrow.dataset as arrow_dataset
import pytest

from ringfeed.sharding import build
from ringfeed.sharding.errors import ConfigError
from ringfeed.tools.cli import main
from ringfeed.training.config.config_file import load_config, parse_config
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.run.inputs import with_splits
from ringfeed.training.run.trainer import Trainer


def _resolved(splits: str, **groups: Any) -> tuple[str | None, str | None]:
    config = parse_config({"data": {"url": "x"}, **groups}, "run.yaml")
    data = with_splits(config, {"": SimpleNamespace(splits=splits.split())}).data  # type: ignore[dict-item]
    return data.eval_split, data.test_split


@pytest.mark.parametrize(
    ("splits", "data", "expected"),
    [
        ("train val test", {}, ("val", "test")),
        ("train test validation", {}, ("validation", "test")),
        ("train dev", {}, ("dev", None)),
        ("train test", {}, ("test", None)),
        ("train", {}, ("test", None)),
        ("train val test", {"eval_split": "test"}, ("test", None)),
        ("train val test", {"eval_split": None}, (None, "test")),
        ("train val test", {"test_split": None}, ("val", None)),
        ("train val late", {"test_split": "late"}, ("val", "late")),
    ],
)
def test_runs_evaluate_on_a_validation_split_and_keep_the_test_for_the_end(
    splits: str, data: dict[str, Any], expected: tuple[str | None, str | None]
) -> None:
    assert _resolved(splits, data={"url": "x", **data}) == expected


@pytest.mark.parametrize(
    ("groups", "key"),
    [
        ({"early_stopping": {"metric": "loss"}}, "early_stopping.metric=loss"),
        ({"checkpoint": {"url": "c", "best": 2}}, "checkpoint.best=2"),
    ],
)
def test_nothing_is_chosen_by_the_test_split_unless_it_is_named(groups: dict[str, Any], key: str) -> None:
    message = rf"{key} chooses by evaluations, .* with --split train=0.8,val=0.1,test=0.1, or, .*eval_split=test"
    with pytest.raises(ConfigError, match=message):
        _resolved("train test", **groups)
    assert _resolved("train test", **groups, data={"url": "x", "eval_split": "test"}) == ("test", None)
    assert _resolved("train val test", **groups) == ("val", "test")


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, when it saves a model
def test_the_test_at_the_end_is_of_the_model_that_the_run_writes(
    flights: str, tmp_path: Path, write_config: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    source = f"{Path(flights).parent}/source.parquet"
    splits = {"train": Fraction(3, 4), "val": Fraction(1, 8), "test": Fraction(1, 8)}
    build(source=source, destination=str(tmp_path / "data"), label="late", shards=2, split=splits)
    config = write_config(
        data={"url": str(tmp_path / "data"), "batch_size": 600},
        optimizer={"name": "sgd", "learning_rate": 0.5, "momentum": 0.9},
        epochs=3,
        checkpoint={"url": str(tmp_path / "run"), "keep": 1, "best": 1},
        output={"model": str(tmp_path / "model.keras"), "weights": "best"},
    )
    metrics = Trainer(load_config(str(config), ["deterministic=false"]), SoloRing()).run()
    assert {entry["samples"] for entry in metrics["history"]["evaluations"]} == {500}
    assert metrics["config"]["data"] | {"eval_split": "val", "test_split": "test"} == metrics["config"]["data"]
    assert (metrics["test"]["samples"], metrics["test"]["step"]) == (500, metrics["best"]["step"])
    out = str(tmp_path / "predictions")
    words = ["predict", str(tmp_path / "model.keras"), str(tmp_path / "data"), "--split", "test"]
    assert main([*words, "--out", out, "--keep", "late", "--quiet"]) == 0
    rows = arrow_dataset.dataset(out, format="parquet", exclude_invalid_files=True).to_table().to_pydict()
    scores = keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(rows["scores"]))
    right = [("late", "on time")[index] == late for index, late in zip(scores.argmax(1), rows["late"], strict=True)]
    assert sum(right) / 500 == pytest.approx(metrics["test"]["accuracy"])

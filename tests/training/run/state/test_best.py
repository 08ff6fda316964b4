"""Runs that end early, and the best of their checkpoints and models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.config_file import load_config, parse_config
from ringfeed.training.models.model_file import decode_model
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.run.state.best import best_evaluations, check_defined, is_patience_over
from ringfeed.training.run.stopping import Stopped
from ringfeed.training.run.trainer import Trainer
from tests.helpers.checkpoints import saved_steps


def _train(path: Path, *items: str, stop_at: int = 10**6) -> dict[str, Any]:
    calls = iter(range(10**6))
    return Trainer(
        load_config(str(path), ["deterministic=false", *items]), SoloRing(), lambda: next(calls) >= stop_at
    ).run()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, when it saves a model
def test_a_run_that_improves_no_more_ends_and_keeps_the_best(tmp_path: Path, write_config: Callable[..., Path]) -> None:
    config = write_config(
        data={"batch_size": 600, "eval_split": "test"},
        model={"hidden": [4], "norm": "none", "dropout": 0.0},
        optimizer={"name": "sgd", "learning_rate": 1.0, "momentum": 0.9},
        epochs=40,
        early_stopping={"metric": "auc", "patience": 2},
        checkpoint={"url": str(tmp_path / "run"), "keep": 1, "best": 2, "metric": "auc"},
        output={"model": str(tmp_path / "model.keras"), "weights": "best"},
    )
    with pytest.raises(Stopped):
        _train(config, stop_at=9)
    metrics = _train(config)
    evaluations, steps = metrics["history"]["evaluations"], metrics["total_steps"]
    aucs = [entry["auc"] for entry in evaluations]
    assert metrics["stopped_early"]
    assert steps == 5 * len(aucs) < 200
    assert max(aucs) == aucs[-3] == metrics["best"]["auc"]
    best = {entry["step"] for entry in best_evaluations(evaluations, "auc", 2)}
    assert set(saved_steps(tmp_path / "run")) == best | {steps}
    model = decode_model((tmp_path / "model.keras").read_bytes(), "model.keras")
    assert model.step == metrics["best"]["step"] == steps - 10
    again = _train(config)  # has nothing more to do
    assert (again["resumed_from_step"], again["total_steps"]) == (steps, steps)
    assert again["weights_digest"] == metrics["weights_digest"]
    longer = _train(config, "early_stopping.patience=3")
    assert longer["total_steps"] > steps
    assert keras.models.load_model(tmp_path / "model.keras").count_params() == metrics["parameters"]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            {"early_stopping": {"metric": "recall"}},
            r"early_stopping.metric: evaluations have no number 'recall' .*; there are: loss, accuracy, balanced_acc",
        ),
        (
            {"early_stopping": {"metric": "auc"}, "metrics": []},
            r"early_stopping.metric: evaluations have no number 'auc' \(see metrics\); there are: loss$",
        ),
        ({"checkpoint": {"metric": "rmse"}}, "checkpoint.metric: evaluations have no number 'rmse'"),
        ({"checkpoint": {"best": 1}}, "checkpoint.best=1 does not go with checkpoint.url=null"),
        (
            {"output": {"weights": "best"}},
            "output.weights=best does not go with checkpoint.best=0: .*; use checkpoint.best=1",
        ),
        ({"early_stopping": {"patience": 0}}, "early_stopping.patience must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_compared_is_refused(groups: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"data": {"url": "x"}, **groups}, "test")


def test_without_evaluations_there_is_nothing_to_compare() -> None:
    tree = {"data": {"url": "x", "eval_split": None}, "early_stopping": {"metric": "loss"}}
    with pytest.raises(ConfigError, match=r"early_stopping.metric=loss does not go with data.eval_split=null"):
        parse_config(tree, "test")


def test_an_evaluation_that_is_not_a_number_is_never_the_best() -> None:
    losses = [float("nan"), 0.5, float("nan"), 0.25, float("nan"), 0.5]
    evaluations = [{"step": step, "loss": loss} for step, loss in enumerate(losses)]
    assert [entry["step"] for entry in best_evaluations(evaluations, "loss", 2)] == [3, 1]
    for patience, is_over in ((2, True), (3, False)):
        options = parse_config({"data": {"url": "x"}, "early_stopping": {"metric": "loss", "patience": patience}}, "x")
        assert is_patience_over(evaluations, options.early_stopping) == is_over


@pytest.mark.parametrize("group", ["early_stopping", "checkpoint"])
def test_the_auc_of_more_than_two_classes_has_to_be_asked_for(group: str) -> None:
    tree: dict[str, Any] = {"data": {"url": "x"}, group: {"metric": "auc"}}
    check_defined(parse_config(tree, "test"), 2)
    check_defined(parse_config({**tree, "metrics": ["auc"]}, "test"), 3)
    with pytest.raises(ConfigError, match=rf"{group}\.metric: by default evaluations of 3 classes have no auc; ask"):
        check_defined(parse_config(tree, "test"), 3)

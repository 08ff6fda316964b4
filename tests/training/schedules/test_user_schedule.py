"""Schedules of the user and of Keras: what they are called with, and what is refused, in one line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import pytest

from ringfeed.sharding.errors import ConfigError, RingfeedError
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.optimizers.build import build_optimizer, build_schedule

CODE = """
def halves(peak, steps, every=2):
    return lambda step: peak * 0.5 ** (step // every)

def number(peak, steps):
    return peak

def negative(peak, steps):
    return lambda step: -peak

def failing(peak, steps):
    return lambda step: step.no_such_thing
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "rates_of_tests", raising=False)
    Path("rates_of_tests.py").write_text(CODE)


def _config(schedule: dict[str, Any]) -> Any:
    data = {"url": "x", "batch_size": 512}
    optimizer = {"name": "sgd", "learning_rate": 0.5, "base_batch_size": 256, "momentum": 0.0}
    return parse_config({"data": data, "optimizer": optimizer, "epochs": 3, "schedule": schedule}, "a test")


def test_a_function_gets_the_scaled_peak_and_its_options() -> None:
    rate = build_schedule(_config({"name": "rates_of_tests:halves", "options": {"every": 3}}), 10)
    assert [float(rate(step)) for step in (0, 2, 3, 29)] == [1.0, 1.0, 0.5, 0.5**9]
    assert rate.peak_value == 1.0


def test_a_schedule_of_keras_gets_the_steps_of_the_run() -> None:
    rate = build_schedule(_config({"name": "keras.optimizers.schedules:CosineDecay", "options": {"alpha": 0.25}}), 10)
    expected = keras.optimizers.schedules.CosineDecay(1.0, 30, alpha=0.25)
    assert [float(rate(step)) for step in range(35)] == [float(expected(step)) for step in range(35)]


def test_an_optimizer_follows_it() -> None:
    config, weight = _config({"name": "rates_of_tests:halves", "options": {"every": 1}}), keras.Variable([8.0])
    optimizer = build_optimizer(config.optimizer, build_schedule(config, 10), [weight])
    for expected in (7.0, 6.5, 6.25):
        optimizer.apply([[1.0]], [weight])
        assert weight.numpy() == pytest.approx([expected])


@pytest.mark.parametrize(
    ("schedule", "error"),
    [
        ({"name": "rates_of_tests:number"}, "schedule.name: rates_of_tests:number must return a function of the step"),
        ({"name": "rates_of_tests:negative"}, "must be finite and at least 0, got -1.0 at step 0"),
        ({"name": "rates_of_tests:failing"}, r"schedule.name rates_of_tests:failing: .*rates_of_tests.py:12: Attrib"),
        ({"name": "rates_of_tests:halves", "options": {"a": 1}}, "halves\\(\\) got an unexpected keyword argument 'a'"),
        ({"name": "rates_of_tests:gone"}, "has no function 'gone'"),
    ],
)
def test_what_is_no_schedule_is_refused(schedule: dict[str, Any], error: str) -> None:
    with pytest.raises(RingfeedError, match=error):
        build_schedule(_config(schedule), 10)


@pytest.mark.parametrize(
    ("schedule", "error"),
    [
        ({"name": "cosine"}, "schedule.name must be module:function, or null, got 'cosine'"),
        ({"name": "a:b", "decay": "step"}, "schedule.decay=step does not go with schedule.name=a:b"),
        ({"name": "a:b", "warmup_epochs": 1}, "schedule.warmup_epochs=1.0 does not go with schedule.name=a:b"),
        ({"options": {"a": 1}}, "does not go with schedule.name=null"),
    ],
)
def test_a_configuration_is_checked_before_anything_is_imported(schedule: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        _config(schedule)

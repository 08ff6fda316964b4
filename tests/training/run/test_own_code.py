"""A user's own loss, metrics and callbacks: what they are given, what becomes of it, and their errors in one line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ringfeed.sharding import build
from ringfeed.sharding.errors import ConfigError
from ringfeed.tools.cli import main
from ringfeed.training.config.config_file import parse_config

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of Keras, as it saves

CODE = """
import json
import keras
import numpy as np
import tensorflow as tf

def hinge(target, outputs):
    sign = 2.0 * tf.cast(target, tf.float32) - 1.0
    return tf.nn.relu(1.0 - sign * outputs[:, 0])

def scaled(target, outputs, factor):
    return factor * tf.square(outputs[:, 0] - target)

def of_batch(target, outputs):
    return tf.reduce_mean(hinge(target, outputs))

def failing(target, outputs):
    raise KeyError("no such column")

def asserting(target, outputs):
    tf.debugging.assert_greater(outputs[:, 0], 1e9, "too small")
    return outputs[:, 0]

def gain(target, outputs):
    return np.mean(target == (outputs[:, 0] > 0)) * len(target)

def worst(target, outputs):
    return float(np.abs(outputs[:, 0] - target).max())

def wordy(target, outputs):
    return "good"

def broken(target, outputs):
    return target.no_such_thing

class Log(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []
    def on_train_begin(self, logs=None): self.seen.append(["train", self.params["ranks"], self.model.name])
    def on_epoch_begin(self, epoch, logs=None): self.seen.append(["begin", epoch])
    def on_train_batch_end(self, batch, logs=None): self.seen.append(["batch", batch, logs["loss"]])
    def on_test_end(self, logs=None): self.seen.append(["test", logs])
    def on_epoch_end(self, epoch, logs=None): self.seen.append(["end", epoch, logs])
    def on_train_end(self, logs=None):
        self.seen.append(["over"])
        with open("seen.json", "w") as file:
            json.dump(self.seen, file)

def stopping(network, config):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1
    return Stop()

def no_callback(network, config):
    return 3

from ringfeed.training import EveryStep

class Signs(EveryStep):
    def __init__(self, ring, scale=1.0):
        super().__init__(ring)
        self.scale = scale
    def reduce(self, sent, step):
        return super().reduce(sent._replace(gradients=[self.scale * tf.sign(g) for g in sent.gradients]), step)

def no_method(ring):
    return ring

class Bad(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        raise RuntimeError("not today")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the user's code, and a dataset whose flag and number follow from x."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_code_of_tests.py").write_text(CODE)
    monkeypatch.delitem(sys.modules, "own_code_of_tests", raising=False)
    x = np.random.default_rng(0).normal(size=300).astype(np.float32)
    table = pa.table({"x": x, "flag": x > 0.2, "y": 1e6 + 1000.0 * x.astype(np.float64)})
    build(source=table, destination="d", split={"train": 0.8, "test": 0.2}, shards=1, workers=1)
    return tmp_path


def _run(task: str = "binary", **more: Any) -> int:
    target = {"binary": "flag", "regression": "y"}[task]
    tree = {
        "task": task,
        "data": {"url": "d", "batch_size": 40, "target": target, "include": ["x"], "eval_split": "test"},
        "model": {"hidden": []},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "epochs": 3,
        "output": {"model": "m.keras", "metrics": "metrics.json"},
        **more,
    }
    Path("run.yaml").write_text(yaml.safe_dump(tree))
    return main(["train", "--config", "run.yaml", "--quiet"])


def _predicted() -> tuple[Any, Any]:
    assert (
        main(["predict", "m.keras", "d", "--split", "test", "--out", "p", "-q", "--keep", "flag", "--keep", "y"]) == 0
    )
    found = pq.read_table("p")
    return found, json.loads(Path("metrics.json").read_text())


@pytest.mark.usefixtures("folder")
def test_a_loss_and_metrics_of_functions_are_trained_and_reported() -> None:
    module = "own_code_of_tests"
    metrics = ["accuracy", f"{module}:gain", "keras.metrics:BinaryAccuracy"]
    assert _run(loss={"name": f"{module}:hinge"}, metrics=metrics, early_stopping={"metric": "gain"}) == 0
    found, said = _predicted()
    flag, likely = found["flag"].to_numpy(False), np.array(found["scores"].to_pylist())[:, 1].astype(np.float64)
    logit = np.log(likely / (1 - likely))
    final = said["final"]
    assert final["gain"] == np.mean(flag == (logit > 0)) * len(flag)
    assert final["loss"] == pytest.approx(np.maximum(0, 1 - (2 * flag - 1) * logit).mean(), rel=1e-4)
    assert set(final) == {"epoch", "step", "samples", "loss", "accuracy", "gain", "BinaryAccuracy"}
    assert final["BinaryAccuracy"] == pytest.approx(np.mean(flag == (logit > 0.5)), abs=1e-6)
    losses = [entry["loss"] for entry in said["history"]["evaluations"]]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "options"),
    [("keras.losses:Huber", {"delta": 2.0}), ("own_code_of_tests:scaled", {"factor": 0.5})],
)
def test_a_loss_of_a_regression_is_of_standard_deviations(name: str, options: dict[str, Any]) -> None:
    metrics = ["rmse", "own_code_of_tests:worst"]
    assert _run("regression", loss={"name": name, "options": options}, metrics=metrics) == 0
    found, said = _predicted()
    error = found["predicted"].to_numpy() - found["y"].to_numpy()
    assert said["final"]["worst"] == pytest.approx(np.abs(error).max(), rel=1e-6)
    train = np.concatenate([np.asarray(part["y"]) for part in _split("train")])
    scaled = error / train.std()
    assert np.abs(scaled).max() < 2  # within delta
    assert said["final"]["loss"] == pytest.approx(np.mean(scaled**2) / 2, rel=1e-4)


def _split(name: str) -> Any:
    from ringfeed.pipeline import Loader

    return Loader("d", split=name, batch_size=40, remainder="drop").numpy_epoch(0)


def test_callbacks_see_the_run_and_may_end_it(folder: Path) -> None:
    module = "own_code_of_tests"
    assert _run(callbacks=[f"{module}:Log", f"{module}:stopping"], epochs=5) == 0
    said = json.loads((folder / "metrics.json").read_text())
    assert (said["stopped_early"], said["total_steps"]) == (True, 12)
    seen = json.loads((folder / "seen.json").read_text())
    assert [entry[0] for entry in seen] == ["train", *2 * ["begin", *6 * ["batch"], "test", "end"], "over"]
    assert seen[0] == ["train", 1, "tabular"]
    batches = [entry for entry in seen if entry[0] == "batch"]
    assert [entry[1] for entry in batches] == [*range(6), *range(6)]
    assert np.mean([entry[2] for entry in batches[6:]]) == pytest.approx(seen[-2][2]["loss"], rel=1e-5)
    final = said["final"]
    assert seen[-2][2]["val_accuracy"] == final["accuracy"]
    assert seen[-3][1]["loss"] == final["loss"]


@pytest.mark.usefixtures("folder")
def test_a_method_of_ones_own_keeps_ranks_in_step() -> None:
    sync = {"method": "own_code_of_tests:Signs", "options": {"scale": 0.25}}
    assert _run(sync=sync, epochs=1, max_steps=1, optimizer={"name": "sgd", "learning_rate": 1.0, "momentum": 0.0}) == 0
    (entry,) = json.loads(Path("metrics.json").read_text())["history"]["steps"]
    assert entry["gradient_norm"] == pytest.approx(0.25 * 2**0.5)  # a weight and a bias


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"loss": {"name": "M:failing"}}, "loss.name M:failing: DIR/M.py:LINE: KeyError: 'no such column'"),
        ({"loss": {"name": "M:asserting"}}, "loss.name M:asserting: DIR/M.py:LINE: "),
        (
            {"loss": {"name": "M:of_batch"}},
            "M:of_batch: it must return a loss for each sample, of shape [batch]",
        ),
        ({"loss": {"name": "M:none"}}, "has no function 'none'"),
        (
            {"loss": {"name": "M:hinge", "options": {"a": 1}}},
            "loss.name M:hinge: M:hinge: TypeError: hinge() got an",
        ),
        (
            {"loss": {"name": "keras.losses:Huber", "options": {"a": 1}}},
            "loss.options: keras.losses:Huber refuses",
        ),
        ({"metrics": ["M:wordy"]}, "metrics M:wordy: it must return a number, got str"),
        ({"metrics": ["M:broken"]}, "metrics M:broken: DIR/M.py:LINE: AttributeError: "),
        ({"metrics": ["nowhere_at_all:f"]}, "metrics nowhere_at_all:f: there is no module 'nowhere_at_all'"),
        ({"callbacks": ["M:no_callback"]}, "callbacks: M:no_callback must return a keras.callbacks.Callback, got int"),
        (
            {"sync": {"method": "M:no_method"}},
            "sync.method: M:no_method must return a ringfeed.training.Synchronizer, such as a class of EveryStep, got ",
        ),
        ({"sync": {"method": "M:Signs", "options": {"a": 1}}}, "sync.method M:Signs: M:Signs: TypeError: "),
        ({"callbacks": ["M:Bad"]}, "callbacks M:Bad: DIR/M.py:LINE: RuntimeError: not today"),
    ],
)
def test_errors_of_own_code_are_one_line_with_its_place(
    folder: Path, options: dict[str, Any], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = json.loads(json.dumps(options).replace("M:", "own_code_of_tests:"))
    assert _run(**named) == 1
    line = capsys.readouterr().err
    cause = ("no such column", "assert_greater", "no_such_thing", "not today")
    places = [f".py:{number}: " for number, text in enumerate(CODE.splitlines(), 1) if any(map(text.count, cause))]
    assert ":LINE" not in error or any(place in line for place in places)
    line = re.sub(r"py:\d+:", "py:LINE:", line)
    expected = error.replace("M:", "own_code_of_tests:").replace("DIR/M.py", f"{folder}/own_code_of_tests.py")
    assert expected in line
    assert line.count("\n") == 1
    assert not Path("m.keras").exists()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"loss": {"name": "hinge"}}, "loss.name must be module:function, or null, got 'hinge'"),
        ({"loss": {"name": "a:b", "focal_gamma": 2.0}}, "loss.focal_gamma=2.0 does not go with loss.name=a:b"),
        ({"loss": {"options": {"a": 1}}}, r"loss.options={'a': 1} does not go with loss.name=null"),
        ({"metrics": ["a:accuracy"]}, "the function of a:accuracy must be named like no other metric"),
        ({"metrics": ["a:f", "b:f"]}, "the function of a:f must be named like no other metric"),
        ({"sync": {"method": "Signs"}}, "sync.method must be one of every_step, "),
        (
            {"sync": {"method": "a:b"}, "compression": {"method": "fp16"}},
            "compression.method=fp16 does not go with sync",
        ),
        ({"sync": {"method": "a:b"}, "backend": "mirrored"}, "sync.method=a:b does not go with backend=mirrored"),
        (
            {"sync": {"method": "gossip", "options": {"a": 1}}},
            "sync.options is a key of module:function, not of gossip",
        ),
        ({"callbacks": ["Log"]}, "callbacks must be a list of module:function, got 'Log'"),
        ({"backend": "parameter_server", "callbacks": ["a:b"]}, "does not go with backend=parameter_server"),
    ],
)
def test_a_configuration_of_own_code_is_checked_before_it_is_imported(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error.replace("{", r"\{").replace("}", r"\}")):
        parse_config({"data": {"url": "x"}, "optimizer": {"name": "sgd"}, **options}, "a test")

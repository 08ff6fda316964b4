"""Errors in a user's own network end a run with one line: the user's place and text."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ringfeed.sharding import BuildOptions, build
from tests.helpers.warm import WarmServer

NETWORKS = """
import keras, tensorflow as tf

def broken(manifest, config):
    return {}["nothing"]

class Narrow(keras.layers.Layer):
    def call(self, x):
        if isinstance(x, keras.KerasTensor): return keras.KerasTensor((None, 2))
        return tf.matmul(x, tf.zeros((7, 2)))  # line 10
    def compute_output_spec(self, x): return keras.KerasTensor((x.shape[0], 2))

def narrow(manifest, config):
    delay = keras.Input((), dtype="float32", name="delay")
    return keras.Model({"delay": delay}, Narrow()(keras.ops.expand_dims(delay, 1)))

class Late(keras.layers.Layer):
    def call(self, x):
        def fail(x):
            raise ValueError("a value of your own")  # line 20
        return tf.ensure_shape(tf.py_function(fail, [x], tf.float32), [None, 1])
    def compute_output_spec(self, x): return keras.KerasTensor((x.shape[0], 1))

def late(manifest, config):
    delay = keras.Input((), dtype="float32", name="delay")
    return keras.Model({"delay": delay}, keras.layers.Dense(2)(Late()(keras.ops.expand_dims(delay, 1))))

class Bounded(keras.layers.Layer):
    def call(self, x):
        tf.debugging.assert_less(x, -1e9, message="too late")  # line 30
        return x

def bounded(manifest, config):
    delay = keras.Input((), dtype="float32", name="delay")
    return keras.Model({"delay": delay}, keras.layers.Dense(2)(Bounded()(keras.ops.expand_dims(delay, 1))))

class Unknown(keras.layers.Layer):
    def call(self, x):
        return x * {}["width"]  # line 39

def unknown(manifest, config):
    return keras.Model(delay := keras.Input((), dtype="float32", name="delay"), Unknown()(delay))

def ragged(manifest, config):
    words = keras.Input((4,), dtype="float32", name="words")
    return keras.Model({"words": words}, keras.layers.Dense(2)(words))
"""

MESSAGES = {
    "broken": "networks.py:5: KeyError: 'nothing'",
    "narrow": "networks.py:10: ValueError: Dimensions must be equal, but are 1 and 7",
    "late": "networks.py:20: ValueError: a value of your own",
    "bounded": "networks.py:30: assertion failed: [too late] [Condition x < y did not hold element-wise:]",
    "unknown": "networks.py:39: KeyError: 'width' (in Unknown.call())",
    "ragged": "words arrives as tf.RaggedTensor: call .to_tensor() in the network's first layer, or leave it out",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, flights: str) -> Path:
    """A folder with the networks, and the configuration of a run of each."""
    folder = tmp_path_factory.mktemp("networks")
    (folder / "networks.py").write_text(NETWORKS)
    lists = pa.table({"words": [[1.0] * (row % 5) for row in range(80)], "label": ["a", "b"] * 40})
    pq.write_table(lists, folder / "lists.parquet")
    build(BuildOptions(source=str(folder / "lists.parquet"), destination=str(folder / "lists"), label="label"))
    for name in MESSAGES:
        data = {"url": "lists" if name == "ragged" else flights, "batch_size": 10, "eval_split": None}
        tree = {"data": data, "model": {"name": f"networks:{name}"}, "max_steps": 1, "deterministic": False}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    return folder


@pytest.mark.parametrize("name", MESSAGES)
def test_an_error_in_a_network_is_one_line(name: str, folder: Path, warm: WarmServer) -> None:
    command = ["ringfeed.tools.cli", "train", "--config", f"{name}.yaml", "-q"]
    process = warm.start(command, folder=folder, output=folder / f"{name}.txt")
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 1
    (line,) = output.splitlines()
    assert line.startswith(f"ringfeed train: error: model.name networks:{name}: ")
    assert MESSAGES[name] in line

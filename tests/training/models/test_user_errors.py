"""Errors in a user's own network end a run with one line: the user's place and text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import BuildOptions, build
from ringfeed.training.train import main

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

def ragged(manifest, config):
    words = keras.Input((4,), dtype="float32", name="words")
    return keras.Model({"words": words}, keras.layers.Dense(2)(words))
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "networks.py:5: KeyError: 'nothing'"),
        ("narrow", "networks.py:10: ValueError: Dimensions must be equal, but are 1 and 7"),
        ("late", "networks.py:20: ValueError: a value of your own"),
        ("ragged", "words arrives as tf.RaggedTensor: call .to_tensor() in the network's first layer, or leave it out"),
    ],
)
def test_an_error_in_a_network_is_one_line(
    name: str,
    message: str,
    tmp_path: Path,
    write_config: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "networks.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    data = {}
    if name == "ragged":
        lists = pa.table({"words": [[1.0] * (row % 5) for row in range(80)], "label": ["a", "b"] * 40})
        pq.write_table(lists, tmp_path / "lists.parquet")
        build(BuildOptions(source=str(tmp_path / "lists.parquet"), destination=str(tmp_path / "lists"), label="label"))
        data = {"url": str(tmp_path / "lists"), "batch_size": 10, "categorical": []}
    config = write_config(model={"name": f"networks:{name}"}, data={**data, "eval_split": None}, max_steps=1)
    capfd.readouterr()
    assert main(["--config", str(config), "-q", "--set", "deterministic=false"]) == 1
    *others, line = capfd.readouterr().err.splitlines()
    assert not any(
        other.startswith("ringfeed") for other in others
    )  # TensorFlow's, which the command's process silences
    assert line.startswith(f"ringfeed train: error: model.name networks:{name}: ")
    assert message in line

"""What ringfeed replaces inside Keras is there, and a Keras without it is refused in one line."""

from __future__ import annotations

import ast

import keras
import pytest
import tensorflow as tf

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.optimizers.keras_doors import DOORS, declare_functions, producer, replace_method, require_method
from ringfeed.training.optimizers.lars import LARS
from tests.helpers.import_graph import ROOT


def test_keras_calls_what_is_replaced() -> None:
    network = keras.Sequential([keras.Input([1]), keras.layers.BatchNormalization()])
    owners = {"_moments": network.layers[0], "_flatten_layers": network, "_get_call_context": network.layers[0]}
    for name in DOORS:
        assert callable(require_method(owners.get(name, keras.optimizers.SGD(0.1)), name))
    variable, called = keras.Variable([1.0]), []
    optimizer = keras.optimizers.SGD(0.1, weight_decay=0.1)
    for name in ("_backend_update_step", "_apply_weight_decay"):
        replace_method(optimizer, name, lambda *_, name=name: called.append(name))
    optimizer.apply([keras.ops.ones(1)], [variable])
    assert sorted(called) == ["_apply_weight_decay", "_backend_update_step"]


def test_a_keras_without_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        TrainingError, match=r"^keras [\d.]+ has no Dense\._moments, in whose place ringfeed normalises"
    ):
        replace_method(keras.layers.Dense(1), "_moments", print)
    bases = [kind for kind in keras.optimizers.Optimizer.__mro__ if "_backend_update_step" in vars(kind)]
    for kind in bases:
        monkeypatch.delattr(kind, "_backend_update_step")
    with pytest.raises(TrainingError, match=r"has no Optimizer\._backend_update_step, in whose place ringfeed updates"):
        LARS(0.1)


def test_a_keras_without_the_history_of_tensors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = keras.layers.Dense(1)(inputs := keras.Input([2]))
    layer, (source,) = producer(tensor)
    assert (layer.name, source is inputs) == (tensor._keras_history.operation.name, True)
    monkeypatch.delattr(layer, "_inbound_nodes")
    with pytest.raises(TrainingError, match=r"^keras [\d.]+ has no KerasTensor history \(.*_inbound_nodes"):
        producer(tensor)


def test_a_process_that_has_declared_functions_is_refused() -> None:
    with tf.Graph().as_default():
        tf.numpy_function(len, [], [tf.bool])
    with pytest.raises(TrainingError, match=r"^TensorFlow [\d.]+ names Python functions otherwise"):
        declare_functions([len])


def test_no_other_module_reaches_inside_keras_or_tensorflow() -> None:
    """An attribute with `_` of another object is one that this package, a named tuple or Python itself defines."""
    python = {"_asdict", "_replace", "_fields", "_EndRecData", "_current_frames", "_httpd", "_listen_thread"}
    defined, used = set(python), []
    for path in sorted((ROOT / "training").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name not in DOORS:
                defined.add(node.name)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                defined.add(node.target.id)
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                if isinstance(node.ctx, ast.Store):
                    defined.add(node.attr)
                elif path.name != "keras_doors.py":
                    used.append((node.attr, path.name, ast.unparse(node.value)))
    others = [use for use in used if use[0] not in defined]
    assert others == [("_backend_update_step", "rule.py", "super()")]  # overridden, and so required there

"""Targets of each task: what their values are in batches, losses by their formulas, and what is refused."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.dataset.statistics import FeatureStatistics
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.schema import Feature
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.config.loss import LossConfig
from ringfeed.training.models.build import build_model
from ringfeed.training.models.losses import build_loss
from ringfeed.training.models.target import Target, plan_target
from tests.helpers.manifests import manifest_of

FEATURES = {
    Feature(name="x", dtype="float32"): FeatureStatistics(count=9, mean=0.0, std=1.0, min=-1, max=9),
    Feature(name="kind", dtype="string"): FeatureStatistics(count=9, vocabulary=("a", "b", "c")),
    Feature(name="delay", dtype="float64"): FeatureStatistics(count=9, mean=100.0, std=20.0, min=0, max=300),
    Feature(name="holes", dtype="float32"): FeatureStatistics(count=8, mean=1.0, std=2.0, min=0, max=3, nonfinite=1),
    Feature(name="flag", dtype="bool"): FeatureStatistics(count=9, mean=0.2, std=0.4, min=0, max=1),
    Feature(name="tags", dtype="int32", shape=(None,)): FeatureStatistics(count=9, mean=1.0, std=1.0, min=0, max=3),
    Feature(name="flags", dtype="uint8", shape=(3,)): FeatureStatistics(count=9, mean=0.5, std=0.5, min=0, max=1),
    Feature(name="codes", dtype="int64", shape=(3,)): FeatureStatistics(count=9, mean=0.5, std=2.5, min=-1, max=7),
    Feature(name="same", dtype="float32"): FeatureStatistics(count=9, mean=2.0, std=0.0, min=2, max=2),
}


def _manifest(label: str | None = "kind") -> Manifest:
    statistics = {feature.name: known for feature, known in FEATURES.items()}
    classes: dict[Any, int] = {"a": 3, "b": 3, "c": 3} if label else {None: 9}
    return manifest_of(list(FEATURES), statistics, label=label, classes=classes)


def _config(task: str, target: str | None = None, **groups: Any) -> Any:
    data = {"url": "d", "include": ["x"], "target": target, **groups.pop("data", {})}
    return parse_config({"task": task, "data": data, **groups}, "test")


@functools.cache
def element() -> dict[str, Any]:
    return {
        "x": tf.zeros(3), "class_id": tf.constant([0, 2, 1]), "delay": tf.constant([0.0, 100.0, 130.0], tf.float64),
        "flag": tf.constant([True, False, True]), "tags": tf.ragged.constant([[3, 0], [], [1, 1]], dtype=tf.int32),
        "flags": tf.constant([[1, 0, 0], [0, 0, 0], [1, 1, 0]], tf.uint8),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("task", "column", "positive", "expected"),
    [
        ("multiclass", None, None, [0, 2, 1]),
        ("binary", None, "c", [0, 1, 0]),
        ("binary", "flag", None, [1, 0, 1]),
        ("multilabel", "tags", None, [[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]),
        ("multilabel", "flags", None, [[1, 0, 0], [0, 0, 0], [1, 1, 0]]),
        ("regression", "delay", None, [0, 100, 130]),
    ],
)
def test_targets_are_what_the_task_asks_for(task: str, column: str | None, positive: Any, expected: Any) -> None:
    config = _config(task, column, data={"positive": positive}, model={"hidden": [4]})
    built = build_model(_manifest(), config)
    inputs, truth, weight = built.preprocess(element())
    np.testing.assert_array_equal(truth, expected)
    assert truth.dtype == {"multiclass": tf.int32, "regression": tf.float64}.get(task, tf.float32)
    assert weight.shape == (3,)
    outputs = built.network(inputs)
    assert outputs.dtype == (tf.float64 if task == "regression" else tf.float32)
    target = plan_target(_manifest(), config)
    assert outputs.shape == (3, target.outputs)
    losses = build_loss(LossConfig(), target)(outputs, truth)
    assert losses.shape == (3,)
    assert np.isfinite(losses).all()


def test_a_dataset_without_a_label_has_targets() -> None:
    unlabelled = {**element(), "class_id": tf.zeros(3, tf.int32)}
    built = build_model(_manifest(label=None), _config("regression", "delay"))
    np.testing.assert_array_equal(built.preprocess(unlabelled)[1], [0, 100, 130])


def test_a_regression_predicts_in_the_unit_of_the_target() -> None:
    network = build_model(_manifest(), _config("regression", "delay", model={"hidden": []})).network
    raw = keras.Model(network.input, network.get_layer("logits").output)
    inputs = {"numeric": tf.constant([[0.3], [-2.0]])}
    np.testing.assert_allclose(network(inputs), 100 + 20 * raw(inputs).numpy(), rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_losses_of_logits_are_those_of_keras(smoothing: float, gamma: float) -> None:
    rng = np.random.default_rng(2)
    logits, truth = rng.normal(size=(30, 3)).astype(np.float32) * 3, rng.integers(0, 2, (30, 3)).astype(np.float32)
    options = {"from_logits": True, "label_smoothing": smoothing, "reduction": None, "axis": -1}
    plain = keras.losses.BinaryCrossentropy(**options)
    focal = keras.losses.BinaryFocalCrossentropy(gamma=gamma, **options)
    config = LossConfig(label_smoothing=smoothing, focal_gamma=gamma)
    of_labels = build_loss(config, Target(task="multilabel", classes=("a", "b", "c")))(logits, truth)
    if gamma and not smoothing:  # Keras smooths the labels of its factor, too
        np.testing.assert_allclose(of_labels, focal(truth, logits), rtol=1e-4)
    elif not gamma:
        np.testing.assert_allclose(of_labels, plain(truth, logits), rtol=1e-5)
    else:  # for each label the loss of two classes
        pairs = np.stack([0 * logits, logits], -1).reshape(-1, 2)
        two = build_loss(config, Target(task="multiclass", classes=("no", "yes")))
        expected = two(tf.constant(pairs), tf.constant(truth.ravel().astype(np.int32))).numpy().reshape(-1, 3)
        np.testing.assert_allclose(of_labels, expected.mean(-1), rtol=1e-4)
    of_logit = build_loss(config, Target(task="binary", classes=("no", "yes")))
    both = [of_logit(logits[:, i : i + 1], truth[:, i]).numpy() for i in range(3)]
    np.testing.assert_allclose(of_labels, np.mean(both, 0), rtol=1e-5)


def test_class_weights_are_of_classes_or_labels() -> None:
    config = LossConfig(class_weights={"b": 3.0})
    zeros = tf.zeros((2, 1)), tf.constant([0.0, 1.0])
    of_logit = build_loss(config, Target(task="binary", classes=("a", "b")))(*zeros)
    np.testing.assert_allclose(of_logit, np.log(2) * np.array([1.0, 3.0]), rtol=1e-6)
    of_labels = build_loss(config, Target(task="multilabel", classes=("a", "b")))(tf.zeros((1, 2)), tf.ones((1, 2)))
    np.testing.assert_allclose(of_labels, [np.log(2) * 2], rtol=1e-6)


def test_the_huber_loss_is_that_of_keras_in_standard_deviations() -> None:
    prediction, truth = np.linspace(-300, 300, 41, dtype=np.float32)[:, None], np.zeros(41, np.float32)
    huber = build_loss(LossConfig(huber_delta=1.5), Target(task="regression", std=50.0))(prediction, truth)
    expected = keras.losses.Huber(delta=1.5, reduction=None)(truth[:, None], prediction / 50)
    np.testing.assert_allclose(huber, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("task", "column", "positive", "message"),
    [
        ("binary", None, None, "the label has 3 classes, name one as data.positive: a, b, c"),
        ("binary", None, "d", "data.positive: there is no class 'd'; the classes are: a, b, c"),
        ("binary", "delay", None, "'delay' must hold 0 and 1, it has 0 to 300 in split 'train'"),
        ("regression", "dealy", None, "the dataset has no column 'dealy'; did you mean 'delay'"),
        ("regression", "kind", None, "'kind' holds string, task=regression needs numbers"),
        ("regression", "holes", None, "1 of the values of 'holes' in split 'train' are missing or not finite"),
        ("regression", "flags", None, "needs one number, 'flags' has 3 numbers a record"),
        ("regression", "same", None, "'same' has one value alone in split 'train': 2"),
        ("multilabel", "x", None, r"needs lists of ids or vectors of 0 and 1, 'x' has shape \[\]"),
        ("multilabel", "codes", None, "'codes' must hold 0 and 1, it has -1 to 7"),
    ],
)
def test_targets_that_do_not_fit_are_refused(task: str, column: str | None, positive: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_target(_manifest(), _config(task, column, data={"positive": positive}))


def test_the_target_is_no_input_and_a_label_beside_it_only_by_name() -> None:
    def inputs(include: list[str] | None) -> list[str]:
        data = {"include": include, "exclude": ["holes", "tags", "codes", "same", "flags", "flag"]}
        config = _config("regression", "delay", data=data, model={"hidden": []})
        plan = build_model(_manifest(), config).network.input
        return sorted(plan)

    assert inputs(None) == ["numeric"]  # x alone
    assert inputs(["x", "kind"]) == ["categories", "numeric"]
    with pytest.raises(ConfigError, match=r"data\.include: 'delay' is the target; a model must not see it"):
        inputs(["x", "delay"])


def test_a_network_of_your_own_has_the_outputs_of_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_tasks.py").write_text(
        "import keras\n"
        "def dense(units, activation=None):\n"
        "    x = keras.Input((), name='x')\n"
        "    return keras.Model({'x': x}, keras.layers.Dense(units, activation)(keras.ops.expand_dims(x, 1)))\n"
        "def one(manifest, config): return dense(1)\n"
        "def share(manifest, config): return dense(1, 'sigmoid')\n"
        "def two(manifest, config): return dense(2)\n"
    )
    monkeypatch.chdir(tmp_path)
    for task, column, wanted in (("regression", "delay", "1 number"), ("binary", "flag", "1 logit")):
        network = build_model(_manifest(), _config(task, column, model={"name": "nets_of_tasks:one"})).network
        assert network.output_shape == (None, 1)
        with pytest.raises(ConfigError, match=f"must return a model of {wanted}, got an output of shape"):
            build_model(_manifest(), _config(task, column, model={"name": "nets_of_tasks:two"}))
    assert build_model(_manifest(), _config("regression", "delay", model={"name": "nets_of_tasks:share"}))
    with pytest.raises(ConfigError, match="its last layer applies sigmoid"):
        build_model(_manifest(), _config("binary", "flag", model={"name": "nets_of_tasks:share"}))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"task": "clasification"}, "task must be one of multiclass, binary, multilabel, regression"),
        ({"task": "regression"}, "data.target=null does not go with task=regression: it predicts a column"),
        ({"data": {"url": "d", "target": "x"}}, "data.target=x does not go with task=multiclass"),
        ({"data": {"url": "d", "positive": "x"}}, "data.positive=x does not go with task=multiclass"),
        ({"loss": {"huber_delta": 1.0}}, "loss.huber_delta=1.0 does not go with task=multiclass"),
        ({"metrics": ["acuracy"]}, "task=multiclass has no metric 'acuracy'; did you mean 'accuracy'"),
        ({"task": "binary", "metrics": ["top_2"]}, "task=binary has no metric 'top_2'; there are: accuracy"),
        (
            {"task": "regression", "data": {"url": "d", "target": "x"}, "loss": {"focal_gamma": 2.0}},
            "loss.focal_gamma=.* does not go with task=regression",
        ),
    ],
)
def test_options_that_do_not_go_with_the_task_are_refused(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"data": {"url": "d"}, **tree}, "test")

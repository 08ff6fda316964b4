"""The built-in networks, image preprocessing, optimizers and schedules that a configuration asks for."""

from __future__ import annotations

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
from ringfeed.training.config.model import AugmentConfig
from ringfeed.training.config.optimizers import OPTIMIZERS
from ringfeed.training.models.build import build_model
from ringfeed.training.models.images import image_preprocess, image_shape
from ringfeed.training.optimizers.adam import AdamRule
from ringfeed.training.optimizers.adan import AdanRule
from ringfeed.training.optimizers.build import build_optimizer, build_schedule
from ringfeed.training.optimizers.lamb import LAMBRule
from ringfeed.training.optimizers.lars import LARSRule
from tests.helpers.manifests import manifest_of

FEATURES = (
    Feature(name="x", dtype="float32"),
    Feature(name="carrier", dtype="string"),
    Feature(name="picture", dtype="binary", encoding="image"),
    Feature(name="digit", dtype="uint8", shape=(4, 6)),
    Feature(name="y", dtype="int64"),
)
KNOWN = FeatureStatistics(count=9, mean=0.0, std=1.0, min=0, max=9)
STATISTICS = {f.name: KNOWN for f in FEATURES} | {"carrier": FeatureStatistics(count=9, vocabulary=("a", "b"))}


def _manifest(classes: tuple[Any, ...] = (0, 1, 2), label: str | None = "y") -> Manifest:
    return manifest_of(FEATURES, STATISTICS, label=label, classes=dict.fromkeys(classes, 3))


def _config(include: list[str], **groups: Any) -> Any:
    return parse_config({"data": {"url": "x", "include": include}, **groups}, "test")


@pytest.mark.parametrize("norm", ["batch", "layer", "none"])
@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_the_tabular_network_ends_in_float32_logits(norm: str, precision: str) -> None:
    config = _config(["x", "carrier"], model={"norm": norm, "hidden": [4], "dropout": 0.1}, precision=precision)
    built = build_model(_manifest(), config)
    element = {"x": tf.zeros(5), "carrier": tf.constant(["a", "b", "", "a", "z"]), "class_id": tf.zeros(5, tf.int32)}
    logits = built.network(built.preprocess(element)[0], training=True)
    assert logits.shape == (5, 3)
    assert logits.dtype == tf.float32
    assert {v.dtype for v in built.network.trainable_variables} == {"float32"}


def _png(height: int, width: int, channels: int = 1) -> bytes:
    pixels = np.arange(height * width * channels, dtype=np.uint8).reshape(height, width, channels)
    data: bytes = tf.io.encode_png(pixels).numpy()
    return data


def test_the_convnet_takes_encoded_images_and_tensors() -> None:
    encoded = _config(["picture"], model={"name": "convnet", "filters": [4, 8], "image_shape": [4, 6, 1]})
    built = build_model(_manifest(), encoded)
    element = {"picture": tf.constant([_png(4, 6), _png(8, 12)]), "class_id": tf.constant([0, 1])}
    images, _, _ = built.preprocess(element)
    assert images.shape == (2, 4, 6, 1)
    np.testing.assert_allclose(images[0, :, :, 0], np.arange(24).reshape(4, 6) / 255, rtol=1e-6)
    assert built.network(images).shape == (2, 3)
    built = build_model(_manifest(), _config(["digit"], model={"name": "convnet", "filters": [4, 4, 4, 4]}))
    element = {"digit": tf.fill((3, 4, 6), tf.constant(255, tf.uint8)), "class_id": tf.constant([0, 1, 2])}
    images, _, _ = built.preprocess(element)
    np.testing.assert_array_equal(images, np.ones((3, 4, 6, 1)))
    assert built.network(images).shape == (3, 3)


def test_tensors_may_have_any_number_of_channels() -> None:
    bands = Feature(name="bands", dtype="uint8", shape=(2, 3, 5))
    preprocess = image_preprocess(bands, image_shape(bands, None), AugmentConfig())
    images, _, _ = preprocess({"bands": tf.fill((4, 2, 3, 5), tf.constant(51, tf.uint8)), "class_id": tf.zeros(4)})
    np.testing.assert_allclose(images, np.full((4, 2, 3, 5), 0.2), rtol=1e-6)


def test_a_jpeg_is_resized_and_a_truncated_png_is_an_error() -> None:
    preprocess = tf.function(image_preprocess(FEATURES[2], (5, 5, 3), AugmentConfig()))

    def decode(file: Any) -> Any:
        return preprocess({"picture": tf.constant([file]), "class_id": tf.constant([0])})[0]

    jpeg = tf.io.encode_jpeg(tf.fill((20, 10, 3), tf.constant(128, tf.uint8))).numpy()
    np.testing.assert_allclose(decode(jpeg), np.full((1, 5, 5, 3), 128 / 255), atol=2 / 255)
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode(_png(9, 9)[:-20])


@pytest.mark.parametrize("column", ["picture", "digit"])
def test_augmentation_is_determined_by_the_sample_key(column: str) -> None:
    config = _config(
        [column],
        model={"name": "convnet", "image_shape": [4, 6, 1]},
        augment={"flip_left_right": True, "flip_up_down": True},
    )
    built = build_model(_manifest(), config)
    assert built.augmented is not None
    pixels = tf.constant(np.arange(24, dtype=np.uint8).reshape(1, 4, 6))
    images = tf.constant([_png(4, 6)] * 64) if column == "picture" else tf.repeat(pixels, 64, axis=0)
    keys = tf.reshape(tf.range(128, dtype=tf.int64), [64, 2])
    element = {column: images, "class_id": tf.zeros(64, tf.int32), "sample_key": keys}
    plain = np.rint(built.preprocess(element)[0].numpy()[0] * 255)
    augmented = tf.function(built.augmented)
    drawn, class_id, weight = augmented(element)
    assert (class_id.shape, weight.shape) == ((64,), (64,))
    ways = {np.rint(image * 255).tobytes() for image in drawn.numpy()}
    assert ways == {plain[::up, ::left].tobytes() for up in (1, -1) for left in (1, -1)}
    half = {name: values[32:] for name, values in element.items()}
    assert np.array_equal(augmented(half)[0], drawn[32:])


def test_image_columns_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError, match=r"give model\.image_shape"):
        build_model(_manifest(), _config(["picture"], model={"name": "convnet"}))
    with pytest.raises(ConfigError, match="one image column, the dataset has 'picture', 'digit'"):
        build_model(_manifest(), _config(["picture", "digit"], model={"name": "convnet"}))
    with pytest.raises(ConfigError, match=r"holds tensors of shape \(4, 6\), not \[6, 4, 1\]"):
        image_preprocess(FEATURES[3], image_shape(FEATURES[3], (6, 4, 1)), AugmentConfig())


def test_without_classes_there_is_nothing_to_train() -> None:
    for manifest in (_manifest(classes=(None,), label=None), _manifest(classes=(1,))):
        with pytest.raises(ConfigError, match="training needs a label with at least two classes"):
            build_model(manifest, _config(["x"]))


def test_a_function_of_the_user_builds_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_networks.py").write_text(
        "import keras\n"
        "def linear(manifest, config):\n"
        "    x = keras.Input((), name='x')\n"
        "    return keras.Model({'x': x}, keras.layers.Dense(len(manifest.classes))(keras.ops.expand_dims(x, 1)))\n"
        "def nothing(manifest, config):\n"
        "    return 3\n"
        "def single(manifest, config):\n"
        "    x = keras.Input((1,), name='x')\n"
        "    return keras.Model({'x': x}, keras.layers.Dense(1)(x))\n"
        "def unbuilt(manifest, config):\n"
        "    return keras.Sequential([keras.layers.Dense(3)])\n"
        "def after(*last):\n"
        "    x = keras.Input((1,), name='x')\n"
        "    return lambda manifest, config: keras.Model(x, keras.Sequential([keras.layers.Dense(3), *last])(x))\n"
        "softmax = after(keras.layers.Activation('softmax', dtype='float32'))\n"
        "softmax_layer = after(keras.layers.Softmax())\n"
        "sigmoid = after(keras.layers.Dense(3, 'sigmoid'))\n"
        "log_softmax = after(keras.layers.Activation('log_softmax'))\n"
        "def softmax_operation(manifest, config):\n"
        "    x = keras.Input((1,), name='x')\n"
        "    return keras.Model(x, keras.ops.softmax(keras.layers.Dense(3)(x)))\n"
        "constant = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    built = build_model(_manifest(), _config(["x"], model={"name": "my_networks:linear"}))
    inputs, _, _ = built.preprocess({"x": tf.ones(2), "class_id": tf.zeros(2, tf.int32)})
    assert built.network(inputs).shape == (2, 3)
    for name, message in [
        ("my_networks:nothing", "must return a keras.Model, got int"),
        ("my_networks:single", r"a model of 3 logits, one per class, got an output of shape \(None, 1\)"),
        (
            "my_networks:unbuilt",
            "must return a model built from keras.Input, got one without a shape .Sequential",
        ),
        ("my_networks:softmax", "a model of logits, but its last layer applies softmax, as the loss does: remove it"),
        ("my_networks:softmax_layer", "its last layer applies softmax"),
        ("my_networks:softmax_operation", "its last layer applies softmax"),
        ("my_networks:sigmoid", "its last layer applies sigmoid"),
        ("my_networks:constant", "has no function .constant."),
        ("my_networks:absent", "my_networks:absent: .* has no function .absent."),
        ("no_such_module_here:f", "no_such_module_here:f: there is no module .no_such_module_here."),
    ]:
        with pytest.raises(ConfigError, match=message):
            build_model(_manifest(), _config(["x"], model={"name": name}))
    build_model(_manifest(), _config(["x"], model={"name": "my_networks:log_softmax"}))  # has the same loss as logits


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("made", ["dict", "list", "alone", "sequential"])
def test_a_network_of_the_user_gets_the_columns_that_its_inputs_name(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keras pairs a dict of inputs with one of more columns by their order, and so would take `carrier` for `x`."""
    (tmp_path / f"networks_by_{made}.py").write_text(
        "import keras\n"
        "def network(manifest, config):\n"
        "    x = keras.Input((1,), name='x')\n"
        "    dense = keras.layers.Dense(3, kernel_initializer='ones')\n"
        f"    if {made!r} == 'sequential':\n"
        "        return keras.Sequential([x, dense])\n"
        f"    return keras.Model({{'dict': {{'x': x}}, 'list': [x], 'alone': x}}[{made!r}], dense(x))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    model = {"name": f"networks_by_{made}:network"}
    columns = {"carrier": tf.constant(["a", "b"]), "digit": tf.zeros((2, 4, 6)), "x": tf.constant([[7.0], [8.0]])}
    element = {**columns, "class_id": tf.zeros(2, tf.int32)}
    if made != "sequential":
        built = build_model(_manifest(), _config(["carrier", "digit", "x"], model=model))
        np.testing.assert_array_equal(built.network(built.preprocess(element)[0]), [[7.0] * 3, [8.0] * 3])
    alone = build_model(_manifest(), _config(["x"], model=model))
    np.testing.assert_array_equal(alone.network(alone.preprocess(element)[0]), [[7.0] * 3, [8.0] * 3])
    with pytest.raises(ConfigError, match=r"an input '\w+', but there is no such column.* are: carrier, digit"):
        build_model(_manifest(), _config(["carrier", "digit"], model=model))


def test_the_schedule_scales_linearly_and_counts_in_epochs() -> None:
    config = parse_config(
        {
            "data": {"url": "x", "batch_size": 1024},
            "optimizer": {"learning_rate": 0.1, "base_batch_size": 256},
            "schedule": {"warmup_epochs": 0.5, "end_factor": 0.01},
            "epochs": 3,
        },
        "test",
    )
    schedule = build_schedule(config, steps_per_epoch=100)
    np.testing.assert_allclose([schedule(t) for t in (0, 25, 50, 300)], [0.0, 0.2, 0.4, 0.004], rtol=1e-9)
    short = parse_config({"data": {"url": "x"}, "schedule": {"warmup_epochs": 0.9}}, "test")
    with pytest.raises(ConfigError, match=r"leave none of the .* \(1 steps per epoch\); lower schedule.warmup"):
        build_schedule(short, steps_per_epoch=1)


RULES = {"lars": LARSRule, "lamb": LAMBRule, "sgd": None, "adam": AdamRule, "adamw": AdamRule, "adan": AdanRule}


@pytest.mark.parametrize("name", OPTIMIZERS.by_name)
def test_weight_decay_spares_biases_under_every_optimizer(name: str) -> None:
    decay = 0.0 if name == "adam" else 0.5
    config = parse_config(
        {
            "data": {"url": "x"},
            "optimizer": {"name": name, "learning_rate": 0.1, "weight_decay": decay},
            "schedule": {"decay": "constant"},
        },
        "test",
    )
    kernel, bias = keras.Variable(np.ones((2, 2), np.float32)), keras.Variable(np.ones(2, np.float32))
    optimizer = build_optimizer(config.optimizer, build_schedule(config, 10), [kernel, bias])
    kind = RULES[name]
    assert isinstance(optimizer, keras.optimizers.SGD) if kind is None else isinstance(optimizer.rule, kind)
    optimizer.apply([tf.zeros((2, 2)), tf.zeros(2)])
    np.testing.assert_array_equal(bias.numpy(), [1.0, 1.0])
    assert (kernel.numpy() < 1).all() == (name != "adam")

"""A network of `keras.applications` learns pictures, from a file's weights, with its own preprocessing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.pipeline import Loader
from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.models.build import build_model
from ringfeed.training.train import main

SMALL = {"name": "keras.applications:MobileNetV2", "image_shape": [32, 32, 3], "options": {"alpha": 0.35}}


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of Keras, as it saves
def test_is_fine_tuned_from_a_file_with_another_number_of_classes(
    pictures: str, tmp_path: Path, write_config: Callable[..., Path], metrics: Callable[[], dict[str, Any]],
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    before = keras.applications.MobileNetV2(weights=None, input_shape=(32, 32, 3), alpha=0.35, classes=7)
    before.save_weights(tmp_path / "seven.weights.h5")
    config = write_config(
        data={"url": pictures, "batch_size": 40, "categorical": []},
        model={**SMALL, "weights": str(tmp_path / "seven.weights.h5"), "freeze": ["^(?!predictions)"]},
        augment={"flip_left_right": True},
        optimizer={"name": "sgd", "learning_rate": 0.5},
        epochs=1,
        max_steps=2,
        output={"model": str(tmp_path / "model.keras")},
    )
    assert main(["--config", str(config), "--set", "deterministic=false"]) == 0, capfd.readouterr().err
    assert "but for 'predictions', which starts afresh" in capfd.readouterr().err
    after = keras.models.load_model(tmp_path / "model.keras")
    moved = [w.path for w, old in zip(after.weights[:-2], before.weights[:-2], strict=True) if np.any(w != old.numpy())]
    assert (moved, after.output_shape) == ([], (None, 4))
    assert metrics()["final"]["samples"] == 80


def test_images_are_what_its_module_makes_of_them(pictures: str) -> None:
    tree = {"data": {"url": pictures}, "model": {"name": "keras.applications:ResNet50", "image_shape": [32, 32, 3]}}
    loader = Loader(pictures, batch_size=4)
    element = next(iter(loader.epoch(0)))
    images = build_model(loader.manifest, parse_config(tree, "x")).preprocess(element)[0].numpy()
    pixels = tf.io.decode_png(element["image"][0], channels=3).numpy()
    expected = pixels[0, 0, ::-1].astype(np.float32) - np.float32([103.939, 116.779, 123.68])
    np.testing.assert_allclose(images[0, 0, 0], expected, atol=1e-3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"name": "keras.applications:ResNet55"}, "has no network 'ResNet55'; did you mean 'ResNet50'"),
        ({"image_shape": [32, 32, 1]}, r"takes images of 3 channels, got \[32, 32, 1\]"),
        ({"image_shape": [8, 8, 3]}, "refuses images of .* at least 32x32"),
        ({"options": {"include_top": False, "pooling": "avg"}}, r"a model of 4 logits.* got an output of .* 1280\)"),
        ({"options": {"alfa": 1}}, "refuses images .*alfa"),
    ],
)
def test_a_mistake_is_one_line(model: dict[str, Any], message: str, pictures: str) -> None:
    config = parse_config({"data": {"url": pictures}, "model": {**SMALL, **model}}, "x")
    with pytest.raises(ConfigError, match=message):
        build_model(Loader(pictures, batch_size=4).manifest, config)

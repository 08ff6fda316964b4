"""The built-in networks for images are those of their papers, and learn."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.schema import Feature
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.models.build import build_model
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.run.trainer import Trainer
from tests.helpers.manifests import manifest_of


def _network(model: dict[str, Any], classes: int) -> Any:
    picture = Feature(name="picture", dtype="binary", encoding="image")
    features = (picture, Feature(name="y", dtype="int64"))
    manifest = manifest_of(features, {}, label="y", classes=dict.fromkeys(range(classes), 1))
    return build_model(manifest, parse_config({"data": {"url": "x"}, "model": model}, "x")).network


@pytest.mark.parametrize(
    ("model", "epochs"),
    [
        ({"name": "convnet", "filters": [8, 8], "hidden": [16], "image_shape": [8, 8, 1]}, 4),
        ({"name": "lenet", "image_shape": [12, 12, 1]}, 3),
        ({"name": "resnet18", "image_shape": [4, 4, 1]}, 2),
        pytest.param(
            {"name": "resnet50", "image_shape": [4, 4, 1]}, 3, marks=pytest.mark.campaign
        ),  # compiles for 10 s
    ],
)
def test_learns_which_quadrant_is_bright(model: dict[str, Any], epochs: int, pictures: str) -> None:
    tree = {
        "data": {"url": pictures, "batch_size": 24},
        "model": model,
        "optimizer": {"name": "sgd", "learning_rate": 0.05},
        "epochs": epochs,
        "eval_every_epochs": epochs,
        "deterministic": False,
    }
    trainer = Trainer(parse_config(tree, "x"), SoloRing())
    assert trainer.run()["final"]["accuracy"] > 0.97


def test_lenet_has_the_parameters_of_the_paper() -> None:
    """61,706 with all maps of the first layer connected, as it is commonly implemented."""
    assert _network({"name": "lenet", "norm": "none", "image_shape": [28, 28, 1]}, 10).count_params() == 61_706
    with pytest.raises(ConfigError, match=r"lenet takes images of at least 12 pixels a side, got \[8, 28, 1\]"):
        _network({"name": "lenet", "image_shape": [8, 28, 1]}, 10)


@pytest.mark.parametrize(("name", "weights", "blocks"), [("resnet18", 11_689_512, 8), ("resnet50", 25_557_032, 16)])
def test_resnets_are_v1_5(name: str, weights: int, blocks: int) -> None:
    """The numbers of weights are those of torchvision's models of 1,000 classes."""
    network = _network({"name": name, "image_shape": [64, 64, 3]}, 1000)
    assert sum(int(np.prod(weight.shape)) for weight in network.trainable_weights) == weights
    gammas = [layer.gamma.numpy() for layer in network.layers if isinstance(layer, keras.layers.BatchNormalization)]
    assert sum(not gamma.any() for gamma in gammas) == blocks
    strided = [c for c in network.layers if isinstance(c, keras.layers.Conv2D) and c.strides == (2, 2)]
    assert sorted(layer.kernel_size[0] for layer in strided) == [1, 1, 1, 3, 3, 3, 7]
    assert all(layer.kernel_size[0] > 1 or _skips_a_block(network, layer) for layer in strided)


def _skips_a_block(network: Any, layer: Any) -> bool:
    """Whether the result of a convolution is added to that of a block, behind nothing but a normalisation."""
    (normalised,) = [node.operation for node in layer._outbound_nodes]
    (added,) = [node.operation for node in normalised._outbound_nodes]
    return isinstance(normalised, keras.layers.BatchNormalization) and isinstance(added, keras.layers.Add)


def test_a_resnet_needs_batch_normalisation() -> None:
    with pytest.raises(ConfigError, match=r"model\.norm=none does not go with model\.name=resnet18"):
        _network({"name": "resnet18", "norm": "none", "image_shape": [32, 32, 3]}, 10)

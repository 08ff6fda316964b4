"""A network of `keras.applications`, for an image column."""

from __future__ import annotations

import sys

import keras

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import did_you_mean, listed, one_line
from ringfeed.training.config.model import APPLICATIONS
from ringfeed.training.config.train_config import TrainConfig

from .images import image_column, image_model, image_shape
from .preprocess import BuiltModel, check_outputs
from .target import plan_target


def application(manifest: Manifest, config: TrainConfig) -> BuiltModel:
    """Build the network with initial weights, and the outputs of the task.

    Its images are what the `preprocess_input` of its module makes of them. Nothing is downloaded.
    """
    name = config.model.name.removeprefix(APPLICATIONS)
    names = [known for known in dir(keras.applications) if callable(getattr(keras.applications, known))]
    if name not in names:
        hint = did_you_mean(name, names, f"there are: {listed(names)}")
        raise ConfigError(f"model.name: keras.applications has no network {name!r}; {hint}")
    feature = image_column(manifest, config.data, config.model.name)
    shape = image_shape(feature, config.model.image_shape)
    if shape[2] != 3:
        raise ConfigError(
            f"model.name: {config.model.name} takes images of 3 channels, got {list(shape)}: set model.image_shape to "
            f"[{shape[0]}, {shape[1]}, 3]"
        )
    function = getattr(keras.applications, name)
    target = plan_target(manifest, config)
    fixed = {"weights": None, "input_shape": shape, "classes": target.outputs, "classifier_activation": None}
    try:
        network = function(**fixed, **config.model.options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"model.name: {config.model.name} refuses images of {list(shape)} or model.options: {one_line(error)}"
        ) from error
    check_outputs(network, config.model.name, target)
    prepare = sys.modules[function.__module__].preprocess_input
    return image_model(network, feature, shape, config, lambda images: prepare(images * 255.0))

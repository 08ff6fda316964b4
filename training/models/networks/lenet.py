"""LeNet-5 for small images: two convolutions and three dense layers.

LeCun et al., "Gradient-Based Learning Applied to Document Recognition", Proc. IEEE 86 (1998), section II.B, with ReLU
and max pooling. `model.norm: none` leaves out normalisation, as in the paper.
Tested in tests/training/models/networks/test_image_models.py.
"""

from __future__ import annotations

import keras

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.models.images import image_column, image_model, image_shape
from ringfeed.training.models.preprocess import BuiltModel
from ringfeed.training.models.target import plan_target

from .layers import head, normalised

_KERNEL, _UNITS = 5, (120, 84)
_LEAST_SIDE = 12  # the second convolution and pooling then leave one pixel


def lenet(manifest: Manifest, config: TrainConfig) -> BuiltModel:
    """Build the network; `model.norm` and `model.dropout` apply."""
    feature = image_column(manifest, config.data, "lenet")
    shape = image_shape(feature, config.model.image_shape)
    if min(shape[:2]) < _LEAST_SIDE:
        raise ConfigError(f"model.name: lenet takes images of at least {_LEAST_SIDE} pixels a side, got {list(shape)}")
    norm = config.model.norm
    inputs = keras.Input(shape, dtype="float32", name="image")
    features = inputs
    for filters, padding in ((6, "same"), (16, "valid")):
        convolution = keras.layers.Conv2D(filters, _KERNEL, padding=padding, use_bias=norm == "none")
        features = keras.layers.ReLU()(normalised(convolution(features), norm))
        features = keras.layers.MaxPooling2D()(features)
    logits = head(keras.layers.Flatten()(features), config.model, plan_target(manifest, config).outputs, _UNITS)
    return image_model(keras.Model(inputs, logits, name="lenet"), feature, shape, config)

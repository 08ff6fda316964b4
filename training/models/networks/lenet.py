"""LeNet-5 for small images: two convolutions and three dense layers.

LeCun et al., "Gradient-Based Learning Applied to Document Recognition", Proc. IEEE 86 (1998), section II.B, with ReLU
and max pooling. `model.norm: none` leaves out normalisation, as in the paper.
"""

from __future__ import annotations

import keras

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.model import ModelConfig
from ringfeed.training.optimizers.keras_doors import Tensor

from .layers import head, normalised

_KERNEL, _UNITS = 5, (120, 84)
_LEAST_SIDE = 12  # the second convolution and pooling then leave one pixel


def lenet(images: Tensor, model: ModelConfig, outputs: int) -> Tensor:
    """Build the network; `model.norm` and `model.dropout` apply."""
    shape = list(images.shape[1:])
    if min(shape[:2]) < _LEAST_SIDE:
        raise ConfigError(f"model.name: lenet takes images of at least {_LEAST_SIDE} pixels a side, got {shape}")
    features = images
    for filters, padding in ((6, "same"), (16, "valid")):
        convolution = keras.layers.Conv2D(filters, _KERNEL, padding=padding, use_bias=model.norm == "none")
        features = keras.layers.ReLU()(normalised(convolution(features), model.norm))
        features = keras.layers.MaxPooling2D()(features)
    return head(keras.layers.Flatten()(features), model, outputs, _UNITS)

"""The built-in network for images: blocks of convolutions that each halve the image."""

from __future__ import annotations

import keras

from ringfeed.training.config.model import ModelConfig
from ringfeed.training.optimizers.keras_doors import Tensor

from .layers import head, normalised


def convnet(images: Tensor, model: ModelConfig, outputs: int) -> Tensor:
    features = images
    for filters in model.filters:
        convolution = keras.layers.Conv2D(filters, 3, padding="same", use_bias=model.norm == "none")
        features = keras.layers.ReLU()(normalised(convolution(features), model.norm))
        if min(features.shape[1:3]) > 1:
            features = keras.layers.MaxPooling2D()(features)
    return head(keras.layers.Flatten()(features), model, outputs)

"""The built-in network for images: blocks of convolutions that each halve the image.

Tested in tests/training/models/networks/test_image_models.py and tests/training/models/test_models.py.
"""

from __future__ import annotations

import keras

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.models.images import image_column, image_model, image_shape
from ringfeed.training.models.preprocess import BuiltModel
from ringfeed.training.models.target import plan_target

from .layers import head, normalised


def convnet(manifest: Manifest, config: TrainConfig) -> BuiltModel:
    feature = image_column(manifest, config.data)
    shape = image_shape(feature, config.model.image_shape)
    inputs = keras.Input(shape, dtype="float32", name="image")
    features = inputs
    for filters in config.model.filters:
        convolution = keras.layers.Conv2D(filters, 3, padding="same", use_bias=config.model.norm == "none")
        features = keras.layers.ReLU()(normalised(convolution(features), config.model.norm))
        if min(features.shape[1:3]) > 1:
            features = keras.layers.MaxPooling2D()(features)
    logits = head(keras.layers.Flatten()(features), config.model, plan_target(manifest, config).outputs)
    return image_model(keras.Model(inputs, logits, name="convnet"), feature, shape, config)

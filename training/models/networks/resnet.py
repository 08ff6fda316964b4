"""ResNet-18 and ResNet-50 (v1.5) for images of any size.

He et al., arXiv 1512.03385, table 1 and figure 5. As NVIDIA's and torchvision's v1.5, a bottleneck strides in its 3 x 3
convolution, not in the 1 x 1 before it. The last batch normalisation of each block starts with gamma 0, so that the
block starts as an identity: Goyal et al., arXiv 1706.02677, section 5.1. Images below 64 pixels a side get the stem of
section 4.2: a 3 x 3 convolution that keeps their size, and no pooling.
Tested in tests/training/models/networks/test_image_models.py.
"""

from __future__ import annotations

from typing import Any

import keras

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.models.images import image_column, image_model, image_shape
from ringfeed.training.models.preprocess import BuiltModel
from ringfeed.training.models.target import plan_target
from ringfeed.training.optimizers.keras_doors import Tensor

from .layers import BATCH_NORM_MOMENTUM

_SMALL_SIDE = 64  # below it, a stem that divides the sides by 4 leaves less than 2 x 2 to the last stage
_WIDTHS = (64, 128, 256, 512)
_EXPANSION = 4  # a bottleneck's output has so many times the filters of its 3 x 3 convolution


def resnet18(manifest: Manifest, config: TrainConfig) -> BuiltModel:
    """Build 18 layers: two blocks of two 3 x 3 convolutions in each of four stages."""
    return _resnet(manifest, config, "resnet18", (2, 2, 2, 2), _basic_block)


def resnet50(manifest: Manifest, config: TrainConfig) -> BuiltModel:
    """Build 50 layers: 3, 4, 6 and 3 bottlenecks in four stages."""
    return _resnet(manifest, config, "resnet50", (3, 4, 6, 3), _bottleneck)


def _resnet(manifest: Manifest, config: TrainConfig, name: str, blocks: tuple[int, ...], block: Any) -> BuiltModel:
    feature = image_column(manifest, config.data, name)
    shape = image_shape(feature, config.model.image_shape)
    inputs = keras.Input(shape, dtype="float32", name="image")
    features = _stem(inputs, is_small=min(shape[:2]) < _SMALL_SIDE)
    for stage, (count, width) in enumerate(zip(blocks, _WIDTHS, strict=True)):
        for index in range(count):
            features = block(features, width, 2 if stage and not index else 1)
    features = keras.layers.GlobalAveragePooling2D()(features)
    if config.model.dropout:
        features = keras.layers.Dropout(config.model.dropout)(features)
    logits = keras.layers.Dense(plan_target(manifest, config).outputs, dtype="float32", name="logits")(features)
    return image_model(keras.Model(inputs, logits, name=name), feature, shape, config)


def _stem(images: Tensor, *, is_small: bool) -> Tensor:
    if is_small:
        return _activated(_convolution(images, _WIDTHS[0], 3))
    features = _activated(_convolution(images, _WIDTHS[0], 7, 2))
    padded = keras.layers.ZeroPadding2D(1)(features)  # zeros are no maximum's loss after a ReLU
    return keras.layers.MaxPooling2D(3, 2)(padded)


def _basic_block(features: Tensor, width: int, stride: int) -> Tensor:
    inner = _activated(_convolution(features, width, 3, stride))
    inner = _normalised(_convolution(inner, width, 3), gamma="zeros")
    return _joined(features, inner, stride)


def _bottleneck(features: Tensor, width: int, stride: int) -> Tensor:
    inner = _activated(_convolution(features, width, 1))
    inner = _activated(_convolution(inner, width, 3, stride))
    inner = _normalised(_convolution(inner, width * _EXPANSION, 1), gamma="zeros")
    return _joined(features, inner, stride)


def _joined(features: Tensor, inner: Tensor, stride: int) -> Tensor:
    """Add a block's result to its input, which a 1 x 1 convolution brings to the same shape if it has another."""
    if stride > 1 or features.shape[-1] != inner.shape[-1]:
        features = _normalised(_convolution(features, inner.shape[-1], 1, stride))
    return keras.layers.ReLU()(keras.layers.Add()([features, inner]))


def _convolution(features: Tensor, filters: int, size: int, stride: int = 1) -> Tensor:
    if stride > 1 and size > 1:  # Keras' "same" would pad even sizes at one side alone
        features = keras.layers.ZeroPadding2D(size // 2)(features)
    padding = "valid" if stride > 1 else "same"
    normal = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")  # arXiv 1502.01852, equation 14
    layer = keras.layers.Conv2D(filters, size, stride, padding, use_bias=False, kernel_initializer=normal)
    return layer(features)


def _normalised(features: Tensor, gamma: str = "ones") -> Tensor:
    return keras.layers.BatchNormalization(momentum=BATCH_NORM_MOMENTUM, gamma_initializer=gamma)(features)


def _activated(features: Tensor) -> Tensor:
    return keras.layers.ReLU()(_normalised(features))

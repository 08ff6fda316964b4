"""ResNet-18 and ResNet-50 (v1.5) for images of any size.

He et al., arXiv 1512.03385, table 1 and figure 5. As NVIDIA's and torchvision's v1.5, a bottleneck strides in its 3 x 3
convolution, not in the 1 x 1 before it. The last batch normalisation of each block starts with gamma 0, so that the
block starts as an identity: Goyal et al., arXiv 1706.02677, section 5.1. Images below 64 pixels a side get the stem of
section 4.2: a 3 x 3 convolution that keeps their size, and no pooling.
"""

from __future__ import annotations

from typing import Any

import keras

from ringfeed.training.config.model import ModelConfig
from ringfeed.training.optimizers.keras_doors import Tensor

from .layers import BATCH_NORM_MOMENTUM

_SMALL_SIDE = 64  # below it, a stem that divides the sides by 4 leaves less than 2 x 2 to the last stage
_WIDTHS = (64, 128, 256, 512)
_EXPANSION = 4  # a bottleneck's output has so many times the filters of its 3 x 3 convolution


def resnet18(images: Tensor, model: ModelConfig, outputs: int) -> Tensor:
    """Build 18 layers: two blocks of two 3 x 3 convolutions in each of four stages."""
    return _resnet(images, model, outputs, (2, 2, 2, 2), _basic_block)


def resnet50(images: Tensor, model: ModelConfig, outputs: int) -> Tensor:
    """Build 50 layers: 3, 4, 6 and 3 bottlenecks in four stages."""
    return _resnet(images, model, outputs, (3, 4, 6, 3), _bottleneck)


def _resnet(images: Tensor, model: ModelConfig, outputs: int, blocks: tuple[int, ...], block: Any) -> Tensor:
    features = _stem(images, is_small=min(images.shape[1:3]) < _SMALL_SIDE)
    for stage, (count, width) in enumerate(zip(blocks, _WIDTHS, strict=True)):
        for index in range(count):
            features = block(features, width, 2 if stage and not index else 1)
    features = keras.layers.GlobalAveragePooling2D()(features)
    if model.dropout:
        features = keras.layers.Dropout(model.dropout)(features)
    return keras.layers.Dense(outputs, dtype="float32", name="logits")(features)


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

"""Image columns as model inputs: encoded PNG or JPEG bytes, or uint8 tensors, to float32 in [0, 1].

Decoding and augmentation are part of the tf.data pipeline.
Tested in tests/training/models/test_models.py and tests/training/models/test_mixing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from ringfeed.pipeline.transforms.images import ImageTransform
from ringfeed.pipeline.transforms.mixup import CutMix, Mixup
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.schema import Feature
from ringfeed.training.config.data import DataConfig
from ringfeed.training.config.model import AugmentConfig, ModelConfig
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.optimizers.keras_doors import Tensor

from .preprocess import (
    BuiltModel,
    Element,
    Inputs,
    Preprocess,
    feature_columns,
    label_and_weight,
    only_column,
    refuse_missing,
)
from .target import plan_target

Shape = tuple[int, int, int]
Prepare = Callable[[Any], Any]


def image_column(manifest: Manifest, data: DataConfig, model: str) -> Feature:
    """Return the one column that holds images; a ConfigError if there is none, or more, or if images are missing."""
    columns = feature_columns(manifest, data)
    found = [f for f in columns if _is_tensor(f) or (f.dtype == "binary" and f.shape == ())]
    column = only_column(found, model, "image column")
    refuse_missing([column], manifest, model)
    return column


def _is_tensor(feature: Feature) -> bool:
    return feature.dtype == "uint8" and feature.elements is not None and len(feature.shape) in (2, 3)


def image_shape(feature: Feature, wanted: tuple[int, ...] | None) -> Shape:
    """Return height, width and channels of the model's images: as wanted, or those of a tensor column.

    A ConfigError says that images are encoded, and no shape is wanted.
    """
    if wanted is not None:
        return wanted[0], wanted[1], wanted[2]
    if feature.fixed_shape is None or not feature.fixed_shape:
        raise ConfigError(
            f"images of column {feature.name!r} are encoded and may differ in size: give model.image_shape, "
            "such as [32, 32, 3]"
        )
    height, width, *channels = feature.fixed_shape
    return height, width, channels[0] if channels else 1


def image_network(
    outputs_of: Callable[[Tensor, ModelConfig, int], Tensor], manifest: Manifest, config: TrainConfig
) -> BuiltModel:
    """Build the network that `outputs_of` makes of images, options and the number of outputs."""
    model = config.model
    feature = image_column(manifest, config.data, model.name)
    shape = image_shape(feature, model.image_shape)
    images = keras.Input(shape, dtype="float32", name="image")
    outputs = outputs_of(images, model, plan_target(manifest, config).outputs)
    return image_model(keras.Model(images, outputs, name=model.name), feature, shape, config)


def image_model(
    network: Any, feature: Feature, shape: Shape, config: TrainConfig, prepare: Prepare | None = None
) -> BuiltModel:
    """Return a network with its preprocessing, and another one for training if anything is random there.

    `prepare` makes the network's input of images in [0, 1]; None: they are the input.
    """

    def preprocess(augment: AugmentConfig) -> Preprocess:
        plain = image_preprocess(feature, shape, augment)
        mix = mixer(augment, network.output_shape[-1]) if augment.mixes else None

        def prepared(element: Element) -> tuple[Inputs, Any, Any]:
            images, class_id, weight = plain(element)
            if mix is not None:
                images, class_id = mix(images, element)
            return images if prepare is None else prepare(images), class_id, weight

        return prepared

    is_random = config.augment.random
    return BuiltModel(
        network=network,
        preprocess=preprocess(AugmentConfig()),
        augmented=preprocess(config.augment) if is_random else None,
    )


def image_preprocess(feature: Feature, shape: Shape, augment: AugmentConfig) -> Preprocess:
    """Make a function from a loader's element to `(images, class_id, weight)`.

    Images are float32 [batch, *shape] in [0, 1]. Augmentation is drawn for each image from the element's
    ``sample_key``. Encoded images of another size are resized with antialiased bilinear filtering.
    """
    if _is_tensor(feature) and image_shape(feature, None) != shape:
        raise ConfigError(f"column {feature.name!r} holds tensors of shape {feature.shape}, not {list(shape)}")
    is_plain = _is_tensor(feature) and not augment.changes_images
    transform = None if is_plain else _transform(feature, shape, augment)

    def preprocess(element: Element) -> tuple[Inputs, Any, Any]:
        if transform is None:  # a whole batch, of any number of channels
            images = tf.cast(tf.reshape(element[feature.name], [-1, *shape]), tf.float32) / 255.0
        else:
            images = transform(element)[feature.name]
        return images, *label_and_weight(element)

    return preprocess


def _transform(feature: Feature, shape: Shape, augment: AugmentConfig) -> ImageTransform:
    return ImageTransform(
        feature=feature.name,
        size=shape[:2],
        channels=shape[2],
        crop=augment.crop,
        flip_left_right=augment.flip_left_right,
        flip_up_down=augment.flip_up_down,
        jitter=augment.jitter,
        shape=feature.fixed_shape or None,
    )


def mixer(augment: AugmentConfig, classes: int) -> Callable[[Any, Mapping[str, Any]], tuple[Any, Any]]:
    """Return a function of images, float [batch, height, width, channels], and the loader's element that holds them.

    It returns mixed images, and labels, float32 [batch, classes]. With both, CutMix follows mixup.
    """
    transforms: list[Callable[[Mapping[str, Any]], Mapping[str, Any]]] = []
    if augment.mixup:
        transforms.append(Mixup(features=("image",), classes=classes, alpha=augment.mixup, group=augment.mix_group))
    if augment.cutmix:
        transforms.append(CutMix(feature="image", classes=classes, alpha=augment.cutmix, group=augment.mix_group))

    def mix(images: Any, element: Mapping[str, Any]) -> tuple[Any, Any]:
        mixed: Mapping[str, Any] = {"image": images, **{name: element[name] for name in ("class_id", "sample_key")}}
        for transform in transforms:
            mixed = transform(mixed)
        return mixed["image"], mixed["soft_label"]

    return mix

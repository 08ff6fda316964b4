"""Mixup and CutMix of a batch's images and labels: see `Mixup`, `CutMix`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ringfeed.pipeline.transforms.mixup import CutMix, Mixup
from ringfeed.training.config.model import AugmentConfig

__all__ = ["mixer"]

_IMAGE = "image"

Transform = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def mixer(augment: AugmentConfig, classes: int) -> Callable[[Any, Mapping[str, Any]], tuple[Any, Any]]:
    """Return a function of images, float [batch, height, width, channels], and the loader's element that they are of.

    It returns mixed images, and labels, float32 [batch, classes]. With both, CutMix follows mixup.
    """
    transforms: list[Transform] = []
    if augment.mixup:
        transforms.append(Mixup(features=(_IMAGE,), classes=classes, alpha=augment.mixup, group=augment.mix_group))
    if augment.cutmix:
        transforms.append(CutMix(feature=_IMAGE, classes=classes, alpha=augment.cutmix, group=augment.mix_group))

    def mix(images: Any, element: Mapping[str, Any]) -> tuple[Any, Any]:
        mixed: Mapping[str, Any] = {_IMAGE: images, **{name: element[name] for name in ("class_id", "sample_key")}}
        for transform in transforms:
            mixed = transform(mixed)
        return mixed[_IMAGE], mixed["soft_label"]

    return mix

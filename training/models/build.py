"""Builds the network that a configuration names: a built-in one, one of Keras, or a user's own by `module:function`.

A network ends in the float32 outputs of its task, such as a logit per class, whatever dtype it computes in. Losses and
metrics are elsewhere.
Tested in tests/training/models/test_models.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.training.config.model import APPLICATIONS
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.optimizers.precision import compute_dtype

from .application import application
from .images import image_network
from .layer_patterns import freeze, rematerialise
from .networks.convnet import convnet
from .networks.lenet import lenet
from .networks.resnet import resnet18, resnet50
from .networks.tabular import tabular
from .networks.text import text
from .networks.wide_deep import wide_deep
from .preprocess import BuiltModel, Element, Inputs, Preprocess
from .target import Target, in_units, plan_target
from .user_model import user_model
from .weight_file import load_weights

_BUILDERS: dict[str, Callable[[Manifest, TrainConfig], BuiltModel]] = {
    "tabular": tabular,
    "wide_deep": wide_deep,
    "convnet": partial(image_network, convnet),
    "lenet": partial(image_network, lenet),
    "resnet18": partial(image_network, resnet18),
    "resnet50": partial(image_network, resnet50),
    "text": text,
}


def build_model(manifest: Manifest, config: TrainConfig) -> BuiltModel:
    """Build the network that a configuration names, for a dataset.

    A ConfigError says that the dataset has no target for the task, or no columns that the network takes.
    """
    target = plan_target(manifest, config)
    named = application if config.model.name.startswith(APPLICATIONS) else user_model
    builder = _BUILDERS.get(config.model.name, named)
    with compute_dtype(config.precision):
        built = builder(manifest, config)
        if builder is not user_model:
            built = replace(built, network=in_units(built.network, target))
    if config.model.weights is not None:
        load_weights(built.network, config.model.weights)
    freeze(built.network, config.model.freeze)
    rematerialise(built.network, config.model.remat)
    augmented = built.augmented and _with_target(built.augmented, target)
    return replace(built, preprocess=_with_target(built.preprocess, target), augmented=augmented)


def _with_target(preprocess: Preprocess, target: Target) -> Preprocess:
    if target.task == "multiclass":
        return preprocess

    def prepared(element: Element) -> tuple[Inputs, Any, Any]:
        inputs, _, weight = preprocess(element)
        return inputs, target.of(element), weight

    return prepared

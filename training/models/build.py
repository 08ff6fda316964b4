"""Builds the network that a configuration names: a built-in one, one of Keras, or a user's own by `module:function`.

A network ends in one float32 logit per class, whatever dtype it computes in. Losses and metrics are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from ...sharding.dataset.manifest import Manifest
from ...sharding.errors import ConfigError
from ..config.model import APPLICATIONS
from ..config.train_config import TrainConfig
from ..optimizers.precision import compute_dtype
from .application import application
from .built_model import BuiltModel
from .convnet import convnet
from .freeze import freeze
from .lenet import lenet
from .remat import rematerialise
from .resnet import resnet18, resnet50
from .tabular import tabular
from .user_model import user_model
from .weight_file import load_weights

__all__ = ["build_model"]

_BUILDERS: dict[str, Callable[[Manifest, TrainConfig], BuiltModel]] = {
    "tabular": tabular,
    "convnet": convnet,
    "lenet": lenet,
    "resnet18": resnet18,
    "resnet50": resnet50,
}


def build_model(manifest: Manifest, config: TrainConfig) -> BuiltModel:
    """Build the network that a configuration names, for a dataset.

    Raises:
        ConfigError: the dataset has no classes, or the network cannot be built for its columns.
    """
    if manifest.schema.label is None or len(manifest.classes) < 2:
        raise ConfigError(f"{config.data.url}: training needs a label with at least two classes; build with --label")
    own = application if config.model.name.startswith(APPLICATIONS) else user_model
    with compute_dtype(config.precision):
        built = _BUILDERS.get(config.model.name, own)(manifest, config)
    if config.model.weights is not None:
        load_weights(built.network, config.model.weights)
    freeze(built.network, config.model.freeze)
    rematerialise(built.network, config.model.remat)
    return built

"""The built-in networks, by name, and a user's own by `module:function`.

A network ends in one float32 logit per class, whatever dtype it computes in. Losses and metrics are elsewhere.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from ..pipeline.transforms.tabular_plan import TabularPlan
from ..sharding.dataset.manifest import Manifest
from ..sharding.errors import ConfigError
from .config import AugmentConfig, ModelConfig, TrainConfig
from .images import image_column, image_preprocess, image_shape
from .precision import compute_dtype
from .preprocess import Element, Preprocess, feature_columns, label_and_weight, plan_tabular, tabular_preprocess

__all__ = ["BuiltModel", "build_model"]

Tensor = Any

# With Keras' 0.99 the moving means lag behind in short runs: after 33 steps of LARS on 3,000 synthetic samples the
# evaluation's loss was 0.497 (accuracy 0.757), with 0.9 it was 0.440 (0.786). Measured 2026-11-21, 2 cores.
BATCH_NORM_MOMENTUM = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A network, and the functions from a loader's element to its inputs: `augmented` is for training, if not None."""

    network: Any
    preprocess: Preprocess
    augmented: Preprocess | None = None


def build_model(manifest: Manifest, config: TrainConfig) -> BuiltModel:
    """Build the network that a configuration names, for a dataset.

    Raises:
        ConfigError: the dataset has no classes, or the network cannot be built for its columns.
    """
    if manifest.schema.label is None or len(manifest.classes) < 2:
        raise ConfigError(f"{config.data.url}: training needs a label with at least two classes; build with --label")
    builders: dict[str, Callable[[Manifest, TrainConfig], BuiltModel]] = {"tabular": _tabular, "convnet": _convnet}
    with compute_dtype(config.precision):
        return builders.get(config.model.name, _user_model)(manifest, config)


def embedding_width(categories: int, wanted: int | None) -> int:
    """Return the width of an embedding: as wanted, or `1.6 * categories ** 0.56`, at most 32 (fastai's rule).

    >>> embedding_width(10, None), embedding_width(1000, None), embedding_width(1000, 4)
    (6, 32, 4)
    """
    return wanted or min(32, round(1.6 * categories**0.56))


def _tabular(manifest: Manifest, config: TrainConfig) -> BuiltModel:
    plan = plan_tabular(manifest, config.data)
    inputs = _tabular_inputs(plan)
    parts = [inputs["numeric"]] if "numeric" in inputs else []
    for index, column in enumerate(plan.categories):
        width = embedding_width(column.size, config.model.embedding_dim)
        embedding = keras.layers.Embedding(column.size, width, name=f"embedding_{index}")
        parts.append(embedding(inputs["categories"][:, index]))
    features = parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)
    logits = _head(features, config.model, len(manifest.classes))
    return BuiltModel(network=keras.Model(inputs, logits, name="tabular"), preprocess=tabular_preprocess(plan))


def _tabular_inputs(plan: TabularPlan) -> dict[str, Tensor]:
    inputs = {}
    if plan.numeric:
        inputs["numeric"] = keras.Input((plan.numeric_width,), dtype="float32", name="numeric")
    if plan.categories:
        inputs["categories"] = keras.Input((len(plan.categories),), dtype="int32", name="categories")
    return inputs


def _convnet(manifest: Manifest, config: TrainConfig) -> BuiltModel:
    feature = image_column(manifest, config.data)
    shape = image_shape(feature, config.model.image_shape)
    inputs = keras.Input(shape, dtype="float32", name="image")
    features = inputs
    for filters in config.model.filters:
        convolution = keras.layers.Conv2D(filters, 3, padding="same", use_bias=config.model.norm == "none")
        features = keras.layers.ReLU()(_normalised(convolution(features), config.model.norm))
        if min(features.shape[1:3]) > 1:
            features = keras.layers.MaxPooling2D()(features)
    logits = _head(keras.layers.Flatten()(features), config.model, len(manifest.classes))
    return BuiltModel(
        network=keras.Model(inputs, logits, name="convnet"),
        preprocess=image_preprocess(feature, shape, AugmentConfig()),
        augmented=image_preprocess(feature, shape, config.augment) if config.augment.random else None,
    )


def _normalised(features: Tensor, norm: str) -> Tensor:
    if norm == "batch":
        return keras.layers.BatchNormalization(momentum=BATCH_NORM_MOMENTUM)(features)
    return keras.layers.LayerNormalization()(features) if norm == "layer" else features


def _head(features: Tensor, model: ModelConfig, classes: int) -> Tensor:
    for units in model.hidden:
        features = keras.layers.Dense(units, use_bias=model.norm == "none")(features)
        features = keras.layers.ReLU()(_normalised(features, model.norm))
        if model.dropout:
            features = keras.layers.Dropout(model.dropout)(features)
    return keras.layers.Dense(classes, dtype="float32", name="logits")(features)


def _user_model(manifest: Manifest, config: TrainConfig) -> BuiltModel:
    function = _imported(config.model.name)
    network = function(manifest, config)
    if not isinstance(network, keras.Model):
        raise ConfigError(f"model.name: {config.model.name} must return a keras.Model, got {type(network).__name__}")
    classes, shape = len(manifest.classes), getattr(network, "output_shape", None)
    if shape is None:
        raise ConfigError(
            f"model.name: {config.model.name} must return a model built from keras.Input, got one without a "
            f"shape ({type(network).__name__})"
        )
    if not isinstance(shape, tuple) or shape[-1] != classes:
        raise ConfigError(
            f"model.name: {config.model.name} must return a model of {classes} logits, one per class, got an output of "
            f"shape {shape}"
        )
    if (activation := _last_activation(network)) in ("softmax", "sigmoid"):
        raise ConfigError(
            f"model.name: {config.model.name} must return a model of logits, but its last layer applies {activation}, "
            "as the loss does: remove it"
        )
    names = [feature.name for feature in feature_columns(manifest, config.data)]
    taken = _inputs_of(network, names, config.model.name)

    def preprocess(element: Element) -> tuple[Any, Any, Any]:
        inputs = element[taken] if isinstance(taken, str) else {name: element[name] for name in taken}
        return inputs, *label_and_weight(element)

    return BuiltModel(network=network, preprocess=preprocess)


def _last_activation(network: Any) -> str:
    """Return the name of the activation that the last layer applies, or of the last layer if it has none."""
    outputs = getattr(network, "outputs", None)
    last = outputs[0]._keras_history.operation if outputs else network
    if last is not network and isinstance(last, keras.Model):
        return _last_activation(last)
    return getattr(getattr(last, "activation", None), "__name__", type(last).__name__.lower())


def _inputs_of(network: Any, names: Sequence[str], function: str) -> str | list[str]:
    """Return the columns that a user's network takes: one for a single input, or those that its inputs are named after.

    No others are passed: Keras 3.15 pairs a dict that has more entries than inputs in alphabetical order, with only a
    warning, so that an input would get the wrong column.

    Raises:
        ConfigError: an input is named after no column.
    """
    inputs = network.inputs[0] if isinstance(network, keras.Sequential) else getattr(network, "input", None)
    if isinstance(inputs, keras.KerasTensor):
        if len(names) == 1:
            return names[0]
        wanted = [inputs.name]
    elif isinstance(inputs, (dict, list, tuple)):
        wanted = list(inputs) if isinstance(inputs, dict) else [tensor.name for tensor in inputs]
    else:
        return list(names)
    for name in wanted:
        if name not in names:
            raise ConfigError(
                f"model.name: {function} returned a model with an input {name!r}, but there is no such column; "
                f"name inputs after columns, as in keras.Input(..., name=...). The columns are: {', '.join(names)}"
            )
    return wanted[0] if isinstance(inputs, keras.KerasTensor) else wanted


def _imported(name: str) -> Callable[[Manifest, TrainConfig], Any]:
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # a console script does not search the working directory, where the user's module is
        sys.path.insert(0, here)
    try:
        function: Callable[[Manifest, TrainConfig], Any] = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"model.name: cannot import {name}: {error}") from error
    if not callable(function):
        raise ConfigError(f"model.name: {name} must be a function, got {type(function).__name__}")
    return function

"""A user's own network, by `module:function`, and the columns that its inputs take.

Tested in tests/training/models/test_models.py and tests/training/models/test_user_errors.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from ringfeed.pipeline.select.sample_columns import mask_name
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError, RingfeedError, TrainingError
from ringfeed.sharding.sources.user_code import describe_error
from ringfeed.training.config.keys import as_yaml
from ringfeed.training.config.own_code import import_own
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.optimizers.keras_doors import producer

from .preprocess import (
    BuiltModel,
    Element,
    check_outputs,
    feature_columns,
    label_and_weight,
    masked_features,
    refuse_missing,
)
from .target import plan_target

_PLACE = re.compile(r'File "([^"]+)", line (\d+), in')
_LIBRARY = re.compile(r"^<|[/\\](site|dist)-packages[/\\]")  # "<string>" is code that TensorFlow generates
_OURS = str(Path(__file__).parents[2])
_ROOT = re.compile(r"^\(\d+\) [A-Z_]+:\s*")  # TensorFlow writes it where several operations of a step have failed
_NODE = re.compile(r"\{\{.*?\}\}")  # TensorFlow marks a graph's nodes so


@contextmanager
def network_errors(manifest: Manifest, config: TrainConfig) -> Iterator[None]:
    """Raise a TrainingError for an error of a network or loss in the body, with the place in the user's code."""
    try:
        yield
    except (RingfeedError, MemoryError, tf.errors.ResourceExhaustedError):
        raise
    except Exception as error:
        key, name = "model.name", config.model.name
        if ":" not in name and config.loss.name is not None and isinstance(error, tf.errors.OpError):
            key, name = "loss.name", config.loss.name
        if ":" not in name:
            raise
        ragged = [column.name for column in feature_columns(manifest, config.data) if column.fixed_shape is None]
        text = describe_error(error, name)
        if isinstance(error, tf.errors.OpError):  # at run time: of Horovod, or of an operation of the network
            place, said = _failed_operation(error.message)
            if place is None and (not ragged or "Horovod" in error.message):
                raise
            text = f"{place or name}: {said}"
        if ragged:
            text += (
                f"; {ragged[0]} arrives as tf.RaggedTensor: call .to_tensor() in the network's first layer, or leave "
                f"it out with data.exclude={as_yaml(ragged[:1])}"
            )
        raise TrainingError(f"{key} {name}: {text}") from error


def _failed_operation(message: str) -> tuple[str | None, str]:
    """Return the user's line, if any, and the text of TensorFlow's error in an operation of a step.

    The operation called a Python function at that line, or was made there.
    """
    said, _, called = message.partition("Traceback (most recent call last):")
    places = _PLACE.findall(called.partition("[[")[0])
    made = list(_PLACE.finditer(said))
    if not places:
        inner = max((i + 1 for i, place in enumerate(made) if place[1].startswith(_OURS)), default=0)
        places = [place.groups() for place in made[inner:] if not _LIBRARY.search(place[1])]
    said = said[made[-1].end() :].partition("\n")[2] if made else said
    lines = _NODE.sub("", said.partition("[[{{node")[0] if made else said).strip().splitlines()
    return ":".join(places[-1]) if places else None, _ROOT.sub("", lines[-1].strip()) if lines else ""


def user_model(manifest: Manifest, config: TrainConfig) -> BuiltModel:
    function = import_own("model.name", config.model.name)
    with network_errors(manifest, config):
        network = function(manifest, config)
    if not isinstance(network, keras.Model):
        raise ConfigError(f"model.name: {config.model.name} must return a keras.Model, got {type(network).__name__}")
    if getattr(network, "output_shape", None) is None:
        raise ConfigError(
            f"model.name: {config.model.name} must return a model built from keras.Input, got one without a "
            f"shape ({type(network).__name__})"
        )
    check_outputs(network, config.model.name, plan_target(manifest, config))
    has_logits = config.task != "regression"
    if has_logits and (activation := _last_activation(network)) in ("softmax", "sigmoid"):
        raise ConfigError(
            f"model.name: {config.model.name} must return a model of logits, but its last layer applies {activation}, "
            "as the loss does: remove it"
        )
    columns = feature_columns(manifest, config.data)
    masks = {feature.name: mask_name(feature.name) for feature in masked_features(manifest, config.data)}
    taken = _inputs_of(network, [feature.name for feature in columns], list(masks.values()), config.model.name)
    taken_names = [taken] if isinstance(taken, str) else taken
    for feature in columns:
        if feature.name in taken_names and masks.get(feature.name) not in taken_names:
            remedy = f"give it an input {mask_name(feature.name)!r}, bool, for the mask; or "
            refuse_missing([feature], manifest, config.model.name, remedy)

    def preprocess(element: Element) -> tuple[Any, Any, Any]:
        inputs = element[taken] if isinstance(taken, str) else {name: element[name] for name in taken}
        return inputs, *label_and_weight(element)

    return BuiltModel(network=network, preprocess=preprocess)


def _last_activation(network: Any) -> str:
    """Return the name of the activation that the last layer applies, or of the last layer if it has none."""
    outputs = getattr(network, "outputs", None)
    last = producer(outputs[0])[0] if outputs else network
    if last is not network and isinstance(last, keras.Model):
        return _last_activation(last)
    return getattr(getattr(last, "activation", None), "__name__", type(last).__name__.lower())


def _inputs_of(network: Any, columns: Sequence[str], masks: Sequence[str], function: str) -> str | list[str]:
    """Return the columns that a user's network takes: one for a single input, or those that its inputs are named after.

    No others are passed: Keras 3.15 pairs a dict that has more entries than inputs in alphabetical order, with only a
    warning, so that an input would get the wrong column.
    """
    names = [*columns, *masks]
    inputs = network.inputs[0] if isinstance(network, keras.Sequential) else getattr(network, "input", None)
    if isinstance(inputs, keras.KerasTensor):
        if len(columns) == 1:
            return columns[0]
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

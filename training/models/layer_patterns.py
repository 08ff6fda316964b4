"""Layers that patterns of the configuration name: those that training freezes, and those that it computes again.

Inner activations of the latter are computed again in the backward pass, which saves the memory to keep them: Chen et
al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174. `keras.RematScope` does not do it here: on
TensorFlow it fails in a compiled step, and the second pass would draw other masks of dropout.
Tested in tests/training/models/test_freeze.py and tests/training/models/test_remat.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import listed
from ringfeed.training.optimizers.keras_doors import assign_all, inner_layers, is_training


def freeze(network: Any, patterns: Sequence[str]) -> None:
    """Freeze the layers whose path matches a pattern; a frozen batch normalisation uses its moving statistics."""
    for pattern in patterns:
        for layer in matching_layers(network, "model.freeze", pattern):
            layer.trainable = False
    if patterns and not network.trainable_weights:
        raise ConfigError(
            f"model.freeze: {list(patterns)} leave no weight to train; leave out a layer, as the last one"
        )


def matching_layers(network: Any, key: str, pattern: str) -> list[Any]:
    """Return the layers with weights whose path matches a pattern, or raise a ConfigError that names the key."""
    layers = {layer.path or layer.name: layer for layer in inner_layers(network) if layer.weights}
    matching = [layer for path, layer in layers.items() if re.search(pattern, path)]
    if not matching:
        raise ConfigError(f"{key}: {pattern!r} matches no layer; the layers are: {listed(list(layers))}")
    return matching


def rematerialise(network: Any, patterns: Sequence[str]) -> None:
    """Make the layers whose path matches a pattern keep only inputs and outputs for the backward pass.

    Within a matching layer no other counts.
    """
    matching = [layer for pattern in patterns for layer in matching_layers(network, "model.remat", pattern)]
    inner = {id(layer) for outer in matching for layer in inner_layers(outer)}
    for layer in {id(layer): layer for layer in matching if id(layer) not in inner}.values():
        _wrap_call(layer)


def _wrap_call(layer: Any) -> None:
    """Wrap a layer's call: the second starts from the state of the first, as of dropout, and leaves it as it is.

    The second is one of Keras': layers within would else not know that they train, nor the dtype.
    """
    call = layer.call
    states = [variable.value for variable in layer.variables if not variable.value.trainable]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not is_training(layer):
            return call(*args, **kwargs)
        before: list[Any] = []

        def run(*tensors: Any) -> Any:
            given = tf.nest.pack_sequence_as(args, tensors)
            if not before:
                before.extend(tf.identity(state) for state in states)
                return call(*given, **kwargs)
            after = [tf.identity(state) for state in states]
            assign_all(states, before)
            layer.call = call
            outputs = layer(*given, **{**kwargs, "training": True})
            layer.call = wrapped
            assign_all(states, after)
            return outputs

        return tf.recompute_grad(run)(*tf.nest.flatten(args))

    layer.call = wrapped

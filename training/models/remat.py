"""Layers whose inner activations are computed again in the backward pass, which saves the memory to keep them.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174. `keras.RematScope` does not do it here:
on TensorFlow it fails in a compiled step, and the second pass would draw other masks of dropout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringfeed.training.optimizers.keras_doors import inner_layers, is_training

from .freeze import matching_layers

__all__ = ["rematerialise"]


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
            _assign(states, before)
            layer.call = call
            outputs = layer(*given, **{**kwargs, "training": True})
            layer.call = wrapped
            _assign(states, after)
            return outputs

        return tf.recompute_grad(run)(*tf.nest.flatten(args))

    layer.call = wrapped


def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)

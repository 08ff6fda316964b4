"""Layers that training leaves as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import listed
from ringfeed.training.optimizers.keras_doors import inner_layers

__all__ = ["freeze", "matching_layers"]


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

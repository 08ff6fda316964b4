"""Starts a network with the weights of a file: its network has the same layers, except perhaps the last."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import keras

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.storage.untrusted_files import guarded, open_untrusted
from ringfeed.training.optimizers.keras_doors import inner_layers, producer

from .keras_files import check_hdf5, open_archive, read_member

log = logging.getLogger(__name__)

Layout = Mapping[str, tuple[str, tuple[int, ...]]]
"""Place in a file -> the name of a layer, and the shape of one of its weights."""

_IGNORED = ("optimizer/", "/seed_generator/")


def load_weights(network: Any, url: str) -> None:
    """Assign the weights of a file, but to a last layer for which it has others, or none.

    The last layers are the nearest to the outputs that have weights: usually the logits; in a network whose outputs are
    a sum, such as `wide_deep`, one layer for each term. A ConfigError says that another layer does not fit. The file is
    `.keras`, `.weights.h5`, or `.h5` of Keras 2, such as `keras.applications` has, whose layers are found by name.
    """
    heads = _last_layers(network)
    is_old = url.endswith(".h5") and not url.endswith(".weights.h5")
    with TemporaryDirectory() as temporary, guarded(url, "the weights of a Keras model", prefix="model.weights: "):
        path = Path(temporary) / ("old.h5" if is_old else "given.weights.h5")
        _extract(url, path)
        check_hdf5(path)
        given = _layout(path)
        if is_old:
            own = _named_layout(network)
        else:
            own_path = Path(temporary) / "own.weights.h5"
            network.save_weights(own_path)
            own = _layout(own_path)
        new = _check(url, own, given, heads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the last layers
            network.load_weights(path, skip_mismatch=bool(new), **({"by_name": True} if is_old else {}))
    log.info(
        "starting from the weights of %s%s",
        url,
        f", but for {_quoted(new)}, which {'starts' if len(new) == 1 else 'start'} afresh" if new else "",
    )


def _last_layers(network: Any) -> set[str]:
    """Return the names of the layers with weights that are nearest to the outputs."""
    outputs = getattr(network, "outputs", None) if isinstance(network, keras.Model) else None
    if not outputs:  # a layer, or a model without a graph: the last of its parts
        return {[layer.name for layer in (network, *inner_layers(network)) if layer.weights][-1]}
    found, waiting = set(), list(outputs)
    while waiting:
        layer, inputs = producer(waiting.pop())
        if getattr(layer, "weights", None):
            found |= _last_layers(layer)
        else:
            waiting += inputs
    return found


def _quoted(names: Iterable[str]) -> str:
    return " and ".join(map(repr, sorted(names)))


def _extract(url: str, path: Path) -> None:
    """Put the weights of a file, which may be an archive, at a path, where HDF5 and Keras can read them."""
    with open_untrusted(url) as file:
        if url.endswith(".keras"):
            with open_archive(file, url) as archive:
                path.write_bytes(read_member(archive, "model.weights.h5"))
        elif isinstance(file, io.BytesIO):
            path.write_bytes(file.getbuffer())
        else:
            path.symlink_to(Path(file.name).absolute())


def _layout(path: Path) -> Layout:
    """Return where a file has the weights of layers."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}

    def visit(place: str, item: Any) -> None:
        group, _, index = place.rpartition("/vars/")
        if isinstance(item, h5py.Dataset) and index and not any(part in f"{place}/" for part in _IGNORED):
            layer = item.parent.attrs.get("name", group)
            found[place] = str(layer), tuple(item.shape)

    with h5py.File(path) as file:
        groups = file.get("model_weights", file)
        if "layer_names" not in groups.attrs:
            file.visititems(visit)
            return found
        for layer in _texts(groups.attrs["layer_names"]):
            for number, weight in enumerate(_texts(groups[layer].attrs["weight_names"])):
                found[f"{layer}/{number}"] = layer, tuple(groups[layer][weight].shape)
    return found


def _texts(values: Any) -> list[str]:
    return [value.decode() if isinstance(value, bytes) else str(value) for value in values]


def _named_layout(network: Any) -> Layout:
    """Return the layout that a file of Keras 2 has for a network."""
    return {
        f"{layer.name}/{number}": (layer.name, tuple(weight.shape))
        for layer in network.layers
        for number, weight in enumerate([*layer.trainable_weights, *layer.non_trainable_weights])
    }


def _check(url: str, own: Layout, given: Layout, heads: Set[str]) -> set[str]:
    """Return which of the last layers, `heads`, do not fit; all others have to."""
    new = set()
    for place in sorted({*own, *given}):
        (layer, shape), (their_layer, their_shape) = own.get(place, ("", None)), given.get(place, ("", None))
        if shape == their_shape:
            continue
        if layer in heads or (not layer and their_layer in heads):
            new.add(layer or their_layer)
            continue
        if their_shape is None:
            problem = f"the network's layer {layer!r} is not in it ({place})"
        elif shape is None:
            problem = f"the network has no layer for its {their_layer!r} ({place})"
        else:
            problem = f"{layer!r} has the shape {list(their_shape)} there, {list(shape)} in the network ({place})"
        raise ConfigError(
            f"model.weights: {url} does not fit: {problem}; only {_quoted(heads)}, the last, may differ. Make the "
            "model's options those of the file's network"
        )
    return new

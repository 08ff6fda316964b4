"""Weights of a file: every layer has to fit but the last one, in each of Keras' formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from ringfeed.sharding import open_dataset
from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.models.build import build_model
from ringfeed.training.models.weight_file import load_weights


def _network(classes: int, units: int = 4, *, with_norm: bool = True) -> Any:
    inputs = keras.Input((3,), name="x")
    hidden = keras.layers.Dropout(0.1)(keras.layers.Dense(units, name="lower")(inputs))
    hidden = keras.layers.BatchNormalization(name="norm")(hidden) if with_norm else hidden
    inner = keras.Sequential([keras.layers.Dense(units)], name="inner")
    return keras.Model(inputs, keras.layers.Dense(classes, name="logits")(inner(hidden)))


@pytest.fixture(scope="module")
def trained() -> Any:
    network = _network(2)
    for number, weight in enumerate(network.weights):
        weight.assign(np.full(weight.shape, number + 2.0))
    return network


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of Keras, as it saves
@pytest.mark.parametrize("name", ["a.keras", "a.weights.h5", "a.h5"])
def test_all_layers_start_from_the_file_and_a_last_one_of_another_size_anew(
    name: str, trained: Any, tmp_path: Path
) -> None:
    path = tmp_path / name
    (trained.save_weights if name == "a.weights.h5" else trained.save)(path)
    same, other = _network(2), _network(5)
    fresh = [w.numpy() for w in other.weights[-2:]]
    load_weights(same, str(path))
    load_weights(other, f"file://{path}")
    for ours, others, theirs in zip(same.weights, other.weights, trained.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
        if "logits" not in theirs.path:
            np.testing.assert_array_equal(others.numpy(), theirs.numpy())
    assert [np.array_equal(w.numpy(), f) for w, f in zip(other.weights[-2:], fresh, strict=True)] == [True, True]
    for network, problem in [
        (_network(2, 6), r"does not fit: '\w+' has the shape \[.*\] there, \[.*\] in the network"),
        (_network(2, with_norm=False), "the network has no layer for its 'norm'"),
    ]:
        before = [w.numpy() for w in network.weights]
        with pytest.raises(ConfigError, match=problem):
            load_weights(network, str(path))
        assert all(np.array_equal(w.numpy(), b) for w, b in zip(network.weights, before, strict=True))


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of Keras, as it saves
def test_a_network_without_its_last_layer_is_a_start(trained: Any, tmp_path: Path) -> None:
    keras.Model(trained.inputs, trained.layers[-2].output).save_weights(tmp_path / "a.weights.h5")
    network = _network(3)
    load_weights(network, str(tmp_path / "a.weights.h5"))
    assert float(network.layers[1].kernel[0, 0]) == 2.0
    keras.Model(trained.inputs, trained.layers[2].output).save_weights(tmp_path / "b.weights.h5")
    with pytest.raises(ConfigError, match="the network's layer 'norm' is not in it"):
        load_weights(network, str(tmp_path / "b.weights.h5"))


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of Keras, as it saves
def test_both_parts_of_wide_deep_start_anew_for_other_outputs(flights: str, tmp_path: Path) -> None:
    manifest = open_dataset(flights).manifest
    model: dict[str, Any] = {"name": "wide_deep", "hidden": [4], "hash_buckets": 50, "embedding_dim": 4}
    tree = {"data": {"url": flights, "categorical": ["hour"]}, "model": model}
    trained = build_model(manifest, parse_config(tree, "x")).network
    for weight in trained.weights:
        weight.assign(np.ones(weight.shape))
    trained.save(tmp_path / "a.keras")
    model["weights"] = str(tmp_path / "a.keras")
    network = build_model(manifest, parse_config({**tree, "task": "binary"}, "x")).network
    for weight in network.weights:
        is_new = weight.path.split("/")[0] in ("logits", "wide_weights")
        assert (weight.numpy() == 1).all() == (not is_new), weight.path
    model["hash_buckets"] = 60
    with pytest.raises(
        ConfigError, match=r"'embedding_0' has the shape \[50, .*only 'logits' and 'wide_weights', the last"
    ):
        build_model(manifest, parse_config(tree, "x"))


@pytest.mark.parametrize("name", ["a.keras", "a.weights.h5", "a.h5"])
def test_another_file_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"no weights")
    with pytest.raises(ConfigError, match=rf"model.weights: .*{name} .*damaged"):
        load_weights(_network(2), str(tmp_path / name))
    with pytest.raises(ConfigError, match=r"model.weights: there is no file .*gone.keras"):
        load_weights(_network(2), str(tmp_path / "gone.keras"))

"""What ringfeed replaces inside Keras is there, and a Keras without it is refused in one line."""

from __future__ import annotations

import keras
import pytest

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.optimizers.keras_doors import DOORS, replace_method, require_method
from ringfeed.training.optimizers.lars import LARS


def test_keras_calls_what_is_replaced() -> None:
    owners = {"_moments": keras.layers.BatchNormalization(), "_backend_update_step": keras.optimizers.SGD(0.1)}
    for name in DOORS:
        assert callable(require_method(owners.get(name, keras.optimizers.SGD(0.1)), name))
    variable, called = keras.Variable([1.0]), []
    optimizer = keras.optimizers.SGD(0.1, weight_decay=0.1)
    for name in ("_backend_update_step", "_apply_weight_decay"):
        replace_method(optimizer, name, lambda *_, name=name: called.append(name))
    optimizer.apply([keras.ops.ones(1)], [variable])
    assert sorted(called) == ["_apply_weight_decay", "_backend_update_step"]


def test_a_keras_without_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        TrainingError, match=r"^keras [\d.]+ has no Dense\._moments, in whose place ringfeed normalises"
    ):
        replace_method(keras.layers.Dense(1), "_moments", print)
    bases = [kind for kind in keras.optimizers.Optimizer.__mro__ if "_backend_update_step" in vars(kind)]
    for kind in bases:
        monkeypatch.delattr(kind, "_backend_update_step")
    with pytest.raises(TrainingError, match=r"has no Optimizer\._backend_update_step, in whose place ringfeed updates"):
        LARS(0.1)

"""Shares of classes: parsed from options, and as numbers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.pipeline.order.class_shares import Ramp, epoch_samples, parse_balance, target_weights
from ringfeed.sharding import ConfigError

CLASSES = ("a", "b", "c")
counts = st.lists(st.integers(0, 10**9), min_size=3, max_size=3).filter(any)


def test_words_and_shares() -> None:
    assert target_weights("natural", CLASSES, (1, 2, 3)) is None
    np.testing.assert_allclose(target_weights("uniform", CLASSES, (1, 0, 3)), [0.5, 0, 0.5])
    np.testing.assert_allclose(target_weights({"a": 0.25, "c": 0.75}, CLASSES, (1, 2, 3)), [0.25, 0, 0.75])
    np.testing.assert_allclose(target_weights("power:0.5", CLASSES, (100, 0, 4)), [10 / 12, 0, 2 / 12])


@given(counts, st.floats(0, 1))
def test_a_power_lies_between_uniform_and_the_natural_shares(records: list[int], exponent: float) -> None:
    weights = target_weights(f"power:{exponent}", CLASSES, records)
    uniform, natural = target_weights("uniform", CLASSES, records), np.array(records) / sum(records)
    assert weights is not None
    assert uniform is not None
    assert weights.sum() == pytest.approx(1)
    assert (weights[np.array(records) == 0] == 0).all()
    assert min(uniform.max(), natural.max()) - 1e-9 <= weights.max() <= max(uniform.max(), natural.max()) + 1e-9
    np.testing.assert_allclose(target_weights("power:0", CLASSES, records), uniform)
    np.testing.assert_allclose(target_weights("power:1", CLASSES, records), natural)


def test_a_ramp_goes_from_one_target_to_the_other_and_stays() -> None:
    ramp = parse_balance("uniform -> natural:4")
    assert ramp == Ramp(start="uniform", end="natural", epochs=4)
    assert parse_balance("uniform") == "uniform"
    of_epochs = [target_weights(ramp, ("a", "b"), (900, 100), epoch) for epoch in range(6)]
    assert of_epochs[4:] == [None, None]
    np.testing.assert_allclose(np.stack(of_epochs[:4])[:, 0], [0.5, 0.6, 0.7, 0.8])  # type: ignore[arg-type]


def test_weights_need_not_add_up_to_one() -> None:
    ramp = Ramp(start={"a": 1, "b": 1}, end={"a": 30, "b": 10}, epochs=1)
    for balance, shares in (({"a": 2, "b": 6}, [0.25, 0.75]), ({"b": 0.1}, [0, 1]), (ramp, [0.5, 0.5])):
        np.testing.assert_allclose(target_weights(balance, ("a", "b"), (5, 5)), shares)  # type: ignore[arg-type]
    np.testing.assert_allclose(target_weights(ramp, ("a", "b"), (5, 5), epoch=1), [0.75, 0.25])  # type: ignore[arg-type]


def test_a_function_returns_the_balance_of_each_epoch() -> None:
    def balance(epoch: int) -> str:
        return "uniform" if epoch % 2 else "natural"

    assert target_weights(balance, CLASSES, (1, 1, 1), 0) is None
    np.testing.assert_allclose(target_weights(balance, CLASSES, (1, 1, 2), 1), [1 / 3] * 3)


@pytest.mark.parametrize(
    ("balance", "message"),
    [
        ("even", "balance must be 'natural', 'uniform', 'power:A', 'X->Y:EPOCHS' or a share by class, got 'even'"),
        (None, "or a share by class, got None"),
        ("power:2", "exponent of 'power:2' must lie between 0 "),
        ("power:x", "exponent of 'power:x' must lie between 0 "),
        ("uniform->natural", "does not say over how many epochs, as in 'uniform->natural:10'"),
        ("uniform->natural:0", "takes at least 1 epoch, got 0"),
        ("uniform->even:2", "got 'even'"),
        ({"d": 1.0}, "there is no class 'd'; the classes are: 'a', 'b'"),
        ({"a": 0}, "must be numbers from 0 up, and one of them above 0, got {'a': 0}"),
        ({}, "must be numbers from 0 up, and one of them above 0, got {}"),
        ({"a": 1.5, "b": -0.5}, "must be numbers from 0 up"),
        ({"a": float("nan"), "b": 1.0}, "must be numbers from 0 up"),
        ({"a": float("inf")}, "must be numbers from 0 up"),
        ({"a": 0.5, "b": 0.5}, "asks for class 'b', which has no record"),
    ],
)
def test_an_impossible_balance_is_refused(balance: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        target_weights(parse_balance(balance), ("a", "b"), (1, 0))


def test_classes_of_a_dataset_without_label_cannot_be_balanced() -> None:
    with pytest.raises(ConfigError, match="has no label, so there are no classes to balance"):
        target_weights("power:0.5", (None,), (10,))


def test_the_length_of_an_epoch_follows_from_the_largest_or_the_scarcest_class() -> None:
    counts = (800, 180, 20)
    assert epoch_samples(None, "uniform", CLASSES, counts, 7) == (None, False)
    assert epoch_samples("oversample", "uniform", CLASSES, counts, 7) == (2401, True)
    assert epoch_samples("undersample", "uniform", CLASSES, counts, 7) == (60, True)
    assert epoch_samples("undersample", {"a": 0.8, "c": 0.2}, CLASSES, counts, 7) == (100, True)
    assert epoch_samples(500, "uniform", CLASSES, counts, 7) == (500, False)
    assert epoch_samples(5000, "uniform", CLASSES, counts, 7) == (5000, True)
    assert epoch_samples(500, "natural", CLASSES, counts, 7) == (500, False)
    assert epoch_samples(np.int64(500), "natural", CLASSES, counts, 7) == (500, False)  # type: ignore[arg-type]
    for length, balance, message in (
        ("oversample", "natural", "needs a balance"),
        ("undersample", Ramp(start="uniform", end="natural", epochs=2), "one balance for all epochs"),
        ("resample", "uniform", "must be an integer, 'oversample' or 'undersample', got 'resample'"),
    ):
        with pytest.raises(ConfigError, match=message):
            epoch_samples(length, balance, CLASSES, counts, 7)  # type: ignore[arg-type]

"""LARS against optax.lars, step by step. Zero steps, no decay, no mask or a swapped variant all fail these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.training.optimizers.lars import LARS
from ringfeed.training.optimizers.norms import is_adapted
from ringfeed.training.schedules.learning_rate import WarmUpDecay

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

SHAPES = {"conv/kernel": (3, 3, 2, 4), "dense/kernel": (16, 8), "dense/bias": (8,), "norm/gamma": (16,), "scale": ()}
STEPS = 50


def _problem(dtype: str) -> tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any]]]:
    """Start weights, and the gradient of a badly conditioned quadratic around another point."""
    rng = np.random.default_rng(11)
    start = {name: rng.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}
    target = {name: rng.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}
    curvature = {name: np.asarray(rng.uniform(0.01, 3.0, size=shape), dtype) for name, shape in SHAPES.items()}
    return start, lambda w: {name: curvature[name] * (w[name] - target[name]) for name in w}


def _run_optax(start: dict[str, Any], gradient: Any, rate: Any, mask: dict[str, bool], options: dict[str, Any]) -> Any:
    solver = optax.lars(learning_rate=rate, weight_decay_mask=mask, trust_ratio_mask=mask, **options)
    weights = {name: jax.numpy.asarray(value) for name, value in start.items()}
    state = solver.init(weights)
    for _ in range(STEPS):
        updates, state = solver.update(gradient(weights), state, weights)
        weights = optax.apply_updates(weights, updates)
    return {name: np.asarray(value) for name, value in weights.items()}


def _run_keras(start: dict[str, Any], gradient: Any, optimizer: LARS, compiled: bool) -> dict[str, Any]:
    variables = {name: keras.Variable(value, dtype=value.dtype.name, name="v") for name, value in start.items()}
    for name, variable in variables.items():
        variable._path = name
    optimizer.build(list(variables.values()))

    def step() -> None:
        gradients = gradient({name: v.value for name, v in variables.items()})
        optimizer.apply(list(gradients.values()))

    run = tf.function(step) if compiled else step
    for _ in range(STEPS):
        run()
    return {name: v.numpy() for name, v in variables.items()}


def _assert_equal(ours: dict[str, Any], theirs: dict[str, Any], start: dict[str, Any], tolerance: float) -> None:
    for name, value in theirs.items():
        scale = np.max(np.abs(value))
        assert np.max(np.abs(value - start[name])) > 100 * tolerance * scale, f"{name} hardly moved: proves nothing"
        assert np.max(np.abs(ours[name] - value)) <= tolerance * scale, name


MASK = {name: len(shape) >= 2 for name, shape in SHAPES.items()}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.05, "trust_coefficient": 0.02},
    {"weight_decay": 0.05, "trust_coefficient": 0.02, "nesterov": True},
    {"weight_decay": 1e-4, "trust_coefficient": 0.1, "eps": 0.3, "momentum": 0.5},
    {"momentum": 0.0, "trust_coefficient": 0.05},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("compiled", [False, True])
def test_equals_optax_over_50_steps_in_float32(options: dict[str, Any], compiled: bool) -> None:
    start, gradient = _problem("float32")
    theirs = _run_optax(start, gradient, 0.3, MASK, options)
    ours = _run_keras(start, gradient, LARS(learning_rate=0.3, **options), compiled)
    _assert_equal(ours, theirs, start, 1e-6)


@pytest.mark.parametrize("options", [*OPTIONS, {"momentum": 0.0, "trust_coefficient": 1.0}], ids=str)
def test_equals_optax_over_50_steps_in_float64(options: dict[str, Any]) -> None:
    start, gradient = _problem("float64")
    with jax.enable_x64(True):
        theirs = _run_optax(start, gradient, 0.25, MASK, options)
    # Keras holds the learning rate in float32, so one that float32 holds exactly; the rest is float64 throughout.
    ours = _run_keras(start, gradient, LARS(learning_rate=0.25, **options), compiled=True)
    _assert_equal(ours, theirs, start, 1e-11)


def test_equals_optax_with_a_schedule_in_float64() -> None:
    start, gradient = _problem("float64")
    rate = WarmUpDecay(peak_value=0.5, warmup_steps=10, total_steps=60, init_value=0.01)
    options: dict[str, Any] = {"weight_decay": 0.01, "trust_coefficient": 0.02}
    with jax.enable_x64(True):
        schedule = optax.warmup_cosine_decay_schedule(0.01, 0.5, 10, 60)
        theirs = _run_optax(start, gradient, schedule, MASK, options)
    ours = _run_keras(start, gradient, LARS(learning_rate=rate, **options), compiled=True)
    _assert_equal(ours, theirs, start, 1e-6)


@pytest.mark.parametrize(
    ("exclude", "adapted"),
    [
        ([], set(SHAPES)),
        (["dense"], {"conv/kernel", "norm/gamma", "scale"}),
        (["kernel$"], set(SHAPES) - {"conv/kernel", "dense/kernel"}),
    ],
)
def test_a_custom_mask_equals_optax(exclude: list[str], adapted: set[str]) -> None:
    start, gradient = _problem("float32")
    options: dict[str, Any] = {"weight_decay": 0.02, "trust_coefficient": 0.05}
    theirs = _run_optax(start, gradient, 0.5, {name: name in adapted for name in SHAPES}, options)
    ours = _run_keras(start, gradient, LARS(learning_rate=0.5, exclude=exclude, **options), compiled=True)
    _assert_equal(ours, theirs, start, 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision_gradients_update_float32_masters(dtype: str) -> None:
    start, gradient = _problem("float32")

    def rounded(weights: dict[str, Any]) -> dict[str, Any]:
        return {name: tf.cast(g, dtype) for name, g in gradient(weights).items()}

    def rounded_jax(weights: dict[str, Any]) -> dict[str, Any]:
        return {n: jax.numpy.asarray(g).astype(dtype).astype("float32") for n, g in gradient(weights).items()}

    options: dict[str, Any] = {"weight_decay": 0.01, "trust_coefficient": 0.02}
    # A gradient next to a rounding boundary may fall on either side: one low-precision bit now and then.
    tolerance = 2e-4 if dtype == "float16" else 2e-3
    theirs = _run_optax(start, rounded_jax, 0.3, MASK, options)
    ours = _run_keras(start, rounded, LARS(learning_rate=0.3, **options), compiled=True)
    for name, value in theirs.items():
        assert ours[name].dtype == np.float32
        np.testing.assert_allclose(ours[name], value, atol=tolerance * np.max(np.abs(value)))


def test_zero_weights_and_zero_gradients_take_a_trust_ratio_of_one() -> None:
    variable = keras.Variable(np.zeros((2, 2), np.float32))
    LARS(learning_rate=0.5, momentum=0.0).apply([tf.ones((2, 2))], [variable])
    np.testing.assert_array_equal(variable.numpy(), np.full((2, 2), -0.5, np.float32))
    LARS(learning_rate=0.5, momentum=0.0).apply([tf.zeros((2, 2))], [variable])
    np.testing.assert_array_equal(variable.numpy(), np.full((2, 2), -0.5, np.float32))


def test_survives_serialisation_with_its_schedule() -> None:
    optimizer = LARS(
        learning_rate=WarmUpDecay(peak_value=2.0, warmup_steps=3, total_steps=9), weight_decay=0.1, exclude=["bias"]
    )
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert again.get_config() == optimizer.get_config()
    assert float(again._learning_rate(3)) == 2.0
    assert again.rule == optimizer.rule
    assert not is_adapted("dense/bias", (2, 2), again.rule.options.exclude)


def test_a_callable_rate_is_called_at_each_step() -> None:
    rates = iter([1.0, 0.25])
    variable = keras.Variable(np.zeros((1, 1), np.float32))
    optimizer = LARS(learning_rate=lambda: next(rates), momentum=0.0, exclude=[".*"])
    optimizer.build([variable])
    optimizer.apply([tf.ones((1, 1))])
    optimizer.apply([tf.ones((1, 1))])
    assert variable.numpy().item() == -1.25


@pytest.mark.parametrize("bad", [{"momentum": 1.0}, {"eps": -1.0}, {"trust_coefficient": 0.0}, {"weight_decay": -0.1}])
def test_refuses_values_out_of_range(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"LARS: {next(iter(bad))} must be"):
        LARS(**bad)  # type: ignore[arg-type]

"""Adan against Algorithm 1 of arXiv 2208.06677 in NumPy, and against optax, step by step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.training.config.optimizers import OPTIMIZERS
from ringfeed.training.optimizers.adan import AdanRule
from ringfeed.training.optimizers.build import build_optimizer
from ringfeed.training.schedules.learning_rate import WarmUpDecay

STEPS, RATE, EPS = 60, 0.125, 1e-8
SHAPES = {"kernel": (5, 4), "other": (5, 4), "bias": (4,)}
Array = Any


def _problem() -> tuple[dict[str, Array], dict[str, Array]]:
    """Weights, and gradients of every step: those of the second kernel are tiny, and zero in some steps."""
    rng = np.random.default_rng(3)
    weights = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    gradients = {name: rng.normal(size=(STEPS, *shape)) for name, shape in SHAPES.items()}
    gradients["other"] *= 1e-6 * (np.arange(STEPS) % 3 > 0)[:, None, None]
    return weights, gradients


def _trained(decay: float, betas: tuple[float, float, float]) -> dict[str, Array]:
    weights, gradients = _problem()
    variables = [keras.Variable(value, dtype="float64", name=name) for name, value in weights.items()]
    names = dict(zip(("beta_1", "beta_2", "beta_3"), betas, strict=True))
    options = OPTIMIZERS.made({"name": "adan", "weight_decay": decay, **names})
    optimizer = build_optimizer(options, WarmUpDecay(RATE, 0, 10, decay="constant"), variables)
    assert isinstance(optimizer.rule, AdanRule)
    step = tf.function(lambda *g: optimizer.apply(list(g), variables), autograph=False)
    for t in range(STEPS):
        step(*(tf.constant(g[t]) for g in gradients.values()))
    return {name: variable.numpy() for name, variable in zip(SHAPES, variables, strict=True)}


def _algorithm_1(weights: Array, gradients: Array, decay: float, betas: tuple[float, float, float]) -> Array:
    """In the paper's letters, whose betas are 1 minus the keys; the averages are corrected as in the authors' code."""
    b1, b2, b3 = (1 - beta for beta in betas)
    m, v, n, last = 0.0, 0.0, 0.0, gradients[0]
    theta = weights
    for k, g in enumerate(gradients, 1):
        m = (1 - b1) * m + b1 * g
        v = (1 - b2) * v + b2 * (g - last)
        n = (1 - b3) * n + b3 * (g + (1 - b2) * (g - last)) ** 2
        eta = RATE / (np.sqrt(n / (1 - (1 - b3) ** k)) + EPS)
        step = m / (1 - (1 - b1) ** k) + (1 - b2) * v / (1 - (1 - b2) ** k)
        theta = (theta - eta * step) / (1 + decay * RATE)
        last = g
    return theta


@pytest.mark.parametrize("betas", [(0.98, 0.92, 0.99), (0.5, 0.75, 0.875)])
def test_equals_algorithm_1_in_float64(betas: tuple[float, float, float]) -> None:
    weights, gradients = _problem()
    found = _trained(0.0625, betas)
    for name in SHAPES:
        expected = _algorithm_1(weights[name], gradients[name], 0.0 if name == "bias" else 0.0625, betas)
        assert np.max(np.abs(expected - weights[name])) > 0.1, f"{name} hardly moved: proves nothing"
        np.testing.assert_allclose(found[name], expected, rtol=1e-9, err_msg=name)


def test_equals_optax_where_that_follows_the_paper() -> None:
    """optax 0.2.8 looks ahead by 1 - b2, where Algorithm 1 and the authors' code have the decay of v: equal at 0.5."""
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    weights, gradients = _problem()
    found = _trained(0.0, (0.98, 0.5, 0.99))
    with jax.enable_x64(True):
        solver = optax.adan(RATE, b1=0.98, b2=0.5, b3=0.99, eps=EPS, eps_root=0.0)
        theirs = {name: jax.numpy.asarray(value) for name, value in weights.items()}
        state = solver.init(theirs)
        for t in range(STEPS):
            now = {name: jax.numpy.asarray(g[t]) for name, g in gradients.items()}
            updates, state = solver.update(now, state, theirs)
            theirs = optax.apply_updates(theirs, updates)
    for name, value in theirs.items():
        np.testing.assert_allclose(found[name], np.asarray(value), rtol=1e-6, err_msg=name)

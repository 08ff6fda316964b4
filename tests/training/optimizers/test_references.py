"""Every optimizer against its source's formula, written out in NumPy float64, over 100 steps.

One problem holds the hard cases side by side: biases that are left out, weights that are zero, gradients that are zero,
huge or tiny. The gradients do not follow from the weights, so errors do not cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.training.config.optimizers import LAMB_VARIANTS, LARS_VARIANTS, OPTIMIZERS
from ringfeed.training.optimizers import lamb, lars
from ringfeed.training.optimizers.adam import Adam
from ringfeed.training.optimizers.build import build_optimizer
from ringfeed.training.optimizers.lamb import LAMB
from ringfeed.training.schedules.learning_rate import WarmUpDecay

STEPS = 100
RATE = 0.25  # which float32 holds exactly: Keras casts the rate to it
DECAY, MOMENTUM, ETA, B1, B2 = 0.0625, 0.875, 0.02, 0.875, 0.984375
SHAPES = {
    "a/kernel": (5, 4), "b/kernel": (5, 4), "c/kernel": (3, 3, 2, 4), "d/bias": (4,),
    "e/zero_weights": (5, 4), "f/zero_gradient": (5, 4), "g/huge": (5, 4), "h/tiny": (5, 4),
}  # fmt: skip
SCALES = {"f/zero_gradient": 0.0, "g/huge": 1e12, "h/tiny": 1e-12}

Array = Any
Rule = Callable[[Array, Array, dict[str, Array], int, bool], Array]


def norm(x: Array) -> float:
    return float(np.sqrt(np.sum(x * x)))


def ratio(weights: float, other: float) -> float:
    return weights / other if weights > 0 and other > 0 else 1.0


def optax_lars(w: Array, g: Array, s: dict[str, Array], t: int, kept: bool, nesterov: bool = False) -> Array:
    """optax.lars; also official/modeling/optimization/lars.py with classic_momentum."""
    u = g + DECAY * w if kept else g
    step = RATE * u * (ratio(ETA * norm(w), norm(u)) if kept else 1.0)
    s["v"] = MOMENTUM * s.get("v", 0.0) + step
    return w - (MOMENTUM * s["v"] + step if nesterov else s["v"])


def _local_rate(w: Array, g: Array, eps: float) -> float:
    """arXiv 1708.03888, equation 6, with the eps of MLPerf; 1 where a norm is zero."""
    return ETA * norm(w) / (norm(g) + DECAY * norm(w) + eps) if norm(w) > 0 and norm(g) > 0 else 1.0


def paper_lars(w: Array, g: Array, s: dict[str, Array], t: int, kept: bool, eps: float = 0.0) -> Array:
    """arXiv 1708.03888, Algorithm 1."""
    step = RATE * (_local_rate(w, g, eps) * (g + DECAY * w) if kept else g)
    s["v"] = MOMENTUM * s.get("v", 0.0) + step
    return w - s["v"]


def unscaled_lars(w: Array, g: Array, s: dict[str, Array], t: int, kept: bool, nesterov: bool = False) -> Array:
    """arXiv 1909.09756, section 2: the learning rate multiplies the momentum."""
    step = _local_rate(w, g, 0.01) * (g + DECAY * w) if kept else g
    s["v"] = MOMENTUM * s.get("v", 0.0) + step
    return w - RATE * (MOMENTUM * s["v"] + step if nesterov else s["v"])


def popular_lars(w: Array, g: Array, s: dict[str, Array], t: int, kept: bool, nesterov: bool = False) -> Array:
    """official/modeling/optimization/lars.py of tensorflow/models, classic_momentum=False."""
    u = g + DECAY * w if kept else g
    s["v"] = MOMENTUM * s.get("v", 0.0) + u
    update = MOMENTUM * s["v"] + u if nesterov else s["v"]
    return w - RATE * update * (ratio(ETA * norm(w), norm(update)) if kept else 1.0)


def larc(w: Array, g: Array, s: dict[str, Array], t: int, kept: bool) -> Array:
    """apex/parallel/LARC.py, clip=True, around torch.optim.SGD."""
    if kept and norm(w) != 0 and norm(g) != 0:
        g = (g + DECAY * w) * min(ETA * norm(w) / (norm(g) + DECAY * norm(w) + 1e-8) / RATE, 1.0)
    s["v"] = MOMENTUM * s.get("v", 0.0) + g
    return w - RATE * s["v"]


def _adam_step(g: Array, s: dict[str, Array], t: int, eps: float, corrected: bool = True) -> Array:
    s["m"] = B1 * s.get("m", 0.0) + (1 - B1) * g
    s["v"] = B2 * s.get("v", 0.0) + (1 - B2) * g * g
    m, v = (s["m"] / (1 - B1**t), s["v"] / (1 - B2**t)) if corrected else (s["m"], s["v"])
    return m / (np.sqrt(v) + eps)


def paper_lamb(w: Array, g: Array, s: dict[str, Array], t: int, kept: bool, adapts: bool | None = None) -> Array:
    """arXiv 1904.00962v5, Algorithm 2."""
    u = _adam_step(g, s, t, 1e-6) + (DECAY * w if kept else 0.0)
    return w - RATE * u * (ratio(norm(w), norm(u)) if (kept if adapts is None else adapts) else 1.0)


def nvlamb(w: Array, g: Array, s: dict[str, Array], t: int, kept: bool) -> Array:
    """csrc/multi_tensor_lamb.cu of apex with use_nvlamb; the test divides by the global norm."""
    return paper_lamb(w, g, s, t, kept, adapts=True)


def first_lamb(w: Array, g: Array, s: dict[str, Array], t: int, kept: bool) -> Array:
    """arXiv 1904.00962v1: no bias correction, and phi(z) = min(z, 10)."""
    u = _adam_step(g, s, t, 1e-6, corrected=False) + (DECAY * w if kept else 0.0)
    return w - RATE * u * (ratio(min(norm(w), 10.0), norm(u)) if kept else 1.0)


def sgd(w: Array, g: Array, s: dict[str, Array], t: int, kept: bool, nesterov: bool = False) -> Array:
    """Sutskever et al., ICML 2013, with the decay of arXiv 1711.05101 (SGDW), decoupled."""
    w = w - RATE * DECAY * w if kept else w
    s["v"] = MOMENTUM * s.get("v", 0.0) + RATE * g
    return w - (MOMENTUM * s["v"] + RATE * g if nesterov else s["v"])


def adamw(w: Array, g: Array, s: dict[str, Array], t: int, kept: bool, decay: float = DECAY) -> Array:
    """arXiv 1711.05101, Algorithm 2; without decay arXiv 1412.6980, section 2, whose eps stands beside sqrt(v)."""
    w = w - RATE * decay * w if kept else w
    s["m"] = B1 * s.get("m", 0.0) + (1 - B1) * g
    s["v"] = B2 * s.get("v", 0.0) + (1 - B2) * g * g
    return w - RATE * np.sqrt(1 - B2**t) / (1 - B1**t) * s["m"] / (np.sqrt(s["v"]) + 1e-7)


def _partial(rule: Any, **options: Any) -> Rule:
    return lambda w, g, s, t, kept: rule(w, g, s, t, kept, **options)


NESTEROV: dict[str, Any] = {"nesterov": True}
CASES: list[tuple[str, dict[str, Any], Rule]] = [
    ("lars", {}, optax_lars),
    ("lars", {"variant": "optax", **NESTEROV}, _partial(optax_lars, **NESTEROV)),
    ("lars", {"variant": "tf-models-popular"}, popular_lars),
    ("lars", {"variant": "tf-models-popular", **NESTEROV}, _partial(popular_lars, **NESTEROV)),
    ("lars", {"variant": "mlperf"}, paper_lars),
    ("lars", {"variant": "mlperf", "eps": 0.01}, _partial(paper_lars, eps=0.01)),
    ("lars", {"variant": "mlperf-unscaled", "eps": 0.01, **NESTEROV}, _partial(unscaled_lars, **NESTEROV)),
    ("lars", {"variant": "larc"}, larc),
    ("lamb", {}, paper_lamb),
    ("lamb", {"exclude_ratio": ()}, _partial(paper_lamb, adapts=True)),
    ("lamb", {"variant": "nvlamb"}, nvlamb),
    ("lamb", {"variant": "v1"}, first_lamb),
    ("sgd", {}, sgd),
    ("sgd", NESTEROV, _partial(sgd, **NESTEROV)),
    ("adam", {}, _partial(adamw, decay=0.0)),
    ("adamw", {}, adamw),
]  # fmt: skip


def problem() -> tuple[dict[str, Array], dict[str, Array]]:
    """Initial weights, and the gradients of every step."""
    rng = np.random.default_rng(3)
    weights = {name: rng.normal(size=shape) * (name != "e/zero_weights") for name, shape in SHAPES.items()}
    gradients = {name: rng.normal(size=(STEPS, *shape)) * SCALES.get(name, 1.0) for name, shape in SHAPES.items()}
    return weights, gradients


def expected(rule: Rule, largest: float | None) -> dict[str, Array]:
    weights, gradients = problem()
    states: dict[str, dict[str, Array]] = {name: {} for name in SHAPES}
    for t in range(STEPS):
        now = {name: gradients[name][t] for name in SHAPES}
        total = np.sqrt(sum(norm(g) ** 2 for g in now.values()))
        factor = 1.0 if largest is None or total <= largest else largest / total
        for name, shape in SHAPES.items():
            weights[name] = rule(weights[name], now[name] * factor, states[name], t + 1, len(shape) >= 2)
    return weights


def build(name: str, options: dict[str, Any], dtype: str) -> tuple[Any, list[Any]]:
    variables = [keras.Variable(value, dtype=dtype, name="v") for value in problem()[0].values()]
    for path, variable in zip(SHAPES, variables, strict=True):
        variable._path = path
    every = {"beta_1": B1, "beta_2": B2, "momentum": MOMENTUM, "trust_coefficient": ETA, "weight_decay": DECAY}
    own = {spec.name for spec in fields(OPTIMIZERS.by_name[name])}
    config = OPTIMIZERS.made({"name": name, **{key: value for key, value in every.items() if key in own}, **options})
    return build_optimizer(config, WarmUpDecay(RATE, 0, 10, decay="constant"), variables), variables


def run(optimizer: Any, variables: list[Any], dtype: str) -> dict[str, Array]:
    gradients = [tf.constant(g, dtype) for g in problem()[1].values()]
    step = tf.function(lambda t: optimizer.apply([g[t] for g in gradients], variables), autograph=False)
    for t in range(STEPS):
        step(tf.constant(t))
    return {name: variable.numpy() for name, variable in zip(SHAPES, variables, strict=True)}


@pytest.mark.parametrize(("name", "options", "rule"), CASES, ids=[f"{name}-{options}" for name, options, _ in CASES])
def test_equals_its_formula_in_float64_over_100_steps(name: str, options: dict[str, Any], rule: Rule) -> None:
    theirs = expected(rule, 1.0 if options.get("variant") == "nvlamb" else None)
    ours = run(*build(name, options, "float64"), "float64")
    for path, value in theirs.items():
        assert np.max(np.abs(ours[path] - value)) <= 1e-6 * np.max(np.abs(value)), path
        assert path in ("f/zero_gradient", "h/tiny") or np.any(value != problem()[0][path])


@pytest.mark.parametrize("scale", [1e25, 1e-25])
@pytest.mark.parametrize("variant", LARS_VARIANTS)
def test_norms_of_float32_neither_overflow_nor_underflow(variant: str, scale: float) -> None:
    rng = np.random.default_rng(7)
    weights, gradient = rng.normal(size=(2, 20, 8))
    moved = []
    for dtype in ("float32", "float64"):
        optimizer = lars.LARS(0.5, trust_coefficient=0.1, momentum=0.0, variant=variant)
        variable = keras.Variable(weights, dtype=dtype)
        optimizer.apply([tf.constant(gradient * scale, dtype)], [variable])
        moved.append(variable.numpy() - weights)
    assert np.max(np.abs(moved[1])) > 0.1 or (variant, scale) == ("larc", 1e-25)  # which clips the ratio, not the step
    np.testing.assert_allclose(moved[0], moved[1], atol=1e-6 * max(1.0, np.max(np.abs(moved[1]))))


def test_the_first_step_of_adam_in_float32_is_the_rate() -> None:
    """Its fused kernel takes betas of float32, of which 1 - 0.999 is wrong by 5e-5; so is the correction, then."""
    for gradient in (1e-3, 1.0, 1e3):
        variable = keras.Variable(np.zeros(3, np.float32))
        Adam(0.5, eps=0.0).apply([tf.fill([3], gradient)], [variable])
        np.testing.assert_allclose(variable, -0.5, rtol=5e-7)


def test_lamb_equals_optax() -> None:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    weights, gradients = problem()
    optimizer, variables = build("lamb", {"exclude_ratio": ()}, "float64")
    ours = run(optimizer, variables, "float64")
    with jax.enable_x64(True):
        mask = {name: len(shape) >= 2 for name, shape in SHAPES.items()}
        solver = optax.lamb(RATE, b1=B1, b2=B2, eps=1e-6, weight_decay=DECAY, mask=mask)
        theirs = {name: jax.numpy.asarray(value) for name, value in weights.items()}

        def step(carry: Any, gradient: Any) -> Any:
            updates, state = solver.update(gradient, carry[1], carry[0])
            return (optax.apply_updates(carry[0], updates), state), None

        gradients = {name: jax.numpy.asarray(value) for name, value in gradients.items()}
        (theirs, _), _ = jax.lax.scan(step, (theirs, solver.init(theirs)), gradients)
    for name, value in {name: np.asarray(value) for name, value in theirs.items()}.items():
        assert np.max(np.abs(ours[name] - value)) <= 1e-6 * np.max(np.abs(value)), name


def test_the_configuration_names_the_variants_that_exist() -> None:
    assert (tuple(lars.VARIANTS), tuple(lamb.VARIANTS)) == (LARS_VARIANTS, LAMB_VARIANTS)


def test_variables_of_one_shape_are_updated_together_and_a_subset_moves_alone() -> None:
    variables = [keras.Variable(np.full((4, 4), i + 1.0, np.float32)) for i in range(40)]
    optimizer = LAMB(0.5)
    optimizer.build(variables)
    step = tf.function(lambda: optimizer.apply([v * 1.0 for v in variables], variables), autograph=False)
    graph = step.get_concrete_function().graph
    assert len([o for o in _operations(graph) if o.type == "Sqrt"]) <= 5  # of one stack, not of 40 variables
    optimizer.apply([tf.ones((4, 4))], variables[7:8])
    assert [not np.all(v.numpy() == i + 1) for i, v in enumerate(variables)] == [i == 7 for i in range(40)]


def _operations(graph: Any) -> Iterator[Any]:
    yield from graph.get_operations()
    for function in graph._functions.values():
        yield from getattr(function, "graph", tf.Graph()).get_operations()

"""Many trainings of LeNet-5 as one JAX program: of an optimizer, at several rates, from several seeds.

It needs JAX and NumPy alone, so that it runs where neither TensorFlow nor ringfeed is. The network is `lenet` with
`model.norm: none`; the schedule and the optimizers are those of `ringfeed train`, which
tests/training/optimizers/test_large_batch.py proves. Two axes stand before those of the network: seeds, then trials.

A convolution is one product per row of its output: the input's rows within reach, as a vector, times a banded matrix
that holds the kernel at every column. It takes 3 to 6 times the multiplications, and a quarter of the memory traffic of
a matrix of patches, which is what a network this small costs on a GPU.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["CLASSES", "OPTIMIZERS", "accuracies", "initial_weights", "learning_rate", "train", "update"]

OPTIMIZERS = ("sgd", "nesterov", "adam", "lars", "lamb")
CLASSES, KERNEL, SIDE = 10, 5, 28
SHAPES = {
    "conv1": (KERNEL, KERNEL, 1, 6),
    "conv2": (KERNEL, KERNEL, 6, 16),
    "dense1": (400, 120),
    "dense2": (120, 84),
    "logits": (84, CLASSES),
}
_CHUNK = 500  # images of an evaluation that pass through the network at once

Weights = dict[str, Any]


def initial_weights(seed: int) -> Weights:
    """Kernels drawn as Keras' Glorot uniform, and biases of zero."""
    rng, weights = np.random.default_rng(seed), {}
    for name, shape in SHAPES.items():
        receptive = math.prod(shape[:-2])
        limit = math.sqrt(6 / (receptive * (shape[-2] + shape[-1])))
        weights[f"{name}/kernel"] = rng.uniform(-limit, limit, shape).astype(np.float32)
        weights[f"{name}/bias"] = np.zeros(shape[-1], np.float32)
    return weights


def _convolved(images: Any, kernel: Any) -> Any:
    """A valid convolution, [batch, height, width, channels] to [batch, height - 4, width - 4, filters]."""
    height, width = images.shape[1] - KERNEL + 1, images.shape[2] - KERNEL + 1
    offsets = np.arange(images.shape[2])[:, None] - np.arange(width)
    places = (offsets == np.arange(KERNEL)[:, None, None]).astype(np.float32)  # [kernel, input, output] columns
    band = jnp.einsum("hwcf,wio->hicof", kernel, places).reshape(-1, width * kernel.shape[-1])
    rows = jnp.stack([images[:, shift : shift + height] for shift in range(KERNEL)], axis=2)
    return (rows.reshape(*rows.shape[:2], -1) @ band).reshape(-1, height, width, kernel.shape[-1])


def _pooled(features: Any) -> Any:
    """The largest of every 2 x 2."""
    batch, height, width, channels = features.shape
    cells = features.reshape(batch, height // 2, 2, width // 2, 2, channels)
    rows = jnp.maximum(cells[:, :, 0], cells[:, :, 1])
    return jnp.maximum(rows[:, :, :, 0], rows[:, :, :, 1])


def logits_of(weights: Weights, images: Any) -> Any:
    """Logits [batch, classes] of images, uint8 [batch, 28, 28]."""
    margin = KERNEL // 2
    features = jnp.pad(images.astype(jnp.float32) / 255, ((0, 0), (margin, margin), (margin, margin)))[..., None]
    for name in ("conv1", "conv2"):  # bias and ReLU after pooling: the same values, a quarter of the work
        pooled = _pooled(_convolved(features, weights[f"{name}/kernel"]))
        features = jax.nn.relu(pooled + weights[f"{name}/bias"])
    features = features.reshape(len(features), -1)
    for name in ("dense1", "dense2"):
        features = jax.nn.relu(features @ weights[f"{name}/kernel"] + weights[f"{name}/bias"])
    return features @ weights["logits/kernel"] + weights["logits/bias"]


def _loss(weights: Weights, images: Any, labels: Any) -> Any:
    scores = jax.nn.log_softmax(logits_of(weights, images))
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()


def learning_rate(peak: Any, step: Any, warmup_steps: Any, total_steps: Any) -> Any:
    """Gradual warm-up from 0, then a cosine to 0: `WarmUpDecay`."""
    rising = peak * step / jnp.maximum(warmup_steps, 1)
    passed = jnp.clip((step - warmup_steps) / (total_steps - warmup_steps), 0, 1)
    return jnp.where(step < warmup_steps, rising, peak * 0.5 * (1 + jnp.cos(math.pi * passed)))


def _momentum(weight: Any, gradient: Any, slots: Any, rate: Any, knob: Any, step: Any, *, nesterov: bool) -> Any:
    velocity = knob * slots[0] + rate * gradient
    moved = knob * velocity + rate * gradient if nesterov else velocity
    return weight - moved, (velocity, slots[1])


def _moments(gradient: Any, slots: Any, knob: Any, step: Any) -> Any:
    """Both moments, and what bias correction divides them by; `knob` is 1 - beta_2."""
    first = 0.9 * slots[0] + 0.1 * gradient
    second = (1 - knob) * slots[1] + knob * gradient * gradient
    return first, second, -jnp.expm1(step * math.log(0.9)), -jnp.expm1(step * jnp.log1p(-knob))


def _adam(weight: Any, gradient: Any, slots: Any, rate: Any, knob: Any, step: Any) -> Any:
    first, second, share_1, share_2 = _moments(gradient, slots, knob, step)
    moved = rate * jnp.sqrt(share_2) / share_1 * first / (jnp.sqrt(second) + 1e-7)
    return weight - moved, (first, second)


def _ratio(numerator: Any, denominator: Any) -> Any:
    is_zero = (numerator == 0) | (denominator == 0)
    return jnp.where(is_zero, 1.0, numerator / jnp.where(is_zero, 1.0, denominator))


def _norm(values: Any) -> Any:
    return jnp.sqrt(jnp.sum(values * values))


def _lars(weight: Any, gradient: Any, slots: Any, rate: Any, knob: Any, step: Any) -> Any:
    ratio = _ratio(knob * _norm(weight), _norm(gradient)) if weight.ndim > 1 else 1.0
    velocity = 0.9 * slots[0] + rate * ratio * gradient
    return weight - velocity, (velocity, slots[1])


def _lamb(weight: Any, gradient: Any, slots: Any, rate: Any, knob: Any, step: Any) -> Any:
    first, second, share_1, share_2 = _moments(gradient, slots, knob, step)
    moved = first / share_1 / (jnp.sqrt(second / share_2) + 1e-6)
    ratio = _ratio(_norm(weight), _norm(moved)) if weight.ndim > 1 else 1.0
    return weight - rate * ratio * moved, (first, second)


_RULES = (partial(_momentum, nesterov=False), partial(_momentum, nesterov=True), _adam, _lars, _lamb)


def update(optimizer: int, weights: Weights, gradients: Weights, slots: Any, rate: Any, knob: Any, step: Any) -> Any:
    """Weights and slots after a step.

    Args:
        optimizer: index in `OPTIMIZERS`.
        weights, gradients: of one network, by name.
        slots: two arrays for each weight, zeros at the start.
        rate: of this step.
        knob: what is tuned besides: momentum (sgd, nesterov), 1 - beta_2 (adam, lamb) or the trust coefficient (lars).
        step: from 1.
    """
    new = {name: _RULES[optimizer](weights[name], gradients[name], slots[name], rate, knob, step) for name in weights}
    return {name: pair[0] for name, pair in new.items()}, {name: pair[1] for name, pair in new.items()}


@partial(jax.jit, static_argnames=("micro",))
def train(
    images: Any,
    labels: Any,
    order: Any,
    initial: Weights,
    peaks: Any,
    knobs: Any,
    optimizer: Any,
    steps: Any,
    parts: Any,
    warmup_steps: Any,
    *,
    micro: int,
) -> Weights:
    """Train every trial from every seed; return the weights, [seeds, trials, ...].

    Args:
        images, labels: uint8 [samples, 28, 28], int32 [samples].
        order: int32 [seeds, at least steps * parts * micro]: the samples of the steps, one after the other.
        initial: weights [seeds, ...].
        peaks, knobs: [trials]; see `learning_rate` and `update`.
        optimizer: index in `OPTIMIZERS`.
        steps: of all trials.
        parts: a batch passes through the network in parts of `micro` samples, whose gradients are averaged.
        warmup_steps: of all trials.
    """
    trials = len(peaks)
    weights = {name: jnp.repeat(value[:, None], trials, axis=1) for name, value in initial.items()}
    zeros = {name: jnp.zeros_like(value) for name, value in weights.items()}
    by_trial = jax.vmap(jax.grad(_loss), in_axes=(0, None, None))
    by_seed = jax.vmap(by_trial)
    rules = []
    for index in range(len(OPTIMIZERS)):
        rule = jax.vmap(partial(update, index), in_axes=(0, 0, 0, 0, 0, None))
        rules.append(jax.vmap(rule, in_axes=(0, 0, 0, None, None, None)))

    def one_step(step: Any, state: Any) -> Any:
        weights, slots = state

        def one_part(part: Any, total: Weights) -> Weights:
            chosen = lax.dynamic_slice_in_dim(order, (step * parts + part) * micro, micro, axis=1)
            gradients = by_seed(weights, images[chosen], labels[chosen])
            return {name: total[name] + gradients[name] / parts for name in total}

        gradients = lax.fori_loop(0, parts, one_part, zeros)
        rates = learning_rate(peaks, step, warmup_steps, steps)
        return lax.switch(optimizer, rules, weights, gradients, slots, rates, knobs, step + 1.0)

    slots = {name: (value, value) for name, value in zeros.items()}
    trained, _ = lax.fori_loop(0, steps, one_step, (weights, slots))
    return trained


@jax.jit
def accuracies(weights: Weights, images: Any, labels: Any) -> Any:
    """Shares of right answers, [seeds, trials]."""
    chunk = math.gcd(len(images), _CHUNK)
    parts = (images.reshape(-1, chunk, SIDE, SIDE), labels.reshape(-1, chunk))
    answers = jax.vmap(jax.vmap(logits_of, in_axes=(0, None)), in_axes=(0, None))
    right = lax.map(lambda part: (answers(weights, part[0]).argmax(-1) == part[1]).sum(-1), parts)
    return right.sum(0) / len(images)

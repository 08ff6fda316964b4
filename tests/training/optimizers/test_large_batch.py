"""The study of optimizers at large batches trains as `ringfeed train` does, and runs from its data to its plot."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import keras
import numpy as np
import pytest

from ringfeed.training.config.optimizers import OPTIMIZERS
from ringfeed.training.optimizers.build import build_optimizer
from ringfeed.training.schedules.learning_rate import WarmUpDecay

STEPS, WARMUP, PEAK = 8, 3, 0.125
KNOBS = {"sgd": "momentum", "nesterov": "momentum", "adam": "beta_2", "lars": "trust_coefficient", "lamb": "beta_2"}


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("jax")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    from parts import lenet_trials

    return lenet_trials


@pytest.mark.parametrize(("name", "knob"), [("sgd", 0.8), ("nesterov", 0.95), ("adam", 0.01), ("lars", 0.1),
                                            ("lamb", 0.001)])  # fmt: skip
def test_its_optimizers_step_as_those_of_ringfeed_do(trials: ModuleType, name: str, knob: float) -> None:
    import jax
    import jax.numpy as jnp

    update = jax.jit(trials.update, static_argnums=0)
    weights, rng = trials.initial_weights(3), np.random.default_rng(0)
    variables = {key: keras.Variable(value, name=key.replace("/", "_")) for key, value in weights.items()}
    value = 1 - knob if KNOBS[name] == "beta_2" else knob
    options = {"name": "sgd", "nesterov": True} if name == "nesterov" else {"name": name}
    config = OPTIMIZERS.made({**options, KNOBS[name]: value})
    optimizer = build_optimizer(config, WarmUpDecay(PEAK, WARMUP, STEPS), list(variables.values()))
    slots = {key: (jnp.zeros_like(value), jnp.zeros_like(value)) for key, value in weights.items()}
    ours = weights
    for step in range(STEPS):
        gradients = {key: rng.normal(size=value.shape).astype("float32") / 10 for key, value in weights.items()}
        optimizer.apply(list(gradients.values()))
        rate = trials.learning_rate(PEAK, step, WARMUP, STEPS)
        ours, slots = update(trials.OPTIMIZERS.index(name), ours, gradients, slots, rate, knob, step + 1)
    for key, variable in variables.items():
        assert np.abs(variable.numpy() - weights[key]).max() > 1e-3, f"{key} has not moved"
        np.testing.assert_allclose(ours[key], variable.numpy(), rtol=1e-5, atol=1e-5, err_msg=key)


def test_its_network_computes_what_the_built_in_lenet_does(trials: ModuleType) -> None:
    layers = keras.layers
    network = keras.Sequential([keras.Input((28, 28, 1))])
    for filters, padding in ((6, "same"), (16, "valid")):
        network.add(layers.Conv2D(filters, 5, padding=padding, activation="relu"))
        network.add(layers.MaxPooling2D())
    network.add(layers.Flatten())
    for units in (120, 84):
        network.add(layers.Dense(units, activation="relu"))
    network.add(layers.Dense(10))
    rng = np.random.default_rng(0)
    weights = {key: value + rng.normal(size=value.shape).astype("float32") / 20
               for key, value in trials.initial_weights(0).items()}  # fmt: skip
    network.set_weights(list(weights.values()))
    images = rng.integers(0, 256, (4, 28, 28)).astype(np.uint8)
    expected = network(images[..., None].astype("float32") / 255)
    np.testing.assert_allclose(trials.logits_of(weights, images), expected, rtol=1e-4, atol=1e-4)


def test_the_study_runs_resumes_and_reports(
    trials: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from train import large_batch

    rng, data, out = np.random.default_rng(0), tmp_path / "data.npz", tmp_path / "results.json"
    arrays = {}
    for name, count in (("train", 104), ("test", 40)):
        labels = rng.integers(0, 2, count).astype(np.uint8)
        arrays[f"{name}_labels"] = labels
        arrays[f"{name}_images"] = np.repeat(200 * labels, 784).reshape(-1, 28, 28).astype(np.uint8)
    np.savez(data, **arrays)
    flags = ["--dry-run", "--epochs", "6", "--data", str(data), "--out", str(out), "--optimizers", "sgd", "lars"]
    assert large_batch.main(flags) == 0
    results = json.loads(out.read_text())
    runs = results["runs"]
    assert [(run["study"], run["batch"], run["optimizer"]) for run in runs] == [
        (study, batch, optimizer)
        for study in ("epochs", "steps")
        for batch in (16, 32)
        for optimizer in ("sgd", "lars")
    ]
    assert large_batch.tuned(runs[0])[2] > 0.9  # white and black
    linear = large_batch.linear_rate(runs, "epochs", 32)
    assert linear is not None
    assert linear[0] == large_batch.tuned(runs[0])[0] + 1
    assert linear[0] in runs[2]["powers"]
    printed = capsys.readouterr().out
    assert "| 32 | 24 |" not in printed
    assert "| 32 | 12 |" in printed  # 6 epochs of 64 samples

    del runs[1]
    out.write_text(json.dumps(results))
    assert large_batch.main([*flags, "--plot", str(tmp_path / "plot.svg")]) == 0
    resumed = json.loads(out.read_text())["runs"]
    assert resumed[:-1] == runs, "trained again"
    assert (resumed[-1]["study"], resumed[-1]["batch"], resumed[-1]["optimizer"]) == ("epochs", 16, "lars")
    assert "SGD, linear scaling" in (tmp_path / "plot.svg").read_text()

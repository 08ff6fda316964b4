"""Every method on three real ranks: the same weights everywhere, the same bits again, and the bytes of its rule."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.averaging.pace import Pace
from ringfeed.training.compression.sign_momentum import SignMomentum
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.config.synchronisation import CompressionConfig
from ringfeed.training.loop.synchronisation import build_synchronizer, momentum_remarks
from ringfeed.training.ring.hierarchical_ring import DYNAMIC
from ringfeed.training.ring.ring import SoloRing
from tests.helpers.lean import lean_environment

ROOT = Path(__file__).parents[3]
PACE = Pace(batches=31, steps=31, samples=31, batch_size=1, step_samples=1)
SGD = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}

# Of 1,323 parameters in float32, and the loss and two flags beside them: 2 * 2 / 3 * 5,304 bytes are received.
MATRIX_BYTES, VECTOR_BYTES, SCALAR_BYTES = 4 * 1290, 4 * 33, 12
DENSE_BYTES = 4 / 3 * (MATRIX_BYTES + VECTOR_BYTES + SCALAR_BYTES)
EXPECTED_BYTES = {
    "every_step": DENSE_BYTES,
    "fp16": 4 / 3 * ((MATRIX_BYTES + VECTOR_BYTES) / 2 + SCALAR_BYTES),
    "top_k": 2 * 8 * (60 + 4) + 4 / 3 * (VECTOR_BYTES + SCALAR_BYTES),
    "qsgd": 2 * (1290 + 2 * 4) + 4 / 3 * (VECTOR_BYTES + SCALAR_BYTES),
    "onebit": 4 / 3 * (3 * 2 * (256 / 8 + 4) + 3 * (256 / 8 + 4)) + 4 / 3 * (VECTOR_BYTES + SCALAR_BYTES),
}


def test_three_ranks_agree_by_every_method_and_a_resumed_run_has_the_same_bits(flights: str, tmp_path: Path) -> None:
    pytest.importorskip("horovod", reason="Horovod is built by: make setup")
    launcher = str(Path(sys.executable).parent / "horovodrun")
    program = [sys.executable, "-m", "tests.training.compression.three_ranks", flights, str(tmp_path)]
    environment = lean_environment({"PYTHONPATH": str(ROOT), DYNAMIC: "1"})
    command = [launcher, "-np", "3", "--gloo", *program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if "{" in line)
    results = json.loads(line[line.index("{") :])
    _check_clients(results.pop("clients"))
    for name, expected in EXPECTED_BYTES.items():
        assert results[name]["bytes"] == pytest.approx(expected, rel=1e-6), name
    assert results["hierarchical"]["weights"] == pytest.approx(results["every_step"]["weights"], abs=2e-6)
    assert results["local_sgd, 1"]["weights"] == pytest.approx(results["plain"]["weights"], abs=2e-6)
    assert results["local_sgd, 4"]["bytes"] == pytest.approx(4 / 3 * ((MATRIX_BYTES + VECTOR_BYTES) / 4 + SCALAR_BYTES))
    alone = results["batch_norm, alone"]
    assert results["batch_norm"]["weights"] == pytest.approx(alone["weights"], abs=2e-6)
    assert results["batch_norm"]["last"] == pytest.approx(alone["last"], abs=2e-6)
    for name, result in results.items():
        assert result["last"] < 0.85 * result["first"], name
    assert len({result["digest"] for result in results.values()}) == len(results)


def _check_clients(found: dict[str, Any]) -> None:
    """600 late flights, fewer of a carrier in the morning, and the 1,000 of another split: batches of 32 each."""
    batches, samples, steps, trains = zip(*found["ranks"], strict=True)
    assert (samples[0], samples[2]) == (600, 1000)
    assert 32 < samples[1] < 300
    assert batches == tuple(-(-n // 32) for n in samples)
    assert found["steps_per_epoch"] == max(batches) == 32
    assert steps == (64, 64, 64)
    assert found["train_samples"] == 2 * sum(samples)
    assert trains == (True, False, True)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"compression": {"method": "dgc"}}, "compression.method=dgc does not go with optimizer.name=lars: .*=sgd"),
        (
            {"compression": {"method": "dgc"}, "optimizer": {"name": "sgd", "clip_norm": 1.0}},
            r"does not go with optimizer.clip_norm=1.0: .* use compression.local_clip_norm",
        ),
        (
            {"compression": {"method": "onebit"}},
            "onebit does not go with optimizer.name=lars: onebit applies momentum before .*=sgd or adam or adamw or la",
        ),
        (
            {"compression": {"method": "onebit", "start_step": 0}, "optimizer": {"name": "adamw"}},
            "start_step=0 does not go with compression.method=onebit and optimizer.name=adamw: the second moment",
        ),
        (
            {"compression": {"method": "onebit"}, "optimizer": {"name": "lamb", "variant": "nvlamb"}},
            "onebit does not go with optimizer.variant=nvlamb: .* use optimizer.variant=paper or v1",
        ),
        (
            {"compression": {"method": "onebit"}, "optimizer": {"name": "sgd", "clip_norm": 1.0}},
            r"onebit does not go with optimizer.clip_norm=1.0: .* use compression.method=powersgd",
        ),
        ({"compression": {"method": "fp16"}, "precision": "float16"}, "lost on the wire; use compression.method=bf16"),
        ({"compression": {"method": "topk"}}, "must be one of none, fp16, .*, got 'topk'"),
        ({"compression": {"method": "dgc", "ratio": 2.0}}, r"compression.ratio must be in \(0, 1\], got 2.0"),
        (
            {"sync": {"method": "diloco"}, "compression": {"method": "qsgd"}},
            "with sync.method=diloco: a round exchanges weights",
        ),
        ({"sync": {"hierarchical": True}, "compression": {"method": "fp16"}}, "only dense tensors are reduced in two"),
        (
            {"sync": {"hierarchical": True, "method": "gossip"}},
            "sync.method=gossip: it exchanges pairs; use sync.metho",
        ),
        ({"sync": {"hierarchical": True, "batch_norm": True}}, "within the forward pass, whose gradient has one level"),
        ({"sync": {"method": "gossip"}, "precision": "float16"}, "loss scales of the ranks could part; use"),
        ({"sync": {"method": "post_local_sgd"}}, "sync.start_step must be at least 1 for post_local_sgd, got 0"),
    ],
)
def test_unsound_pairs_are_refused_by_name(groups: dict[str, dict[str, object]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"data": {"url": "x"}, **groups}, "test")


def test_a_run_that_ends_before_its_compression_starts_is_refused() -> None:
    tree = {"data": {"url": "x"}, "compression": {"method": "powersgd", "start_step": 1000}}
    config = parse_config(tree, "test")
    with pytest.raises(ConfigError, match=r"start_step=1000 is beyond the 31 steps of this run, none"):
        build_synchronizer(config, SoloRing(), total_steps=31, pace=PACE)


def test_what_is_dense_at_the_start_is_a_share_of_the_run() -> None:
    """It follows the length of the schedules, so that a trial of a few steps is one of the run."""
    for method, groups, expected in [
        ("powersgd", {"epochs": 4}, 46),
        ("onebit", {"epochs": 4, "max_steps": 5}, 93),
        ("onebit", {"epochs": 4, "schedule": {"total_epochs": 8}}, 187),
        ("top_k", {"epochs": 4}, 46),
        ("qsgd", {"epochs": 4}, 0),
    ]:
        tree = {"data": {"url": "x"}, "compression": {"method": method}, "optimizer": SGD, **groups}
        config = parse_config(tree, "test")
        assert config.compression.dense_steps(config.schedule_steps(117)) == expected
        pace = replace(PACE, batches=117, steps=117)
        build_synchronizer(config, SoloRing(), total_steps=config.total_steps(117), pace=pace)
    dgc = CompressionConfig(method="dgc")
    assert dgc.warmup_steps(468, 117) == 140
    assert dgc.warmup_steps(90 * 117, 117) == 4 * 117


def test_error_feedback_with_plain_momentum_is_remarked_on() -> None:
    for method, nesterov, name, expected in [
        ("powersgd", False, "sgd", 1),
        ("powersgd", True, "sgd", 0),
        ("qsgd", False, "sgd", 0),
        ("powersgd", False, "lars", 0),
    ]:
        optimizer = {**SGD, "name": name, "nesterov": nesterov}
        tree = {"data": {"url": "x"}, "compression": {"method": method}, "optimizer": optimizer}
        remarks = momentum_remarks(parse_config(tree, "test"))
        assert len(remarks) == expected
        assert all(
            "compression.method=powersgd loses less accuracy with optimizer.nesterov" in text for text in remarks
        )


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_on_the_ranks_is_that_of_the_optimizer_until_signs_are_sent(nesterov: bool) -> None:
    variable, reference = keras.Variable(np.zeros((4, 2), np.float32)), keras.Variable(np.zeros((4, 2), np.float32))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=nesterov)
    optimizer.build([reference])
    method = SignMomentum(SoloRing(), momentum=0.9, nesterov=nesterov, start_step=5)
    method.build([variable], [])
    for step in range(6):
        gradient = tf.random.stateless_normal([4, 2], [step, 1])
        (update,), _ = method.reduce([gradient], [], tf.constant(step))
        optimizer.apply([gradient])
        variable.assign_sub(0.1 * update)
        if step < 5:
            np.testing.assert_allclose(variable, reference, rtol=1e-5, atol=1e-6)
    assert len(np.unique(np.abs(update))) == 1
    left = method.rank_variables[0] + method.rank_variables[1][:8].numpy().reshape(4, 2)
    np.testing.assert_allclose(variable - 0.1 * left, reference, rtol=1e-4, atol=1e-5)

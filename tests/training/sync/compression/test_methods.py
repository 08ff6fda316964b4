"""Every method on three ranks: the same weights everywhere, the same bits again, and the bytes of its rule.

Each check runs on a ring of threads, and on one of Horovod's, which one launch has started for all of them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism  # there is no public name for it

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.compression import DGCConfig
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.ring.horovod_ring import DYNAMIC
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.sync.build import build_synchronizer, momentum_remarks
from ringfeed.training.sync.compression.onebit import SignMomentum
from ringfeed.training.sync.synchronizer import Exchange, SyncRun
from tests.helpers.sync_runs import sync_run
from tests.helpers.thread_ring import on_ranks
from tests.training.sync.compression.checks import CHECKS, HIERARCHICAL, METHODS, RANKS, Place, train_by

ROOT = Path(__file__).parents[4]
SGD = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}

# Of 1,323 parameters in float32, and the loss and two flags beside them: 2 * 2 / 3 * 5,304 bytes are received.
MATRIX_BYTES, VECTOR_BYTES, SCALAR_BYTES = 4 * 1290, 4 * 33, 12
DENSE_BYTES = 4 / 3 * (MATRIX_BYTES + VECTOR_BYTES + SCALAR_BYTES)
EXPECTED_BYTES = {
    "every_step": DENSE_BYTES,
    "fp16": 4 / 3 * ((MATRIX_BYTES + VECTOR_BYTES) / 2 + SCALAR_BYTES),
    "top_k": 2 * 8 * (60 + 4) + 4 / 3 * (VECTOR_BYTES + SCALAR_BYTES),
    "qsgd": 2 * (1290 + 2 * 4) + 4 / 3 * (VECTOR_BYTES + SCALAR_BYTES),
    "local_sgd, 4": 4 / 3 * ((MATRIX_BYTES + VECTOR_BYTES) / 4 + SCALAR_BYTES),
    "onebit": 4 / 3 * (3 * 2 * (256 / 8 + 4) + 3 * (256 / 8 + 4)) + 4 / 3 * (VECTOR_BYTES + SCALAR_BYTES),
}


# Keras' `fit` is compared with one process by its check itself.
IN_THREADS = [name for name in CHECKS if name not in (HIERARCHICAL, "fit", "fit with statistics")]
Results = Callable[[str], Any]


@pytest.fixture(scope="module", autouse=True)
def _deterministic() -> Iterator[None]:
    tf.config.experimental.enable_op_determinism()
    yield
    disable_op_determinism()


@pytest.fixture(scope="module")
def of_threads(flights: str, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A function that returns the result of a check on a ring of threads, where it runs once."""

    @functools.cache
    def check(name: str) -> Any:
        place = Place(url=flights, folder=str(tmp_path_factory.mktemp("threads")))
        return on_ranks(RANKS, lambda ring: CHECKS[name](ring, place))[0]

    return check


@pytest.fixture(scope="module")
def of_horovod(
    request: pytest.FixtureRequest,
    flights: str,
    tmp_path_factory: pytest.TempPathFactory,
    run_on_ranks: Callable[..., tuple[int, str]],
) -> Results:
    """A function that returns the result of a check on Horovod's ring: one launch for all that are asked for."""
    pytest.importorskip("horovod", reason="Horovod is built by: make setup")
    calls = [item.callspec.params for item in request.session.items if item.path == request.path and _is_real(item)]
    names = [params["name"] for params in calls]
    words = ["tests.training.sync.compression.three_ranks", flights, str(tmp_path_factory.mktemp("horovod")), *names]
    _, output = run_on_ranks(words, RANKS, ROOT, {DYNAMIC: "1"})
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"name": ')]
    found: dict[str, Mapping[str, Any]] = {line["name"]: line for line in reversed(lines)}  # the first failure counts

    def result(name: str) -> Any:
        if name not in found:
            pytest.fail(f"the ranks ended after {', '.join(found)}: {output[-3000:]}", pytrace=False)
        if "error" in found[name]:
            pytest.fail(found[name]["error"], pytrace=False)
        return found[name]["result"]

    return result


def _is_real(item: Any) -> bool:
    return "of_horovod" in item.fixturenames


@pytest.mark.parametrize("name", IN_THREADS)
def test_ranks_in_threads_agree_and_resume_with_the_same_bits(name: str, of_threads: Results) -> None:
    _check(name, of_threads(name))


@pytest.mark.parametrize("name", CHECKS)
def test_horovods_ranks_agree_resume_with_the_same_bits_and_do_what_threads_do(
    name: str, of_threads: Results, of_horovod: Results
) -> None:
    found = of_horovod(name)
    _check(name, found)
    if name == HIERARCHICAL or name in METHODS:
        expected = of_threads("every_step" if name == HIERARCHICAL else name)
        assert found["bytes"] == expected["bytes"]
        for key in ("first", "last", "weights"):
            assert found[key] == pytest.approx(expected[key], abs=2e-6), key
    elif name in IN_THREADS:
        assert found == of_threads(name)


def _check(name: str, result: Any) -> None:
    """Check a result by the rule of its method."""
    if name == "clients":
        _check_clients(result)
    if name in METHODS:
        assert result["last"] < 0.85 * result["first"]
    if name in EXPECTED_BYTES:
        assert result["bytes"] == pytest.approx(EXPECTED_BYTES[name], rel=1e-6)


def test_each_method_ends_with_weights_of_its_own(of_threads: Results) -> None:
    digests = [of_threads(name)["digest"] for name in METHODS]
    assert len(set(digests)) == len(METHODS)


def test_averaging_after_each_step_is_synchronous_sgd(of_threads: Results) -> None:
    assert of_threads("local_sgd, 1")["weights"] == pytest.approx(of_threads("plain")["weights"], abs=2e-6)


def test_batches_are_normalised_as_those_of_one_process(of_threads: Results) -> None:
    alone, found = train_by(SoloRing(), METHODS["batch_norm"]), of_threads("batch_norm")
    assert found["weights"] == pytest.approx(alone["weights"], abs=2e-6)
    assert found["last"] == pytest.approx(alone["last"], abs=2e-6)


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
            "onebit does not go with optimizer.name=lars: onebit applies momentum before .*=sgd or adam or adamw, or c",
        ),
        (
            {"compression": {"method": "onebit", "start_step": 0}, "optimizer": {"name": "adamw"}},
            "start_step=0 does not go with compression.method=onebit and optimizer.name=adamw: the second moment",
        ),
        (
            {"compression": {"method": "onebit"}, "optimizer": {"name": "lamb"}},
            "onebit does not go with optimizer.name=lamb: .*, or compression.method=powersgd",
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
        (
            {"sync": {"hierarchical": True, "batch_norm": True}},
            "batch_norm=true: the gradient of the forward pass has one level",
        ),
        ({"sync": {"method": "gossip"}, "precision": "float16"}, "loss scales of the ranks could part; use"),
        ({"sync": {"method": "post_local_sgd"}}, "sync.start_step must be at least 1, got 0"),
    ],
)
def test_unsound_pairs_are_refused_by_name(groups: dict[str, dict[str, object]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"data": {"url": "x"}, **groups}, "test")


def _run(config: TrainConfig, steps: int) -> SyncRun:
    return SyncRun(config=config, ring=SoloRing(), steps_per_epoch=steps, samples_before=int)


def test_a_run_that_ends_before_its_compression_starts_is_refused() -> None:
    tree = {"data": {"url": "x"}, "compression": {"method": "powersgd", "start_step": 1000}}
    config = parse_config(tree, "test")
    with pytest.raises(ConfigError, match=r"start_step=1000 is beyond the 31 steps of this run, none"):
        build_synchronizer(_run(config, 31))


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
        build_synchronizer(_run(config, 117))
    dgc = DGCConfig()
    assert dgc.warmup_steps(468, 117) == 140
    assert dgc.warmup_steps(90 * 117, 117) == 4 * 117


def test_error_feedback_with_plain_momentum_is_remarked_on() -> None:
    for method, nesterov, name, expected in [
        ("powersgd", False, "sgd", 1),
        ("powersgd", True, "sgd", 0),
        ("qsgd", False, "sgd", 0),
        ("powersgd", False, "lars", 0),
    ]:
        optimizer = {"name": name, "momentum": 0.9, "nesterov": nesterov}
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
    run = sync_run(optimizer={"name": "sgd"}, compression={"method": "onebit", "start_step": 5})
    method = SignMomentum(run, momentum=0.9, nesterov=nesterov)
    method.build([variable])
    for step in range(6):
        gradient = tf.random.stateless_normal([4, 2], [step, 1])
        (update,) = method.reduce(Exchange([gradient]), tf.constant(step)).gradients
        optimizer.apply([gradient])
        variable.assign_sub(0.1 * update)
        if step < 5:
            np.testing.assert_allclose(variable, reference, rtol=1e-5, atol=1e-6)
    assert len(np.unique(np.abs(update))) == 1
    left = method.rank_variables[0] + method.rank_variables[1][:8].numpy().reshape(4, 2)
    np.testing.assert_allclose(variable - 0.1 * left, reference, rtol=1e-4, atol=1e-5)

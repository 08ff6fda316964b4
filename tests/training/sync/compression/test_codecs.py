"""Codecs of one tensor, and the synchronizers around them on one rank: what is sent, what is kept, what is lost."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as npst
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.training.config.compression import PowerSGDConfig
from ringfeed.training.ring.ring import Ring, SoloRing
from ringfeed.training.sync.compression.base import Compressed
from ringfeed.training.sync.compression.dgc import DGC, DGCRule
from ringfeed.training.sync.compression.gathered import Codec, Gathered, gathered_means
from ringfeed.training.sync.compression.half import Half
from ringfeed.training.sync.compression.onebit import OneBit
from ringfeed.training.sync.compression.payload import from_bytes, pack, step_seed, to_bytes, unpack
from ringfeed.training.sync.compression.powersgd import PowerSGD
from ringfeed.training.sync.compression.qsgd import QSGD
from ringfeed.training.sync.compression.terngrad import TernGrad
from ringfeed.training.sync.compression.top_k import TopK
from ringfeed.training.sync.compression.two_stage import TwoStage
from ringfeed.training.sync.synchronizer import Exchange
from tests.helpers.sync_runs import sync_run
from tests.helpers.thread_ring import on_ranks

MATRICES = npst.arrays(
    np.float32,
    npst.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=9),
    elements=st.floats(-100, 100, width=32, allow_subnormal=False),
)
LEAST_NORM = np.sqrt(np.finfo(np.float32).tiny)  # the square of a smaller one is 0
CODECS: list[Codec] = [TopK(ratio=0.3), QSGD(), QSGD(levels=3), TernGrad()]
STEP = np.int64(0)
SEED = np.array([1, 2], np.int32)

few = settings(max_examples=15, deadline=None)


def with_feedback(kind: str) -> Compressed:
    made: dict[str, Compressed] = {
        "top_k": Gathered(sync_run(), TopK(ratio=0.1), error_feedback=True, together=True),
        "onebit": TwoStage(sync_run(), OneBit(), error_feedback=True),
        "powersgd": PowerSGD(sync_run(), PowerSGDConfig(rank=1, min_rate=1.0)),
        "dgc": DGC(SoloRing(), DGCRule(ratio=0.1, momentum=0.0)),
    }
    return made[kind]


def one_step(synchronizer: Compressed, gradient: Any) -> Any:
    means = synchronizer.reduce(Exchange([tf.constant(gradient)], loss=tf.constant(0.0)), STEP).gradients
    return means[0].numpy()


@few
@given(npst.arrays(np.int32, st.integers(0, 6).map(lambda n: 8 * n), elements=st.integers(0, 3)))
def test_packed_bits_and_bytes_come_back(values: Any) -> None:
    assert unpack(pack(values, 2), 2).numpy().tolist() == values.tolist()
    assert unpack(pack(values % 2, 1), 1).numpy().tolist() == (values % 2).tolist()
    for dtype in (tf.float32, tf.float16, tf.int8):
        tensor = tf.cast(values, dtype)
        assert to_bytes(tensor).shape == [len(values) * dtype.size]
        assert from_bytes(to_bytes(tensor), dtype).numpy().tolist() == values.tolist()


@few
@given(MATRICES, st.sampled_from(["top_k", "onebit", "powersgd", "dgc"]), st.integers(1, 4))
def test_nothing_is_lost_with_error_feedback(gradient: Any, kind: str, steps: int) -> None:
    """The sum of what was sent and of the residuals is the sum of the gradients, on one rank exactly to rounding."""
    synchronizer = with_feedback(kind)
    synchronizer.build([tf.Variable(gradient)])
    sent = sum(one_step(synchronizer, gradient * (1 + i)) for i in range(steps))
    total = gradient * steps * (steps + 1) / 2
    held = [v.numpy() for v in synchronizer.rank_variables]
    if kind == "onebit" and held:
        held = [held[0], held[1][: gradient.size].reshape(gradient.shape)]
    kept = sum(held[-1:] if kind == "dgc" else held)  # momentum is not a residual
    np.testing.assert_allclose(sent + kept, total, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("codec", [QSGD(), QSGD(levels=3), TernGrad(clip_factor=0)])
def test_random_rounding_is_unbiased_and_keyed(codec: Codec) -> None:
    values = np.random.default_rng(0).normal(size=8).astype(np.float32)
    copies = tf.constant(np.tile(values, (4000, 1)))
    seeds = [step_seed(0, 0, STEP, 0), step_seed(1, 0, STEP, 0), step_seed(0, 1, STEP, 0), step_seed(0, 0, STEP, 1)]
    seeds.append(step_seed(0, 0, STEP + 1, 0))
    payloads = [codec.encode(copies, seed).numpy() for seed in [*seeds, seeds[0]]]
    assert (payloads[0] == payloads[-1]).all()
    assert len({payload.tobytes() for payload in payloads}) == len(seeds)
    decoded = codec.decode(tf.constant(payloads[0]), [4000, 8]).numpy().astype(np.float64)
    error = decoded.std(axis=0) / np.sqrt(len(decoded))
    assert (np.abs(decoded.mean(axis=0) - values) <= 5 * error + 1e-5).all()


@few
@given(MATRICES, st.sampled_from(CODECS))
def test_a_codec_errs_by_less_than_its_rule_allows(gradient: Any, codec: Any) -> None:
    decoded = codec.decode(codec.encode(tf.constant(gradient), SEED), list(gradient.shape)).numpy()
    norm = np.linalg.norm(gradient)
    if isinstance(codec, TopK):  # exact where it sends, and what it leaves out is no larger
        sent = decoded != 0
        assert (decoded[sent] == gradient[sent]).all()
        assert np.abs(gradient[~sent]).max(initial=0) <= np.abs(decoded[sent]).min(initial=np.inf)
    elif isinstance(codec, QSGD):
        assert np.abs(decoded - gradient).max() <= max(norm / codec.levels * 1.001, LEAST_NORM)
    else:
        scale = np.abs(decoded).max()
        assert set(np.unique(np.abs(decoded))) <= {0, scale}
        assert scale <= np.abs(gradient).max()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_powersgd_is_exact_for_matrices_of_its_rank(rank: int) -> None:
    rng = np.random.default_rng(rank)
    gradient = (rng.normal(size=(12, rank)) @ rng.normal(size=(rank, 15))).astype(np.float32)
    synchronizer = PowerSGD(sync_run(), PowerSGDConfig(rank=rank, min_rate=1.0))
    synchronizer.build([tf.Variable(gradient)])
    np.testing.assert_allclose(one_step(synchronizer, gradient), gradient, rtol=1e-4, atol=1e-4)


def test_powersgd_finds_the_best_factors_by_its_warm_start() -> None:
    """For the same matrix again and again it comes to the first singular vectors, as a power iteration does."""
    rng = np.random.default_rng(1)
    left, values, right = np.linalg.svd(rng.normal(size=(20, 30)))
    values[:2] *= 3
    gradient = (left * values @ right[:20]).astype(np.float32)
    synchronizer = PowerSGD(sync_run(), PowerSGDConfig(rank=2, min_rate=1.0))
    synchronizer.build([tf.Variable(gradient)])
    for _ in range(12):
        synchronizer.rank_variables[0].assign(tf.zeros_like(gradient))
        found = one_step(synchronizer, gradient)
    np.testing.assert_allclose(found, (left[:, :2] * values[:2]) @ right[:2], atol=2e-2)


def test_dgc_applies_momentum_to_what_was_not_sent_yet() -> None:
    """Algorithm 1: momentum and velocity start from zero where an entry was sent, and go on where it was not."""
    synchronizer = DGC(SoloRing(), DGCRule(ratio=0.5, momentum=0.5))
    synchronizer.build([tf.Variable([[1.0, 1.0]]), tf.Variable([0.0])])
    sent = []
    for _ in range(3):
        means = synchronizer.reduce(Exchange([tf.constant([[4.0, 1.0]]), tf.constant([2.0])]), STEP).gradients
        sent.append((means[0].numpy().ravel().tolist(), float(means[1][0])))
    assert sent == [([4.0, 0.0], 2.0), ([4.0, 0.0], 3.0), ([0.0, 1.0 + 1.5 + 1.75], 3.5)]
    momentum, total = (v.numpy().ravel().tolist() for v in synchronizer.rank_variables)
    assert (momentum, total) == ([4.0, 0.0], [4.0, 0.0])


@pytest.mark.parametrize("kind", ["top_k", "dgc"])
def test_the_largest_entries_of_all_matrices_are_sent(kind: str) -> None:
    """One of ten: that of the second matrix; then, of what has added up, that of the first."""
    synchronizer = with_feedback(kind)
    gradients = [tf.constant([[-3.0, 1.0]]), tf.constant([[1.0, 2.0], [0.0, 4.0], [1.0, 0.0], [0.0, 1.0]])]
    synchronizer.build([tf.Variable(gradient) for gradient in gradients])
    first = synchronizer.reduce(Exchange(gradients), STEP).gradients
    assert [(mean != 0).numpy().nonzero()[0].size for mean in first] == [0, 1]
    assert float(first[1][1, 1]) == 4.0
    second = synchronizer.reduce(Exchange(gradients), STEP).gradients
    assert second[0].numpy().tolist() == [[-6.0, 0.0]]
    assert not second[1].numpy().any()


@pytest.mark.parametrize("kind", ["top_k", "onebit", "powersgd", "dgc", "qsgd", "terngrad", "half"])
def test_zero_gradients_stay_zero(kind: str) -> None:
    others: dict[str, Compressed] = {
        "qsgd": Gathered(sync_run(), QSGD()),
        "terngrad": Gathered(sync_run(), TernGrad()),
        "half": TwoStage(sync_run(), Half(dtype=tf.bfloat16)),
    }
    synchronizer = others.get(kind) or with_feedback(kind)
    zeros = np.zeros((6, 7), np.float32)
    synchronizer.build([tf.Variable(zeros)])
    for _ in range(2):
        assert (one_step(synchronizer, zeros) == 0).all()
    assert all(np.isfinite(v.numpy()).all() for v in [*synchronizer.rank_variables, *synchronizer.shared_variables])


@few
@given(st.integers(0, 100), st.sampled_from(CODECS))
def test_a_gathered_mean_is_that_of_what_each_rank_decodes(seed: int, codec: Codec) -> None:
    rng = np.random.default_rng(seed)
    tensors = [[tf.constant(rng.normal(size=s).astype(np.float32)) for s in ((3, 5), (2, 2))] for _ in range(3)]
    payloads = [[codec.encode(t, SEED) for t in of_rank] for of_rank in tensors]
    for means in on_ranks(3, lambda ring: gathered_means(ring, codec, payloads[ring.rank], [[3, 5], [2, 2]])):
        for i, shape in enumerate(([3, 5], [2, 2])):
            expected = np.mean([codec.decode(p[i], shape).numpy() for p in payloads], axis=0)
            np.testing.assert_allclose(means[i].numpy(), expected, rtol=1e-5, atol=1e-6)


@few
@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 5))
def test_residuals_keep_their_mean_on_another_number_of_ranks(size: int, before: int, now: int) -> None:
    """What is held back of the mean gradient stays the same: the mean of own residuals plus those of the parts."""
    rng = np.random.default_rng(size)

    def built(ring: Ring) -> TwoStage:
        synchronizer = TwoStage(sync_run(ring), OneBit(), error_feedback=True)
        synchronizer.build([tf.Variable(np.zeros((size, 1), np.float32))])
        return synchronizer

    synchronizers = [on_ranks(ranks, built)[-1] for ranks in (before, now)]
    shapes = [[v.shape.as_list() for v in each.rank_variables] for each in synchronizers]
    own = rng.normal(size=(before, *shapes[0][0])).astype(np.float32)
    parts = rng.normal(size=(before, *shapes[0][1])).astype(np.float32)
    parts.reshape(-1)[size:] = 0
    resized = [synchronizers[1].resize([own, parts], rank, now) for rank in range(now)]
    assert [list(a.shape) for a in resized[0]] == shapes[1]
    kept = np.mean([r[0] for r in resized], axis=0).ravel() + np.concatenate([r[1] for r in resized])[:size]
    np.testing.assert_allclose(kept, own.mean(axis=0).ravel() + parts.reshape(-1)[:size], atol=1e-5)

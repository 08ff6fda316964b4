"""Samples and labels are mixed by equal shares of the right distribution, in groups that do not depend on ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.pipeline import CutMix, Loader, Mixup
from ringfeed.pipeline.select.sample_columns import sample_keys
from ringfeed.pipeline.transforms.mixup_ops import box_mask
from ringfeed.sharding import ConfigError

Make = Callable[..., str]
Batch = dict[str, Any]


def batch_of(samples: int, *, classes: int = 4, first: int = 0) -> Batch:
    """Images of one value each, which tells what they are mixed of."""
    places = np.arange(first, first + samples)
    images = np.broadcast_to(2.0 ** (places % 16)[:, None, None, None], (samples, 6, 8, 1)).astype(np.float32)
    return {
        "image": tf.constant(images),
        "class_id": tf.constant(places % classes, tf.int32),
        "sample_key": tf.constant(sample_keys(3, 0, places)),
    }


def mixes(**options: Any) -> list[Any]:
    return [Mixup(features=("image",), classes=4, **options), CutMix(feature="image", classes=4, **options)]


@pytest.mark.parametrize("kind", [0, 1])
def test_mixing_does_not_depend_on_ranks_and_resumes(make_dataset: Make, kind: int) -> None:
    def floats(element: Batch) -> Batch:
        image = tf.reshape(tf.repeat(element["vector"], 4, axis=1), [-1, 4, 3, 1])
        return {**element, "image": image}

    def read(start_step: int = 14, **options: Any) -> list[npt.NDArray[Any]]:
        loader = Loader(make_dataset(), batch_size=48, seed=2, balance="uniform", sample_keys=True, **options)
        found = loader.epoch(1, start_step, transform=[floats, mixes(group=np.int64(4))[kind]])
        parts = [(batch["image"].numpy(), batch["soft_label"].numpy()) for batch in found]
        return [np.stack(arrays) for arrays in zip(*parts, strict=True)]

    whole = read()
    for world_size in (2, 3):
        ranks = [read(rank=rank, world_size=world_size) for rank in range(world_size)]
        for parts, expected in zip(zip(*ranks, strict=True), whole, strict=True):
            np.testing.assert_array_equal(np.concatenate(parts, axis=1), expected)
    for rest, expected in zip(read(17), whole, strict=True):
        np.testing.assert_array_equal(rest, expected[3:])


def test_mixup_mixes_values_and_labels_by_one_share() -> None:
    batch = batch_of(64)
    mixed = Mixup(features=("image",), classes=64, alpha=1.0)({**batch, "class_id": tf.range(64)})
    labels = mixed["soft_label"].numpy()
    np.testing.assert_allclose(labels.sum(axis=1), 1, rtol=1e-6)
    assert ((labels > 0).sum(axis=1) == 2).all()
    expected = labels @ batch["image"].numpy().reshape(64, -1)
    np.testing.assert_allclose(mixed["image"].numpy().reshape(64, -1), expected, rtol=1e-5)
    groups = np.repeat(np.arange(8), 8)
    partners = np.where(labels > 0, np.arange(64), -1)
    assert all(set(groups[row[row >= 0]]) == {groups[i]} for i, row in enumerate(partners))


def test_float64_is_mixed_in_float64() -> None:
    times = 1.7e9 + np.arange(64.0)
    mixed = Mixup(features=("t",), classes=64, alpha=1.0)({**batch_of(64), "class_id": tf.range(64), "t": times})
    assert mixed["t"].dtype == tf.float64
    np.testing.assert_allclose(mixed["t"] - 1.7e9, mixed["soft_label"].numpy() @ np.arange(64.0), atol=1e-4)


def test_cutmix_mixes_labels_by_the_areas() -> None:
    batch = batch_of(64)
    mixed = CutMix(feature="image", classes=64, alpha=1.0)({**batch, "class_id": tf.range(64)})
    labels, images, before = mixed["soft_label"].numpy(), mixed["image"].numpy(), batch["image"].numpy()
    np.testing.assert_allclose(labels.sum(axis=1), 1, rtol=1e-6)
    kept = (images == before).mean(axis=(1, 2, 3))
    np.testing.assert_allclose(np.diag(labels), kept, atol=1e-6)
    assert 0.2 < kept.mean() < 0.8
    other = labels - np.diag(np.diag(labels))
    for row in np.flatnonzero(kept < 1):
        assert set(images[row].ravel()) <= {before[row, 0, 0, 0], before[other[row].argmax(), 0, 0, 0]}


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_are_of_the_beta_distribution(alpha: float) -> None:
    transform = tf.function(Mixup(features=("image",), classes=2, alpha=alpha, group=2))
    labels = transform(batch_of(2000, classes=2))["soft_label"].numpy()[::2]
    shares = labels[:, 0]
    assert abs(shares.mean() - 0.5) < 0.05
    assert shares.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.15)


def test_both_one_after_the_other_keep_labels_whole() -> None:
    first, second = mixes()
    labels = second(first(batch_of(16)))["soft_label"].numpy()
    np.testing.assert_allclose(labels.sum(axis=1), 1, rtol=1e-5)
    assert ((labels > 0).sum(axis=1) > 2).any()


@settings(max_examples=50, deadline=None)
@given(
    st.floats(0, 1, width=32),
    st.floats(0, 0.9990234375, width=32),
    st.floats(0, 0.9990234375, width=32),
    st.integers(1, 30),
    st.integers(1, 30),
)
def test_masks_are_boxes_of_at_most_their_share(
    share: float, row: float, column: float, height: int, width: int
) -> None:
    (mask,) = box_mask(*(tf.constant([x]) for x in (share, row, column)), height, width).numpy()
    assert mask.shape == (height, width)
    rows, columns = mask.any(axis=1), mask.any(axis=0)
    np.testing.assert_array_equal(mask, np.outer(rows, columns))
    for line, extent in ((rows, height), (columns, width)):
        assert line.sum() <= np.sqrt(1 - share) * extent + 1
        assert len(np.flatnonzero(np.diff(np.concatenate([[0], line.astype(int), [0]])))) <= 2


@pytest.mark.parametrize(
    ("element", "message"),
    [
        ({"image": None}, "the element has no feature 'image'"),
        ({"sample_key": None}, "make the Loader with sample_keys=True"),
        ({"image": lambda: tf.zeros([12, 6, 8, 1], tf.uint8)}, "'image' is uint8, and only floats can be mixed"),
        (
            {"sample_weight": lambda: tf.ones(12)},
            "batches with padded samples cannot be mixed: .* that divides batch_size",
        ),
        (
            {"image": lambda: tf.ragged.constant([[1.0], []] * 6)},
            "'image' is of variable length and cannot be mixed; pad it",
        ),
        ({}, "group=8 does not divide the 12 samples"),
    ],
)
def test_features_that_cannot_be_mixed_are_refused(
    element: Mapping[str, Callable[[], Any] | None], message: str
) -> None:
    batch = {name: value for name, value in batch_of(12).items() if name not in element}
    batch |= {name: make() for name, make in element.items() if make is not None}
    for transform in mixes():
        with pytest.raises(ConfigError, match=message):
            transform(batch)


@pytest.mark.parametrize("kind", [0, 1])
def test_too_few_classes_are_an_error(kind: int) -> None:
    dataset = tf.data.Dataset.from_tensors(batch_of(16, classes=5)).map(mixes()[kind])
    with pytest.raises(tf.errors.InvalidArgumentError, match="a class_id is not below classes=4: give as many as the"):
        next(iter(dataset))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"alpha": 0.0}, "alpha must be above 0"), ({"group": 1}, "group must be at least 2, got 1")],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mixes(**options)

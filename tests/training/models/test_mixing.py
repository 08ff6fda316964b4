"""Mixed images and labels: their loss, and that ranks mix as one process does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.config.loss import LossConfig
from ringfeed.training.models.build import build_model
from ringfeed.training.models.losses import build_loss
from ringfeed.training.models.target import Target
from ringfeed.training.ring.ring import Ring, SoloRing
from ringfeed.training.run.inputs import open_loader
from tests.helpers.thread_ring import on_ranks


def _batch(url: str, ring: Ring, **augment: Any) -> tuple[Any, Any, Any]:
    tree = {
        "data": {"url": url, "batch_size": 48},
        "model": {"name": "convnet", "image_shape": [8, 8, 1]},
        "augment": {"flip_left_right": True, **augment},
    }
    config = parse_config(tree, "x")
    loader = open_loader(config, ring)
    augmented = build_model(loader.manifest, config).augmented
    assert augmented is not None
    return tuple(part.numpy() for part in tf.function(augmented, autograph=False)(next(iter(loader.epoch(1, 2)))))  # type: ignore[return-value]


def test_ranks_mix_as_one_process_does(pictures: str) -> None:
    mix = {"mixup": 0.5, "cutmix": 1.0}
    whole = _batch(pictures, SoloRing(), **mix)
    halves = on_ranks(2, lambda ring: _batch(pictures, ring, **mix))
    for expected, *parts in zip(whole, *halves, strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), expected)
    images, labels, _ = whole
    plain, class_id, _ = _batch(pictures, SoloRing())
    np.testing.assert_allclose(labels.sum(1), 1, rtol=1e-5)
    assert np.mean(labels.max(1) < 0.999) > 0.3
    assert np.any(images != plain)
    assert labels[np.arange(48), class_id].mean() > labels.mean()  # a sample keeps its own share of its label
    with pytest.raises(
        ConfigError, match=r"augment\.mix_group=8 must divide each of 4 ranks' share .*a multiple of 32"
    ):
        on_ranks(4, lambda ring: _batch(pictures, ring, **mix))


@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.1, "focal_gamma": 2.0, "class_weights": {"b": 3.0}}], ids=["plain", "all"]
)
def test_the_loss_of_a_mixed_label_is_the_mean_of_its_classes_losses(options: dict[str, Any]) -> None:
    loss = build_loss(LossConfig(**options), Target(task="multiclass", classes=("a", "b", "c")))
    logits = tf.constant([[2.0, -1.0, 0.5]])
    of_classes = [float(loss(logits, tf.constant([number]))[0]) for number in range(3)]
    mixed = loss(logits, tf.constant([[0.2, 0.5, 0.3]]))
    np.testing.assert_allclose(mixed, [np.dot(of_classes, [0.2, 0.5, 0.3])], rtol=1e-5)

"""Ranks whose shares of a batch differ by one sample: together they do what one process does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ringfeed.training.config.config_file import load_config
from ringfeed.training.loop.trainer import Trainer
from ringfeed.training.ring.ring import SoloRing


class _Part(SoloRing):
    """One of several ranks, which are run one after the other; none sees the others' gradients."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


@pytest.mark.parametrize(("ranks", "batch"), [(3, 128), (4, 3)])
def test_the_mean_of_uneven_shares_is_the_step_of_one_process(
    ranks: int, batch: int, write_config: Callable[..., Path]
) -> None:
    path = write_config(
        data={"batch_size": batch, "eval_split": None},
        model={"norm": "none", "dropout": 0.0, "hidden": [4]},
        optimizer={"name": "sgd", "learning_rate": 0.5, "weight_decay": 0.0},
        schedule={"warmup_epochs": 0.0},
        max_steps=1,
    )
    config = load_config(str(path), ["deterministic=false", "output.metrics=null"])

    def weights(ring: SoloRing) -> list[np.ndarray]:
        trainer = Trainer(config, ring)
        trainer.run()
        return [weight.numpy() for weight in trainer.parts.network.trainable_variables]

    whole = weights(SoloRing())
    parts = [weights(_Part(rank, ranks)) for rank in range(ranks)]
    for expected, *shares in zip(whole, *parts, strict=True):
        np.testing.assert_allclose(np.mean(shares, axis=0), expected, rtol=1e-5, atol=1e-6)

"""Ranks whose shares of a batch differ by one sample: together they do what one process does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ringfeed.training.config.config_file import load_config
from ringfeed.training.ring.ring import Ring, SoloRing
from ringfeed.training.run.trainer import Trainer
from tests.helpers.thread_ring import on_ranks


@pytest.mark.parametrize(("ranks", "batch"), [(3, 128), (4, 3)])
def test_the_mean_of_uneven_shares_is_the_step_of_one_process(
    ranks: int, batch: int, write_config: Callable[..., Path]
) -> None:
    path = write_config(
        data={"batch_size": batch, "eval_split": None, "test_split": None},
        model={"norm": "none", "dropout": 0.0, "hidden": [4]},
        optimizer={"name": "sgd", "learning_rate": 0.5, "weight_decay": 0.0},
        schedule={"warmup_epochs": 0.0},
        max_steps=1,
    )
    config = load_config(str(path), ["deterministic=false", "output.metrics=null"])

    def weights(ring: Ring) -> list[np.ndarray]:
        trainer = Trainer(config, ring)
        trainer.run()
        return [weight.numpy() for weight in trainer.parts.network.trainable_variables]

    whole = weights(SoloRing())
    for found in on_ranks(ranks, weights):
        for mine, expected in zip(found, whole, strict=True):
            np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6)

"""The CPU time of an update of 200 variables of 16 x 16, against SGD with momentum of Keras in the same process.

Small variables cost the time of their operations, not of their arithmetic: see `training/optimizers/stacked.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringfeed.training import LAMB, LARS, Adam

VARIABLES, SHAPE, UPDATES = 200, (16, 16), 50


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """SGD's seconds of CPU over each optimizer's, measured in turn."""
    updates = {
        "SGD": _updater(keras.optimizers.SGD(0.1, momentum=0.9)),
        "LARS": _updater(LARS(0.1, weight_decay=1e-4)),
        "LAMB": _updater(LAMB(0.1, weight_decay=1e-2)),
        "AdamW": _updater(Adam(0.1, weight_decay=1e-2)),
        "Keras' AdamW": _updater(keras.optimizers.AdamW(0.1)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in updates}
    for _ in range(2 * rounds):
        for name, update in updates.items():
            started = time.process_time()
            for _ in range(UPDATES):
                update()
            seconds[name].append(time.process_time() - started)
    for name, found in seconds.items():
        print(f"  {name}: {np.median(found) / UPDATES * 1e3:.1f} ms of CPU for one update", flush=True)
    goals = {"LARS": 1 / 1.15, "LAMB": 1 / 1.15, "AdamW": 1 / 1.15, "Keras' AdamW": 0.0}
    return [
        (
            f"update of {VARIABLES} variables, SGD / {name}",
            [sgd / own for sgd, own in zip(seconds["SGD"], seconds[name], strict=True)],
            goal,
        )
        for name, goal in goals.items()
    ]


def _updater(optimizer: Any) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    variables = [keras.Variable(rng.normal(size=SHAPE).astype("float32")) for _ in range(VARIABLES)]
    gradients = [tf.constant(rng.normal(size=SHAPE).astype("float32")) for _ in range(VARIABLES)]
    optimizer.build(variables)
    step = tf.function(lambda given: optimizer.apply(given))
    step(gradients)
    return lambda: step(gradients)

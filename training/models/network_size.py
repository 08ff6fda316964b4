"""The number of weights of a network, found without allocating them: a stranger's configuration may name any sizes.

Tested in tests/test_forged_files.py.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import keras

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.training.config.train_config import TrainConfig

from .build import build_model

__all__ = ["count_weights"]


def count_weights(manifest: Manifest, config: TrainConfig) -> int:
    """Return the number of weights of the network that `build_model` builds; a user's own network is not tried.

    Raises:
        Exception: any error of `build_model`.
    """

    def build() -> int:
        with keras.StatelessScope(initialize_variables=False):
            return sum(math.prod(weight.shape) for weight in build_model(manifest, config).network.weights)

    # Keras keeps the list of variables to initialise by thread: that of this thread's end is dropped.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(build).result()

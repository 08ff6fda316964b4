"""Random keys of samples for augmentation that resumes bit for bit and does not depend on the number of ranks.

A key is a pure function of (seed, epoch, position in the global order of the epoch). A record that comes again, in
another epoch or within one, has another key and is augmented differently.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ringfeed.sharding.compute.keyed_random import derive_key, mix64


def sample_keys(seed: int, epoch: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the keys of some positions of an epoch, as seeds for `tf.random.stateless_*`.

    Args:
        epoch: number of the epoch, from 0.
        positions: ``step * batch_size`` plus the position in the global batch, [n].

    Returns:
        Keys, int64 [n, 2]; within an epoch no two positions share the first half.

    >>> keys = sample_keys(7, 0, np.arange(3))
    >>> keys.shape, bool((keys[1:] == sample_keys(7, 0, np.arange(1, 3))).all())
    ((3, 2), True)
    """
    salts = [np.uint64(derive_key(seed, "epoch", epoch, "sample", half)) for half in (0, 1)]
    numbers = positions.astype(np.uint64)
    return np.stack([mix64(numbers ^ salt) for salt in salts], axis=-1).view(np.int64)

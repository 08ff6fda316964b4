"""The columns that a loader adds to the features of the dataset: their names, and the random keys of samples.

A key is a pure function of (seed, epoch, position in the global order of the epoch). A record that comes again, in
another epoch or within one, has another key and is augmented differently.
Tested in tests/pipeline/select/test_sample_columns.py and tests/pipeline/test_loader.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringfeed.sharding.compute.keyed_random import derive_key, mix64

# Delivered in batches.
CLASS_ID = "class_id"  # index of the label in the classes of the manifest
SAMPLE_KEY = "sample_key"  # random key for augmentation
SOFT_LABEL = "soft_label"  # class shares of a mixed sample
SOURCE_ID = "source_id"  # index of the dataset in a mixture
WEIGHT = "sample_weight"

# Internal: no feature can have a name that begins with a NUL.
EXAMPLES = "\0examples"  # serialized `tf.train.Example`s, Arrow binary view [records]
FRAMES = "\0frames"  # TFRecord frames of equal size, uint8 [records, frame bytes]
ORIGIN = "\0origin"  # shard and row of each record, int64 [records, 2]


def mask_name(feature: str) -> str:
    """The column that says which values of a feature are missing: bool [batch].

    >>> mask_name("age")
    'missing:age'
    """
    return f"missing:{feature}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a record is stored."""

    dataset: str  # URL of the dataset
    shard: str  # path of the shard
    record: int  # number of the record in the shard


def sample_keys(seed: int, epoch: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the keys of some positions of an epoch, as seeds for `tf.random.stateless_*`.

    Augmentation by them resumes bit for bit, and does not depend on the number of ranks.

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

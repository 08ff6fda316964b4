"""Names of the columns that a loader adds to the features of the dataset.

Tested in tests/pipeline/order/test_sample_keys.py and tests/pipeline/test_loader.py.
"""

from __future__ import annotations

from dataclasses import dataclass

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

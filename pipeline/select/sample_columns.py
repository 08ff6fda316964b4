"""Names of the columns that the loader adds to those of the dataset."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CLASS_ID", "EXAMPLES", "FRAMES", "ORIGIN", "SAMPLE_KEY", "SOFT_LABEL", "SOURCE_ID", "WEIGHT", "Origin"]

ORIGIN = "\0origin"  # shard and row of a record, where they are asked for, int64 [records, 2]


CLASS_ID = "class_id"  # of the sample's label among `manifest.classes`


SOFT_LABEL = "soft_label"  # where samples were mixed


WEIGHT = "sample_weight"


FRAMES = "\0frames"  # uint8 [records, frame bytes]


EXAMPLES = "\0examples"  # Arrow binary view [records]


SAMPLE_KEY = "sample_key"


SOURCE_ID = "source_id"  # of the dataset that a sample of a mixture is from


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a record is: the URL of its dataset, the path of its shard, and its number in that."""

    dataset: str
    shard: str
    record: int

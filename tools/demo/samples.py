"""Test images for the page, with what the trained network says of them: some that it reads right, and its errors.

Reads the table that `ringfeed predict` wrote, and the images from the dataset.
Tested in tests/tools/demo/test_run.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from ringfeed.pipeline import Loader


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a network says of a record: `record` is its number in the split, `score` the probability of `predicted`."""

    record: int
    label: str
    predicted: str
    score: float

    @property
    def is_right(self) -> bool:
        """Whether the predicted class is the true one."""
        return self.predicted == self.label


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleImage:
    """An image, as the bytes of its PNG file, and what the network says of it."""

    png: bytes
    prediction: Prediction


def read_predictions(folder: Path) -> list[Prediction]:
    """Read what `ringfeed predict --keep label` wrote, in the order of the records."""
    rows = pq.read_table(folder, columns=["record", "label", "predicted", "score"]).to_pylist()
    return [Prediction(**row) for row in sorted(rows, key=lambda row: row["record"])]


def pick_samples(predictions: Sequence[Prediction], most: int) -> tuple[list[Prediction], list[Prediction]]:
    """Pick the least sure right prediction of each class, and up to `most` wrong ones, the surest first.

    >>> says = [("4", "4", 0.9), ("4", "4", 0.8), ("7", "9", 0.5), ("9", "9", 0.7), ("4", "1", 0.6)]
    >>> made = [Prediction(record=n, label=a, predicted=b, score=c) for n, (a, b, c) in enumerate(says)]
    >>> right, wrong = pick_samples(made, 2)
    >>> [one.record for one in right], [one.record for one in wrong]
    ([1, 3], [4, 2])
    """
    by_score = sorted(predictions, key=lambda one: (-one.score, one.record))
    least = {one.label: one for one in by_score if one.is_right}
    return [least[label] for label in sorted(least)], [one for one in by_score if not one.is_right][:most]


def read_images(url: str, split: str, predictions: Sequence[Prediction]) -> list[SampleImage]:
    """Read the images of some records from a dataset whose column `image` holds PNG files."""
    loader = Loader(url, split=split, batch_size=1, columns=["image"])
    return [SampleImage(png=loader.sample(one.record)["image"], prediction=one) for one in predictions]

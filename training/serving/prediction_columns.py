"""The columns of predictions: what a model's scores say about each record.

Tested in tests/training/serving/test_predict.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.schema import class_array
from ringfeed.training.models.target import Target

__all__ = ["NAMES", "PREDICTED", "RECORD", "SCORES", "Classifier", "PredictionColumns", "warn_undefined"]

log = logging.getLogger(__name__)

RECORD, PREDICTED, _SCORE, SCORES = "record", "predicted", "score", "scores"
NAMES = (RECORD, PREDICTED, _SCORE, SCORES)
_LIKELY = 0.5  # one of many labels is predicted from this probability on


class Classifier(Protocol):
    """What a trained model says of its target."""

    @property
    def manifest(self) -> Manifest:
        """Manifest of the dataset that it was trained on."""

    @property
    def target(self) -> Target:
        """What it predicts."""

    @property
    def classes(self) -> list[str]:
        """Names of the classes or labels, in the order of the scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionColumns:
    """Columns that follow from scores."""

    model: Classifier

    @property
    def classes(self) -> pa.Array:
        """The classes in the type of the label, or the names of labels; a regression has none."""
        manifest = self.model.manifest
        if self.model.target.task == "multiclass":
            return class_array(manifest.schema, manifest.classes)
        return pa.array(self.model.classes, pa.string())

    @property
    def fields(self) -> list[pa.Field]:
        """The columns: the prediction, and scores where the task has them."""
        task, classes = self.model.target.task, self.classes
        predicted = {"multilabel": pa.list_(pa.string()), "regression": pa.float64()}.get(task, classes.type)
        fields = [pa.field(PREDICTED, predicted)]
        if task in ("multiclass", "binary"):
            fields.append(pa.field(_SCORE, pa.float32()))
        if task != "regression":
            fields.append(pa.field(SCORES, pa.list_(pa.float32(), len(classes))))
        return fields

    def arrays(self, scores: Any) -> list[pa.Array]:
        """Return the columns for scores, [batch, classes]; nothing is predicted where one is NaN."""
        predicted, *others = self._arrays(scores)
        undefined = pa.array(np.isnan(scores).any(axis=1))
        return [pc.if_else(undefined, pa.scalar(None, predicted.type), predicted), *others]

    def _arrays(self, scores: Any) -> list[pa.Array]:
        task, classes = self.model.target.task, self.classes
        if task == "regression":
            return [pa.array(scores[:, 0])]
        flat = pa.array(np.ascontiguousarray(scores).reshape(-1))
        all_scores = pa.FixedSizeListArray.from_arrays(flat, scores.shape[1])
        if task == "multilabel":
            rows, labels = np.nonzero(scores >= _LIKELY)
            starts = np.searchsorted(rows, np.arange(len(scores) + 1)).astype(np.int32)
            return [pa.ListArray.from_arrays(pa.array(starts), classes.take(pa.array(labels))), all_scores]
        likeliest = scores.argmax(axis=1)
        return [classes.take(pa.array(likeliest)), pa.array(scores[np.arange(len(scores)), likeliest]), all_scores]


def warn_undefined(records: int) -> None:
    """Warn that the scores of some records are NaN."""
    if records:
        log.warning("the scores of %d records are NaN, as inputs may be; their prediction is null", records)

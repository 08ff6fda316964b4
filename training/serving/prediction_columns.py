"""The columns of predictions: what a model's scores say about each record.

Tested in tests/training/serving/test_predict.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.schema import class_array
from ringfeed.training.models.target import Target

log = logging.getLogger(__name__)

RECORD, PREDICTED, _SCORE, SCORES = "record", "predicted", "score", "scores"
NAMES = (RECORD, PREDICTED, _SCORE, SCORES)
_LIKELY = 0.5  # one of many labels is predicted from this probability on


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionColumns:
    """Columns that follow from the scores of a model, which was trained on the dataset of a manifest."""

    manifest: Manifest
    target: Target

    @property
    def classes(self) -> pa.Array:
        """The classes in the type of the label, or the names of labels; a regression has none."""
        if self.target.task == "multiclass":
            return class_array(self.manifest.schema, self.manifest.classes)
        return pa.array(self.target.classes, pa.string())

    @property
    def fields(self) -> list[pa.Field]:
        """The columns: the prediction, and scores where the task has them."""
        task, classes = self.target.task, self.classes
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
        task, classes = self.target.task, self.classes
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

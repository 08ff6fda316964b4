"""Scores records that are in no dataset: files, rows in memory, one after the other in their order.

Not here: predictions for a dataset on several ranks, see `predictions.py`.
Tested in tests/training/serving/test_score.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ringfeed.pipeline.decode.columns import filled_columns
from ringfeed.pipeline.deliver.to_numpy import numpy_batch
from ringfeed.pipeline.select.selected_columns import mask_fill
from ringfeed.pipeline.transforms.failing_record import as_tensor
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.prepare.new_records import NewRecords
from ringfeed.sharding.schema import Schema

from .prediction_columns import NAMES, RECORD, PredictionColumns


@dataclass(frozen=True, kw_only=True)
class RecordScorer:
    """Scores records with a model; a ConfigError if a column to copy is called like one of predictions."""

    records: NewRecords
    score: Callable[[Mapping[str, Any]], Any]  # from a batch of columns, and masks of missing values, to its scores
    predictions: PredictionColumns
    marked: Sequence[str]  # the columns whose missing values are marked for the network
    batch_size: int

    def __post_init__(self) -> None:
        for name in self.records.schema.names:
            if name in NAMES:
                raise ConfigError(
                    f"--keep: {name!r} is the name of an output; name the columns to copy without it, or rename it"
                )

    @property
    def schema(self) -> pa.Schema:
        """The number of the record, the copied columns, the prediction, and scores where the task has them."""
        kept = self.records.schema.features
        own = [pa.field(feature.name, feature.time_type or feature.arrow_type) for feature in kept]
        return pa.schema([pa.field(RECORD, pa.int64()), *own, *self.predictions.fields])

    @property
    def classes(self) -> list[Any]:
        """The classes, in the order of the scores; a regression has none."""
        found: list[Any] = self.predictions.classes.to_pylist()
        return found

    def tables(self) -> Iterator[pa.Table]:
        """Yield predictions in the order of the records; a SourceError if a record lacks what the model needs."""
        schema, first = self.schema, 0
        for batch, kept in self.records.batches():
            for start in range(0, batch.num_rows, self.batch_size):
                rows = batch.slice(start, self.batch_size)
                copied = kept.slice(start, self.batch_size)
                columns = [column.cast(schema.field(1 + i).type) for i, column in enumerate(copied.columns)]
                numbers = pa.array(np.arange(first, first + rows.num_rows))
                scores = self.predictions.arrays(self._score(rows, first))
                yield pa.Table.from_arrays([numbers, *columns, *scores], schema=schema)
                first += rows.num_rows

    def _score(self, rows: pa.RecordBatch, first: int) -> Any:
        features = Schema(features=self.records.features)
        for feature in features.features:
            nulls = rows.column(feature.name).null_count
            if nulls and feature.name not in self.marked and not feature.dtype.startswith("float"):
                row = first + int(np.argmax(rows.column(feature.name).is_null().to_numpy(zero_copy_only=False)))
                raise SourceError(
                    f"{self.records.source.url}: record {row} has no value of {feature.name!r}, and none was missing "
                    "in training; fill it, or leave such records out"
                )
        fill = mask_fill(features, self.marked)
        columns = filled_columns(pa.Table.from_batches([rows]), features, fill, self.marked)
        batch = numpy_batch(columns, features)
        return self.score({name: as_tensor(values) for name, values in batch.items()}).numpy()

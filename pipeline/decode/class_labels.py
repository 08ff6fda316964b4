"""Labels taken from the shard index and the manifest, without reading their column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringfeed.pipeline.select.sample_columns import CLASS_ID
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.schema import Schema

from .columns import Column, Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassLabels:
    """The labels of records, looked up by class."""

    name: str  # name of the label feature
    values: npt.NDArray[np.integer | np.bool_]  # label of each class, in the feature's dtype, [classes]
    schema: Schema  # the features delivered, the label among them

    @classmethod
    def of(cls, manifest: Manifest, schema: Schema) -> ClassLabels | None:
        """The labels, if they are numbers in Parquet shards and another feature is delivered too; else None.

        Args:
            schema: the features delivered.
        """
        name = manifest.schema.label
        if manifest.shard_format != "parquet" or name not in schema.names or len(schema.names) == 1:
            return None
        label = schema[name]
        return cls(name=name, values=np.array(manifest.classes, label.dtype), schema=schema) if label.numeric else None

    @property
    def read_schema(self) -> Schema:
        """The features to read from shards."""
        return self.schema.select([name for name in self.schema.names if name != self.name])

    def add_to(self, columns: Columns) -> dict[str, Column]:
        """Columns with the labels in their place among the features, by the column `CLASS_ID`."""
        labelled = {**columns, self.name: self.values.take(columns[CLASS_ID])}
        return {name: labelled.pop(name) for name in self.schema.names} | labelled

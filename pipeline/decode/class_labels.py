"""Labels that are not read: the index tells the class of each record, and the manifest its value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...sharding.dataset.manifest import Manifest
from ...sharding.schema import Schema
from ..select.sample_columns import CLASS_ID
from .columns import Column, Columns

__all__ = ["ClassLabels"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassLabels:
    """The labels of records, by their classes.

    Attributes:
        name: of the feature.
        values: of the classes, in the feature's dtype, [classes].
        schema: of the features delivered, the label among them.
    """

    name: str
    values: npt.NDArray[np.integer | np.bool_]
    schema: Schema

    @classmethod
    def of(cls, manifest: Manifest, schema: Schema) -> ClassLabels | None:
        """Those that need not be read: numbers in Parquet shards, where another feature is wanted.

        Args:
            manifest: of the dataset.
            schema: of the features delivered.
        """
        name = manifest.schema.label
        if manifest.shard_format != "parquet" or name not in schema.names or len(schema.names) == 1:
            return None
        label = schema[name]
        return cls(name=name, values=np.array(manifest.classes, label.dtype), schema=schema) if label.numeric else None

    @property
    def read_schema(self) -> Schema:
        """The features that are read."""
        return self.schema.select([name for name in self.schema.names if name != self.name])

    def add_to(self, columns: Columns) -> dict[str, Column]:
        """Columns of features, and of `CLASS_ID`, with the labels in their place among them."""
        found = {**columns, self.name: self.values.take(columns[CLASS_ID])}
        return {name: found.pop(name) for name in self.schema.names} | found

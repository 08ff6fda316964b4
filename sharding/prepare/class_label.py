"""Step that makes classes of a label column of numbers: of lists of one element, and of floats with whole values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import SourceError
from ..schema import Feature, Schema
from .steps import ColumnStep

__all__ = ["MakeClasses", "needs_classes"]


def needs_classes(feature: Feature) -> bool:
    """Whether `MakeClasses` changes a label column.

    >>> needs_classes(Feature(name="y", dtype="uint8", shape=(1,))), needs_classes(Feature(name="y", dtype="uint8"))
    (True, False)
    """
    return (feature.shape != () and feature.elements == 1) or (
        feature.shape == () and feature.dtype.startswith("float")
    )


@dataclass(frozen=True, slots=True)
class MakeClasses(ColumnStep):
    """Take the element out of labels of shape (1,), as those of Keras' CIFAR-10, and make integers of whole floats.

    NaN becomes null, a missing label.
    """

    label: str

    @property
    def spec(self) -> str:
        """The option that names the label."""
        return f"--label {self.label}"

    def schema(self, schema: Schema) -> Schema:
        """The features with the label as a scalar, of int64 if it holds floats."""
        old = schema[self.label]
        new = replace(old, shape=(), dtype="int64" if old.dtype.startswith("float") else old.dtype)
        return Schema(features=tuple(new if feature == old else feature for feature in schema.features))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert the label if the batch has it.

        Raises:
            SourceError: a label is not a whole number.
        """
        i = batch.schema.get_field_index(self.label)
        if i < 0:
            return batch
        column = batch.column(i)
        if pa.types.is_fixed_size_list(column.type):
            column = pc.list_element(column, 0)
        if pa.types.is_floating(column.type):
            column = self._integers(column.cast(pa.float64()))
        return batch.set_column(i, self.label, column)

    def _integers(self, column: pa.DoubleArray) -> pa.Int64Array:
        column = pc.if_else(pc.is_nan(column), None, column)
        try:
            return pc.cast(column, pa.int64())
        except pa.ArrowInvalid as error:
            inexact = pc.not_equal(pc.cast(pc.cast(column, pa.int64(), safe=False), pa.float64(), safe=False), column)
            odd = [*column.filter(inexact), "a number beyond 2^53"]
            raise SourceError(
                f"the label column {self.label!r} holds {odd[0]}, and only whole numbers make classes; "
                "round it with --map or, for regression, omit --label"
            ) from error

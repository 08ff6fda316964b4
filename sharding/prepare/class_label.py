"""Steps that make classes of a label column in another form: one element in a list, whole floats, one-hot vectors, and
numbers whose names Hugging Face's metadata tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.schema import Feature, Schema, insert_nulls
from ringfeed.sharding.sources.base import Source
from ringfeed.sharding.sources.ringfeed import RingfeedSource

from .steps import ColumnStep, Step

_SHOWN = 8
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def class_steps(schema: Schema, label: str | None, names: Sequence[str] = ()) -> list[Step]:
    """The steps that make classes of a label; none if it holds classes already.

    >>> schema = Schema(features=(Feature(name="x", dtype="uint8"), Feature(name="y", dtype="uint8", shape=(1,))))
    >>> class_steps(schema, "x"), class_steps(schema, "y")
    ([], [MakeClasses(label='y')])
    """
    if label is None or label not in schema.names:
        return []
    feature = schema[label]
    if feature.shape == ():
        if names and feature.dtype in _INTEGERS:
            return [NameClasses(label, tuple(names))]
        return [MakeClasses(label)] if feature.dtype.startswith("float") else []
    return [MakeClasses(label)] if feature.elements == 1 or _may_be_one_hot(feature) else []


def class_order(source: Source) -> Sequence[Any]:
    """The classes of a prepared source by their ids in Hugging Face's metadata or in ringfeed's dataset; empty if none.

    Args:
        source: the source, with all steps; these may have left classes out, or made others.
    """
    inner: Any = source
    while hasattr(inner, "inner"):
        if names := next((step.names for step in getattr(inner, "steps", ()) if isinstance(step, NameClasses)), ()):
            return names
        inner = inner.inner
    label = source.schema.label
    if label is None or not isinstance(inner, RingfeedSource) or inner.manifest.schema.label != inner.schema.label:
        return ()
    own = inner.manifest.schema
    return inner.manifest.classes if own.label and own[own.label].dtype == source.schema[label].dtype else ()


def _may_be_one_hot(feature: Feature) -> bool:
    return feature.numeric and len(feature.shape) == 1 and (feature.elements or 0) > 1


@dataclass(frozen=True, slots=True)
class MakeClasses(ColumnStep):
    """Take the element out of labels of shape (1,), as those of Keras' CIFAR-10, make integers of whole floats, and
    of one-hot vectors the index of their 1.

    NaN becomes null, a missing label.
    """

    label: str

    @property
    def spec(self) -> str:
        return f"--label {self.label}"

    def schema(self, schema: Schema) -> Schema:
        """The features with the label as a scalar, of int64 if it holds floats or one-hot vectors."""
        old = schema[self.label]
        is_new = old.dtype.startswith("float") or _may_be_one_hot(old)
        new = replace(old, shape=(), dtype="int64" if is_new else old.dtype)
        return Schema(features=tuple(new if feature == old else feature for feature in schema.features))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert the label if the batch has it.

        Raises:
            SourceError: a label is not a whole number, or a vector not one-hot.
        """
        i = batch.schema.get_field_index(self.label)
        if i < 0:
            return batch
        column = batch.column(i)
        if pa.types.is_fixed_size_list(column.type):
            column = pc.list_element(column, 0) if column.type.list_size == 1 else self._places(column)
        if pa.types.is_floating(column.type):
            column = self._integers(column.cast(pa.float64()))
        return batch.set_column(i, self.label, column)

    def _places(self, column: pa.FixedSizeListArray) -> pa.Int64Array:
        """The index of the 1 in each vector."""
        present, width = column.is_valid(), column.type.list_size
        vectors = column.filter(present).flatten().cast(pa.float64()).to_numpy(zero_copy_only=False)
        vectors = vectors.reshape(-1, width)
        odd = np.flatnonzero(((vectors == 1).sum(axis=1) != 1) | ((vectors == 0).sum(axis=1) != width - 1))
        if odd.size:
            shown = ", ".join(f"{value:g}" for value in vectors[odd[0]][:_SHOWN]) + ", ..." * (width > _SHOWN)
            raise SourceError(
                f"the label column {self.label!r} holds the vector [{shown}], and only vectors of one 1 and zeros make "
                "classes; choose one class each with --map (such as the largest) or, to keep the vectors, omit --label"
            )
        return insert_nulls(pa.array(vectors.argmax(axis=1), pa.int64()), present)

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


@dataclass(frozen=True, slots=True)
class NameClasses(ColumnStep):
    """Replace numbers by their names; -1, a missing label of Hugging Face's datasets, becomes null."""

    label: str
    names: tuple[str, ...]

    @property
    def spec(self) -> str:
        """The option that names the label, with the names."""
        return f"--label {self.label} {self.names}"

    def schema(self, schema: Schema) -> Schema:
        named = Feature(name=self.label, dtype="string")
        return Schema(features=tuple(named if feature.name == self.label else feature for feature in schema.features))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Name the classes if the batch has the label; raises a SourceError if a number has no name."""
        i = batch.schema.get_field_index(self.label)
        if i < 0:
            return batch
        numbers = batch.column(i)
        unnamed = pc.or_(pc.less(numbers, -1), pc.greater_equal(numbers, len(self.names)))
        if pc.any(unnamed).as_py():
            raise SourceError(
                f"the label column {self.label!r} holds {numbers.filter(unnamed)[0]}, and Hugging Face's metadata name "
                f"only {len(self.names)} classes, from 0 on; keep the numbers with --cast {self.label}=int64"
            )
        places = pc.if_else(pc.equal(numbers, -1), None, numbers)
        return batch.set_column(i, self.label, pa.array(self.names, pa.string()).take(places))

"""Step that leaves rare classes out, or merges them into one.

Tested in tests/sharding/building/test_rare_classes.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.compute.arrow_casts import cast_column
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.schema import Schema


@dataclass(frozen=True, slots=True)
class RareClasses:
    """Drop the records of some classes, or give them another label."""

    label: str  # name of the label column
    values: tuple[Any, ...]  # the labels of the classes
    into: Any = None  # the label that their records get; None to drop them
    changes_rows: ClassVar[bool] = True

    @property
    def spec(self) -> str:
        """The option as on the command line, and the classes."""
        policy = "drop" if self.into is None else f"merge:{self.into}"
        return f"--rare-classes {policy} ({self.label} in {self.values})"

    def to_json(self) -> dict[str, Any]:
        """The entry in `dataset.json`."""
        return {"label": self.label, "values": list(self.values), "into": self.into}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RareClasses:
        """The inverse of `to_json`."""
        return cls(value["label"], tuple(value["values"]), value["into"])

    def schema(self, schema: Schema) -> Schema:
        """The same features; a new class comes after the label's ordered categories."""
        label = schema[self.label]
        if self.into is None or not label.categories or self.into in label.categories:
            return schema
        new = replace(label, categories=(*label.categories, self.into))
        return replace(schema, features=tuple(new if feature == label else feature for feature in schema.features))

    def needs(self, names: Collection[str], schema: Schema) -> frozenset[str]:
        """The same columns and the label."""
        return frozenset(names) | {self.label}

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        i = batch.schema.get_field_index(self.label)
        column = batch.column(i)
        rare = pc.is_in(column, pa.array(self.values, column.type))
        if self.into is None:
            return batch.filter(pc.invert(rare))
        return batch.set_column(i, self.label, pc.if_else(rare, pa.scalar(self.into, column.type), column))


def parse_rare_classes(text: str, kind: pa.DataType | None = None) -> tuple[str, Any]:
    """The policy, ``error``, ``drop`` or ``merge``, and the label to merge into, of the type `kind` if it is given.

    Raises:
        ConfigError: the text is no policy, or the label not of this type.

    >>> parse_rare_classes("drop"), parse_rare_classes("merge:7", pa.int64())
    (('drop', None), ('merge', 7))
    """
    if text in ("error", "drop"):
        return text, None
    policy, _, name = text.partition(":")
    if policy != "merge" or not name:
        raise ConfigError(f"what to do about rare classes must be error, drop or merge:NAME, got {text!r}")
    if kind is None:
        return policy, name
    try:
        return policy, cast_column(pa.array([name]), kind, "")[0].as_py()
    except (SourceError, pa.ArrowNotImplementedError) as error:
        raise ConfigError(f"--rare-classes {text}: the labels are {kind}, and {name!r} is none") from error

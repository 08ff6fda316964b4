"""The features of a dataset that a loader delivers: some of its columns, and where they lie in its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..sharding.errors import ConfigError
from ..sharding.formats.example import RecordLayout
from ..sharding.prepare.columns import check_columns, check_distinct
from ..sharding.schema import Schema

__all__ = ["project_layout", "project_schema"]


def project_schema(schema: Schema, columns: Sequence[str] | None) -> Schema:
    """The features named, in that order; all of them for None. The label need not be among them.

    Raises:
        ConfigError: no column, one that is not there, or one named twice.
    """
    if columns is None:
        return schema
    if isinstance(columns, str) or not columns:
        raise ConfigError(f"columns must be a list of at least one name, got {columns!r}")
    check_columns("columns", columns, schema.names)
    check_distinct("columns", columns)
    return Schema(
        features=tuple(schema[name] for name in columns), label=schema.label if schema.label in columns else None
    )


def project_layout(layout: RecordLayout, schema: Schema) -> RecordLayout:
    """The places of a schema's features, in its order, in records that may hold more."""
    places = {place.name: place for place in layout.columns}
    return replace(layout, columns=tuple(places[name] for name in schema.names))

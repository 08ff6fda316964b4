"""A column that travels with the drafts but is not stored in the shards.

The build needs it, for example to split by it. Either a step dropped it, or the records do not have it, like the split
of each record of a ringfeed dataset.
Tested in tests/sharding/assignment/test_split_by_column.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from ringfeed.sharding.compute.keyed_random import derive_key
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.sharding.sources.base import (
    NO_FEATURES,
    Reject,
    Source,
    WrappedSource,
    fail_on_bad,
    narrow_source,
    unwrap,
)
from ringfeed.sharding.sources.ringfeed import SPLIT, RingfeedSource

from .image_source import ImageSource
from .open import NO_SPLITS, open_prepared, prepare
from .options import PrepareOptions
from .steps import Drop, Select, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryingSource(WrappedSource):
    """A source whose drafts and sample have one column more than its records.

    Attributes:
        inner: source of the records with the column.
        column: name of the column.
    """

    column: str

    @property
    def schema(self) -> Schema:
        """The schema of the inner source without the column."""
        schema = self.inner.schema
        return schema.only(name for name in schema.names if name != self.column)

    @property
    def fingerprint(self) -> str:
        """A digest of the inner source and of the column."""
        return f"{derive_key(self.inner.fingerprint, 'without', self.column):016x}"

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        """The records of the inner source without the column."""
        schema = self.schema
        batch = self.inner.complete(drafts).select(list(schema.names))
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema.arrow)

    def narrow(self, columns: Collection[str]) -> Source:
        """The inner source with these columns."""
        return narrow_source(self.inner, columns)


def open_with_carried_column(
    url: str,
    label: str | None,
    kind: str,
    options: PrepareOptions,
    column: str | None,
    reject: Reject = fail_on_bad,
    types: Mapping[str, Feature] = NO_FEATURES,
    split_files: Mapping[str, str] = NO_SPLITS,
) -> Source:
    """Open and prepare a source like `open_prepared`, with a column in its drafts even if a step drops it.

    Args:
        url, label, kind: see `open_prepared`.
        options: preparation.
        column: name of the column after all steps, or None. For a ringfeed dataset, it may be `SPLIT`.
        reject, types, split_files: see `open_prepared`.

    >>> from ringfeed.sharding.prepare import PrepareOptions, Select
    >>> options = PrepareOptions(steps=(Select(("hours", "arrival")),))
    >>> open_with_carried_column("flights.parquet", None, "auto", options, "arrival").schema.names
    ('hours', 'arrival')
    """
    source = open_prepared(url, label, kind, options, reject, types, split_files)
    steps = tuple(kept for step in options.steps if (kept := _keeping(step, column)) is not None)
    if column is None or column in source.schema.names:
        return source
    base, kept_whole = unwrap(source), replace(options, steps=steps)
    try:
        if column == SPLIT and isinstance(base, RingfeedSource) and SPLIT not in base.schema.names:
            whole = prepare(base.with_splits(), kept_whole, label)
        elif steps == options.steps:
            return source
        else:
            whole = open_prepared(url, label, kind, kept_whole, reject, types)
    except ConfigError:  # the column does not exist; the steps as given were fine
        return source
    if column not in whole.schema.names:
        return source
    if isinstance(whole, ImageSource):  # stays outermost, because duplicates are found before images are transformed
        return replace(whole, inner=CarryingSource(inner=whole.inner, column=column))
    return CarryingSource(inner=whole, column=column)


def _keeping(step: Step, column: str | None) -> Step | None:
    """The step without its effect on a column; None if it only drops the column."""
    if column is not None and isinstance(step, Drop) and column in step.columns:
        left = tuple(name for name in step.columns if name != column)
        return Drop(left) if left else None
    if column is not None and isinstance(step, Select) and column not in step.columns:
        return Select((*step.columns, column))
    return step

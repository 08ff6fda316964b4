"""A source that applies steps to the records of another, batch by batch, and reads only the columns it needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile

import numpy as np
import pyarrow as pa

from ringfeed.sharding.compute.arrays import Int64
from ringfeed.sharding.compute.batches import slice_batch
from ringfeed.sharding.compute.keyed_random import derive_key
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.schema import Schema
from ringfeed.sharding.sources.base import (
    Part,
    Reject,
    Source,
    complete_slices,
    draft_columns,
    fail_on_bad,
    late_bytes,
    narrow_source,
)

from .class_label import class_steps
from .column_names import HIDDEN, expand_groups, is_hidden, select_present, visible_names
from .steps import Drop, Filter, Select, Step
from .user_map import MapBatches

_SAMPLE_RECORDS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSource:
    """A source that applies steps to the records of another.

    Columns that the inner source's drafts lack, such as the bytes of images, are *late*: steps on columns handle them
    in `complete`. If a step on rows needs a late column (a function needs all columns), or the label is late, the
    source is *eager*: it completes drafts first, slice by slice, and so reads late columns in every pass.

    Attributes:
        inner: source of the original records.
        steps: steps in order, functions bound.
        input_schemas: input schema of each step.
        schema: schema of the prepared records, with the label.
        eager: whether drafts are complete.
        late: columns that `complete` adds, by their names in the inner source.
        fingerprint: digest of the inner source and of the steps.

    >>> from ringfeed.sharding.prepare import PrepareOptions, Select, open_prepared
    >>> options = PrepareOptions(steps=(Select(("hours",)),))
    >>> open_prepared("flights.parquet", None, "auto", options).schema.names
    ('hours',)
    """

    inner: Source
    steps: tuple[Step, ...]
    input_schemas: tuple[Schema, ...]
    schema: Schema
    eager: bool
    late: frozenset[str]
    fingerprint: str

    @classmethod
    def over(
        cls,
        inner: Source,
        steps: Sequence[Step],
        label: str | None,
        class_names: Sequence[str] = (),
        last: Sequence[Step] = (),
    ) -> PreparedSource:
        """Check each step against the columns before it, and each function against the first records.

        A step that makes classes of the label follows, if it holds something else (see `class_steps`).

        Args:
            inner: source of the original records.
            steps: steps in order.
            label: name of the label column after the steps, or None.
            class_names: names of the label's numbers, or none.
            last: steps on the classes.

        Raises:
            ConfigError: a step does not fit the columns.
            SourceError: a function fails on the first records, or the label does not exist after the steps.
        """
        schema = Schema(features=inner.schema.features)
        inner = narrow_source(inner, _kept(steps, schema))  # columns that are dropped need not be readable
        late = frozenset(inner.schema.names) - draft_columns(inner)
        source = cls(inner=inner, steps=(), input_schemas=(), schema=schema, eager=False, late=late, fingerprint="")
        for step in steps:
            if step.changes_rows and source._late_now() & step.needs((), source.schema):
                source = replace(source, eager=True)
            if isinstance(step, MapBatches):
                step = step.bind(source.schema, source._first_records())
            elif isinstance(step, Filter):
                step = step.bind(source.schema)
            elif isinstance(step, (Drop, Select)):
                step = replace(step, columns=tuple(expand_groups(step.columns, source.schema.names)))
            source = source._then(step)
        for step in [*class_steps(source.schema, label, class_names), *last]:
            source = source._then(step)
        return replace(
            source,
            schema=Schema(features=source.schema.features, label=label),
            eager=source.eager or label in source._late_now(),
            fingerprint=source._digest(),
        )

    def _then(self, step: Step) -> PreparedSource:
        return replace(
            self,
            steps=(*self.steps, step),
            input_schemas=(*self.input_schemas, self.schema),
            schema=step.schema(self.schema),
        )

    def _digest(self) -> str:
        codes = [step.code_hash for step in self.steps if isinstance(step, MapBatches)]
        return f"{derive_key(self.inner.fingerprint, *(step.spec for step in self.steps), *codes):016x}"

    def with_class_step(self, step: Step) -> PreparedSource:
        """The same source with one more step, which changes no column but the label."""
        source = self._then(step)
        return replace(source, fingerprint=source._digest())

    def with_label(self, label: str) -> PreparedSource:
        """The same source with a column as the label."""
        return replace(self, schema=Schema(features=self.schema.features, label=label))

    @property
    def url(self) -> str:
        """The URL of the inner source."""
        return self.inner.url

    @property
    def parts(self) -> Sequence[Part]:
        return self.inner.parts

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """The label of each record: from the inner source's labels if they suffice, else from drafts."""
        label = self.schema.label
        needed = self._needed([] if label is None else [label])
        own = self.inner.schema.label
        if not self.eager and needed <= {own}:
            name = f"{HIDDEN}label" if own is None or own not in needed else own  # hidden: only counts the records
            columns = (pa.RecordBatch.from_arrays([values], names=[name]) for values in self.inner.labels(part, reject))
            batches = self._prepared(columns, part)
        else:
            batches = self._narrowed(needed).drafts(part, reject)
        for batch in batches:
            yield pa.nulls(batch.num_rows) if label is None else batch.column(label)

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """The prepared records without late columns, with the hidden columns that `complete` needs to read them."""
        for batch in self._prepared(self._inputs(self.inner.drafts(part, reject)), part):
            yield from slice_batch(select_present(batch, self.schema.names))

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """Prepared records of the inner source's sample; if steps drop them all, of the first batch with any left."""
        heads = self._prepared(self._inputs(iter([self.inner.sample(part, records)])), part)
        batches = [select_present(batch, self.schema.names) for batch in heads]
        joined = pa.Table.from_batches(batches).combine_chunks().to_batches() if batches else []
        if not joined and any(step.changes_rows for step in self.steps):
            joined = list(islice(self.drafts(part), 1))
        return joined[0].slice(0, records) if joined else self._nothing()

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        """Read the late columns, prepare and add them."""
        if not drafts.num_rows:
            return self.schema.empty
        columns = {name: drafts.column(name) for name in visible_names(drafts)}
        if not set(self.schema.names) <= set(columns):
            whole = self.inner.complete(_inner_drafts(drafts))
            late = self._prepare_late(whole.select([name for name in whole.schema.names if name in self.late]))
            columns |= {name: late.column(name) for name in late.schema.names}
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema.arrow)

    def late_bytes(self, part: Part, drafts: pa.RecordBatch) -> Int64:
        """The late bytes of the inner source, or zeros if the steps keep no late column of bytes."""
        if not any(self.schema[name].dtype == "binary" for name in self._late_now() & set(self.schema.names)):
            return np.zeros(drafts.num_rows, np.int64)
        return late_bytes(self.inner, part, _inner_drafts(drafts))

    def narrow(self, columns: Collection[str]) -> PreparedSource:
        """The same records with these columns; columns that neither they nor the steps on rows need stay unread."""
        return self._narrowed(self._needed(columns), columns)

    def _narrowed(self, needed: frozenset[str], columns: Collection[str] | None = None) -> PreparedSource:
        inner = self.inner if self.late else narrow_source(self.inner, needed)  # completion picks its own columns
        return replace(self, inner=inner, schema=self.schema if columns is None else self.schema.only(columns))

    def _needed(self, columns: Collection[str]) -> frozenset[str]:
        """The inner source's columns that these columns, and the choice of records, depend on."""
        needed = frozenset(columns)
        for step, schema in zip(reversed(self.steps), reversed(self.input_schemas), strict=True):
            needed = step.needs(needed, schema)
        return needed

    def _inputs(self, drafts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The input of the steps: completed drafts, or drafts with a hidden copy, from which to complete them later."""
        for batch in drafts:
            if self.eager:
                yield from complete_slices(self.inner, batch)
            elif self.late:
                names = [*batch.schema.names, *(f"{HIDDEN}{name}" for name in batch.schema.names)]
                yield pa.RecordBatch.from_arrays([*batch.columns, *batch.columns], names=names)
            else:
                yield batch

    def _prepared(self, batches: Iterator[pa.RecordBatch], part: Part) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            try:
                result = batch
                for step in self.steps:
                    result = step.apply(result)
            except SourceError as error:
                raise SourceError(f"{part.path}: {error}") from error
            if result.num_rows:
                yield result

    def _prepare_late(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Apply the steps on columns to late columns."""
        for step in self.steps:
            batch = batch if step.changes_rows else step.apply(batch)
        return batch

    def _late_now(self) -> frozenset[str]:
        """The late columns by their names after the steps."""
        if self.eager:
            return frozenset()
        return frozenset(self._prepare_late(self.inner.schema.only(self.late).empty).schema.names)

    def _first_records(self) -> pa.RecordBatch:
        """Some prepared records to try a function on; an empty batch if there are none."""
        for part in self.parts:
            batch = self.sample(part, _SAMPLE_RECORDS)
            if batch.num_rows:
                return batch
        return self._nothing()

    def _nothing(self) -> pa.RecordBatch:
        return self.schema.only(set(self.schema.names) - self._late_now()).empty


def _kept(steps: Sequence[Step], schema: Schema) -> frozenset[str]:
    """The columns needed by the steps before the first function, or by it, which takes all that remain."""
    before_function = []
    for step in takewhile(lambda step: not isinstance(step, MapBatches), steps):
        before_function.append((step, schema))
        schema = step.schema(schema)
    needed = frozenset(schema.names)
    for step, before in reversed(before_function):
        needed = step.needs(needed, before)
    return needed


def _inner_drafts(drafts: pa.RecordBatch) -> pa.RecordBatch:
    """The drafts of the inner source, from the hidden columns of a source with late columns."""
    hidden = [name for name in drafts.schema.names if is_hidden(name)]
    names = [name.removeprefix(HIDDEN) for name in hidden]
    return pa.RecordBatch.from_arrays(drafts.select(hidden).columns, names=names)

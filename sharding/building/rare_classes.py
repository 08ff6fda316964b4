"""Find the classes with too few records, for `--rare-classes drop` and `merge:NAME`, from the counts of a plan.

The step that results names the classes, and is recorded, so that a repair or an append treats them in the same way.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.assignment.label_counts import ValueCounts
from ringfeed.sharding.compute.arrays import Bools
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.messages import counted, listed
from ringfeed.sharding.prepare.carried_column import CarryingSource
from ringfeed.sharding.prepare.image_source import ImageSource
from ringfeed.sharding.prepare.prepared_source import PreparedSource
from ringfeed.sharding.prepare.rare_classes import RareClasses, parse_rare_classes
from ringfeed.sharding.schema import Schema, class_array
from ringfeed.sharding.sources import Source

from .build_context import BuildContext
from .options import BuildOptions

_logger = logging.getLogger(__name__)


def merged_label(options: BuildOptions, schema: Schema) -> Any:
    """The label to merge rare classes into, in the type of the labels; None to drop them.

    Raises:
        ConfigError: there is no label, or it cannot hold the name of the merged class.
    """
    if schema.label is None:
        raise ConfigError("--rare-classes needs classes; name their column with --label")
    return parse_rare_classes(options.rare_classes, schema[schema.label].primitive)[1]


def find_rare_classes(tally: ValueCounts, schema: Schema, context: BuildContext) -> RareClasses | None:
    """The step that drops or merges the classes that are rare; None if none are, or may be.

    A class is rare if it is new and has fewer records than ``min_class_records``, or than there are splits to share it.

    Raises:
        SourceError: the merged class has too few records, too.
    """
    options = context.options
    if options.rare_classes == "error":
        return None
    shares = 1 if options.deciding_column is not None or options.split_files else len(options.splits)
    least = max(options.min_class_records, shares)
    known = class_array(schema, () if context.base is None else context.base.classes)
    few = tally.counts < least
    few &= pc.is_null(pc.index_in(tally.values, value_set=known)).to_numpy(zero_copy_only=False)
    if not few.any():
        return None
    into = merged_label(options, schema)
    if into is not None:
        _check_merged(tally, few, into, least, known)
    values = tally.values.filter(pa.array(few)).sort().to_pylist()
    _logger.warning(
        "%s with fewer than %d records, %s in all, %s: %s",
        counted(len(values), "class/classes"), least, counted(int(np.sum(tally.counts[few])), "record"),
        "dropped" if into is None else f"merged into {into!r}", listed([repr(value) for value in values]),
    )  # fmt: skip
    return RareClasses(str(schema.label), tuple(values), into)


def _check_merged(tally: ValueCounts, few: Bools, into: Any, least: int, known: pa.Array) -> None:
    """Refuse to merge into a class that stays rare (a SourceError)."""
    label = pa.scalar(into, tally.values.type)
    is_into = pc.equal(tally.values, label).fill_null(False).to_numpy(zero_copy_only=False)
    records = int(tally.counts[few | is_into].sum())
    if records >= least or pc.index(known, label).as_py() >= 0:
        return
    largest = tally.values[int(np.argmax(tally.counts))].as_py()
    raise SourceError(
        f"--rare-classes merge:{into}: the merged class has {counted(records, 'record')}, fewer than {least}; merge "
        f"into a class that has more, such as merge:{largest}, or leave such classes out with --rare-classes drop"
    )


def with_class_step(source: Source, step: RareClasses) -> Source:
    """A prepared source with one more step on the classes of its records."""
    if isinstance(source, PreparedSource):
        return source.with_class_step(step)
    if isinstance(source, (ImageSource, CarryingSource)):
        return replace(source, inner=with_class_step(source.inner, step))
    return PreparedSource.over(source, (), source.schema.label, last=(step,))

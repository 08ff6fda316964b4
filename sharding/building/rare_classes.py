"""Find the classes with too few records, for `--rare-classes drop` and `merge:NAME`, before a build is planned.

Counts the records once more than a plain build. The options that result name the classes, and are recorded, so that a
repair or an append treats the same classes in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.assignment.label_counts import ValueCounts
from ringfeed.sharding.dataset.earlier_shards import EarlierShards
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.destination.spill import spill_root
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.messages import counted, listed
from ringfeed.sharding.prepare.rare_classes import RareClasses, parse_rare_classes
from ringfeed.sharding.progress import Report, ignore
from ringfeed.sharding.schema import Feature, class_array
from ringfeed.sharding.sources.base import NO_FEATURES

from .build_context import BuildContext, build_engine
from .options import BuildOptions
from .planning import count_labels, open_build_source

_logger = logging.getLogger(__name__)


def _check_merged(tally: ValueCounts, few: npt.NDArray[np.bool_], into: Any, least: int, base: Manifest | None) -> None:
    """Refuse to merge into a class that stays rare (a SourceError)."""
    is_into = pc.equal(tally.values, pa.scalar(into, tally.values.type)).fill_null(False).to_numpy(zero_copy_only=False)
    records = int(tally.counts[few | is_into].sum())
    if records >= least or (base is not None and into in base.classes):
        return
    largest = tally.values[int(np.argmax(tally.counts))].as_py()
    raise SourceError(
        f"--rare-classes merge:{into}: the merged class has {counted(records, 'record')}, fewer than {least}; merge "
        f"into a class that has more, such as merge:{largest}, or leave such classes out with --rare-classes drop"
    )


def settle_rare_classes(
    options: BuildOptions,
    base: Manifest | None = None,
    earlier: EarlierShards | None = None,
    types: Mapping[str, Feature] = NO_FEATURES,
    *,
    executor: Executor | None = None,
    report: Report = ignore,
) -> BuildOptions:
    """Options whose preparation drops or merges the classes that are rare; the same options if none are, or may be.

    A class is rare if it is new and has fewer records than ``min_class_records``, or than there are splits to share it.

    Args:
        base: manifest of the dataset that is appended to, or None.
        earlier: shards of that dataset, or None.
        types: see `open_build_source`.
        executor: executor of the tasks; by default, the engine of the options.
        report: called after every task.

    Raises:
        ConfigError: there is no label, or it cannot hold the name of the merged class.
        SourceError: the merged class has too few records, too.
    """
    if options.rare_classes == "error":
        return options
    source = open_build_source(options, types)
    label = source.schema.label
    if label is None:
        raise ConfigError("--rare-classes needs classes; name their column with --label")
    kind = source.schema[label].primitive
    _, into = parse_rare_classes(options.rare_classes, kind)
    with build_engine(options) if executor is None else nullcontext(executor) as pool:
        context = BuildContext(options=options, pool=pool, report=report, base=base, earlier=earlier)
        tally = count_labels(source, context, spill_root(options.spill, options.destination))
    known = class_array(source.schema, () if base is None else base.classes)
    shares = 1 if options.deciding_column is not None or options.split_files else len(options.splits)
    few = tally.counts < max(options.min_class_records, shares)
    few &= pc.is_null(pc.index_in(tally.values, value_set=known)).to_numpy(zero_copy_only=False)
    if not few.any():
        return options
    if into is not None:
        _check_merged(tally, few, into, max(options.min_class_records, shares), base)
    values = tally.values.filter(pa.array(few)).sort().to_pylist()
    _logger.warning(
        "%s with fewer than %d records, %s in all, %s: %s",
        counted(len(values), "class/classes"), max(options.min_class_records, shares),
        counted(int(np.sum(tally.counts[few])), "record"),
        "dropped" if into is None else f"merged into {into!r}", listed([repr(value) for value in values]),
    )  # fmt: skip
    step = RareClasses(label, tuple(values), into)
    return replace(options, prepare=replace(options.prepare, rare_classes=(*options.prepare.rare_classes, step)))

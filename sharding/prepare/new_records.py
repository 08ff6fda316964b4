"""Opens new records for a model: prepared as the records that it was trained on, in the types that it takes.

Every record stays, in its order: filters, duplicates and rare classes chose records to learn from. Columns that the
new records lack, such as the label, are left out of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from ringfeed.sharding.compute.arrow_casts import cast_column
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.messages import did_you_mean, listed
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.sharding.sources import open_source
from ringfeed.sharding.sources.base import BadRecord, Source, complete_slices
from ringfeed.sharding.sources.detect import kind_of
from ringfeed.sharding.sources.images.class_folders import ImageFolderSource
from ringfeed.sharding.sources.text.csv_dialect import CsvDialect
from ringfeed.sharding.sources.text.declared_types import cast_text

from .casts import Cast
from .column_names import is_in_group
from .comma_lists import ALL
from .null_steps import DropNulls, FillNulls, MaskNulls
from .open import open_prepared
from .options import PrepareOptions
from .steps import Drop, Filter, Rename, Select, Step

_DIALECT_KINDS = ("csv", "image-list")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecords:
    """Records to score, in the order of their source."""

    source: Source  # the prepared source
    features: tuple[Feature, ...]  # the columns that the model takes
    kept: Mapping[str, str]  # the columns to copy: the name that the source gives each, and its name after the steps

    @property
    def schema(self) -> Schema:
        """The copied columns, by the names that the source gives them."""
        features = [replace(self.source.schema[new], name=old) for old, new in self.kept.items()]
        return Schema(features=tuple(features))

    def batches(self) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Read the records: the columns that the model takes, in its types, and the copied ones.

        Raises:
            SourceError: a record cannot be read, or a value has no such type.
        """
        for part in self.source.parts:
            for drafts in self.source.drafts(part, _fail):
                for batch in complete_slices(self.source, drafts):
                    taken = [self._converted(batch, feature, part.path) for feature in self.features]
                    inputs = pa.RecordBatch.from_arrays(taken, schema=Schema(features=self.features).arrow)
                    yield inputs, batch.select(list(self.kept.values())).rename_columns(list(self.kept))

    def _converted(self, batch: pa.RecordBatch, feature: Feature, path: str) -> pa.Array:
        own, column = self.source.schema[feature.name], batch.column(feature.name)
        if own.time_type is not None and feature.time_type is not None:
            column = column.view(own.time_type).cast(feature.time_type)
        if own.dtype == "string" and feature.dtype not in ("string", "binary") and not feature.shape:
            column, failed = cast_text(column, feature)
            if failed.any():
                text = batch.column(feature.name)[int(failed.argmax())].as_py()
                kind = feature.logical or feature.dtype
                raise SourceError(f"{path}: column {feature.name!r}: {text[:50]!r} is no {kind}, which the model takes")
        what = f"{path}: column {feature.name!r}, which the model takes as {feature.dtype}"
        return cast_column(feature.conform(column) if feature.logical else column, feature.arrow_type, what)


def _read_as(source: Any, kind: str, options: PrepareOptions, csv: Mapping[str, Any]) -> PrepareOptions:
    """Return the options to read new records with, which may be written otherwise than those before."""
    if kind in _DIALECT_KINDS:
        return replace(options, csv=replace(options.csv, **csv))
    if csv:
        raise ConfigError(f"--{next(iter(csv))} is for CSV and TSV, and {source} is of kind {kind}; leave it out")
    return replace(options, csv=CsvDialect(), null_values=())


def open_new_records(
    source: Any,
    options: PrepareOptions,
    features: Sequence[Feature],
    *,
    keep: Sequence[str] = (),
    kind: str = "auto",
    csv: Mapping[str, Any] | None = None,
) -> NewRecords:
    """Open records to score.

    Args:
        source: URL or path of anything that `sources.open_source` opens, or `MemoryRecords`.
        options: how the records were prepared that the model was trained on.
        features: the columns that the model takes, by their names after all steps.
        keep: columns to copy, by the names that the source gives them; ``*``: all; empty: of image files, the path.
        kind: see `sources.open_source`.
        csv: fields of `CsvDialect` that differ from those of the records before.

    Raises:
        SourceError: the records cannot be read.
        ConfigError: a column that the model takes, or that is to be copied, is not there.
    """
    if kind == "auto":
        kind = kind_of(source)
    options = _read_as(source, kind, options, csv or {})
    opened = open_source(
        source,
        None,
        kind=kind,
        reject=_fail,
        wanted=partial(_may_be_wanted, options.steps, features, keep),
        null_values=options.null_values,
        images_from=options.images_from,
        csv=options.csv,
        unlabelled=True,
    )
    names = opened.schema.names
    own = ("path",) if isinstance(opened, ImageFolderSource) else ()  # else nothing says which image a record is
    copied = tuple(names) if ALL in keep else tuple(keep) or own
    for name in copied:
        if name not in names:
            raise ConfigError(f"--keep: {source} has no column {name!r}; {_hint(name, names)}")
    present = {name: feature for name, feature in options.features.items() if name in names}
    plain = replace(options, features=present, dedup=None, rare_classes=())

    def names_after(steps: tuple[Step, ...]) -> tuple[str, ...]:
        return open_prepared(source, None, kind, replace(plain, steps=steps), _fail, unlabelled=True).schema.names

    steps, after = _fitting_steps(options.steps, names, copied, names_after)
    lacking = [feature.name for feature in features if feature.name not in after.values()]
    if lacking and not _makes_columns(steps):
        hint = _hint(lacking[0], names) if len(lacking) == 1 else f"the columns are: {listed(names)}"
        raise ConfigError(f"{source} lacks columns that the model takes: {listed(lacking)}; {hint}")
    types = {feature.name: feature for feature in features if feature.name in after.values()}
    prepared = open_prepared(source, None, kind, replace(plain, steps=steps), _fail, types, unlabelled=True)
    for feature in features:
        _check_shape(source, prepared.schema, feature)
    return NewRecords(source=prepared, features=tuple(features), kept={name: after[name] for name in copied})


def _fail(record: BadRecord) -> None:
    raise SourceError(str(record))


def _may_be_wanted(steps: Sequence[Step], features: Sequence[Feature], keep: Sequence[str], name: str) -> bool:
    """Whether a column of the source may reach the model, or is copied; others may have any type."""
    before = {new: old for step in steps if isinstance(step, Rename) for old, new in step.names}
    wanted = {before.get(feature.name, feature.name) for feature in features} | set(keep)
    has_function = _makes_columns(steps)
    return has_function or ALL in keep or any(name == one or is_in_group(one, name) for one in wanted)


def _makes_columns(steps: Sequence[Step]) -> bool:
    """Whether a step may make columns that the source does not have."""
    return any(not isinstance(step, (Drop, Select, Rename, Cast, FillNulls, Filter, DropNulls)) for step in steps)


def _fitting_steps(
    steps: Sequence[Step],
    names: Collection[str],
    keep: Collection[str],
    names_after: Callable[[tuple[Step, ...]], Collection[str]],
) -> tuple[tuple[Step, ...], dict[str, str]]:
    """Return the steps for a source that may lack columns, and the name of each column after them.

    Args:
        names_after: returns the columns after some steps; asked after a function, which takes and makes any columns.

    Raises:
        ConfigError: a function drops a column to copy.
    """
    after = {name: name for name in names}
    fitting: list[Step] = []
    is_known = True
    for step in steps:
        if isinstance(step, (Filter, DropNulls)):
            continue
        if not is_known:
            present = names_after(tuple(fitting))
            if lost := next((name for name in keep if after[name] not in present), ""):
                raise ConfigError(f"--keep: a function of --map leaves out the column {lost!r}; keep another")
            after = {old: new for old, new in after.items() if new in present}
            after |= {name: name for name in present if name not in after.values()}
        fitted = _fitted(step, after.values(), {after[name] for name in keep})
        if fitted is None:
            continue
        fitting.append(fitted)
        if isinstance(fitted, Rename):
            after = {old: dict(fitted.names).get(new, new) for old, new in after.items()}
        is_known = not _makes_columns([step])
    return tuple(fitting), after


def _fitted(step: Step, names: Collection[str], keep: Collection[str]) -> Step | None:
    """Return a step on those of its columns that are there; columns to copy are not dropped. None: nothing is left."""
    match step:
        case Select(columns):
            wanted = [name for name in columns if _stands_for(name, names)]
            return Select((*wanted, *(name for name in keep if name not in wanted)))
        case Drop(columns):
            left = tuple(name for name in columns if _stands_for(name, names) and name not in keep)
            return Drop(left) if left else None
        case Rename(pairs):
            left_pairs = tuple(pair for pair in pairs if pair[0] in names)
            return Rename(left_pairs) if left_pairs else None
        case Cast(pairs) | FillNulls(pairs):
            left_pairs = tuple(pair for pair in pairs if pair[0] in names)
            return type(step)(left_pairs) if left_pairs else None
        case MaskNulls(columns):
            left = tuple(name for name in columns if name in names)
            return MaskNulls(left) if left else None
    return step


def _stands_for(name: str, names: Collection[str]) -> bool:
    """Whether a name is a column, or a group of columns."""
    return any(own == name or is_in_group(own, name) for own in names)


def _check_shape(source: Any, schema: Schema, feature: Feature) -> None:
    if feature.name not in schema.names:
        raise ConfigError(f"{source} lacks column {feature.name!r}, which the model takes")
    own = schema[feature.name].shape
    if own != feature.shape:
        raise ConfigError(
            f"{source}: the model takes values of shape {list(feature.shape)} in column {feature.name!r}, which holds "
            f"values of shape {list(own)}"
        )


def _hint(name: str, names: Sequence[str]) -> str:
    return did_you_mean(name, list(names), f"the columns are: {listed(list(names))}")

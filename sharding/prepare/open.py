"""Open a source under the names and types that its columns have before the steps, then apply the steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.schema import Feature
from ringfeed.sharding.sources import Source, open_source
from ringfeed.sharding.sources.base import (
    NO_FEATURES,
    NamedClassesSource,
    Reject,
    SelectiveSource,
    draft_columns,
    fail_on_bad,
)
from ringfeed.sharding.sources.split_files import open_splits

from .casts import Cast, Float32, SetTypes
from .class_label import class_steps
from .column_names import is_in_group
from .image_source import ImageSource
from .options import PrepareOptions
from .prepared_source import PreparedSource
from .steps import Drop, Rename, Select, Step
from .user_map import MapBatches

NO_SPLITS: Mapping[str, str] = MappingProxyType({})  # no split has files of its own


def open_prepared(
    url: str,
    label: str | None,
    kind: str,
    options: PrepareOptions,
    reject: Reject = fail_on_bad,
    types: Mapping[str, Feature] = NO_FEATURES,
    split_files: Mapping[str, str] = NO_SPLITS,
    *,
    unlabelled: bool = False,
) -> Source:
    """Open and prepare a source, except for duplicates (see `screening.duplicates`), which take a round of their own.

    Args:
        url: see `sources.open_source`.
        label: name of the label column after all steps, or None.
        kind: see `sources.open_source`.
        options: preparation.
        reject: see `sources.open_source`.
        types: types expected of columns after all steps, a hint to sources that would infer them.
        split_files: pattern of the files of each split, by its name (see `open_splits`); empty: `url` names all files.
        unlabelled: see `sources.open_source`.

    Raises:
        SourceError: see `sources.open_source`.
        ConfigError: a step does not fit the columns.

    >>> from ringfeed.sharding.prepare import PrepareOptions, Select
    >>> open_prepared("flights.parquet", None, "auto", PrepareOptions(steps=(Select(("hours",)),))).schema.names
    ('hours',)
    """
    name = None if label is None else _before(options.steps, label)
    wanted = partial(_is_wanted, options.steps)
    opened: Callable[..., Source] = partial(
        partial(_open_split_files, split_files=split_files) if split_files else open_source,
        url,
        kind=kind,
        reject=reject,
        wanted=wanted,
        casts=_casts_before(options.steps),
        null_values=options.null_values,
        images_from=options.images_from,
        csv=options.csv,
        unlabelled=unlabelled,
    )
    if not any(isinstance(step, MapBatches) for step in options.steps):
        expected = {key: feature for key, feature in types.items() if key != label or feature.dtype != "int64"}
        if options.float32:  # read as 64 bits, to be rounded once
            expected = {key: _of_64_bits(feature) for key, feature in expected.items()}
        source = _open_expected(opened, name, options.features, _types_before(options.steps, expected))
    else:
        source = opened(None, features=options.features)  # a function may make the label column
        if source.schema.label not in (None, name) and name is not None:  # images: the label exists under any name
            source = opened(name, features=options.features)
    left_out = source.left_out if isinstance(source, SelectiveSource) else ()
    has_numbers = label is not None and label in types and types[label].dtype != "string"
    names = source.class_names if isinstance(source, NamedClassesSource) and not has_numbers else ()
    return prepare(source, replace(options, steps=_without(options.steps, left_out)), label, names)


def _of_64_bits(feature: Feature) -> Feature:
    return replace(feature, dtype="float64") if feature.dtype == "float32" else feature


def _open_split_files(
    url: str,
    label: str | None,
    *,
    split_files: Mapping[str, str],
    features: Mapping[str, Feature] = NO_FEATURES,
    **options: Any,
) -> Source:
    """Open a source for each split."""

    def opened(each: str, types: Mapping[str, Feature]) -> Source:
        return open_source(each, label, features={**types, **features}, **options)

    return open_splits(url, split_files, opened)


def _is_wanted(steps: Sequence[Step], name: str) -> bool:
    """Whether a column, or one in its group, survives the steps up to the first that does more than drop columns."""
    for step in steps:
        if isinstance(step, Drop):
            if name in step.columns:
                return False
        elif not isinstance(step, Select):
            return True
        elif not any(
            column == name or is_in_group(column, name) or is_in_group(name, column) for column in step.columns
        ):
            return False
    return True


def _without(steps: Sequence[Step], left_out: Collection[str]) -> tuple[Step, ...]:
    """The steps for a source that lacks some of the columns that they drop."""
    kept: list[Step] = []
    for step in steps:
        if isinstance(step, (Drop, Select)) and not set(left_out).isdisjoint(step.columns):
            names = tuple(name for name in step.columns if name not in left_out)
            if names:
                kept.append(replace(step, columns=names))
            elif isinstance(step, Select):  # it says that there is no such column
                kept.append(step)
        else:
            kept.append(step)
    return tuple(kept)


def _open_expected(
    opened: Callable[..., Source], label: str | None, features: Mapping[str, Feature], expected: Mapping[str, Feature]
) -> Source:
    """Open a source with expected types; without them if they do not fit."""
    if expected:
        with suppress(SourceError, ConfigError):  # a column is missing, or its type is none of text: infer the types
            return opened(label, features={**expected, **features})
    return opened(label, features=features)


def prepare(
    source: Source, options: PrepareOptions, label: str | None = None, class_names: Sequence[str] = ()
) -> Source:
    """Apply a preparation to a source.

    Args:
        source: source to prepare.
        options: preparation.
        label: name of the label column after all steps; None: the source's own label, if the steps keep it.
        class_names: names of the label's numbers, or none.

    >>> from ringfeed.sharding.prepare import PrepareOptions, Rename, open_prepared
    >>> source = open_prepared("flights.parquet", None, "auto", PrepareOptions())
    >>> prepare(source, PrepareOptions(steps=(Rename((("miles", "distance"),)),))).schema.names
    ('hours', 'distance', 'hour', 'carrier', 'arrival')
    """
    steps: list[Step] = [SetTypes(tuple(options.features.values()))] if options.features else []
    steps += options.steps
    own = None if source.schema.label is None else _after(steps, source.schema.label)
    steps += [Float32(own if label is None else label)] if options.float32 else []
    result = source
    if steps or options.rare_classes or class_steps(source.schema, label, class_names):
        prepared = PreparedSource.over(source, steps, label, class_names, options.rare_classes)
        result = prepared.with_label(own) if label is None and own in prepared.schema.names else prepared
    if options.images is None:
        return result
    sides = {side: _after(steps, side) for side in ("height", "width")}
    present = {side for side, name in sides.items() if name in result.schema.names}
    left_out = not present and set(sides) <= set(source.schema.names)
    if len(present) == 1 and present & draft_columns(source):  # alone, and not read with the image: may mean anything
        present = set()
    height, width = (sides[side] if side in present else None for side in ("height", "width"))
    return ImageSource.over(result, options.images, height=height, width=width, left_out=left_out)


def _before(steps: Sequence[Step], name: str) -> str:
    """The name before the steps of a column that has a name after them."""
    for step in reversed(steps):
        if isinstance(step, Rename):
            name = {new: old for old, new in step.names}.get(name, name)
    return name


def _types_before(steps: Sequence[Step], types: Mapping[str, Feature]) -> dict[str, Feature]:
    """The types of columns before the steps, as far as their types after the steps imply them."""
    result = dict(types)
    for step in reversed(steps):
        if isinstance(step, Rename):
            result = _renamed_back(result, step)
        elif isinstance(step, Cast):
            result = {name: feature for name, feature in result.items() if name not in dict(step.dtypes)}
    return result


def _casts_before(steps: Sequence[Step]) -> dict[str, Feature]:
    """The type that each column is first cast to, by its name before the steps."""
    result: dict[str, Feature] = {}
    for step in reversed(steps):
        if isinstance(step, Rename):
            result = _renamed_back(result, step)
        elif isinstance(step, Cast):
            with suppress(ValueError):  # an unknown type, which the step reports
                result |= {name: Feature(name=name, dtype=dtype) for name, dtype in step.dtypes}
    return result


def _renamed_back(features: Mapping[str, Feature], step: Rename) -> dict[str, Feature]:
    """Features by the names that they had before a step."""
    before = {new: old for old, new in step.names}
    names = {name: before.get(name, name) for name in features}
    return {names[name]: replace(feature, name=names[name]) for name, feature in features.items()}


def _after(steps: Sequence[Step], name: str) -> str:
    """The name of a column after the steps, if they keep it."""
    for step in steps:
        if isinstance(step, Rename):
            name = dict(step.names).get(name, name)
    return name

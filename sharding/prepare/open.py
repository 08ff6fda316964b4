"""Open a source as the preparation asks for it: with the label by its name in the source, then the steps around it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ..errors import ConfigError, SourceError
from ..schema import Feature
from ..sources import Source, open_source
from ..sources.base import NO_FEATURES, Reject, SelectiveSource, draft_columns, fail_on_bad
from .casts import Cast, SetTypes
from .column_names import is_in_group
from .image_source import ImageSource
from .options import PrepareOptions
from .prepared_source import PreparedSource
from .steps import Drop, Rename, Select, Step
from .user_map import MapBatches

__all__ = ["open_prepared", "prepare"]


def open_prepared(
    url: str,
    label: str | None,
    kind: str,
    options: PrepareOptions,
    reject: Reject = fail_on_bad,
    types: Mapping[str, Feature] = NO_FEATURES,
) -> Source:
    """Open a dataset to be sharded, and prepare it but for doubles (see `dedup`), which takes a round of its own.

    Args:
        url: see `sources.open_source`.
        label: the column of the classes, by its name after all steps. Or None.
        kind: see `sources.open_source`.
        options: what to do.
        reject: see `sources.open_source`.
        types: that columns are expected to have after all steps, for kinds that would else infer them; they may come
            out otherwise.

    Raises:
        SourceError: see `sources.open_source`.
        ConfigError: a step does not fit the columns.
    """
    name = None if label is None else _before(options.steps, label)
    wanted = partial(_is_wanted, options.steps)
    opened = partial(open_source, url, kind=kind, reject=reject, wanted=wanted, casts=_casts_before(options.steps))
    if not any(isinstance(step, MapBatches) for step in options.steps):
        source = _open_expected(opened, name, options.features, _types_before(options.steps, types))
    else:
        source = opened(None, features=options.features)  # the label may be a column that a function is yet to make
        if source.schema.label not in (None, name) and name is not None:  # images: the label is there, by any name
            source = opened(name, features=options.features)
    left_out = source.left_out if isinstance(source, SelectiveSource) else ()
    return prepare(source, replace(options, steps=_without(options.steps, left_out)), label)


def _is_wanted(steps: Sequence[Step], name: str) -> bool:
    """Whether a column, or one in it, is there yet when a step comes that does more than leave columns out."""
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
    """The steps, where some of the columns that they leave out are not there in the first place."""
    kept: list[Step] = []
    for step in steps:
        if isinstance(step, Drop) and not set(left_out).isdisjoint(step.columns):
            names = tuple(name for name in step.columns if name not in left_out)
            kept += [Drop(names)] if names else []
        else:
            kept.append(step)
    return tuple(kept)


def _open_expected(
    opened: Callable[..., Source],
    label: str | None,
    given: Mapping[str, Feature],
    expected: Mapping[str, Feature],
) -> Source:
    if expected:
        with suppress(SourceError, ConfigError):  # a column is not there, or no type of text: infer what there is
            return opened(label, features={**expected, **given})
    return opened(label, features=given)


def prepare(source: Source, options: PrepareOptions, label: str | None = None) -> Source:
    """A source with the steps around it.

    Args:
        source: of what goes in.
        options: what to do.
        label: the column of the classes, by its name after all steps; None: the source's own, if it is still there.
    """
    steps = [*([SetTypes(tuple(options.features.values()))] if options.features else []), *options.steps]
    result = source
    if steps:
        own = None if source.schema.label is None else _after(steps, source.schema.label)
        prepared = PreparedSource.over(source, steps, label)
        result = prepared.labelled(own) if label is None and own in prepared.schema.names else prepared
    if options.images is None:
        return result
    sides = {side: _after(steps, side) for side in ("height", "width")}
    told = {side for side, name in sides.items() if name in result.schema.names}
    left_out = not told and set(sides) <= set(source.schema.names)
    if len(told) == 1 and told & draft_columns(source):  # alone, and not read with the image: it may be anything's
        told = set()
    height, width = (sides[side] if side in told else None for side in ("height", "width"))
    return ImageSource.over(result, options.images, height=height, width=width, left_out=left_out)


def _before(steps: Sequence[Step], name: str) -> str:
    """What a column that bears a name after the steps was called before them."""
    for step in reversed(steps):
        if isinstance(step, Rename):
            name = {new: old for old, new in step.names}.get(name, name)
    return name


def _types_before(steps: Sequence[Step], types: Mapping[str, Feature]) -> dict[str, Feature]:
    """What the types of columns after the steps tell of those before them."""
    result = dict(types)
    for step in reversed(steps):
        if isinstance(step, Rename):
            before = {new: old for old, new in step.names}
            result = {before.get(name, name): feature for name, feature in result.items()}
        elif isinstance(step, Cast):
            result = {name: feature for name, feature in result.items() if name not in dict(step.dtypes)}
    return {name: replace(feature, name=name) for name, feature in result.items()}


def _casts_before(steps: Sequence[Step]) -> dict[str, Feature]:
    """What columns are cast to first, by what they were called before the steps."""
    result: dict[str, Feature] = {}
    for step in reversed(steps):
        if isinstance(step, Rename):
            before = {new: old for old, new in step.names}
            result = {before.get(name, name): feature for name, feature in result.items()}
        elif isinstance(step, Cast):
            with suppress(ValueError):  # there is no such type: the step will say so
                result |= {name: Feature(name=name, dtype=dtype) for name, dtype in step.dtypes}
    return {name: replace(feature, name=name) for name, feature in result.items()}


def _after(steps: Sequence[Step], name: str) -> str:
    """What a column is called after the steps, if it is still there."""
    for step in steps:
        if isinstance(step, Rename):
            name = dict(step.names).get(name, name)
    return name

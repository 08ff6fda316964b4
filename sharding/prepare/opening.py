"""Open a source as the preparation asks for it: with the label by its name in the source, then the steps around it."""

from __future__ import annotations

from collections.abc import Sequence

from ..sources import Source, open_source
from ..sources.base import Reject, fail_on_bad
from .casts import SetTypes
from .image_source import ImageSource
from .mapping import MapBatches
from .options import PrepareOptions
from .source import PreparedSource, draft_columns
from .steps import Rename, Step

__all__ = ["open_prepared", "prepare"]


def open_prepared(
    url: str, label: str | None, kind: str, options: PrepareOptions, reject: Reject = fail_on_bad
) -> Source:
    """Open a dataset to be sharded, and prepare it but for doubles (see `dedup`), which takes a round of its own.

    Args:
        url: see `sources.open_source`.
        label: the column of the classes, by its name after all steps. Or None.
        kind: see `sources.open_source`.
        options: what to do.
        reject: see `sources.open_source`.

    Raises:
        SourceError: see `sources.open_source`.
        ConfigError: a step does not fit the columns.
    """
    if not (options.steps or options.features):
        return prepare(open_source(url, label, kind, reject=reject), options, label)
    name = None if label is None else _before(options.steps, label)
    if not any(isinstance(step, MapBatches) for step in options.steps):
        return prepare(open_source(url, name, kind, options.features, reject), options, label)
    source = open_source(
        url, None, kind, options.features, reject
    )  # the label may be a column that a function is yet to make
    if source.schema.label not in (None, name) and name is not None:  # images: the label is there, by any name
        source = open_source(url, name, kind, options.features, reject)
    return prepare(source, options, label)


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
    if len(told) == 1 and told & draft_columns(source):  # alone, and not read with the image: it may be anything's
        told = set()
    return ImageSource.over(result, options.images, **{side: sides[side] if side in told else None for side in sides})


def _before(steps: Sequence[Step], name: str) -> str:
    """What a column that bears a name after the steps was called before them."""
    for step in reversed(steps):
        if isinstance(step, Rename):
            name = {new: old for old, new in step.names}.get(name, name)
    return name


def _after(steps: Sequence[Step], name: str) -> str:
    """What a column is called after the steps, if it is still there."""
    for step in steps:
        if isinstance(step, Rename):
            name = dict(step.names).get(name, name)
    return name

"""Pickles loaders as the arguments that make them; the other process makes its own threads, caches and clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ringfeed.sharding.errors import DatasetError

T = TypeVar("T")


def remake(kind: type[T], arguments: Mapping[str, Any], identity: object) -> T:
    """Make a loader or mixture again in another process.

    Args:
        kind: `Loader`, `Mixture` or a subclass that takes the same arguments.
        arguments: keyword arguments of the pickled one.
        identity: its attribute `identity`.

    Raises:
        RingfeedError: it cannot be made here.
        DatasetError: its batches would differ.
    """
    made = kind(**arguments)
    if made.identity != identity:  # type: ignore[attr-defined]
        raise DatasetError(
            f"the {kind.__name__.lower()} cannot be made again as it was pickled: its dataset was rewritten since, and "
            "its batches would differ; make and pickle it anew"
        )
    return made

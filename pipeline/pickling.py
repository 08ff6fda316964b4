"""Loaders in other processes: pickled as the arguments that make them.

Threads, caches and clients of stores are made anew on the other side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ..sharding.errors import DatasetError

__all__ = ["remake"]

T = TypeVar("T")


def remake(kind: type[T], arguments: Mapping[str, Any], identity: object) -> T:
    """The same loader or mixture, in another process.

    Args:
        kind: of the two, or a class that takes the same arguments.
        arguments: that it was made of.
        identity: the attribute `identity` of the one that was pickled.

    Raises:
        RingfeedError: it can not be made here.
        DatasetError: its batches would be others.
    """
    made = kind(**arguments)
    if made.identity != identity:  # type: ignore[attr-defined]
        raise DatasetError(
            f"the {kind.__name__.lower()} cannot be made again as it was pickled: its dataset was rewritten since, and "
            "its batches would be others; make and pickle it anew"
        )
    return made

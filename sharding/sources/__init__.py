"""Readers of training data, one format a module, behind the `Source` protocol."""

from .base import Part, Source, select_part
from .detect import KINDS, open_source

__all__ = ["KINDS", "Part", "Source", "open_source", "select_part"]

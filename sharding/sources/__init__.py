"""Readers of the datasets people have, one format a module, behind one protocol."""

from .base import Part, Source, select_part
from .detect import KINDS, open_source

__all__ = ["KINDS", "Part", "Source", "open_source", "select_part"]

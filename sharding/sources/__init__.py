"""Readers of the datasets people have, one format a module, behind one protocol."""

from .base import Part, Source, light
from .detect import KINDS, open_source

__all__ = ["KINDS", "Part", "Source", "light", "open_source"]

# What this package offers, by module. `__init__.py` reads it, and imports a name when it is first used.

from .base import Part, Source, select_part
from .detect import KINDS, open_source

__all__ = ["KINDS", "Part", "Source", "open_source", "select_part"]

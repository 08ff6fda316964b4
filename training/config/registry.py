"""The groups of keys that depend on a method."""

from __future__ import annotations

from collections.abc import Mapping

from .compression import COMPRESSIONS
from .method import Methods
from .optimizers import OPTIMIZERS
from .sync import SYNCS

METHODS: Mapping[str, Methods] = {methods.group: methods for methods in (OPTIMIZERS, COMPRESSIONS, SYNCS)}

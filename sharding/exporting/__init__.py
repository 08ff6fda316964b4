"""Exports to the formats of other programs. Each module writes the files of one of them without importing it."""

from __future__ import annotations

__all__: list[str] = []

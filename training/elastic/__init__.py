"""Restarts of a run whose ranks die, or whose number changes."""

__all__: list[str] = []

"""Measurements of a loader, its parts, its store, and the training that it feeds."""

__all__: list[str] = []

"""The start of ranks, on one machine or on Ray, and restarts of a run whose ranks die or whose number changes."""

__all__: list[str] = []

"""Measurements: store, loader stages, transform and step, over a run's own batches; and what real runs recorded."""

__all__: list[str] = []

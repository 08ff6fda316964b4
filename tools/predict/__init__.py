"""Predictions: epochs by a discrete-event model, the gain of an option, the search for better ones."""

__all__: list[str] = []

"""Measurements: store, loader stages, transform and step, over a run's own batches; and what real runs recorded.

Tested in tests/tools/profile/test_measure.py.
"""

__all__: list[str] = []

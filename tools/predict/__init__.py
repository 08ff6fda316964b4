"""Predictions: epochs by a discrete-event model, the gain of an option, the search for better ones.

Tested in tests/tools/predict/test_simulator.py.
"""

__all__: list[str] = []

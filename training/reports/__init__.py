"""The reports of a run: events, and what subscribes to them: console, history, trackers, each rank's records.

Tested in tests/training/reports/test_trackers.py.
"""

__all__: list[str] = []

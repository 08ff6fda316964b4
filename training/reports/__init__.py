"""The reports of a run: events, and what subscribes to them: console, history, trackers, each rank's records."""

__all__: list[str] = []

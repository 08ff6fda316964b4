"""The launcher's part of a run: it starts processes, listens to them, replaces the dead, and says how the run ended."""

__all__: list[str] = []
